//! What went wrong at a relay, and which.

use std::time::Duration;

use super::request::Failure;
use crate::nostr::{Prefix, Reason, RelayUrl};

/// What went wrong at a relay, and which.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {fault}")]
pub struct RelayError {
    /// The relay.
    pub url: RelayUrl,
    /// What happened.
    pub fault: Fault,
}

/// What a relay did, or did not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It wants to know who asks.
    #[error("wants authentication ({0}): give this relay a key with `auth:`, or ask its operator for access")]
    AuthRefused(Reason),
    /// It closed a subscription before its end.
    #[error("closed the subscription: {0}")]
    Closed(Reason),
    /// It sent many times more than was asked for.
    #[error("sent far more events than were asked for")]
    Flood,
    /// A stream brought events faster than they could be looked at.
    #[error("sends events faster than they can be passed on")]
    Overrun,
    /// The connection ended.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// It said nothing of use for too long.
    #[error("no progress within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// There is no connection to it.
    #[error("cannot be reached: {0}: check its URL, and that it runs")]
    Unreachable(String),
}

impl RelayError {
    /// Whether it takes a person to change it: asking again will not.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        match &self.fault {
            Fault::AuthRefused(_) => true,
            Fault::Closed(reason) => {
                matches!(reason.prefix, Prefix::Restricted | Prefix::Blocked | Prefix::Unsupported | Prefix::Invalid)
            }
            Fault::Flood | Fault::Overrun | Fault::Lost(_) | Fault::TimedOut(_) | Fault::Unreachable(_) => false,
        }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::AuthRefused(reason) => Self::AuthRefused(reason),
            Failure::Closed(reason) => Self::Closed(reason),
            Failure::Flood => Self::Flood,
            Failure::Overrun => Self::Overrun,
            Failure::Lost(why) => Self::Lost(why),
            Failure::TimedOut(waited) => Self::TimedOut(waited),
            Failure::Unreachable(why) => Self::Unreachable(why),
        }
    }
}
