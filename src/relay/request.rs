//! What can be asked of a relay on a connection, and what comes back.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::nostr::{EoseHint, Event, EventId, Filter, NegRefusal, Reason};

/// The caller's name for a request, unique on a connection.
pub type Token = u64;

/// Bytes of WebSocket text sent and received on behalf of one user of a connection.
#[derive(Debug, Default)]
pub struct Meter {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Meter {
    /// Bytes sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes received so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    pub(super) fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(super) fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// What one connection allows.
#[derive(Clone, Debug)]
pub struct SessionLimits {
    /// Subscriptions open at once, negentropy sessions not among them.
    pub max_subscriptions: usize,
    /// How long to wait for the first, and for any further, answer to a request.
    pub answer: Duration,
    /// How long to wait for the first answer to a NEG-OPEN.
    pub neg_open: Duration,
    /// How long to send nothing new after the relay asked to slow down.
    pub cooldown: Duration,
    /// Whether a key is at hand to answer AUTH challenges.
    pub can_sign: bool,
}

/// Something to ask of a relay.
#[derive(Clone, Debug)]
pub enum Request {
    /// The stored events of a filter, up to EOSE.
    Req {
        /// What is asked.
        filter: Filter,
        /// The most events to ask for.
        limit: usize,
        /// The most events to take before the relay counts as flooding.
        quota: usize,
    },
    /// Events as they appear, until it is closed. One stored event a filter is asked for as well:
    /// some relays read `limit: 0` as "no limit", and some never send its EOSE.
    Live {
        /// What is asked: what matches any of them.
        filters: Vec<Filter>,
    },
    /// A negentropy session, which stays open until it is closed.
    NegOpen {
        /// What is compared.
        filter: Filter,
        /// The first query.
        message: Vec<u8>,
    },
    /// An event for the relay to store.
    Publish {
        /// Its id.
        id: EventId,
        /// Its JSON, byte for byte.
        raw: Box<str>,
    },
}

/// What came of a request. `End`, `Ack`, `NegRefused` and `Failed` are the last of their token.
#[derive(Debug)]
pub enum Delivery {
    /// An event that matches the request and whose id is its hash. Its signature is unchecked.
    Event(Event),
    /// An event under this id that is not one, or has another id really.
    Invalid(EventId),
    /// The end of what is stored.
    End {
        /// All events that came, whether they matched or not.
        received: usize,
        /// Whether there is more.
        hint: Option<EoseHint>,
    },
    /// From here on events come as they appear.
    Listening,
    /// The relay's word on a published event.
    Ack {
        /// Whether it was taken.
        accepted: bool,
        /// Why, or why not.
        reason: Reason,
    },
    /// The answer to a negentropy query.
    NegMessage(Vec<u8>),
    /// The session was refused or ended.
    NegRefused(NegRefusal),
    /// Nothing more will come.
    Failed(Failure),
}

/// Why a request came to nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The relay wants to know who asks, and does not accept our answer or we have none.
    AuthRefused(Reason),
    /// The relay closed the subscription before its EOSE.
    Closed(Reason),
    /// More events came than were asked for, many times over.
    Flood,
    /// Events came faster than they were taken.
    Overrun,
    /// The connection ended.
    Lost(String),
    /// No progress in time.
    TimedOut(Duration),
    /// There was no connection to begin with.
    Unreachable(String),
}
