//! Reads a filter as people write it: NIP-19 names where hex belongs, and readable times.

use std::time::UNIX_EPOCH;

use serde_json::{Map, Value, json};

use crate::job_spec::RelativeTime;
use crate::nostr::{Entity, EventId, Filter, FilterError, PublicKey, Timestamp};

use super::finding::{Findings, Path};

/// Reads a filter, or notes everything that is wrong with it.
pub(super) fn read(
    written: &Map<String, Value>,
    now: Timestamp,
    at: &Path,
    findings: &mut Findings<'_>,
) -> Option<(Filter, RelativeTime)> {
    let mut meant = Map::new();
    let mut relative = RelativeTime::default();
    for (key, value) in written {
        let at = at.key(key);
        let value = match (key.as_str(), value) {
            ("since" | "until", Value::String(text)) => {
                let Some(time) = Time::read(text) else {
                    findings.error(&at, "expected seconds since 1970, a time such as 2026-01-31T12:00:00Z, or -30d");
                    continue;
                };
                if let Time::Ago(ago) = time {
                    *if key == "since" { &mut relative.since } else { &mut relative.until } = Some(ago);
                }
                time.before(now).into()
            }
            (_, Value::Array(list)) => {
                let item = |(index, item)| read_item(key, item, &at.index(index), findings);
                list.iter().enumerate().map(item).collect()
            }
            _ => value.clone(),
        };
        // Alone, so that a fault in one key does not hide the next one's.
        if let Err(error) = Filter::from_value(&json!({key.as_str(): value}))
            && findings.is_clean(&at)
        {
            findings.error(&at, explain(error));
        }
        meant.insert(key.clone(), value);
    }
    if !findings.is_clean(at) {
        return None;
    }
    match Filter::from_value(&Value::Object(meant)) {
        Ok(filter) => Some((filter, relative)),
        Err(error) => {
            let at = error.key().map_or_else(|| at.clone(), |key| at.key(key));
            findings.error(&at, explain(error));
            None
        }
    }
}

/// One value of a list, with hex for a NIP-19 name.
fn read_item(key: &str, item: &Value, at: &Path, findings: &mut Findings<'_>) -> Value {
    let Value::String(text) = item else {
        if let Err(error) = Filter::from_value(&json!({key: [item]})) {
            findings.error(at, explain(error));
        }
        return item.clone();
    };
    let hex = match (key, Entity::parse(text)) {
        ("authors" | "#p" | "#P", Some(Entity::Author(key))) => Ok(key.to_string()),
        ("authors" | "#p" | "#P", _) => match text.parse::<PublicKey>() {
            Ok(key) => Ok(key.to_string()),
            Err(_) => Err("expected a public key: 64 hex digits, npub1… or nprofile1…"),
        },
        ("ids" | "#e" | "#E" | "#q", Some(Entity::Event(id))) => Ok(id.to_string()),
        ("ids" | "#e" | "#E", _) => match text.parse::<EventId>() {
            Ok(id) => Ok(id.to_string()),
            Err(_) => Err("expected an event id: 64 hex digits, note1… or nevent1…"),
        },
        ("#a" | "#A" | "#q", Some(Entity::Address(address))) => Ok(address),
        ("#a" | "#A", None) if text.splitn(3, ':').count() < 3 => Err("expected kind:pubkey:d or naddr1…"),
        ("#a" | "#A" | "#q", Some(_)) => Err("this NIP-19 name stands for something else than this tag holds"),
        _ => Ok(text.clone()),
    };
    hex.unwrap_or_else(|message| {
        findings.error(at, message);
        text.clone()
    })
    .into()
}

/// A time as written.
enum Time {
    /// Seconds since 1970.
    Fixed(Timestamp),
    /// Seconds before the present.
    Ago(u64),
}

