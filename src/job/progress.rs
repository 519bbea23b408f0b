//! Where a job stands, for whoever looks on.

use crate::job_state::JobState;
use crate::outcome::BySide;

/// What a job is doing, in the words that a terminal shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// Not started.
    #[default]
    Idle,
    /// Asking the relays what they are.
    Connecting,
    /// Comparing, and moving what was found meanwhile.
    Reconciling,
    /// Moving what is left.
    Transferring,
    /// Waiting before another try.
    Waiting,
    /// Ended.
    Done,
}

impl Phase {
    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Connecting => "connecting",
            Self::Reconciling => "reconciling",
            Self::Transferring => "transferring",
            Self::Waiting => "backing-off",
            Self::Done => "done",
        }
    }

    /// The state that `status` shows; `reached` when both relays are connected.
    #[must_use]
    pub const fn state(self, reached: bool) -> JobState {
        match self {
            Self::Idle | Self::Connecting if reached => JobState::Connected,
            Self::Idle | Self::Connecting | Self::Reconciling => JobState::Reconciling,
            Self::Transferring | Self::Done => JobState::Transferring,
            Self::Waiting => JobState::BackingOff,
        }
    }
}

/// A view of a job under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// What it is doing.
    pub phase: Phase,
    /// The pass it is in.
    pub pass: u32,
    /// Ids that each side has alone, so far.
    pub found: BySide<u64>,
    /// How many of them have come to their end.
    pub settled: BySide<u64>,
    /// How many of them the other side has stored.
    pub stored: BySide<u64>,
}
