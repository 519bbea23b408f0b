//! Settles a filter window by window, each by the best strategy that both sides go along with.

use super::inventory::Inventory;
use super::ledger::Ledger;
use super::paged::Paged;
use super::strategy::{Limits, Mediated, Narrowed, Strategy};
use super::window::Window;
use super::{Action, Answer, Question, ReconcileError, Reconciler};
use crate::job_spec::{Side, StrategyChoice};
use crate::nostr::{Filter, NegRefusal, PeerText, Timestamp};
use crate::outcome::{BySide, Gap};

/// How often a side that is busy is asked again.
const BUSY_TRIES: u32 = 3;

/// How often a session that breaks is opened again.
const BROKEN_TRIES: u32 = 1;

/// Single seconds in a row that a side may find too big. One that finds any window too big gets
/// here after thirty halvings, and is listed then: its refusals are not about size.
const MAX_BIG_SECONDS: u32 = 16;

/// Windows that a side may find too big: at 500 events a window, this is 5,000,000 events, and
/// listing them takes no longer.
const MAX_TOO_BIG: u32 = 10_000;

/// What a reconciliation starts from.
#[derive(Clone, Debug)]
pub struct Setup {
    /// What is compared.
    pub filter: Filter,
    /// How.
    pub choice: StrategyChoice,
    /// The present, by our own clock.
    pub now: Timestamp,
    /// `false` for a side that is known not to speak NIP-77.
    pub speaks_nip77: BySide<bool>,
    /// The most events to ask for in a page.
    pub page_limit: BySide<usize>,
    /// The most bytes of a NIP-77 query, before hex.
    pub max_query: BySide<usize>,
    /// Ids of a listed side to hold at once.
    pub inventory_events: usize,
}

/// A reconciliation under way.
#[derive(Debug)]
pub struct Reconciliation {
    choice: StrategyChoice,
    limits: Limits,
    /// Windows still to be settled, the next one last.
    windows: Vec<Todo>,
    current: Option<Box<dyn Strategy>>,
    name: &'static str,
    /// The sides that are listed from now on, and why where it was not known before.
    listed: BySide<bool>,
    refusals: BySide<Option<NegRefusal>>,
    asked: BySide<Option<Owed>>,
    /// Refusals in a row that asking again may cure.
    busy: BySide<u32>,
    broken: BySide<u32>,
    too_big: BySide<u32>,
    rounds: u64,
    ledger: Ledger,
    failed: bool,
}

/// A window, and the sides that are listed in it whatever they can do elsewhere.
#[derive(Debug)]
struct Todo {
    window: Window,
    listed: BySide<bool>,
}

/// What answer a side owes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    /// A NIP-77 message, or a refusal.
    Message,
    /// A page.
    Page,
    /// One to a strategy that was given up: it is awaited, and ignored.
    Nothing,
}

