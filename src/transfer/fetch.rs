//! Which ids to ask the source for, in which batches.

use std::collections::{HashMap, HashSet, VecDeque};

use crate::nostr::EventId;

use super::{BatchId, TransferLimits};

/// Ids that did not come are asked for again in batches of this size: small enough that no
/// relay's limit on its answer can be the reason a second time.
const SECOND_BATCH: usize = 50;

/// What an event is taken to weigh before the first has come.
const FIRST_GUESS: usize = 1024;

#[derive(Debug)]
pub(super) struct Fetching {
    limits: TransferLimits,
    queue: VecDeque<EventId>,
    again: VecDeque<EventId>,
    under_way: HashMap<BatchId, Batch>,
    next: BatchId,
    complete: bool,
    /// What an event weighs, in bytes: moves an eighth of the way with every batch.
    weight: usize,
}

#[derive(Debug)]
struct Batch {
    ids: Vec<EventId>,
    second: bool,
}

impl Fetching {
    pub(super) fn new(limits: TransferLimits) -> Self {
        Self {
            limits,
            queue: VecDeque::new(),
            again: VecDeque::new(),
            under_way: HashMap::new(),
            next: 0,
            complete: false,
            weight: FIRST_GUESS,
        }
    }

    pub(super) fn want(&mut self, id: EventId) {
        self.queue.push_back(id);
    }

    pub(super) fn no_more(&mut self) {
        self.complete = true;
    }

    pub(super) fn queued(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn is_done(&self) -> bool {
        self.complete && self.queue.is_empty() && self.again.is_empty() && self.under_way.is_empty()
    }

    /// The next batch, unless what is under way and what is spooled already fill the spool.
    pub(super) fn poll(&mut self, spooled: usize) -> Option<(BatchId, Vec<EventId>)> {
        if self.under_way.len() >= self.limits.fetches_in_flight {
            return None;
        }
        // A share of the spool for each batch, so that heavy events come in small batches.
        let share = self.limits.spool_bytes / (self.limits.fetches_in_flight + 1);
        let size = (share / self.weight).clamp(1, self.limits.batch);
        let coming: usize = self.under_way.values().map(|batch| batch.ids.len() * self.weight).sum();
        if spooled + coming + size * self.weight > self.limits.spool_bytes && spooled + coming > 0 {
            return None;
        }
        let idle = self.under_way.is_empty();
        let (ids, second): (Vec<_>, _) =
            if self.queue.len() >= size || (!self.queue.is_empty() && (idle || self.complete)) {
                (self.queue.drain(..size.min(self.queue.len())).collect(), false)
            } else if self.again.len() >= SECOND_BATCH || (!self.again.is_empty() && idle) {
                (self.again.drain(..SECOND_BATCH.min(self.again.len())).collect(), true)
            } else {
                return None;
            };
        let batch = self.next;
        self.next += 1;
        self.under_way.insert(batch, Batch { ids: ids.clone(), second });
        Some((batch, ids))
    }

    /// Takes what came for a batch, and returns the ids that have vanished.
    pub(super) fn fetched(
        &mut self,
        batch: BatchId,
        came: impl Iterator<Item = EventId>,
        bytes: usize,
    ) -> Vec<EventId> {
        let Some(Batch { ids, second }) = self.under_way.remove(&batch) else { return Vec::new() };
        let came: HashSet<EventId> = came.collect();
        if !came.is_empty() {
            self.weight = (self.weight * 7 + bytes / came.len()) / 8 + 1;
        }
        let missing: Vec<EventId> = ids.into_iter().filter(|id| !came.contains(id)).collect();
        if second {
            return missing;
        }
        self.again.extend(missing);
        Vec::new()
    }

    /// Forgets what was not asked for yet, and returns it.
    pub(super) fn give_up(&mut self) -> Vec<EventId> {
        self.queue.drain(..).chain(self.again.drain(..)).collect()
    }
}
