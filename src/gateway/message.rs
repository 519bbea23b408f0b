//! The negentropy messages of a client (NIP-77), told from all others and read. Pure.

use std::borrow::Cow;

use serde_json::Value;
use serde_json::value::RawValue;

use super::names::word;
use super::refusal::Refusal;
use crate::nostr::Filter;

/// The longest session id: what NIP-01 permits a subscription.
const MAX_ID: usize = 64;

/// What a client wants compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The filter, less its `limit`.
    pub filter: Filter,
    /// The filter as it was written, where it has a `limit`: only the relay itself can say which
    /// events that leaves.
    pub limited: Option<Box<str>>,
}

/// A negentropy message from a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NegMessage {
    /// NEG-OPEN.
    Open {
        /// The session.
        id: String,
        /// What is compared.
        wanted: Wanted,
        /// The first query.
        query: Vec<u8>,
    },
    /// NEG-MSG.
    Message {
        /// The session.
        id: String,
        /// The next query.
        query: Vec<u8>,
    },
    /// NEG-CLOSE.
    Close {
        /// The session.
        id: String,
    },
}

/// A negentropy message that is not one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The session it is about; `None` where no NEG-ERR could name it.
    pub id: Option<String>,
    /// What is wrong.
    pub refusal: Refusal,
}

/// Whether a frame is a negentropy message, by its first few bytes. All others belong to the
/// relay, whatever is in them.
#[must_use]
pub fn is_negentropy(frame: &str) -> bool {
    let rest = frame.trim_ascii_start().strip_prefix('[');
    rest.is_some_and(|rest| rest.trim_ascii_start().starts_with("\"NEG-"))
}

impl NegMessage {
    /// Reads a frame that [`is_negentropy`].
    ///
    /// # Errors
    /// When it does not say what NIP-77 says it does.
    pub fn parse(frame: &str) -> Result<Self, Unreadable> {
        let nameless = |what: &str| Unreadable { id: None, refusal: Refusal::Malformed(what.to_owned()) };
        let parts: Vec<&RawValue> = match serde_json::from_str(frame) {
            Ok(parts) => parts,
            Err(_) => {
                let id = plain_id(frame).map(str::to_owned);
                return Err(Unreadable { id, ..nameless("expected a JSON array") });
            }
        };
        let mut parts = parts.into_iter();
        let verb = parts.next().and_then(text).ok_or_else(|| nameless("expected a verb"))?;
        let id = parts.next().and_then(text).ok_or_else(|| nameless("expected a session id behind the verb"))?;
        if id.is_empty() || id.len() > MAX_ID {
            return Err(nameless("expected a session id of 1 to 64 bytes"));
        }
        let id = id.into_owned();
        let wrong = |refusal| Unreadable { id: Some(id.clone()), refusal };
        let malformed = |what: &str| wrong(Refusal::Malformed(what.to_owned()));
        let query = |part: Option<&RawValue>| {
            let digits = part.and_then(text).ok_or_else(|| malformed("expected a message in hex digits"))?;
            hex::decode(digits.as_bytes()).map_err(|_| malformed("expected a message in hex digits"))
        };
        match verb.as_ref() {
            "NEG-OPEN" => {
                let filter = parts.next().ok_or_else(|| malformed("expected a filter behind the session id"))?;
                let wanted = Wanted::read(filter.get()).map_err(wrong)?;
                let query = query(parts.next())?;
                Ok(Self::Open { id, wanted, query })
            }
            "NEG-MSG" => Ok(Self::Message { query: query(parts.next())?, id }),
            "NEG-CLOSE" => Ok(Self::Close { id }),
            _ => Err(nameless("unknown negentropy message")),
        }
    }
}

impl Wanted {
    fn read(text: &str) -> Result<Self, Refusal> {
        let wrong = |what: String| Refusal::Filter(what);
        let mut value: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let limit = value.as_object_mut().and_then(|filter| filter.remove("limit"));
        if limit.as_ref().is_some_and(|limit| !limit.is_u64()) {
            return Err(wrong("\"limit\": expected a number".to_owned()));
        }
        let filter = Filter::from_value(&value).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { filter, limited: limit.map(|_| text.into()) })
    }
}

