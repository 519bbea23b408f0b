//! What a relay says, read as leniently as relays write it.

use std::borrow::Cow;

use serde_json::value::RawValue;

use super::{EventId, PeerText, Reason};

/// A frame that is no message of a relay. It is logged and passed over, never the end of a
/// connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// Not a JSON array that begins with a word.
    #[error("expected a JSON array that begins with a verb")]
    NotAMessage,
    /// A verb that no NIP in use has.
    #[error("unknown verb {0}")]
    UnknownVerb(PeerText),
    /// A known verb with something else behind it than it takes.
    #[error("{verb}: expected {expected}")]
    Expected {
        /// The verb.
        verb: &'static str,
        /// What belongs behind it.
        expected: &'static str,
    },
}

/// Whether a result is complete (NIP-67).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EoseHint {
    /// All that matches was sent.
    Finish,
    /// There is more: page on.
    More,
}

/// A message from a relay (NIP-01, NIP-42, NIP-67, NIP-77). Subscription ids are as the relay
/// wrote them.
#[derive(Debug)]
pub enum RelayMessage<'a> {
    /// An event for a subscription, not looked at yet.
    Event {
        /// The subscription.
        sub: Cow<'a, str>,
        /// Its JSON, byte for byte.
        event: &'a str,
    },
    /// The end of what is stored.
    Eose {
        /// The subscription.
        sub: Cow<'a, str>,
        /// NIP-67's hint, where there is one.
        hint: Option<EoseHint>,
    },
    /// The relay ended a subscription.
    Closed {
        /// The subscription.
        sub: Cow<'a, str>,
        /// Why.
        reason: Reason,
    },
    /// What became of an event that was published.
    Ok {
        /// The event; `None` where the relay does not say (`["OK","",false,…]`).
        id: Option<EventId>,
        /// Whether it was taken.
        accepted: bool,
        /// Why, or why not.
        reason: Reason,
    },
    /// Words for people.
    Notice(PeerText),
    /// A challenge (NIP-42).
    Auth(String),
    /// A negentropy message, decoded from hex.
    NegMsg {
        /// The session.
        sub: Cow<'a, str>,
        /// Its bytes.
        message: Vec<u8>,
    },
    /// The end of a negentropy session.
    NegErr {
        /// The session.
        sub: Cow<'a, str>,
        /// Why.
        reason: Reason,
        /// The most events the relay reconciles, where it says so.
        max: Option<u64>,
    },
}

impl<'a> RelayMessage<'a> {
    /// Reads one frame.
    ///
    /// # Errors
    /// When it is no message, or one that says too little to be of use.
    pub fn parse(frame: &'a str) -> Result<Self, MessageError> {
        let parts: Vec<&RawValue> = serde_json::from_str(frame).map_err(|_| MessageError::NotAMessage)?;
        let (verb, rest) = parts.split_first().ok_or(MessageError::NotAMessage)?;
        let verb = text(verb).ok_or(MessageError::NotAMessage)?;
        match verb.as_ref() {
            "EVENT" => {
                let expected = MessageError::Expected { verb: "EVENT", expected: "a subscription id and an event" };
                let [sub, event, ..] = rest else { return Err(expected) };
                Ok(Self::Event { sub: text(sub).ok_or(expected)?, event: event.get() })
            }
            "EOSE" => {
                let sub = first(rest, "EOSE")?;
                // Unknown hints mean nothing, and so does a hint of another shape.
                let hints = rest.get(1).and_then(|raw| serde_json::from_str::<Vec<String>>(raw.get()).ok());
                let hint = hints.unwrap_or_default().iter().find_map(|hint| match hint.as_str() {
                    "finish" => Some(EoseHint::Finish),
                    "more" => Some(EoseHint::More),
                    _ => None,
                });
                Ok(Self::Eose { sub, hint })
            }
            "CLOSED" => Ok(Self::Closed { sub: first(rest, "CLOSED")?, reason: reason(rest.get(1)) }),
            "OK" => {
                let expected = MessageError::Expected { verb: "OK", expected: "an event id and true or false" };
                let [id, accepted, ..] = rest else { return Err(expected) };
                let id = text(id).ok_or_else(|| expected.clone())?.parse().ok();
                let accepted = serde_json::from_str(accepted.get()).map_err(|_| expected)?;
                Ok(Self::Ok { id, accepted, reason: reason(rest.get(2)) })
            }
            "NOTICE" => Ok(Self::Notice(PeerText::new(&first(rest, "NOTICE")?))),
            "AUTH" => Ok(Self::Auth(first(rest, "AUTH")?.into_owned())),
            "NEG-MSG" => {
                let expected = MessageError::Expected { verb: "NEG-MSG", expected: "a session id and hex digits" };
                let [sub, message, ..] = rest else { return Err(expected) };
                let message = text(message).and_then(|digits| hex::decode(digits.as_bytes()).ok());
                match (text(sub), message) {
                    (Some(sub), Some(message)) => Ok(Self::NegMsg { sub, message }),
                    _ => Err(expected),
                }
            }
            "NEG-ERR" => {
                let max = rest.get(2).and_then(|raw| serde_json::from_str(raw.get()).ok());
                Ok(Self::NegErr { sub: first(rest, "NEG-ERR")?, reason: reason(rest.get(1)), max })
            }
            other => Err(MessageError::UnknownVerb(PeerText::new(other))),
        }
    }
}

