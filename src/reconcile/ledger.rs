//! What outlives a strategy: the differences found, and what the sides have shown of themselves.

use std::collections::{HashSet, VecDeque};

use super::pager::{DenseSecond, Pager};
use crate::job_spec::Side;
use crate::nostr::EventId;
use crate::outcome::{BySide, Gap};

/// Ids remembered, so that a window that has to be started afresh does not report them again, nor
/// a relay that lists an id twice: about 16 MB. Beyond that an id may be reported twice; the job
/// looks at every id before it moves it, so that this costs nothing but the look.
const MAX_REMEMBERED: usize = 250_000;

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Differences to be handed out.
    pub found: VecDeque<(Side, EventId)>,
    /// The first of those ever found.
    remembered: HashSet<EventId>,
    /// Seconds too dense to list, each once.
    pub gaps: Vec<Gap>,
    /// Whether a side has shown that it has something.
    pub shown: BySide<bool>,
    /// The largest page each side ever sent.
    pub largest_page: BySide<usize>,
    /// Single seconds that a side found too big to reconcile, since it last answered.
    pub big_seconds: BySide<u32>,
}

impl Ledger {
    /// One side has this id alone.
    pub fn report(&mut self, on: Side, id: EventId) {
        let new = if self.remembered.len() < MAX_REMEMBERED {
            self.remembered.insert(id)
        } else {
            !self.remembered.contains(&id)
        };
        if new {
            self.found.push_back((on, id));
        }
    }

    /// Takes over what a page has taught of the side it came from.
    pub fn note_page(&mut self, side: Side, pager: &mut Pager, something: bool) {
        self.shown[side] |= something;
        self.largest_page[side] = self.largest_page[side].max(pager.size().largest);
        for DenseSecond { second, cap } in pager.take_dense() {
            // A window that is started afresh comes by its gaps again.
            if !self.gaps.iter().any(|gap| gap.side == side && gap.second == second) {
                self.gaps.push(Gap { side, second, cap });
            }
        }
    }
}
