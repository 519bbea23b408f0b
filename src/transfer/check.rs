//! What may pass: an event is looked at once, between fetch and publish.

use std::collections::{HashMap, HashSet};

use crate::nostr::{Event, EventId, Filter, PublicKey, RelayUrl, Timestamp, Validity, kind};
use crate::outcome::Skip;

/// An event that expires within this many seconds is not worth the way (PROTOCOL section 4).
const EXPIRY_MARGIN: u64 = 60;

/// What is asked of every event on one way.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The present.
    pub now: Timestamp,
    /// Events that are never moved.
    pub exclude: Vec<Filter>,
    /// Who we are at the destination: only that author's protected events go there.
    pub authenticated_as: Option<PublicKey>,
    /// Where the events go.
    pub destination: RelayUrl,
    /// The longest message that the destination takes, in bytes.
    pub max_message: Option<usize>,
}

/// What deletion and vanish requests, held by either relay, say of a batch.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    ids: HashSet<(PublicKey, EventId)>,
    addresses: HashMap<String, Timestamp>,
    vanished: HashMap<PublicKey, Timestamp>,
}

/// An event that was looked at.
#[derive(Debug, PartialEq, Eq)]
pub struct Checked {
    /// The id under which it was asked for.
    pub id: EventId,
    /// What to do with it.
    pub verdict: Verdict,
}

/// What to do with an event.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Offer it to the destination.
    Publish {
        /// Its JSON, as it came.
        raw: Box<str>,
        /// When it says it was made.
        created_at: Timestamp,
        /// Whether a newer version of it may exist.
        replaceable: bool,
    },
    /// Do not offer it.
    Skip(Skip),
}

impl Checked {
    /// What it weighs in the spool, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match &self.verdict {
            Verdict::Publish { raw, .. } => raw.len(),
            Verdict::Skip(_) => 0,
        }
    }
}

impl Policy {
    /// Looks at one event, its signature included: about 40 µs of one core.
    #[must_use]
    pub fn check(&self, event: Event, requests: &Requests) -> Checked {
        let id = event.id();
        let forged = || (event.verify_signature() == Validity::WrongSignature).then_some(Skip::Invalid);
        let verdict = match self.skip(&event, requests).or_else(forged) {
            Some(skip) => Verdict::Skip(skip),
            None => Verdict::Publish {
                created_at: event.created_at(),
                replaceable: kind::is_replaceable(event.kind()) || kind::is_addressable(event.kind()),
                raw: event.into_raw(),
            },
        };
        Checked { id, verdict }
    }

    /// Why an event is not to be offered, its signature aside.
    #[must_use]
    pub fn skip(&self, event: &Event, requests: &Requests) -> Option<Skip> {
        let own_kind = event.kind();
        // EVENT's brackets, verb and commas.
        let message = event.raw().len() + 10;
        if kind::is_ephemeral(own_kind) || own_kind == kind::AUTH {
            Some(Skip::Ephemeral)
        } else if event.expiration().is_some_and(|at| at <= self.now + EXPIRY_MARGIN) {
            Some(Skip::Expired)
        } else if event.is_protected() && self.authenticated_as != Some(event.pubkey()) {
            Some(Skip::Protected)
        } else if self.exclude.iter().any(|filter| filter.matches(event)) {
            Some(Skip::Excluded)
        } else if self.max_message.is_some_and(|most| message > most) {
            Some(Skip::TooLarge)
        } else if own_kind == kind::VANISH && !asks_relay(event, &self.destination) || requests.vanished(event) {
            Some(Skip::Vanish)
        } else if requests.deleted(event) {
            Some(Skip::Deleted)
        } else {
            None
        }
    }
}

impl Requests {
    /// Takes a kind 5 or kind 62 event into account, if its signature is right.
    pub fn add(&mut self, request: &Event, destination: &RelayUrl) {
        if request.verify_signature() == Validity::WrongSignature {
            return;
        }
        let author = request.pubkey();
        match request.kind() {
            kind::DELETION => {
                self.ids.extend(request.tag_values("e").filter_map(|id| id.parse().ok()).map(|id| (author, id)));
                let own = author.to_string();
                // Nobody deletes another author's events.
                for address in request.tag_values("a").filter(|a| a.split(':').nth(1) == Some(own.as_str())) {
                    let until = self.addresses.entry(address.to_owned()).or_default();
                    *until = request.created_at().max(*until);
                }
            }
            kind::VANISH if asks_relay(request, destination) => {
                let until = self.vanished.entry(author).or_default();
                *until = request.created_at().max(*until);
            }
            _ => {}
        }
    }

    fn deleted(&self, event: &Event) -> bool {
        // A deletion request against a deletion request has no effect (NIP-09).
        event.kind() != kind::DELETION
            && (self.ids.contains(&(event.pubkey(), event.id()))
                || event.address().is_some_and(|address| {
                    self.addresses.get(&address).is_some_and(|until| event.created_at() <= *until)
                }))
    }

    fn vanished(&self, event: &Event) -> bool {
        event.kind() != kind::VANISH
            && self.vanished.get(&event.pubkey()).is_some_and(|until| event.created_at() <= *until)
    }
}

/// Whether a request to vanish (NIP-62) is made to this relay.
fn asks_relay(request: &Event, relay: &RelayUrl) -> bool {
    request.tag_values("relay").any(|value| value == "ALL_RELAYS" || value.parse() == Ok(relay.clone()))
}