/// The id in a frame that is no JSON, as far as it can be seen.
fn plain_id(frame: &str) -> Option<&str> {
    let (_, rest) = word(frame.trim_ascii_start().strip_prefix('[')?)?;
    let (id, _) = word(rest.trim_ascii_start().strip_prefix(',')?)?;
    (1..=MAX_ID).contains(&id.len()).then_some(id)
}

fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    match word(raw.get()) {
        Some((plain, "")) => Some(Cow::Borrowed(plain)),
        _ => serde_json::from_str(raw.get()).ok().map(Cow::Owned),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(frame: &str) -> (Option<String>, &'static str) {
        let error = NegMessage::parse(frame).unwrap_err();
        (error.id, error.refusal.label())
    }

    #[test]
    fn only_negentropy_is_taken_from_the_stream() {
        for frame in [r#"["NEG-OPEN","a",{},"61"]"#, "\t[\n \"NEG-", r#"["NEG-ERR"]"#] {
            assert!(is_negentropy(frame), "{frame}");
        }
        for frame in [
            "",
            "[",
            r#"["REQ","NEG-OPEN",{}]"#,
            r#"["EVENT",{"content":"[\"NEG-OPEN\""}]"#,
            r#"x["NEG-OPEN"]"#,
            "NEG-",
        ] {
            assert!(!is_negentropy(frame), "{frame}");
        }
    }

    #[test]
    fn what_nip_77_says_is_read() {
        let open = r#" [ "NEG-OPEN" , "a\u0062", {"kinds":[1], "limit" : 5}, "6100", "more"]"#;
        let wanted = Wanted {
            filter: r#"{"kinds":[1]}"#.parse().unwrap(),
            limited: Some(r#"{"kinds":[1], "limit" : 5}"#.into()),
        };
        assert_eq!(NegMessage::parse(open), Ok(NegMessage::Open { id: "ab".into(), wanted, query: vec![0x61, 0] }));
        let message = NegMessage::Message { id: "é".into(), query: vec![] };
        assert_eq!(NegMessage::parse(r#"["NEG-MSG","é",""]"#), Ok(message));
        assert_eq!(NegMessage::parse(r#"["NEG-CLOSE","a"]"#), Ok(NegMessage::Close { id: "a".into() }));
    }

    #[test]
    fn what_it_does_not_say_is_named() {
        let a = || Some("a".to_owned());
        for (frame, said) in [
            (r#"["NEG-OPEN","a",{},"6"]"#, (a(), "malformed")),
            (r#"["NEG-OPEN","a",{},"zz"]"#, (a(), "malformed")),
            (r#"["NEG-OPEN","a",{},61]"#, (a(), "malformed")),
            (r#"["NEG-OPEN","a",{}]"#, (a(), "malformed")),
            (r#"["NEG-OPEN","a"]"#, (a(), "malformed")),
            (r#"["NEG-OPEN","a",{},"61""#, (a(), "malformed")),
            (r#"["NEG-OPEN","a",[{}],"61"]"#, (a(), "filter")),
            (r#"["NEG-OPEN","a",{"kinds":[]},"61"]"#, (a(), "filter")),
            (r#"["NEG-OPEN","a",{"search":"x"},"61"]"#, (a(), "filter")),
            (r#"["NEG-OPEN","a",{"limit":-1},"61"]"#, (a(), "filter")),
            (r#"["NEG-MSG","a"]"#, (a(), "malformed")),
            (r#"["NEG-OPEN"]"#, (None, "malformed")),
            (r#"["NEG-OPEN","",{},"61"]"#, (None, "malformed")),
            (r#"["NEG-OPEN",1,{},"61"]"#, (None, "malformed")),
            (r#"["NEG-WHAT","a"]"#, (None, "malformed")),
            (r#"["NEG-"#, (None, "malformed")),
        ] {
            assert_eq!(refused(frame), said, "{frame}");
        }
    }

    #[test]
    fn long_ids_and_deep_json_are_refused() {
        let long = format!(r#"["NEG-OPEN","{}",{{}},"61"]"#, "a".repeat(100_000));
        assert_eq!(refused(&long), (None, "malformed"));
        let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let frame = format!(r#"["NEG-OPEN","a",{},"61"]"#, deep(500_000));
        assert_eq!(refused(&frame), (Some("a".to_owned()), "filter"));
        let frame = format!(r#"["NEG-OPEN","a",{{"ids":{}}},"61"]"#, deep(200));
        assert_eq!(refused(&frame), (Some("a".to_owned()), "filter"));
    }
}
