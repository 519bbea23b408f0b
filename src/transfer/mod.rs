//! Moves ids from one relay to another: ids in, one outcome per id out. Pure.
//!
//! ```text
//! want → fetch (batches, several under way) → spool (bounded) → publish (window) → settle
//! ```
//!
//! The spool stands between the two relays so that a slow destination does not stall the source;
//! when it is full nothing more is fetched.

pub mod check;
mod fetch;
mod publish;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::nostr::{EventId, PeerText, Reason};
use crate::outcome::{Outcome, ParkReason, Skip};

use self::check::{Checked, Verdict};
use self::fetch::Fetching;
use self::publish::{Judgement, Window, judge};

/// A batch of ids under way at the source.
pub type BatchId = u64;

/// What one transfer may use.
#[derive(Clone, Debug)]
pub struct TransferLimits {
    /// Ids in one REQ.
    pub batch: usize,
    /// REQs under way.
    pub fetches_in_flight: usize,
    /// EVENTs awaiting their OK.
    pub publishes_in_flight: usize,
    /// Bytes of events between fetch and publish.
    pub spool_bytes: usize,
    /// Events refused one after another, by policy, before the rest is not offered any more.
    pub refusals_in_a_row: u32,
}

/// What a transfer wants done.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Ask the source for these ids, check what comes, and hand it to [`Transfer::fetched`].
    Fetch {
        /// The name of the batch.
        batch: BatchId,
        /// What to ask for.
        ids: Vec<EventId>,
    },
    /// Publish this event at the destination and hand its OK to [`Transfer::acked`].
    Publish {
        /// Its id.
        id: EventId,
        /// Its JSON.
        raw: Box<str>,
    },
    /// This id has come to its end.
    Settle {
        /// The id.
        id: EventId,
        /// What became of it.
        outcome: Outcome,
        /// Why it is not to be tried again for a while.
        park: Option<ParkReason>,
    },
}

/// The usual number of events that a destination refused one after another, by policy, before
/// uploads to it stop: enough to know, few enough not to be a nuisance.
pub const REFUSALS_IN_A_ROW: u32 = 200;

/// Cooldowns after each of which nothing was taken, before the rest is left for another run.
const BARREN_COOLDOWNS: u32 = 5;

/// One transfer, in one direction, within one pass.
#[derive(Debug)]
pub struct Transfer {
    fetching: Fetching,
    spool: VecDeque<Spooled>,
    spool_bytes: usize,
    window: Window,
    awaiting: HashMap<EventId, Spooled>,
    settled: VecDeque<(EventId, Outcome, Option<ParkReason>)>,
    refused_in_a_row: u32,
    most_refusals: u32,
    barren: u32,
    stopped: Option<Reason>,
    /// Whether only what is under way at the destination is still waited for.
    closing: bool,
    last_failure: Option<PeerText>,
}

#[derive(Debug)]
struct Spooled {
    id: EventId,
    raw: Box<str>,
    replaceable: bool,
    sent_as: u64,
}

impl Transfer {
    /// A transfer of nothing yet.
    #[must_use]
    pub fn new(limits: TransferLimits) -> Self {
        Self {
            window: Window::new(limits.publishes_in_flight),
            most_refusals: limits.refusals_in_a_row,
            fetching: Fetching::new(limits),
            spool: VecDeque::new(),
            spool_bytes: 0,
            awaiting: HashMap::new(),
            settled: VecDeque::new(),
            refused_in_a_row: 0,
            barren: 0,
            stopped: None,
            closing: false,
            last_failure: None,
        }
    }

    /// An id to move. The caller names each once.
    pub fn want(&mut self, id: EventId) {
        if self.closing {
            self.settle(id, Outcome::Failed, None);
        } else {
            self.fetching.want(id);
        }
    }

    /// No id will be wanted any more.
    pub fn no_more(&mut self) {
        self.fetching.no_more();
    }

