//! The ids a relay got lately: what comes again, or comes back as an echo, is known.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use crate::nostr::EventId;

/// Ids remembered per relay: an echo comes back within seconds, and 4000 are 20 seconds of 200
/// events each, and 400 kB. What is forgotten comes back as a duplicate, and does no harm.
const REMEMBERED: usize = 4000;

/// What a relay is known to have got lately: it said so itself, or a stream or a run has brought
/// it. Clones share one memory.
#[derive(Clone, Debug)]
pub struct Seen(Arc<Mutex<Recent>>);

impl Default for Seen {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Recent::new(REMEMBERED))))
    }
}

impl Seen {
    /// Remembers an id; says whether it is new.
    pub fn insert(&self, id: EventId) -> bool {
        // Held for one look, never across an await; a panic under it would be this function's own.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id)
    }

    /// It did not get it after all.
    pub fn forget(&self, id: EventId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).known.remove(&id);
    }
}

/// A bounded memory: the oldest is forgotten first.
#[derive(Debug)]
struct Recent {
    known: HashSet<EventId>,
    order: VecDeque<EventId>,
    most: usize,
}

impl Recent {
    fn new(most: usize) -> Self {
        Self { known: HashSet::new(), order: VecDeque::new(), most }
    }

    /// Remembers an id; says whether it is new.
    fn insert(&mut self, id: EventId) -> bool {
        if !self.known.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let id = |n| EventId::new([n; 32]);
        let mut recent = Recent::new(2);
        assert!(recent.insert(id(1)) && recent.insert(id(2)));
        assert!(!recent.insert(id(1)) && !recent.insert(id(2)), "known");
        assert!(recent.insert(id(3)));
        assert!(!recent.insert(id(2)));
        assert!(recent.insert(id(1)), "forgotten");
    }
}