fn text(raw: &RawValue) -> Option<Cow<'_, str>> {
    let quoted = raw.get();
    // Nearly every text is free of escapes and can be used where it stands.
    match quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Some(Cow::Borrowed(plain)),
        _ => serde_json::from_str(quoted).ok().map(Cow::Owned),
    }
}

fn first<'a>(rest: &[&'a RawValue], verb: &'static str) -> Result<Cow<'a, str>, MessageError> {
    rest.first().and_then(|raw| text(raw)).ok_or(MessageError::Expected { verb, expected: "a text" })
}

fn reason(raw: Option<&&RawValue>) -> Reason {
    Reason::parse(&raw.and_then(|raw| text(raw)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::Prefix;

    fn parse(frame: &str) -> RelayMessage<'_> {
        RelayMessage::parse(frame).unwrap()
    }

    #[test]
    fn what_relays_really_send_is_read() {
        let id = "a".repeat(64);
        assert!(matches!(parse(r#"["OK","",false,"invalid: x"]"#), RelayMessage::Ok { id: None, accepted: false, .. }));
        let three = format!(r#"["OK","{id}",true]"#);
        assert!(matches!(parse(&three), RelayMessage::Ok { id: Some(_), accepted: true, .. }));
        assert!(matches!(parse(r#"["CLOSED","s"]"#), RelayMessage::Closed { .. }));
        assert!(matches!(parse(r#"["EOSE","s"]"#), RelayMessage::Eose { hint: None, .. }));
        assert!(matches!(parse(r#"["EOSE","s",["finish"]]"#), RelayMessage::Eose { hint: Some(EoseHint::Finish), .. }));
        assert!(matches!(parse(r#"["EOSE","s",["new"],1]"#), RelayMessage::Eose { hint: None, .. }));
        assert!(matches!(parse(r#"["EOSE","s","more"]"#), RelayMessage::Eose { hint: None, .. }));
        let neg = parse(r#"["NEG-ERR","n","blocked: too many",100]"#);
        assert!(matches!(
            neg,
            RelayMessage::NegErr { max: Some(100), reason: Reason { prefix: Prefix::Blocked, .. }, .. }
        ));
        assert!(matches!(parse(r#"["NEG-MSG","n","61"]"#), RelayMessage::NegMsg { message, .. } if message == [0x61]));
        let RelayMessage::Event { sub, event } = parse(r#"["EVENT","s\u0041", {"id": 1} ]"#) else { panic!() };
        assert_eq!((sub.as_ref(), event), ("sA", r#"{"id": 1}"#));
    }

    #[test]
    fn what_says_nothing_is_an_error_of_that_frame() {
        for frame in
            ["", "{}", "[]", "[1]", r#"["OK"]"#, r#"["NEG-MSG","n","6"]"#, r#"["EVENT","s"]"#, r#"["COUNT","s",{}]"#]
        {
            assert!(RelayMessage::parse(frame).is_err(), "{frame}");
        }
    }
}
