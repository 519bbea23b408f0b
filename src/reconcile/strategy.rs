//! One way to settle one window.

use super::ledger::Ledger;
use super::mediated::Mediator;
use super::pager::{PageSize, Pager};
use super::window::Window;
use super::{Page, Question, ReconcileError};
use crate::job_spec::Side;
use crate::nostr::{Filter, Timestamp};
use crate::outcome::BySide;

/// What a strategy has to know of the sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// The most events to ask for in a page.
    pub page: BySide<usize>,
    /// The most bytes of a query.
    pub query: BySide<usize>,
    /// Ids listed and held at once.
    pub inventory: usize,
}

impl Limits {
    /// A listing of one side.
    pub fn pager(&self, side: Side, filter: &Filter, top: Timestamp, ledger: &Ledger) -> Pager {
        Pager::new(filter.clone(), top, PageSize { limit: self.page[side], largest: ledger.largest_page[side] })
    }
}

/// What became of a window that a side found too big.
#[derive(Debug)]
pub(super) enum Narrowed {
    /// The strategy goes on, with less at a time.
    Within,
    /// These are to be settled instead, oldest first.
    Windows(Vec<Window>),
    /// It is one second already; it is for the caller to have that side listed there.
    Second,
}

/// Settles a window. What one does not ask about it does not take: the methods that are not its
/// own say so.
pub(super) trait Strategy: Send + std::fmt::Debug {
    /// `mediated`, `inventory` or `paged`.
    fn name(&self) -> &'static str;

    /// What a side that awaits no question is to be asked now.
    fn question(&mut self, side: Side) -> Option<Question>;

    /// Takes a NIP-77 answer.
    fn on_message(&mut self, side: Side, _message: &[u8], _ledger: &mut Ledger) -> Result<(), ReconcileError> {
        Err(ReconcileError::Unasked { side })
    }

    /// Takes a page.
    fn on_page(&mut self, side: Side, _page: Page, _ledger: &mut Ledger) -> Result<(), ReconcileError> {
        Err(ReconcileError::Unasked { side })
    }

    /// A side's session was lost: what it was asked is asked again.
    fn reset(&mut self, _side: Side) {}

    /// A side takes no more than `max` events at once, and found `found`.
    fn narrow(
        &mut self,
        side: Side,
        _found: Option<u64>,
        _max: Option<u64>,
        _ledger: &mut Ledger,
    ) -> Result<Narrowed, ReconcileError> {
        Err(ReconcileError::Unasked { side })
    }

    /// Whether every difference has been reported.
    fn is_done(&self) -> bool;

    /// What another strategy would have to settle in its place.
    fn unsettled(&self) -> Window;
}

/// Neither side is listed.
#[derive(Debug)]
pub(super) struct Mediated {
    window: Window,
    mediator: Mediator,
}

impl Mediated {
    pub fn new(window: Window, limits: &Limits) -> Self {
        Self { mediator: Mediator::new(window.domain(), Side::Local, limits.query), window }
    }
}

impl Strategy for Mediated {
    fn name(&self) -> &'static str {
        "mediated"
    }

    fn question(&mut self, side: Side) -> Option<Question> {
        let message = self.mediator.next_query(side)?;
        Some(Question::Neg { filter: self.window.filter().clone(), message })
    }

    fn on_message(&mut self, side: Side, message: &[u8], ledger: &mut Ledger) -> Result<(), ReconcileError> {
        self.mediator
            .on_answer(side, message, &mut |on, id| ledger.report(on, id))
            .map_err(|error| ReconcileError::Exchange { side, error })?;
        ledger.shown[side] |= self.mediator.has_shown(side);
        Ok(())
    }

    fn reset(&mut self, side: Side) {
        self.mediator.reset(side);
    }

    fn narrow(
        &mut self,
        side: Side,
        found: Option<u64>,
        max: Option<u64>,
        ledger: &mut Ledger,
    ) -> Result<Narrowed, ReconcileError> {
        let Some(parts) = self.window.split(found, max) else {
            ledger.big_seconds[side] += 1;
            return Ok(Narrowed::Second);
        };
        Ok(Narrowed::Windows(parts))
    }

    fn is_done(&self) -> bool {
        self.mediator.is_done()
    }

    fn unsettled(&self) -> Window {
        self.window.clone()
    }
}
