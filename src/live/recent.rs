//! The ids a relay got lately: what comes again, or comes back as an echo, is known.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::nostr::EventId;

/// Ids in a generation, of which there are two per relay: an echo comes back within seconds, and
/// 2000 are ten seconds of 200 events each. 4000 ids take 300 kB. What is forgotten comes back as a
/// duplicate, and does no harm.
const GENERATION: usize = 2000;

/// What a relay is known to have got lately: it said so itself, or a stream or a run has brought
/// it. Clones share one memory.
#[derive(Clone, Debug, Default)]
pub struct Seen(Arc<Mutex<Recent>>);

impl Seen {
    /// Remembers an id; says whether it is new.
    pub fn insert(&self, id: EventId) -> bool {
        self.with(|recent| recent.insert(id, GENERATION))
    }

    /// It did not get it after all.
    pub fn forget(&self, id: EventId) {
        self.with(|recent| recent.forget(id));
    }

    fn with<R>(&self, look: impl FnOnce(&mut Recent) -> R) -> R {
        // Held for one look, never across an await; a panic under it would be that look's own.
        look(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A bounded memory: the older generation is forgotten when the younger one is full.
#[derive(Debug, Default)]
struct Recent {
    younger: HashSet<EventId>,
    older: HashSet<EventId>,
}

impl Recent {
    fn insert(&mut self, id: EventId, generation: usize) -> bool {
        if self.older.contains(&id) || !self.younger.insert(id) {
            return false;
        }
        if self.younger.len() >= generation {
            self.older = std::mem::take(&mut self.younger);
        }
        true
    }

    fn forget(&mut self, id: EventId) {
        self.younger.remove(&id);
        self.older.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_older_half_is_forgotten_first() {
        let id = |n| EventId::new([n; 32]);
        let mut recent = Recent::default();
        let mut insert = |n| recent.insert(id(n), 2);
        assert!(insert(1) && insert(2) && insert(3));
        assert!(!insert(1) && !insert(2) && !insert(3), "known");
        assert!(insert(4), "the second generation is full");
        assert!(!insert(3) && !insert(4));
        assert!(insert(1), "forgotten");
    }

    #[test]
    fn what_did_not_arrive_is_new_again() {
        let id = |n| EventId::new([n; 32]);
        let mut recent = Recent::default();
        for n in 1..=3 {
            recent.insert(id(n), 2);
            recent.forget(id(n));
        }
        assert!((1..=3).all(|n| recent.insert(id(n), 2)));
    }
}
