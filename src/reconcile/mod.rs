//! Which ids are on one side only: one question, three ways to answer it.
//!
//! Pure: questions go out, answers come in; no socket, no clock, no randomness.

mod chunk;
mod inventory;
mod ledger;
mod lists;
mod mediated;
mod message;
mod paged;
mod pager;
mod reconciliation;
mod strategy;
mod window;

#[cfg(test)]
mod tests;

pub use mediated::ExchangeError;
pub use message::MessageError;
pub use pager::{DenseSecond, PageSize, Pager, PagerError};
pub use reconciliation::{Reconciliation, Setup};

use crate::job_spec::Side;
use crate::nostr::{EoseHint, EventId, Filter, NegRefusal, PeerText, Timestamp};

/// Finds the difference between two relays, whichever way. It knows nothing of directions or of
/// transfer.
pub trait Reconciler {
    /// The next thing to do; `None` while an answer is awaited. Not polling is back-pressure.
    fn poll(&mut self) -> Option<Action>;

    /// Takes a side's answer to the question it was asked. A side has one question at a time.
    ///
    /// # Errors
    /// When the answer cannot be one to the question, or no way of asking is left.
    fn handle(&mut self, side: Side, answer: Answer) -> Result<(), ReconcileError>;
}

/// What a reconciler wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Put a question to a side; its answer is owed to [`Reconciler::handle`].
    Ask(Side, Question),
    /// This id is on one side only. It may be named again when a relay repeats itself, or when a
    /// window had to be started afresh.
    Found {
        /// The side that has it.
        on: Side,
        /// The id.
        id: EventId,
    },
    /// Every difference has been reported.
    Done,
}

/// A question to one relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A negentropy query. It stands alone: sent as NEG-MSG where a session with this filter is
    /// open, else as the NEG-OPEN of a new one (the old session, if any, is closed).
    Neg {
        /// The session's filter.
        filter: Filter,
        /// The query, before hex.
        message: Vec<u8>,
    },
    /// One page of a listing, newest first.
    Page {
        /// What to list, time window included.
        filter: Filter,
        /// The most events to ask for.
        limit: usize,
    },
}

/// A relay's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The bytes of a NEG-MSG.
    Neg(Vec<u8>),
    /// The session was refused or ended.
    Refused(NegRefusal),
    /// A page, complete to its EOSE.
    Page(Page),
}

/// One answered REQ of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The events that match what was asked.
    pub heads: Vec<Head>,
    /// All events that came, before any check: what tells a full page from a short one.
    pub received: usize,
    /// Whether there is more (NIP-67).
    pub hint: Option<EoseHint>,
}

/// What a listing keeps of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Head {
    /// When it says it was made.
    pub created_at: Timestamp,
    /// Its id.
    pub id: EventId,
}

/// Why a reconciliation stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReconcileError {
    /// The strategy that was forced cannot be used with this side.
    #[error("the {side} relay {refusal}, which strategy {strategy} needs")]
    Refused {
        /// The side that refused.
        side: Side,
        /// How.
        refusal: NegRefusal,
        /// What was forced.
        strategy: &'static str,
    },
    /// A side does not serve the filter to us: a person has to act.
    #[error(
        "the {side} relay does not serve this filter ({text}): ask its operator for access, or give this relay a \
         key with `auth:`"
    )]
    Restricted {
        /// The side that refused.
        side: Side,
        /// What it said.
        text: PeerText,
    },
    /// A NIP-77 answer that cannot be one.
    #[error("the {side} relay: {error}")]
    Exchange {
        /// The side that sent it.
        side: Side,
        /// What is wrong.
        error: ExchangeError,
    },
    /// A relay that cannot be listed.
    #[error("the {side} relay: {error}")]
    Listing {
        /// The side that was listed.
        side: Side,
        /// What is wrong.
        error: PagerError,
    },
    /// One second holds more ids than may be held at once.
    #[error("the {side} relay lists more events in second {second} than `inventory_events` allows for")]
    TooDense {
        /// The side that was listed.
        side: Side,
        /// The second.
        second: Timestamp,
    },
    /// An answer that nothing was asked for, or to another kind of question.
    #[error("the {side} relay: an answer that nothing was asked for")]
    Unasked {
        /// The side that sent it.
        side: Side,
    },
    /// The listed ids could not be put in order.
    #[error("the inventory: {0}")]
    Inventory(String),
}

impl ReconcileError {
    /// The side at fault, where it is one side's.
    #[must_use]
    pub const fn side(&self) -> Option<Side> {
        match self {
            Self::Refused { side, .. }
            | Self::Restricted { side, .. }
            | Self::Exchange { side, .. }
            | Self::Listing { side, .. }
            | Self::TooDense { side, .. }
            | Self::Unasked { side } => Some(*side),
            Self::Inventory(_) => None,
        }
    }

    /// Whether it takes a person to change it: asking again will not.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { .. } | Self::Restricted { .. })
    }
}
