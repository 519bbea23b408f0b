//! Three-party negentropy: both relays answer, and what stands between them holds no inventory.
//!
//! Three facts carry it. An answer depends on its query and the answering side's own set alone,
//! so every query stands alone. A responder ignores the ids inside a list that it is asked about,
//! so an empty list means "your ids here". And a fingerprint that nobody has means "open this
//! range up".
//!
//! What is not settled yet is tiled by tasks, each waiting for one side's word on a range.

use std::collections::BTreeMap;

use super::lists::Lists;
use super::message::{Bound, Decoder, Encoder, Fingerprint, Id, MessageError, Mode, fingerprint};
use crate::job_spec::Side;
use crate::nostr::EventId;
use crate::outcome::BySide;

/// Sent where a range must be opened up. No set has it but by a collision of SHA-256.
const DUMMY: Fingerprint = *b"tieline: open up";

/// Hops a range may be handed on for. Each divides an honest side's set by 16, so that 2 log16 n
/// and a few would do.
const MAX_DEPTH: u16 = 64;

/// Tasks waiting at once, about 150 bytes each. 2,700 ranges, as many as
/// a query holds, opened into 16 parts over four levels are 172,800.
const MAX_OPEN: usize = 500_000;

/// Queries in all: at 60,000 bytes an answer, 6 GB.
const MAX_QUERIES: u64 = 100_000;

/// Ids reported in all, more than any relay known to us holds: a side that makes them up must
/// come to an end.
const MAX_FOUND: u64 = 100_000_000;

/// Ids in lists, 33 bytes each, from which on a side is asked only for what empties lists. One
/// answer of each side comes on top.
const FULL_LISTS: usize = 250_000;

/// Why an exchange ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeError {
    /// An answer that is no range list.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// An answer without a query.
    #[error("an answer to no query")]
    Unasked,
    /// Ranges that cannot be an answer to the query.
    #[error("the answer does not fit the query: {0}")]
    Violation(&'static str),
    /// An answer that says nothing about the first range asked.
    #[error("the answer leaves the query where it was")]
    NoProgress,
    /// More than two honest sides can need.
    #[error("the exchange does not end: too many {0}")]
    Limit(&'static str),
}

/// What a side is asked about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// Open it up: fingerprints of its parts, or its ids.
    Open,
    /// The same, unless its set there has this fingerprint.
    Compare(Fingerprint),
    /// Its ids, as many as fit.
    List,
}

/// A range that waits for one side's word.
#[derive(Clone, Copy, Debug)]
struct Task {
    lower: Bound,
    upper: Bound,
    ask: Ask,
    /// The list that the asked side's ids are checked off against.
    list: Option<usize>,
    depth: u16,
}

/// How long a side's answers become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    /// As long as what is asked for, as far as is known.
    Unlimited,
    /// One has run out of room: they end where its own limit is.
    Limited,
    /// A session was lost, perhaps to an answer too long to get through.
    Lost,
}

impl Answers {
    /// The most ranges to ask about at once. Without a limit each is answered with 31 ids (992
    /// bytes) or 16 fingerprints at the most: 4 MB of hex digits, and far less where ranges turn
    /// out equal. Fewer would cost all others rounds (1,200: half as many again). After a loss:
    /// half a megabyte, as the relays in use limit themselves.
    const fn max_ranges(self) -> usize {
        match self {
            Self::Unlimited => 2_000,
            Self::Limited => usize::MAX,
            Self::Lost => 500,
        }
    }
}

/// What is asked of one side.
#[derive(Debug)]
struct Work {
    /// By lower bound. All tasks, waiting or asked, of both sides, are disjoint.
    waiting: BTreeMap<Bound, Task>,
    /// In the query under way. There is never more than one: some relays answer out of order.
    asked: Option<Vec<Task>>,
    /// Ranges to ask about at once: about as many as the last answers had room for.
    room: usize,
    max_query: usize,
    answers: Answers,
    /// It has shown that it has something.
    shown: bool,
}

