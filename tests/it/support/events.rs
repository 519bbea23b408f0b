//! Signed events of every sort, and forged ones.

use std::collections::BTreeSet;

use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;
use serde::Deserialize;
use serde_json::{Value, json};

/// A time that every relay takes and nothing has expired at.
pub const EPOCH: u64 = 1_700_000_000;

/// The present, for events whose time matters.
pub fn now() -> u64 {
    Timestamp::now().as_secs()
}

/// An event, with its JSON as a relay gets it.
#[derive(Clone, Debug, Deserialize)]
pub struct Event {
    pub id: String,
    pub pubkey: String,
    pub created_at: u64,
    pub kind: u16,
    pub tags: Vec<Vec<String>>,
    pub content: String,
    #[serde(skip)]
    pub json: String,
}

impl Event {
    /// Reads an event without checking it.
    pub fn read(json: &str) -> Option<Self> {
        let event: Self = serde_json::from_str(json).ok()?;
        Some(Self { json: json.to_owned(), ..event })
    }

    /// Whether its id and its signature are right.
    pub fn is_valid(&self) -> bool {
        nostr::event::Event::from_json(&self.json).is_ok_and(|event| event.verify().is_ok())
    }

    /// The first values of the tags with this name.
    pub fn tag_values<'e>(&'e self, name: &'e str) -> impl Iterator<Item = &'e str> {
        self.tags.iter().filter(move |tag| tag[0] == name).filter_map(|tag| tag.get(1).map(String::as_str))
    }

    /// `kind:pubkey:d`, for replaceable and addressable events.
    pub fn address(&self) -> Option<String> {
        let d = match self.kind {
            0 | 3 | 10_000..=19_999 => "",
            30_000..=39_999 => self.tag_values("d").next().unwrap_or_default(),
            _ => return None,
        };
        Some(format!("{}:{}:{d}", self.kind, self.pubkey))
    }

    /// The same event under an id that is not its hash.
    pub fn with_forged_id(&self) -> Self {
        self.with("id", json!(flip_first_digit(&self.id)))
    }

    /// The same event with a signature that nobody made.
    pub fn with_forged_signature(&self) -> Self {
        let value: Value = serde_json::from_str(&self.json).unwrap();
        let sig = value["sig"].as_str().unwrap();
        self.with("sig", json!(flip_first_digit(sig)))
    }

    /// The same event, id and signature included, with other content.
    pub fn with_forged_content(&self) -> Self {
        self.with("content", json!("never written by its author"))
    }

    fn with(&self, key: &str, value: Value) -> Self {
        let mut object: Value = serde_json::from_str(&self.json).unwrap();
        object[key] = value;
        Self::read(&object.to_string()).unwrap()
    }
}

fn flip_first_digit(hex: &str) -> String {
    let digit = if hex.starts_with('0') { '1' } else { '0' };
    format!("{digit}{}", &hex[1..])
}

/// The ids of events.
pub fn ids<'e>(events: impl IntoIterator<Item = &'e Event>) -> BTreeSet<String> {
    events.into_iter().map(|event| event.id.clone()).collect()
}

/// Somebody who writes events. The same number is always the same person, and the same event
/// always has the same id.
#[derive(Clone)]
pub struct Author(Keys);

impl Author {
    /// The person with this number, 1 or more.
    pub fn new(number: u8) -> Self {
        Self(Keys::parse(&format!("{number:02x}").repeat(32)).unwrap())
    }

    pub fn pubkey(&self) -> String {
        self.0.public_key().to_hex()
    }

    /// The secret key in hex, as a key file holds it.
    pub fn secret(&self) -> String {
        self.0.secret_key().to_secret_hex()
    }

    /// Any event at all.
    pub fn event(&self, kind: u16, at: u64, tags: &[&[&str]], content: &str) -> Event {
        let event = EventBuilder::new(Kind::from_u16(kind), content)
            .tags(tags.iter().map(|tag| Tag::parse(tag.iter().copied()).unwrap()))
            .custom_created_at(Timestamp::from_secs(at))
            .finalize(&self.0)
            .unwrap();
        Event::read(&event.as_json()).unwrap()
    }

    pub fn note(&self, at: u64) -> Event {
        self.note_saying(at, "hello")
    }

    pub fn note_saying(&self, at: u64, content: &str) -> Event {
        self.event(1, at, &[], content)
    }

    /// `count` different notes, one a second from `first` on. About 30 µs each.
    pub fn notes(&self, count: usize, first: u64) -> Vec<Event> {
        (first..).take(count).map(|at| self.note(at)).collect()
    }

    /// `count` different notes of one and the same second.
    pub fn notes_of_one_second(&self, count: usize, at: u64) -> Vec<Event> {
        (0..count).map(|number| self.note_saying(at, &number.to_string())).collect()
    }

    /// A version of the author's replaceable event of this kind (0, 3, 10000 to 19999).
    pub fn replaceable(&self, kind: u16, at: u64, content: &str) -> Event {
        self.event(kind, at, &[], content)
    }

    /// A version of the author's addressable event (30000 to 39999) named `d`.
    pub fn addressable(&self, kind: u16, d: &str, at: u64, content: &str) -> Event {
        self.event(kind, at, &[&["d", d]], content)
    }

    /// A request to delete these events (NIP-09).
    pub fn delete(&self, at: u64, events: &[&Event]) -> Event {
        self.deletion(at, "e", events.iter().map(|event| event.id.as_str()))
    }

    /// A request to delete all versions up to `at` under these addresses (NIP-09).
    pub fn delete_addresses(&self, at: u64, addresses: &[&str]) -> Event {
        self.deletion(at, "a", addresses.iter().copied())
    }

    fn deletion<'v>(&self, at: u64, name: &str, values: impl Iterator<Item = &'v str>) -> Event {
        let tags: Vec<[&str; 2]> = values.map(|value| [name, value]).collect();
        let tags: Vec<&[&str]> = tags.iter().map(|tag| tag.as_slice()).collect();
        self.event(5, at, &tags, "")
    }

    /// A request to vanish (NIP-62) from `relay`, a URL or `ALL_RELAYS`.
    pub fn vanish(&self, at: u64, relay: &str) -> Event {
        self.event(62, at, &[&["relay", relay]], "")
    }

    /// A note that expires (NIP-40).
    pub fn expiring(&self, at: u64, expires: u64) -> Event {
        self.event(1, at, &[&["expiration", &expires.to_string()]], "soon gone")
    }

    pub fn ephemeral(&self, at: u64) -> Event {
        self.event(20_001, at, &[], "")
    }

    /// A note that only its author may publish (NIP-70).
    pub fn protected(&self, at: u64) -> Event {
        self.event(1, at, &[&["-"]], "mine")
    }

    /// A gift wrap (NIP-59) addressed to `to`, a public key.
    pub fn gift_wrap(&self, at: u64, to: &str) -> Event {
        self.event(1059, at, &[&["p", to]], "sealed")
    }

    /// The answer to a challenge (NIP-42).
    pub fn auth(&self, relay: &str, challenge: &str) -> Event {
        self.event(22_242, now(), &[&["relay", relay], &["challenge", challenge]], "")
    }
}
