//! The words of Nostr as Tieline uses them: event, filter, relay message, reason, relay URL.
//!
//! The only place that names the `nostr` crate: it checks hashes and signatures, signs NIP-42
//! answers and reads NIP-19 names. Filters and relay messages are read here, because that crate
//! widens filters it does not understand and refuses messages that relays really send.

mod address;
mod event;
mod filter;
mod keys;
mod message;
mod reason;
mod url;

pub use address::is_public;
pub use event::{Event, EventError, EventId, IdError, PublicKey, Timestamp, Validity, kind};
pub use filter::{Filter, FilterError, TagName};
pub use keys::{Entity, Keys, KeysError};
pub use message::{EoseHint, MessageError, RelayMessage};
pub use reason::{NegRefusal, PeerText, Prefix, Reason};
pub use url::{RelayUrl, UrlError};