/// The state of one exchange between two sides.
#[derive(Debug)]
pub(super) struct Mediator {
    work: BySide<Work>,
    lists: Lists,
    /// Ids in lists from which on only what empties lists is asked.
    full_lists: usize,
    queries: u64,
    found: u64,
}

impl Mediator {
    /// Compares what two sides have in `[lower, upper)`, asking `first` first. A query is at
    /// most `max_query` bytes long, before hex.
    pub fn new((lower, upper): (Bound, Bound), first: Side, max_query: BySide<usize>) -> Self {
        let work = |max_query| Work {
            waiting: BTreeMap::new(),
            asked: None,
            room: Answers::Unlimited.max_ranges(),
            // No less than a single range takes.
            max_query: usize::max(max_query, 1 + Encoder::MAX_STEP),
            answers: Answers::Unlimited,
            shown: false,
        };
        let work = BySide { local: work(max_query.local), peer: work(max_query.peer) };
        let mut mediator = Self { work, lists: Lists::default(), full_lists: FULL_LISTS, queries: 0, found: 0 };
        if lower < upper {
            mediator.wait(first, Task { lower, upper, ask: Ask::Open, list: None, depth: 0 });
        }
        mediator
    }

    /// Whether every difference has been reported.
    pub fn is_done(&self) -> bool {
        self.open() == 0
    }

    /// Whether a side has shown that its set is not empty.
    pub fn has_shown(&self, side: Side) -> bool {
        self.work[side].shown
    }

    /// The next query for a side, unless there is nothing to ask it now. It stands alone, so it
    /// may be sent in any session.
    pub fn next_query(&mut self, side: Side) -> Option<Vec<u8>> {
        let full = self.lists.held() >= self.full_lists;
        let work = &mut self.work[side];
        if work.asked.is_some() {
            return None;
        }
        let may_ask = |task: &Task| !full || task.list.is_some();
        let next: Vec<Bound> =
            work.waiting.iter().filter(|(_, task)| may_ask(task)).map(|(at, _)| *at).take(work.room).collect();
        let mut message = Encoder::new();
        let mut tasks = Vec::new();
        for lower in next {
            if message.len() + Encoder::MAX_STEP > work.max_query {
                break;
            }
            let Some(mut task) = work.waiting.remove(&lower) else { continue };
            // Its list of a large range may be what did not get through.
            if work.answers == Answers::Lost && task.ask == Ask::List {
                task.ask = Ask::Open;
            }
            let mode = match task.ask {
                Ask::Open => Mode::Fingerprint(DUMMY),
                Ask::Compare(fingerprint) => Mode::Fingerprint(fingerprint),
                Ask::List => Mode::IdList(&[]),
            };
            message.push(&task.lower, &task.upper, mode);
            tasks.push(task);
        }
        if tasks.is_empty() {
            return None;
        }
        work.asked = Some(tasks);
        self.queries += 1;
        Some(message.finish())
    }

    /// Forgets the query under way at a side, whose session was lost: it is asked again, in
    /// smaller parts unless its answers are known to be limited.
    pub fn reset(&mut self, side: Side) {
        let work = &mut self.work[side];
        if work.answers == Answers::Unlimited {
            work.answers = Answers::Lost;
            work.room = work.room.min(work.answers.max_ranges());
        }
        for task in work.asked.take().into_iter().flatten() {
            work.waiting.insert(task.lower, task);
        }
    }

    /// Takes a side's answer to the query under way and reports what it settles.
    ///
    /// # Errors
    /// When it is not an answer to that query, or a limit is reached. The exchange is over then;
    /// what was reported so far holds.
    pub fn on_answer(
        &mut self,
        side: Side,
        answer: &[u8],
        report: &mut impl FnMut(Side, EventId),
    ) -> Result<(), ExchangeError> {
        let mut found = self.found;
        self.read(side, answer, &mut |on, id| {
            found += 1;
            report(on, EventId::new(id));
        })?;
        self.found = found;
        let limit = |what, reached: bool| if reached { Err(ExchangeError::Limit(what)) } else { Ok(()) };
        limit("differences", self.found > MAX_FOUND)?;
        limit("open ranges", self.open() > MAX_OPEN)?;
        limit("queries", self.queries >= MAX_QUERIES && !self.is_done())
    }

