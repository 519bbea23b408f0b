//! The states of a job, in the words that an operator is shown.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::outcome::Ending;

/// What a job does, or how its last run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobState {
    /// Nothing is under way, and nothing has come to an end.
    Idle,
    /// Both relays are reached, and nothing is compared yet.
    Connected,
    /// A run finds out what differs, and moves it meanwhile.
    Reconciling,
    /// A run has compared everything, and moves what is left.
    Transferring,
    /// The last run proved that nothing is missing.
    Converged,
    /// The last run left something behind.
    Partial,
    /// A relay was not reached, or lost: it is tried again at a time that is set.
    BackingOff,
    /// A relay refuses what the job needs: a person has to act.
    Blocked,
    /// The last run failed.
    Failed,
}

impl JobState {
    /// All of them, with the words they have in `status`, in metrics and in the state.
    pub const ALL: [(&'static str, Self); 9] = [
        ("idle", Self::Idle),
        ("connected", Self::Connected),
        ("reconciling", Self::Reconciling),
        ("transferring", Self::Transferring),
        ("converged", Self::Converged),
        ("partial", Self::Partial),
        ("backing-off", Self::BackingOff),
        ("blocked", Self::Blocked),
        ("failed", Self::Failed),
    ];

    /// The word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        // Every variant stands in ALL: the test below holds it.
        Self::ALL.iter().find(|(_, state)| *state == self).map_or("idle", |(word, _)| word)
    }

    /// The state that has this word.
    #[must_use]
    pub fn named(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == word).map(|(_, state)| *state)
    }

    /// What a run leaves that ended so.
    #[must_use]
    pub const fn after(ending: Ending) -> Self {
        match ending {
            Ending::Converged => Self::Converged,
            Ending::Partial => Self::Partial,
            Ending::Blocked => Self::Blocked,
            Ending::Failed => Self::Failed,
            // They say nothing about the job.
            Ending::DryRun | Ending::Interrupted | Ending::Locked => Self::Idle,
        }
    }

    /// Whether it was a run that said so, in its midst.
    #[must_use]
    pub const fn is_of_a_run(self) -> bool {
        matches!(self, Self::Reconciling | Self::Transferring)
    }

    /// What is left of it when no run and no daemon is there to act on it.
    #[must_use]
    pub const fn abandoned(self) -> Self {
        match self {
            Self::Connected | Self::Reconciling | Self::Transferring => Self::Idle,
            Self::BackingOff => Self::Failed,
            other => other,
        }
    }
}

impl fmt::Display for JobState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for JobState {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_has_its_word() {
        for (word, state) in JobState::ALL {
            assert_eq!((state.as_str(), JobState::named(word)), (word, Some(state)));
        }
        assert_eq!(JobState::named("done"), None);
    }

    #[test]
    fn what_is_abandoned_waits_for_nothing() {
        for (word, state) in JobState::ALL {
            let left = state.abandoned();
            assert!(!left.is_of_a_run() && left != JobState::BackingOff && left != JobState::Connected, "{word}");
            assert_eq!(left.abandoned(), left);
        }
    }
}