impl Time {
    fn read(text: &str) -> Option<Self> {
        if let Some(span) = text.strip_prefix('-') {
            return humantime::parse_duration(span).ok().map(|span| Self::Ago(span.as_secs()));
        }
        let midnight = format!("{text}T00:00:00Z");
        let time = humantime::parse_rfc3339_weak(text).or_else(|_| humantime::parse_rfc3339_weak(&midnight)).ok()?;
        time.duration_since(UNIX_EPOCH).ok().map(|time| Self::Fixed(time.as_secs()))
    }

    const fn before(&self, now: Timestamp) -> Timestamp {
        match *self {
            Self::Fixed(time) => time,
            Self::Ago(ago) => now.saturating_sub(ago),
        }
    }
}

/// The error without the key: the path names that already.
fn explain(error: FilterError) -> String {
    match error {
        FilterError::Expected { expected, .. } => format!("expected {expected}"),
        FilterError::EmptyList(_) => {
            "this list is empty, and relays disagree whether that matches nothing or everything; \
            remove the key to match everything"
                .to_owned()
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::filter_from_json;

    const NOW: Timestamp = 1_800_000_000;
    const HEX: &str = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e";
    const NPUB: &str = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";

    #[test]
    fn filters_are_read_leniently() {
        let read = |text: &str| {
            let (filter, relative) = filter_from_json(text, NOW).unwrap_or_else(|errors| panic!("{errors}"));
            (filter.to_string(), relative)
        };
        let fixed = RelativeTime::default();
        let note = "note10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qnx3ujq";
        for key in ["authors", "#p", "#P"] {
            let tag = format!(r#"{{"{key}":["{HEX}"]}}"#);
            assert_eq!(read(&format!(r#"{{"{key}": ["{NPUB}"]}}"#)), (tag.clone(), fixed));
            assert_eq!(read(&format!(r#"{{"{key}": ["{}"]}}"#, HEX.to_uppercase())), (tag, fixed));
        }
        for key in ["ids", "#e", "#E", "#q"] {
            assert_eq!(read(&format!(r#"{{"{key}":["{note}"]}}"#)), (format!(r#"{{"{key}":["{HEX}"]}}"#), fixed));
        }
        let ago = RelativeTime { since: Some(2_592_000), until: Some(3600) };
        assert_eq!(
            read(r#"{"since":"-30d","until":"-1h"}"#),
            (format!(r#"{{"since":{},"until":{}}}"#, NOW - 2_592_000, NOW - 3600), ago)
        );
        for time in ["2001-09-09T01:46:40Z", "2001-09-09 01:46:40"] {
            assert_eq!(read(&format!(r#"{{"since":"{time}"}}"#)), (r#"{"since":1000000000}"#.to_owned(), fixed));
        }
        assert_eq!(read(r#"{"until":"2001-09-09"}"#), (r#"{"until":999993600}"#.to_owned(), fixed));
        assert_eq!(
            filter_from_json(
                &format!(r##"{{"kinds":[1],"authors":["{note}"],"#e":["x"],"kidns":1,"#a":["{NPUB}"]}}"##),
                NOW
            )
            .unwrap_err()
            .to_string(),
            "\
--filter:1:25: authors[0]: expected a public key: 64 hex digits, npub1… or nprofile1…
--filter:1:98: #e[0]: expected an event id: 64 hex digits, note1… or nevent1…
--filter:1:103: kidns: unknown key `kidns`, did you mean `kinds`?
--filter:1:119: #a[0]: this NIP-19 name stands for something else than this tag holds"
        );
    }

    #[test]
    fn an_address_stands_for_its_name() {
        use nostr::nips::nip19::ToBech32;
        let address = format!("30617:{HEX}:a:b");
        let author = nostr::key::PublicKey::from_hex(HEX).unwrap();
        let name = nostr::nips::nip01::Coordinate::new(30617.into(), author).identifier("a:b");
        let name = nostr::nips::nip19::Nip19Coordinate::new(name, []).to_bech32().unwrap();
        let (filter, _) = filter_from_json(&format!(r##"{{"#a":["{name}"]}}"##), NOW).unwrap();
        assert_eq!(filter.to_string(), format!(r##"{{"#a":["{address}"]}}"##));
    }
}