    /// Walks the tasks asked and the ranges answered together.
    fn read(&mut self, side: Side, answer: &[u8], report: &mut impl FnMut(Side, Id)) -> Result<(), ExchangeError> {
        let tasks = self.work[side].asked.take().ok_or(ExchangeError::Unasked)?;
        let asked = tasks.len();
        let mut answered = 0;
        let mut short = false;

        let mut ranges = Ranges::new(answer)?;
        for task in tasks {
            // The task in pieces, as the answer's ranges cut it.
            let mut heard = false;
            let mut lower = task.lower;
            while lower < task.upper {
                while ranges.upper <= lower {
                    ranges.advance()?;
                }
                let upper = ranges.upper.min(task.upper);
                let inside = ranges.lower == lower && ranges.upper == upper;
                let whole = lower == task.lower && upper == task.upper;
                let piece = Task { lower, upper, ..task };
                lower = upper;
                match ranges.mode {
                    Mode::Skip if whole => self.skipped(side, &piece)?,
                    Mode::Skip => return Err(ExchangeError::Violation("a range skipped in part")),
                    Mode::Fingerprint(fingerprint) if inside && !whole && task.ask != Ask::List => {
                        self.opened(side, &piece, fingerprint)?;
                    }
                    // Out of room: this stands for all that comes after. It is never put to use,
                    // as many implementations leave items out of it.
                    Mode::Fingerprint(_) => {
                        short = true;
                        self.ask_again(side, piece);
                        continue;
                    }
                    Mode::IdList(ids) if inside => self.listed(side, &piece, ids, report)?,
                    Mode::IdList(_) => return Err(ExchangeError::Violation("a list across ranges")),
                }
                heard = true;
            }
            answered += usize::from(heard);
            if let Some(list) = task.list {
                self.lists.close(list).for_each(|id| report(side.other(), id));
            }
        }
        ranges.finish()?;

        if answered == 0 {
            return Err(ExchangeError::NoProgress);
        }
        let work = &mut self.work[side];
        if short {
            work.answers = Answers::Limited;
            work.room = answered + answered / 4 + 1;
        } else if asked == work.room {
            work.room = work.room.saturating_mul(2).min(work.answers.max_ranges());
        }
        Ok(())
    }

    /// The side has in this range what it was said to have.
    fn skipped(&mut self, side: Side, task: &Task) -> Result<(), ExchangeError> {
        match task.ask {
            Ask::Compare(equal) => {
                if let Some(list) = task.list {
                    self.lists.settle(list);
                }
                let shown = &mut self.work[side].shown;
                *shown = *shown || equal != fingerprint(&[]);
                Ok(())
            }
            Ask::Open => Err(ExchangeError::Violation("a fingerprint that nobody has is called equal")),
            Ask::List => Err(ExchangeError::Violation("no list where one was asked for")),
        }
    }

    /// The side's fingerprint of a part of what it was asked about.
    fn opened(&mut self, side: Side, piece: &Task, fingerprint: Fingerprint) -> Result<(), ExchangeError> {
        self.work[side].shown = true;
        match piece.list {
            None => self.hand_on(side.other(), Task { ask: Ask::Compare(fingerprint), ..*piece }),
            Some(_) => self.hand_on(side, Task { ask: Ask::List, ..*piece }),
        }
    }

