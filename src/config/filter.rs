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
        if let Err(error) = Filter::from_value(&json!({key.as_str(): value})) {
            if findings.is_clean(&at) {
                findings.error(&at, explain(error));
            }
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