    /// Ids wanted and not yet asked for: more than a few batches of them are of no use.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.fetching.queued()
    }

    /// Why nothing more is offered to the destination, if so.
    #[must_use]
    pub fn stopped(&self) -> Option<&Reason> {
        self.stopped.as_ref()
    }

    /// What the destination said when it last failed to take an event.
    #[must_use]
    pub fn last_failure(&self) -> Option<&PeerText> {
        self.last_failure.as_ref()
    }

    /// Whether every id wanted has come to its end, and no more will be wanted.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.fetching.is_done() && self.spool.is_empty() && self.awaiting.is_empty() && self.settled.is_empty()
    }

    /// The next thing to do; `None` while something is awaited.
    pub fn poll(&mut self) -> Option<Action> {
        if let Some((id, outcome, park)) = self.settled.pop_front() {
            return Some(Action::Settle { id, outcome, park });
        }
        if self.window.has_room(self.awaiting.len())
            && let Some(mut event) = self.spool.pop_front()
        {
            event.sent_as = self.window.sending();
            let (id, raw) = (event.id, event.raw.clone());
            self.awaiting.insert(id, event);
            return Some(Action::Publish { id, raw });
        }
        self.fetching.poll(self.spool_bytes).map(|(batch, ids)| Action::Fetch { batch, ids })
    }

    /// What came for a batch, checked. Ids that did not come are asked for once more, in a
    /// smaller batch, and have vanished if they do not come then.
    pub fn fetched(&mut self, batch: BatchId, checked: Vec<Checked>) {
        let bytes = checked.iter().map(Checked::bytes).sum();
        let vanished = self.fetching.fetched(batch, checked.iter().map(|checked| checked.id), bytes);
        for id in vanished {
            self.settle(id, Outcome::Vanished, Some(ParkReason::Vanished));
        }
        let mut events = Vec::with_capacity(checked.len());
        for Checked { id, verdict } in checked {
            match verdict {
                Verdict::Publish { raw, created_at, replaceable } => {
                    events.push((created_at, Spooled { id, raw, replaceable, sent_as: 0 }));
                }
                Verdict::Skip(skip) => self.settle(id, Outcome::Skipped(skip), Some(ParkReason::Skipped(skip))),
            }
        }
        // Oldest first: what answers another event comes after it.
        events.sort_by_key(|(created_at, event)| (*created_at, event.id));
        for (_, event) in events {
            if self.closing {
                self.settle(event.id, Outcome::Failed, None);
            } else {
                self.spool_bytes += event.raw.len();
                self.spool.push_back(event);
            }
        }
    }

    /// The destination's word on an event, so long after it was sent; `None` when it gave none
    /// in time.
    pub fn acked(&mut self, id: EventId, answer: Option<(bool, Reason)>, waited: Duration) {
        let Some(event) = self.awaiting.remove(&id) else { return };
        let judgement = match &answer {
            Some((accepted, reason)) => judge(*accepted, reason, event.replaceable),
            None => Judgement::Settle(Outcome::Failed, None),
        };
        match judgement {
            Judgement::Again => {
                if self.window.shrink(event.sent_as) {
                    self.barren += 1;
                }
                if self.barren > BARREN_COOLDOWNS {
                    self.stop(answer.map(|(_, reason)| reason), event);
                } else {
                    self.spool.push_front(event);
                }
            }
            Judgement::Policy(outcome, park) => {
                self.spool_bytes -= event.raw.len();
                self.settle(id, outcome, Some(park));
                self.refused_in_a_row += 1;
                if self.refused_in_a_row == self.most_refusals {
                    self.stop_all(answer.map(|(_, reason)| reason));
                }
            }
            Judgement::Settle(outcome, park) => {
                self.spool_bytes -= event.raw.len();
                if matches!(outcome, Outcome::Stored | Outcome::Duplicate) {
                    self.window.taken(waited);
                    self.barren = 0;
                    self.refused_in_a_row = 0;
                } else if outcome == Outcome::Failed {
                    let said = answer.map_or_else(|| PeerText::new("no OK in time"), |(_, reason)| reason.text);
                    self.last_failure = Some(said);
                }
                self.settle(id, outcome, park);
            }
        }
    }

    fn stop(&mut self, reason: Option<Reason>, event: Spooled) {
        self.spool_bytes -= event.raw.len();
        self.settle(event.id, Outcome::Failed, None);
        self.stop_all(reason);
    }

    fn stop_all(&mut self, reason: Option<Reason>) {
        self.stopped = reason;
        self.close();
    }

    /// Leaves what was not offered yet for another run; the OKs of what was are still awaited.
    pub fn close(&mut self) {
        self.closing = true;
        self.fetching.no_more();
        for id in self.fetching.give_up() {
            self.settle(id, Outcome::Failed, None);
        }
        for event in std::mem::take(&mut self.spool) {
            self.spool_bytes -= event.raw.len();
            self.settle(event.id, Outcome::Failed, None);
        }
    }

    fn settle(&mut self, id: EventId, outcome: Outcome, park: Option<ParkReason>) {
        self.settled.push_back((id, outcome, park));
    }
}

/// Ids that came under a name that is not theirs, as outcomes.
#[must_use]
pub fn invalid(id: EventId) -> Checked {
    Checked { id, verdict: Verdict::Skip(Skip::Invalid) }
}

#[cfg(test)]
mod tests;
