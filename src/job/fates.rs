//! What has become, so far in this run, of each id that was found missing in one direction.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::nostr::EventId;
use crate::outcome::{Moved, Outcome};

/// How often an event may be acknowledged and found missing again before it counts as not
/// served: the second time shows that it was no accident of the first.
const ACKNOWLEDGEMENTS: u8 = 2;

#[derive(Clone, Copy, Debug)]
struct Fate {
    /// `None` while it is under way.
    outcome: Option<Outcome>,
    /// The pass that last found it.
    pass: u32,
    acknowledged: u8,
}

/// What to do with an id that was found missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// For the first time in this run.
    New,
    /// Again, and it may be moved.
    Again,
    /// Again, although the destination acknowledged it: it has to be asked whether it serves it.
    Doubtful,
    /// Nothing: seen in this pass already, or known not to be movable.
    Known,
}

/// One direction's ids.
#[derive(Debug, Default)]
pub(super) struct Fates(HashMap<EventId, Fate>);

impl Fates {
    /// Notes that a pass found an id.
    pub(super) fn found(&mut self, id: EventId, pass: u32) -> Found {
        let fate = match self.0.entry(id) {
            Entry::Vacant(place) => {
                place.insert(Fate { outcome: None, pass, acknowledged: 0 });
                return Found::New;
            }
            Entry::Occupied(place) => place.into_mut(),
        };
        if fate.pass == pass {
            return Found::Known;
        }
        fate.pass = pass;
        match fate.outcome {
            // The pass ended before it came to its end, or it failed: another try.
            None | Some(Outcome::Failed) => Found::Again,
            // A second too dense to list hides what is there.
            Some(Outcome::Stored | Outcome::Duplicate) => Found::Doubtful,
            Some(
                Outcome::NotServed
                | Outcome::NotWanted
                | Outcome::Parked
                | Outcome::Refused(_)
                | Outcome::Skipped(_)
                | Outcome::Vanished,
            ) => Found::Known,
        }
    }

    /// Notes that the destination does not serve an id it acknowledged; says whether to offer it
    /// once more.
    pub(super) fn not_served(&mut self, id: EventId) -> bool {
        let Some(fate) = self.0.get_mut(&id) else { return false };
        let again = fate.outcome == Some(Outcome::Stored) && fate.acknowledged < ACKNOWLEDGEMENTS;
        if !again {
            fate.outcome = Some(Outcome::NotServed);
        }
        again
    }

    /// Notes what became of an id; says whether it is newly stored.
    pub(super) fn settle(&mut self, id: EventId, outcome: Outcome) -> bool {
        let Some(fate) = self.0.get_mut(&id) else { return false };
        let before = fate.outcome;
        // "Duplicate" to what was sent twice proves no more than the first OK did, and the event
        // was stored by us.
        let resent = before == Some(Outcome::Stored) && outcome == Outcome::Duplicate;
        fate.outcome = Some(if resent { Outcome::Stored } else { outcome });
        if matches!(outcome, Outcome::Stored | Outcome::Duplicate) {
            fate.acknowledged += 1;
        }
        outcome == Outcome::Stored && before != Some(Outcome::Stored)
    }

    /// How many ids were found.
    pub(super) fn len(&self) -> u64 {
        self.0.len() as u64
    }

    /// The ids.
    pub(super) fn ids(&self) -> impl Iterator<Item = &EventId> {
        self.0.keys()
    }

    /// All of them, counted. What is still under way, or failed, has failed, unless a later pass
    /// that ran to its end (`proof`) no longer found it missing: then it has arrived, whoever
    /// heard the OK.
    pub(super) fn counts(&self, proof: Option<u32>) -> Moved {
        let mut moved = Moved::default();
        for fate in self.0.values() {
            let arrived = proof.is_some_and(|proof| fate.pass < proof);
            moved.count(match fate.outcome {
                None | Some(Outcome::Failed) if arrived => Outcome::Stored,
                None => Outcome::Failed,
                Some(outcome) => outcome,
            });
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::Prefix;

    #[test]
    fn what_is_acknowledged_and_never_served_is_found_out() {
        let (mut fates, id) = (Fates::default(), EventId::new([1; 32]));
        assert_eq!(fates.found(id, 1), Found::New);
        fates.settle(id, Outcome::Stored);
        assert_eq!(fates.found(id, 1), Found::Known, "reported twice in one pass");
        assert_eq!(fates.found(id, 2), Found::Doubtful);
        assert!(fates.not_served(id), "once may be an accident");
        fates.settle(id, Outcome::Duplicate);
        assert_eq!(fates.counts(Some(2)).stored, 1);
        assert_eq!(fates.found(id, 3), Found::Doubtful);
        assert_eq!(fates.counts(Some(3)).stored, 1, "it may be served, and hidden in a dense second");
        assert!(!fates.not_served(id));
        assert_eq!(fates.counts(Some(3)).refused["not-served"], 1);
        assert_eq!(fates.counts(Some(3)).total(), 1);
    }

    #[test]
    fn what_failed_is_tried_again_and_what_was_refused_is_not() {
        let (mut fates, a, b) = (Fates::default(), EventId::new([1; 32]), EventId::new([2; 32]));
        fates.found(a, 1);
        fates.found(b, 1);
        fates.settle(b, Outcome::Refused(Prefix::Blocked));
        assert_eq!(fates.found(a, 2), Found::Again, "the pass ended before it");
        assert_eq!(fates.found(b, 2), Found::Known);
        assert_eq!(fates.counts(Some(2)).failed, 1);
    }

    #[test]
    fn what_a_later_pass_no_longer_misses_has_arrived() {
        let (mut fates, lost, failed) = (Fates::default(), EventId::new([1; 32]), EventId::new([2; 32]));
        fates.found(lost, 1);
        fates.found(failed, 1);
        fates.settle(failed, Outcome::Failed);
        assert_eq!(fates.counts(None).failed, 2, "no pass has ended");
        assert_eq!(fates.counts(Some(1)).failed, 2, "this pass found them");
        assert_eq!((fates.counts(Some(2)).stored, fates.counts(Some(2)).failed), (2, 0));
    }
}
