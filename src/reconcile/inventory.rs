//! One side is listed, the other answers NIP-77.

use super::chunk::Chunk;
use super::ledger::Ledger;
use super::pager::Pager;
use super::strategy::{Limits, Narrowed, Strategy};
use super::window::Window;
use super::{Head, Page, Question, ReconcileError};
use crate::job_spec::Side;
use crate::nostr::Timestamp;

/// How many times the agreed number of ids may be held, where a single second has so many.
const SECOND_FACTOR: usize = 10;

/// A listing on its way down, reconciled chunk by chunk of whole seconds.
#[derive(Debug)]
pub(super) struct Inventory {
    listed: Side,
    limits: Limits,
    pager: Pager,
    /// What the pager has listed and no chunk has taken yet, newest first.
    heads: Vec<Head>,
    /// What is not settled yet; `None` at the end.
    window: Option<Window>,
    /// The part of the window being reconciled, and its first second.
    chunk: Option<(Chunk, Timestamp)>,
    /// The window as it was at first.
    whole: Window,
}

impl Inventory {
    pub fn new(listed: Side, window: Window, limits: Limits, ledger: &Ledger) -> Self {
        let pager = limits.pager(listed, window.filter(), window.high(), ledger);
        Self { listed, limits, pager, heads: Vec::new(), window: Some(window.clone()), chunk: None, whole: window }
    }

    /// Makes a chunk of what is listed, once that is enough or all.
    fn gather(&mut self, ledger: &mut Ledger) -> Result<(), ReconcileError> {
        let Some(window) = &self.window else { return Ok(()) };
        let low = self.pager.complete_from().max(window.low());
        let complete = self.heads.partition_point(|head| head.created_at >= low);
        let enough = complete > 0 && self.heads.len() >= self.limits.inventory;
        if !enough && !self.pager.is_done() {
            // A second is never divided here: all its ids are needed to compare it.
            if self.heads.len() >= self.limits.inventory.saturating_mul(SECOND_FACTOR) {
                return Err(ReconcileError::TooDense { side: self.listed, second: low.saturating_sub(1) });
            }
            return Ok(());
        }
        let rest = self.heads.split_off(complete);
        let heads = std::mem::replace(&mut self.heads, rest);
        let part = window.part(low, window.high());
        self.chunk = Some((Chunk::new(self.listed, part, heads, self.limits, ledger)?, low));
        self.settle();
        Ok(())
    }

    /// Lets go of the chunk when it is settled.
    fn settle(&mut self) {
        if let Some((_, low)) = self.chunk.take_if(|(chunk, _)| chunk.unsettled().is_none()) {
            self.window = self.window.take().filter(|window| window.low() < low).map(|window| {
                // The filter above guarantees a second below `low`.
                window.part(window.low(), low - 1)
            });
        }
    }

    fn chunk(&mut self, side: Side) -> Result<&mut Chunk, ReconcileError> {
        let chunk = self.chunk.as_mut().filter(|_| side != self.listed);
        chunk.map(|(chunk, _)| chunk).ok_or(ReconcileError::Unasked { side })
    }
}

impl Strategy for Inventory {
    fn name(&self) -> &'static str {
        "inventory"
    }

    fn question(&mut self, side: Side) -> Option<Question> {
        match &mut self.chunk {
            // One at a time: the next chunk would be a second one to hold.
            None if side == self.listed => self.pager.next_question(),
            Some((chunk, _)) if side != self.listed => chunk.question(),
            _ => None,
        }
    }

    fn on_message(&mut self, side: Side, message: &[u8], ledger: &mut Ledger) -> Result<(), ReconcileError> {
        self.chunk(side)?.on_message(message, ledger)?;
        self.settle();
        Ok(())
    }

    fn on_page(&mut self, side: Side, page: Page, ledger: &mut Ledger) -> Result<(), ReconcileError> {
        if side != self.listed {
            self.chunk(side)?.on_page(page, ledger)?;
            self.settle();
            return Ok(());
        }
        let heads = self.pager.take(page).map_err(|error| ReconcileError::Listing { side, error })?;
        ledger.note_page(side, &mut self.pager, !heads.is_empty());
        self.heads.extend(heads);
        self.gather(ledger)
    }

    fn reset(&mut self, side: Side) {
        if let Ok(chunk) = self.chunk(side) {
            chunk.reset();
        }
    }

    fn narrow(
        &mut self,
        side: Side,
        found: Option<u64>,
        max: Option<u64>,
        ledger: &mut Ledger,
    ) -> Result<Narrowed, ReconcileError> {
        self.chunk(side)?.narrow(found, max, ledger)?;
        Ok(Narrowed::Within)
    }

    fn is_done(&self) -> bool {
        self.window.is_none()
    }

    fn unsettled(&self) -> Window {
        let window = self.window.as_ref().unwrap_or(&self.whole);
        let high = self.chunk.as_ref().and_then(|(chunk, _)| chunk.unsettled());
        window.part(window.low(), high.unwrap_or(window.high()))
    }
}