    /// All ids that the side has in a range.
    fn listed(
        &mut self,
        side: Side,
        piece: &Task,
        ids: &[Id],
        report: &mut impl FnMut(Side, Id),
    ) -> Result<(), ExchangeError> {
        self.work[side].shown |= !ids.is_empty();
        if let Some(list) = piece.list {
            for id in ids {
                if !self.lists.check(list, id) {
                    report(side, *id);
                }
            }
            return Ok(());
        }
        let ask = match piece.ask {
            // Nobody has said yet that the sides differ here.
            Ask::Open if !ids.is_empty() => Ask::Compare(fingerprint(ids)),
            _ => Ask::List,
        };
        let list = Some(self.lists.add(ids));
        self.hand_on(side.other(), Task { ask, list, ..*piece })
    }

    fn hand_on(&mut self, side: Side, mut task: Task) -> Result<(), ExchangeError> {
        task.depth += 1;
        if task.depth > MAX_DEPTH {
            return Err(ExchangeError::Limit("divisions of a range"));
        }
        self.wait(side, task);
        Ok(())
    }

    /// A compared range keeps its fingerprint, for all that it is not that of a part of it: it
    /// will not match then, and the part is opened up.
    fn ask_again(&mut self, side: Side, piece: Task) {
        self.wait(side, piece);
    }

    fn wait(&mut self, side: Side, task: Task) {
        if let Some(list) = task.list {
            self.lists.open(list);
        }
        self.work[side].waiting.insert(task.lower, task);
    }

    fn open(&self) -> usize {
        Side::BOTH
            .map(|side| self.work[side].waiting.len() + self.work[side].asked.as_ref().map_or(0, Vec::len))
            .into_iter()
            .sum()
    }
}

/// An answer's ranges one by one, the skip at its end included.
struct Ranges<'a> {
    decoder: Decoder<'a>,
    lower: Bound,
    upper: Bound,
    mode: Mode<'a>,
}

impl<'a> Ranges<'a> {
    fn new(answer: &'a [u8]) -> Result<Self, MessageError> {
        Ok(Self { decoder: Decoder::new(answer)?, lower: Bound::ZERO, upper: Bound::ZERO, mode: Mode::Skip })
    }

    fn advance(&mut self) -> Result<(), MessageError> {
        self.lower = self.upper;
        (self.upper, self.mode) =
            self.decoder.next()?.map_or((Bound::INFINITY, Mode::Skip), |range| (range.upper, range.mode));
        Ok(())
    }

    /// Reads what nothing was asked about, so that a malformed end does not pass for an answer.
    fn finish(mut self) -> Result<(), MessageError> {
        while self.decoder.next()?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::Filter;
    use crate::reconcile::tests::model::{Item, Relay, random_id};
    use crate::reconcile::{Answer, Question};

    /// A side that lists faster than the other takes must wait for it.
    #[test]
    fn lists_are_bounded() {
        let mut rng = fastrand::Rng::with_seed(5);
        let mut relay = || Relay::new((0..40_000).map(|at| Item::new(at, random_id(&mut rng))));
        let (mut local, mut peer) = (relay(), relay());
        let domain = (Bound::ZERO, Bound::at(40_000));
        let max_query = BySide { local: 60_000, peer: 2_000 };
        let mut mediator = Mediator::new(domain, Side::Local, max_query);
        mediator.full_lists = 5_000;
        let (mut found, mut most) = (0, 0);
        while !mediator.is_done() {
            let peer_query = mediator.next_query(Side::Peer).map(|message| (Side::Peer, message));
            let (side, message) =
                peer_query.or_else(|| Some((Side::Local, mediator.next_query(Side::Local)?))).expect("a query");
            let relay = if side == Side::Local { &mut local } else { &mut peer };
            let Answer::Neg(answer) = relay.answer(&Question::Neg { filter: Filter::new(), message }) else {
                panic!("a refusal")
            };
            mediator.on_answer(side, &answer, &mut |_, _| found += 1).unwrap();
            most = most.max(mediator.lists.held());
        }
        assert_eq!(found, 80_000);
        // What makes them full, and an answer to 2 kB of ranges.
        assert!((5_000..5_000 + 100 * 31).contains(&most), "{most}");
        assert_eq!(mediator.lists.held(), 0);
    }
}
