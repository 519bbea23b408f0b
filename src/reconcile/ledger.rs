//! What outlives a strategy: the differences found, and what the sides have shown of themselves.

use std::collections::VecDeque;

use super::pager::{DenseSecond, Pager};
use crate::job_spec::Side;
use crate::nostr::EventId;
use crate::outcome::{BySide, Gap};

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Differences to be handed out.
    pub found: VecDeque<(Side, EventId)>,
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
    /// One side has this id alone. A window that is started afresh, and a relay that lists an id
    /// twice, bring it here again: the job looks every id up before it moves it, so none is
    /// remembered here.
    pub fn report(&mut self, on: Side, id: EventId) {
        self.found.push_back((on, id));
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
