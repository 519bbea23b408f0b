//! An event, kept as the text it came in, and the two 32-byte names in it.

use std::fmt;
use std::str::FromStr;

/// Seconds since the Unix epoch.
pub type Timestamp = u64;

/// Kind numbers and classes that Tieline treats specially.
pub mod kind {
    /// Deletion request (NIP-09).
    pub const DELETION: u16 = 5;
    /// Request to vanish (NIP-62).
    pub const VANISH: u16 = 62;
    /// Gift wrap (NIP-59).
    pub const GIFT_WRAP: u16 = 1059;
    /// Answer to an AUTH challenge (NIP-42).
    pub const AUTH: u16 = 22242;

    /// Whether relays are told not to keep the kind (NIP-01).
    #[must_use]
    pub const fn is_ephemeral(kind: u16) -> bool {
        matches!(kind, 20_000..=29_999)
    }

    /// Whether the newest event per author wins (NIP-01).
    #[must_use]
    pub const fn is_replaceable(kind: u16) -> bool {
        matches!(kind, 0 | 3 | 10_000..=19_999)
    }

    /// Whether the newest event per author and `d` tag wins (NIP-01).
    #[must_use]
    pub const fn is_addressable(kind: u16) -> bool {
        matches!(kind, 30_000..=39_999)
    }
}

/// Neither 64 lower-case hex digits nor 32 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 64 hex digits")]
pub struct IdError;

macro_rules! hex32 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 32]);

        impl $name {
            /// From its 32 bytes.
            #[must_use]
            pub const fn new(bytes: [u8; 32]) -> Self {
                Self(bytes)
            }

            /// Its 32 bytes.
            #[must_use]
            pub const fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                let mut bytes = [0; 32];
                hex::decode_to_slice(text, &mut bytes).map_err(|_| IdError)?;
                Ok(Self(bytes))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut digits = [0; 64];
                hex::encode_to_slice(self.0, &mut digits).map_err(|_| fmt::Error)?;
                f.write_str(str::from_utf8(&digits).map_err(|_| fmt::Error)?)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

hex32! {
    /// The hash that names an event.
    EventId
}
hex32! {
    /// The author of an event.
    PublicKey
}

/// An event that is not one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Not the JSON of an event.
    #[error("not an event: {what}")]
    Malformed {
        /// The id it claims, where that can be read.
        id: Option<EventId>,
        /// What is wrong.
        what: String,
    },
    /// Its id is not the hash of its content.
    #[error("the id {0} is not the hash of the event")]
    WrongId(EventId),
}

/// What a check of an event's signature says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Validity {
    /// Signed by its author.
    Valid,
    /// Signed by somebody else, or by nobody.
    WrongSignature,
}

/// An event whose id is the hash of its content; its signature is checked separately, because
/// that takes forty times as long.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    raw: Box<str>,
    inner: nostr::event::Event,
}

impl Event {
    /// Reads an event and checks that its id is the hash of its content.
    ///
    /// # Errors
    /// When the text is no event, or names itself wrongly.
    pub fn parse(raw: &str) -> Result<Self, EventError> {
        let inner = nostr::event::Event::from_json(raw).map_err(|error| malformed(raw, &error))?;
        let event = Self { raw: raw.into(), inner };
        if event.inner.verify_id() { Ok(event) } else { Err(EventError::WrongId(event.id())) }
    }

    /// The text it came in, byte for byte.
    #[must_use]
    pub fn raw(&self) -> &str {
        &self.raw
    }

    /// The text alone: all that is left of an event that only waits to be passed on.
    #[must_use]
    pub fn into_raw(self) -> Box<str> {
        self.raw
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> EventId {
        EventId(*self.inner.id.as_bytes())
    }

    /// Its author.
    #[must_use]
    pub fn pubkey(&self) -> PublicKey {
        PublicKey(*self.inner.pubkey.as_bytes())
    }

    /// When it says it was made.
    #[must_use]
    pub fn created_at(&self) -> Timestamp {
        self.inner.created_at.as_secs()
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> u16 {
        self.inner.kind.as_u16()
    }

    /// Its tags, each a list of one text or more.
    pub fn tags(&self) -> impl Iterator<Item = &[String]> {
        self.inner.tags.iter().map(nostr::event::Tag::as_slice)
    }

    /// The first values of the tags with this name.
    pub fn tag_values<'e>(&'e self, name: &'e str) -> impl Iterator<Item = &'e str> {
        self.tags().filter(move |tag| tag[0] == name).filter_map(|tag| tag.get(1).map(String::as_str))
    }

    /// When it expires (NIP-40).
    #[must_use]
    pub fn expiration(&self) -> Option<Timestamp> {
        self.tag_values("expiration").find_map(|value| value.parse().ok())
    }

    /// Whether only its author may publish it (NIP-70).
    #[must_use]
    pub fn is_protected(&self) -> bool {
        self.tags().any(|tag| tag[0] == "-")
    }

    /// `kind:pubkey:d`, for replaceable and addressable events.
    #[must_use]
    pub fn address(&self) -> Option<String> {
        let kind = self.kind();
        if kind::is_addressable(kind) {
            let d = self.tag_values("d").next().unwrap_or_default();
            Some(format!("{kind}:{}:{d}", self.pubkey()))
        } else if kind::is_replaceable(kind) {
            Some(format!("{kind}:{}:", self.pubkey()))
        } else {
            None
        }
    }

    /// Checks the signature: about 35 µs of one core.
    #[must_use]
    pub fn verify_signature(&self) -> Validity {
        if self.inner.verify_signature() { Validity::Valid } else { Validity::WrongSignature }
    }
}

fn malformed(raw: &str, error: &impl fmt::Display) -> EventError {
    #[derive(serde::Deserialize)]
    struct Claim<'a> {
        #[serde(borrow)]
        id: std::borrow::Cow<'a, str>,
    }
    let id = serde_json::from_str::<Claim<'_>>(raw).ok().and_then(|claim| claim.id.parse().ok());
    EventError::Malformed { id, what: error.to_string() }
}

impl fmt::Debug for Event {
    /// Without its content: that never goes into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("id", &self.id())
            .field("kind", &self.kind())
            .field("created_at", &self.created_at())
            .finish_non_exhaustive()
    }
}
