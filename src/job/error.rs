//! Why a pass ended before its end, or a run without proof.

use crate::nostr::RelayUrl;
use crate::outcome::Ending;
use crate::reconcile::ReconcileError;
use crate::relay::{Fault, RelayError};

/// Why a pass ended before its end.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum JobError {
    #[error(transparent)]
    Relay(#[from] RelayError),
    #[error("{}{error}", .relay.as_ref().map(|url| format!("{url}: ")).unwrap_or_default())]
    Reconcile { relay: Option<RelayUrl>, error: ReconcileError },
    #[error(
        "{relay}: lists nothing at all for this filter, and the local relay has more than {most} events for it: \
         they were held back; if it is meant to be empty, run again with --allow-empty"
    )]
    EmptyPeer { relay: RelayUrl, most: u64 },
    #[error("{relay}: refused event after event, so uploads to it stopped: {reason}")]
    Stopped { relay: RelayUrl, reason: String },
    #[error("events are still missing after {passes} passes{}", .said.as_ref().map(|s| format!("; the last refusal: {s}")).unwrap_or_default())]
    StillMissing { passes: u32, said: Option<String> },
    #[error("stopped")]
    Interrupted,
    #[error("the comparison waits for nothing: this is a fault of tieline's, please report it")]
    Stuck,
}

impl JobError {
    /// How a run ends on it: `blocked` when it takes a person to change it.
    pub(super) fn ending(&self) -> Ending {
        match self {
            Self::Relay(error) if error.is_refusal() => Ending::Blocked,
            Self::Reconcile { error, .. } if error.is_refusal() => Ending::Blocked,
            Self::EmptyPeer { .. } | Self::Stopped { .. } => Ending::Blocked,
            Self::StillMissing { .. } => Ending::Partial,
            Self::Interrupted => Ending::Interrupted,
            Self::Relay(_) | Self::Reconcile { .. } | Self::Stuck => Ending::Failed,
        }
    }

    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, Self::Relay(RelayError { fault: Fault::Unreachable(_), .. }))
    }
}
