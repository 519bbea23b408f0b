//! A listed span of one side's events, reconciled with the other side.
//!
//! The listed ids answer in memory for the side that was listed, so that this is a mediation like
//! any other and as exact, and a round costs one query instead of two.

use negentropy::{Id, Negentropy, NegentropyStorageVector};

use super::ledger::Ledger;
use super::mediated::Mediator;
use super::paged::difference;
use super::pager::Pager;
use super::strategy::Limits;
use super::window::Window;
use super::{Head, Page, Question, ReconcileError};
use crate::job_spec::Side;

#[derive(Debug)]
pub(super) struct Chunk {
    /// The side that was listed.
    listed: Side,
    limits: Limits,
    /// Its events in the span, oldest first.
    heads: Vec<Head>,
    /// What is still to be compared of it, the window under way last.
    windows: Vec<Window>,
    exchange: Exchange,
}

/// How the window under way is compared.
#[derive(Debug)]
enum Exchange {
    Mediated {
        mediator: Mediator,
        storage: NegentropyStorageVector,
    },
    /// It is one second, and too big for the other side to reconcile.
    Paged {
        pager: Pager,
        heads: Vec<Head>,
    },
}

impl Chunk {
    /// `heads` are all that the side `listed` has in `window`, in any order.
    pub fn new(
        listed: Side,
        window: Window,
        mut heads: Vec<Head>,
        limits: Limits,
        ledger: &mut Ledger,
    ) -> Result<Self, ReconcileError> {
        heads.sort_unstable();
        let exchange = mediate(listed, &window, &heads, &limits)?;
        let mut chunk = Self { listed, limits, heads, windows: vec![window], exchange };
        chunk.go_on(ledger)?;
        Ok(chunk)
    }

    /// The newest second that is not settled; `None` at the end.
    pub fn unsettled(&self) -> Option<u64> {
        self.windows.last().map(Window::high)
    }

    /// What the other side is to be asked.
    pub fn question(&mut self) -> Option<Question> {
        let window = self.windows.last()?;
        match &mut self.exchange {
            Exchange::Mediated { mediator, .. } => {
                let message = mediator.next_query(self.listed.other())?;
                Some(Question::Neg { filter: window.filter().clone(), message })
            }
            Exchange::Paged { pager, .. } => pager.next_question(),
        }
    }

    /// Takes the other side's NIP-77 answer.
    pub fn on_message(&mut self, message: &[u8], ledger: &mut Ledger) -> Result<(), ReconcileError> {
        let side = self.listed.other();
        let Exchange::Mediated { mediator, .. } = &mut self.exchange else {
            return Err(ReconcileError::Unasked { side });
        };
        mediator
            .on_answer(side, message, &mut |on, id| ledger.report(on, id))
            .map_err(|error| ReconcileError::Exchange { side, error })?;
        ledger.shown[side] |= mediator.has_shown(side);
        self.go_on(ledger)
    }

    /// Takes the other side's page.
    pub fn on_page(&mut self, page: Page, ledger: &mut Ledger) -> Result<(), ReconcileError> {
        let side = self.listed.other();
        let Exchange::Paged { pager, heads } = &mut self.exchange else {
            return Err(ReconcileError::Unasked { side });
        };
        let new = pager.take(page).map_err(|error| ReconcileError::Listing { side, error })?;
        ledger.note_page(side, pager, !new.is_empty());
        heads.extend(new);
        self.go_on(ledger)
    }

    /// The other side has lost its session.
    pub fn reset(&mut self) {
        if let Exchange::Mediated { mediator, .. } = &mut self.exchange {
            mediator.reset(self.listed.other());
        }
    }

    /// The other side finds the window under way too big: its parts come next, or a single second
    /// is listed there.
    pub fn narrow(&mut self, found: Option<u64>, max: Option<u64>, ledger: &mut Ledger) -> Result<(), ReconcileError> {
        let Some(window) = self.windows.pop() else { return Ok(()) };
        if let Some(parts) = window.split(found, max) {
            self.windows.extend(parts);
            self.start()?;
            return self.go_on(ledger);
        }
        let side = self.listed.other();
        ledger.big_seconds[side] += 1;
        let pager = self.limits.pager(side, window.filter(), window.high(), ledger);
        self.exchange = Exchange::Paged { pager, heads: Vec::new() };
        self.windows.push(window);
        Ok(())
    }

    /// Lets the listed ids answer, and goes from one window to the next, until the other side
    /// has to be asked or nothing is left.
    fn go_on(&mut self, ledger: &mut Ledger) -> Result<(), ReconcileError> {
        while let Some(window) = self.windows.last() {
            match &mut self.exchange {
                Exchange::Mediated { mediator, storage } => {
                    answer(mediator, storage, self.listed, ledger)?;
                    if !mediator.is_done() {
                        return Ok(());
                    }
                }
                Exchange::Paged { pager, heads } => {
                    if !pager.is_done() {
                        return Ok(());
                    }
                    let (own, other) = (within(&self.heads, window).to_vec(), std::mem::take(heads));
                    match self.listed {
                        Side::Local => difference(own, other, ledger),
                        Side::Peer => difference(other, own, ledger),
                    }
                }
            }
            self.windows.pop();
            self.start()?;
        }
        Ok(())
    }

    /// Begins to compare the window that is next.
    fn start(&mut self) -> Result<(), ReconcileError> {
        if let Some(window) = self.windows.last() {
            self.exchange = mediate(self.listed, window, &self.heads, &self.limits)?;
        }
        Ok(())
    }
}

/// Puts the listed ids of a window where they can answer for their side.
fn mediate(listed: Side, window: &Window, heads: &[Head], limits: &Limits) -> Result<Exchange, ReconcileError> {
    let heads = within(heads, window);
    let mut storage = NegentropyStorageVector::with_capacity(heads.len());
    for head in heads {
        storage.insert(head.created_at, Id::from_byte_array(*head.id.as_bytes())).map_err(inventory)?;
    }
    storage.seal().map_err(inventory)?;
    Ok(Exchange::Mediated { mediator: Mediator::new(window.domain(), listed, limits.query), storage })
}

/// Answers all that the listed side is asked. Without a frame limit: the answer goes nowhere.
fn answer(
    mediator: &mut Mediator,
    storage: &NegentropyStorageVector,
    listed: Side,
    ledger: &mut Ledger,
) -> Result<(), ReconcileError> {
    while let Some(query) = mediator.next_query(listed) {
        let answer = Negentropy::borrowed(storage, 0).and_then(|mut own| own.reconcile(&query)).map_err(inventory)?;
        mediator
            .on_answer(listed, &answer, &mut |on, id| ledger.report(on, id))
            .map_err(|error| ReconcileError::Exchange { side: listed, error })?;
    }
    Ok(())
}

/// The events of a window, of all that are listed.
fn within<'h>(heads: &'h [Head], window: &Window) -> &'h [Head] {
    let start = heads.partition_point(|head| head.created_at < window.low());
    let end = heads.partition_point(|head| head.created_at <= window.high());
    &heads[start..end]
}

fn inventory(error: negentropy::Error) -> ReconcileError {
    ReconcileError::Inventory(error.to_string())
}