impl Reconciliation {
    /// Begins.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let listed = match setup.choice {
            StrategyChoice::Auto => BySide { local: !setup.speaks_nip77.local, peer: !setup.speaks_nip77.peer },
            StrategyChoice::Mediated => BySide { local: false, peer: false },
            StrategyChoice::Paged => BySide { local: true, peer: true },
            // The side that cannot do better; of two that can, the one that is near.
            StrategyChoice::Inventory => {
                let local = !setup.speaks_nip77.local || setup.speaks_nip77.peer;
                BySide { local, peer: !local }
            }
        };
        let limits = Limits { page: setup.page_limit, query: setup.max_query, inventory: setup.inventory_events };
        let window = Window::whole(setup.filter, setup.now);
        Self {
            choice: setup.choice,
            limits,
            windows: window.map(|window| Todo { window, listed: BySide::default() }).into_iter().collect(),
            current: None,
            name: name(listed),
            listed,
            refusals: BySide::default(),
            asked: BySide::default(),
            busy: BySide::default(),
            broken: BySide::default(),
            too_big: BySide::default(),
            rounds: 0,
            ledger: Ledger::default(),
            failed: false,
        }
    }

    /// The strategy in use: `mediated`, `inventory` or `paged`.
    #[must_use]
    pub const fn strategy(&self) -> &'static str {
        self.name
    }

    /// Seconds that could not be listed, so far. What is found in one may be there after all.
    #[must_use]
    pub fn gaps(&self) -> &[Gap] {
        &self.ledger.gaps
    }

    /// NIP-77 answers taken, from either side.
    #[must_use]
    pub const fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Why a side is listed that was not known before to need it.
    #[must_use]
    pub const fn refusals(&self) -> &BySide<Option<NegRefusal>> {
        &self.refusals
    }

    /// Whether a side has shown that it holds anything that matches. At the end, a side that has
    /// not is empty as far as can be seen.
    #[must_use]
    pub fn has_shown(&self, side: Side) -> bool {
        self.ledger.shown[side]
    }

    fn take(&mut self, side: Side, answer: Answer) -> Result<(), ReconcileError> {
        let owed = self.asked[side].take().ok_or(ReconcileError::Unasked { side })?;
        let Some(strategy) = self.current.as_mut().filter(|_| owed != Owed::Nothing) else { return Ok(()) };
        let fits = matches!(answer, Answer::Page(_)) == (owed == Owed::Page);
        match answer {
            _ if !fits => Err(ReconcileError::Unasked { side }),
            // A relay that speaks another version says so by its version byte alone.
            Answer::Neg(message) if message.len() == 1 && message[0] != super::message::VERSION => {
                let text = format!("negentropy version 0x{:02x}", message[0]);
                self.list(side, NegRefusal::Unsupported(PeerText::new(&text)))
            }
            Answer::Neg(message) => {
                self.rounds += 1;
                (self.busy[side], self.broken[side], self.ledger.big_seconds[side]) = (0, 0, 0);
                strategy.on_message(side, &message, &mut self.ledger)
            }
            Answer::Page(page) => strategy.on_page(side, page, &mut self.ledger),
            Answer::Refused(refusal) => self.refused(side, refusal),
        }
    }

    fn refused(&mut self, side: Side, refusal: NegRefusal) -> Result<(), ReconcileError> {
        match refusal {
            NegRefusal::TooBig { max, found } => self.narrow(side, max, found),
            // Another way of asking would be refused as well.
            NegRefusal::Restricted(text) => Err(ReconcileError::Restricted { side, text }),
            // The driver waits before it asks again.
            NegRefusal::Busy(_) if self.busy[side] < BUSY_TRIES => {
                self.busy[side] += 1;
                self.ask_again(side);
                Ok(())
            }
            NegRefusal::Broken(_) if self.broken[side] < BROKEN_TRIES => {
                self.broken[side] += 1;
                self.ask_again(side);
                Ok(())
            }
            NegRefusal::Unsupported(_) | NegRefusal::Busy(_) | NegRefusal::Broken(_) | NegRefusal::Silent => {
                self.list(side, refusal)
            }
        }
    }

    fn ask_again(&mut self, side: Side) {
        if let Some(strategy) = &mut self.current {
            strategy.reset(side);
        }
    }

    /// A side takes less at once than it was asked about.
    fn narrow(&mut self, side: Side, max: Option<u64>, found: Option<u64>) -> Result<(), ReconcileError> {
        let Some(strategy) = &mut self.current else { return Ok(()) };
        let narrowed = strategy.narrow(side, found, max, &mut self.ledger)?;
        let window = strategy.unsettled();
        self.too_big[side] += 1;
        if self.ledger.big_seconds[side] > MAX_BIG_SECONDS || self.too_big[side] > MAX_TOO_BIG {
            return self.list(side, NegRefusal::TooBig { max, found });
        }
        match narrowed {
            Narrowed::Within => {}
            Narrowed::Windows(parts) => {
                self.start_over(parts.into_iter().map(|window| Todo { window, listed: BySide::default() }));
            }
            Narrowed::Second if self.choice == StrategyChoice::Auto => {
                let mut listed = BySide::default();
                listed[side] = true;
                self.start_over([Todo { window, listed }]);
            }
            Narrowed::Second => return self.list(side, NegRefusal::TooBig { max, found }),
        }
        Ok(())
    }

    /// Has a side listed from now on, beginning with what is left of the window under way.
    fn list(&mut self, side: Side, refusal: NegRefusal) -> Result<(), ReconcileError> {
        if self.choice != StrategyChoice::Auto {
            return Err(ReconcileError::Refused { side, refusal, strategy: self.name });
        }
        self.listed[side] = true;
        self.refusals[side] = Some(refusal);
        if let Some(strategy) = &self.current {
            let window = strategy.unsettled();
            self.start_over([Todo { window, listed: BySide::default() }]);
        }
        Ok(())
    }

    /// Gives the strategy under way up for these windows, oldest first.
    fn start_over(&mut self, windows: impl IntoIterator<Item = Todo>) {
        self.windows.extend(windows);
        self.current = None;
        for side in Side::BOTH {
            self.asked[side] = self.asked[side].map(|_| Owed::Nothing);
        }
    }

    /// What the strategy under way asks of a side that owes nothing.
    fn question(&mut self) -> Option<(Side, Question)> {
        let strategy = self.current.as_mut()?;
        Side::BOTH
            .into_iter()
            .filter(|side| self.asked[*side].is_none())
            .find_map(|side| Some((side, strategy.question(side)?)))
    }

    fn begin(&mut self, todo: Todo) {
        let Todo { window, mut listed } = todo;
        for side in Side::BOTH {
            listed[side] |= self.listed[side];
        }
        let strategy: Box<dyn Strategy> = match (listed.local, listed.peer) {
            (false, false) => Box::new(Mediated::new(window, &self.limits)),
            (true, false) => Box::new(Inventory::new(Side::Local, window, self.limits, &self.ledger)),
            (false, true) => Box::new(Inventory::new(Side::Peer, window, self.limits, &self.ledger)),
            (true, true) => Box::new(Paged::new(window, &self.limits, &self.ledger)),
        };
        self.name = strategy.name();
        self.current = Some(strategy);
    }
}

impl Reconciler for Reconciliation {
    fn poll(&mut self) -> Option<Action> {
        if self.failed {
            return None;
        }
        loop {
            if let Some((on, id)) = self.ledger.found.pop_front() {
                return Some(Action::Found { on, id });
            }
            match &self.current {
                None => match self.windows.pop() {
                    Some(todo) => self.begin(todo),
                    None => return Some(Action::Done),
                },
                Some(strategy) if strategy.is_done() => self.current = None,
                Some(_) => {
                    let (side, question) = self.question()?;
                    self.asked[side] = Some(match question {
                        Question::Neg { .. } => Owed::Message,
                        Question::Page { .. } => Owed::Page,
                    });
                    return Some(Action::Ask(side, question));
                }
            }
        }
    }

    fn handle(&mut self, side: Side, answer: Answer) -> Result<(), ReconcileError> {
        let result = self.take(side, answer);
        self.failed |= result.is_err();
        result
    }
}

/// What a strategy is called that lists these sides.
const fn name(listed: BySide<bool>) -> &'static str {
    match (listed.local, listed.peer) {
        (false, false) => "mediated",
        (true, true) => "paged",
        _ => "inventory",
    }
}
