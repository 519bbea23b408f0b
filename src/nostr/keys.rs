//! A secret key for NIP-42, and the bech32 names of NIP-19.

use std::fmt;

use nostr::event::FinalizeEvent;
use nostr::nips::nip19::{FromBech32, Nip19};

use super::{EventId, PublicKey, Timestamp, kind};

/// A text that holds no secret key. It never repeats the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a secret key: nsec1… or 64 hex digits")]
pub struct KeysError;

/// A secret key and its public one.
#[derive(Clone)]
pub struct Keys(nostr::key::Keys);

impl Keys {
    /// Reads `nsec1…` or hex.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(text: &str) -> Result<Self, KeysError> {
        nostr::key::Keys::parse(text.trim()).map(Self).map_err(|_| KeysError)
    }

    /// Its public half.
    #[must_use]
    pub fn public_key(&self) -> PublicKey {
        PublicKey::new(*self.0.public_key().as_bytes())
    }

    /// The signed kind 22242 event that answers a challenge (NIP-42): its id and its JSON.
    ///
    /// # Errors
    /// When the key cannot sign.
    pub fn sign_auth(&self, relay: &str, challenge: &str, now: Timestamp) -> Result<(EventId, String), KeysError> {
        let tags = [["relay", relay], ["challenge", challenge]];
        let tags = tags.into_iter().filter_map(|tag| nostr::event::Tag::parse(tag).ok());
        let event = nostr::event::EventBuilder::new(nostr::event::Kind::from_u16(kind::AUTH), "")
            .tags(tags)
            .custom_created_at(nostr::types::Timestamp::from_secs(now))
            .finalize(&self.0)
            .map_err(|_| KeysError)?;
        Ok((EventId::new(*event.id.as_bytes()), event.as_json()))
    }
}

impl fmt::Debug for Keys {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.public_key())
    }
}

/// What a NIP-19 name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entity {
    /// `npub1…` or `nprofile1…`.
    Author(PublicKey),
    /// `note1…` or `nevent1…`.
    Event(EventId),
    /// `naddr1…`, as `kind:pubkey:d`.
    Address(String),
}

impl Entity {
    /// Reads a NIP-19 name; `None` for anything else, a secret key included.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Some(match Nip19::from_bech32(text).ok()? {
            Nip19::Pubkey(key) => Self::Author(PublicKey::new(*key.as_bytes())),
            Nip19::Profile(profile) => Self::Author(PublicKey::new(*profile.public_key.as_bytes())),
            Nip19::EventId(id) => Self::Event(EventId::new(*id.as_bytes())),
            Nip19::Event(event) => Self::Event(EventId::new(*event.event_id.as_bytes())),
            Nip19::Coordinate(at) => Self::Address(at.coordinate.to_string()),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_not_shown() {
        let secret = "7f3b1ac1b3c2a0d7a3f0fdbd8b8bbd3a9c1c1d2e3f405162738495a6b7c8d9ea";
        let keys = Keys::parse(secret).unwrap();
        assert!(!format!("{keys:?}").contains(secret));
        assert_eq!(Keys::parse("nsec1nonsense").unwrap_err(), KeysError);
    }

    #[test]
    fn an_auth_answer_names_relay_and_challenge() {
        let keys = Keys::parse(&"01".repeat(32)).unwrap();
        let (id, event) = keys.sign_auth("wss://h", "c4", 1_700_000_000).unwrap();
        let event = crate::nostr::Event::parse(&event).unwrap();
        assert_eq!(event.id(), id);
        assert_eq!(event.kind(), kind::AUTH);
        assert_eq!(event.pubkey(), keys.public_key());
        assert_eq!(event.tag_values("relay").collect::<Vec<_>>(), ["wss://h"]);
        assert_eq!(event.tag_values("challenge").collect::<Vec<_>>(), ["c4"]);
        assert_eq!(event.verify_signature(), crate::nostr::Validity::Valid);
    }

    #[test]
    fn names_are_read() {
        let npub = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";
        let hex = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e";
        assert_eq!(Entity::parse(npub), Some(Entity::Author(hex.parse().unwrap())));
        assert_eq!(Entity::parse(hex), None);
    }
}
