//! Lists one relay page by page, newest first.
//!
//! Relays cap a page silently, order ties as they like and return what was not asked for. So a
//! short page is not the end, and a second that holds more than a page is asked for in parts.

use std::collections::HashSet;

use super::{Head, Page, Question};
use crate::nostr::{EoseHint, EventId, Filter, Timestamp};

/// Relays cap pages at round numbers, from 100 to 5,000: all are multiples of this.
const ROUND: usize = 50;

/// Pages in a listing: at 100 events each, more than any relay known to us holds.
const MAX_PAGES: u64 = 1_000_000;

/// Ids of one second, which have to be held at once: 32 MB.
const MAX_PER_SECOND: usize = 1_000_000;

/// Why a listing ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PagerError {
    /// A page without a question.
    #[error("a page that nothing was asked for")]
    Unasked,
    /// Two pages that brought nothing that was asked for and not known already.
    #[error("the listing does not go on: `until` seems to be ignored")]
    NoProgress,
    /// More than an honest relay can have.
    #[error("the listing does not end: too many {0}")]
    Limit(&'static str),
}

/// A second that holds more than the relay lists at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseSecond {
    /// The second.
    pub second: Timestamp,
    /// The most events that the relay returned for it.
    pub cap: usize,
}

/// How much a relay sends at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageSize {
    /// The most to ask for.
    pub limit: usize,
    /// The largest page it has ever sent: what disproves a smaller cap.
    pub largest: usize,
}

/// A listing under way.
#[derive(Debug)]
pub struct Pager {
    filter: Filter,
    /// The last second in scope.
    top: Timestamp,
    size: PageSize,
    pages: u64,
    state: State,
    asked: bool,
    /// The second that the listing has come down to. What is newer is complete.
    oldest: Option<Timestamp>,
    /// Its ids so far.
    seen: HashSet<EventId>,
    /// Pages in a row that brought nothing new.
    stalled: u8,
    /// Whether the last page was not as it should be.
    doubted: bool,
    dense: Vec<DenseSecond>,
}

/// What to ask next.
#[derive(Debug)]
enum State {
    /// A page from `oldest` down, `oldest` included, as it may not be complete.
    Walk,
    /// The page below `oldest`, after this one brought nothing new.
    Below {
        last: Page,
    },
    /// The parts of `oldest`, which is denser than a page, until none is left; then the page
    /// below it, already here, has its turn.
    Parts {
        parts: Vec<Filter>,
        below: Page,
        cap: usize,
    },
    Done,
}

impl Pager {
    /// Lists what matches `filter`, up to second `top`; what is newer is passed over.
    #[must_use]
    pub fn new(filter: Filter, top: Timestamp, size: PageSize) -> Self {
        Self {
            filter,
            top,
            // No limit at all would mean no events to some relays and all events to others.
            size: PageSize { limit: size.limit.max(1), ..size },
            pages: 0,
            state: State::Walk,
            asked: false,
            oldest: None,
            seen: HashSet::new(),
            stalled: 0,
            doubted: false,
            dense: Vec::new(),
        }
    }

    /// The next page to ask for; `None` while one is awaited, or at the end.
    pub fn next_question(&mut self) -> Option<Question> {
        if self.asked {
            return None;
        }
        let filter = match &self.state {
            // The first page has no bound of ours: events from the future exist.
            State::Walk => self.filter.narrow_time(None, self.oldest)?,
            State::Below { .. } => self.below()?,
            State::Parts { parts, .. } => parts.last()?.clone(),
            State::Done => return None,
        };
        self.asked = true;
        Some(Question::Page { filter, limit: self.size.limit })
    }

    /// Takes the page that was asked for. Returns the new heads in it that are in scope, newest
    /// first and none newer than those before.
    ///
    /// # Errors
    /// When the relay does not list what it is asked for. The listing is over then.
    pub fn take(&mut self, mut page: Page) -> Result<Vec<Head>, PagerError> {
        if !std::mem::take(&mut self.asked) {
            return Err(PagerError::Unasked);
        }
        self.pages += 1;
        if self.pages > MAX_PAGES {
            return Err(PagerError::Limit("pages"));
        }
        self.size.largest = self.size.largest.max(page.received);
        if !matches!(self.state, State::Parts { .. }) && !self.is_sound(&mut page) {
            return Ok(Vec::new());
        }
        let mut heads = match std::mem::replace(&mut self.state, State::Done) {
            State::Walk => self.walked(page)?,
            State::Below { last } => self.probed(&last, page)?,
            State::Parts { parts, below, cap } => self.divided(parts, below, cap, page)?,
            State::Done => return Err(PagerError::Unasked),
        };
        if self.seen.len() > MAX_PER_SECOND {
            return Err(PagerError::Limit("events in one second"));
        }
        heads.retain(|head| head.created_at <= self.top);
        Ok(heads)
    }

    /// The first second that is complete, with all that are newer: 0 at the end.
    #[must_use]
    pub fn complete_from(&self) -> Timestamp {
        match (&self.state, self.oldest) {
            (State::Done, _) => 0,
            (_, Some(oldest)) => oldest.min(self.top).saturating_add(1),
            (_, None) => self.top.saturating_add(1),
        }
    }

    /// Whether the listing has come to its end.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// The seconds that could not be listed, each once.
    pub fn take_dense(&mut self) -> Vec<DenseSecond> {
        std::mem::take(&mut self.dense)
    }

    /// How much the relay sends at once, as far as is known now.
    #[must_use]
    pub const fn size(&self) -> PageSize {
        self.size
    }

    /// Whether a page is to be taken. An old event that is published while a page is sent would take
    /// the listing down to its second, past all that lies between: it is in its place when the page
    /// is asked for again. A relay to which such events come all the time is believed down to the
    /// second of the page's last event, and what is older comes again; one that lists the oldest
    /// first is taken as it is.
    fn is_sound(&mut self, page: &mut Page) -> bool {
        let is_sorted = page.heads.is_sorted_by(|a, b| a.created_at >= b.created_at);
        let is_doubtful = !is_sorted || page.received > self.size.limit;
        if is_doubtful && !std::mem::replace(&mut self.doubted, is_doubtful) {
            return false;
        }
        self.doubted = is_doubtful;
        let is_oldest_first = page.heads.is_sorted_by(|a, b| a.created_at <= b.created_at);
        if let Some(last) = page.heads.last().copied()
            && !is_sorted
            && !is_oldest_first
        {
            page.heads.retain(|head| head.created_at >= last.created_at);
        }
        true
    }

    /// A page from `oldest` down has come.
    fn walked(&mut self, page: Page) -> Result<Vec<Head>, PagerError> {
        let heads = self.fresh(&page.heads, 0);
        let finished = page.hint == Some(EoseHint::Finish);
        if heads.is_empty() && page.received > 0 && !finished {
            self.stalled += 1;
            if self.stalled > 1 {
                return Err(PagerError::NoProgress);
            }
        } else {
            self.stalled = 0;
        }
        self.state = match self.oldest {
            _ if finished => State::Done,
            _ if !heads.is_empty() => State::Walk,
            None if page.received == 0 => State::Done,
            // Nothing that was asked for: once more.
            None => State::Walk,
            Some(_) if self.below().is_some() => State::Below { last: page },
            Some(second) => return self.judge(second, &page, Page::default()),
        };
        Ok(heads)
    }

    /// The page below has come, after one that brought nothing new.
    fn probed(&mut self, last: &Page, below: Page) -> Result<Vec<Head>, PagerError> {
        // Only a second that was come down to gives rise to this state.
        let second = self.oldest.ok_or(PagerError::Unasked)?;
        if below.received > 0 && below.heads.is_empty() && below.hint != Some(EoseHint::Finish) {
            return Err(PagerError::NoProgress);
        }
        self.judge(second, last, below)
    }

    /// Whether `second` is complete, when a page from it down brought nothing new.
    fn judge(&mut self, second: Timestamp, last: &Page, below: Page) -> Result<Vec<Head>, PagerError> {
        let more = last.hint == Some(EoseHint::More);
        // The page had room for what is below, and did not go on: it is capped.
        let cap_proven = below.heads.iter().any(|head| head.created_at < second);
        // With nothing below, only the number tells, unless a larger page was ever seen.
        let cap_likely = last.received > 0 && last.received.is_multiple_of(ROUND) && self.size.largest <= last.received;
        if last.received >= self.size.limit || cap_proven || more || cap_likely {
            let parts = self.filter.narrow_time(Some(second), Some(second)).as_ref().map(split).unwrap_or_default();
            return self.divide(second, parts, below, last.received.max(1));
        }
        self.go_below(second, below)
    }

    /// A part of a dense second has come.
    fn divided(
        &mut self,
        mut parts: Vec<Filter>,
        below: Page,
        cap: usize,
        page: Page,
    ) -> Result<Vec<Head>, PagerError> {
        let part = parts.pop();
        let second = self.oldest.ok_or(PagerError::Unasked)?;
        let mut heads = self.fresh(&page.heads, second);
        let finished = page.hint == Some(EoseHint::Finish);
        let dense = page.received >= cap || page.hint == Some(EoseHint::More);
        if dense && !finished {
            let smaller = part.as_ref().map(split).unwrap_or_default();
            if smaller.is_empty() {
                self.record(second, cap.max(page.received));
            }
            parts.extend(smaller);
        }
        if parts.is_empty() {
            heads.extend(self.go_below(second, below)?);
        } else {
            self.state = State::Parts { parts, below, cap };
        }
        Ok(heads)
    }

    fn divide(
        &mut self,
        second: Timestamp,
        parts: Vec<Filter>,
        below: Page,
        cap: usize,
    ) -> Result<Vec<Head>, PagerError> {
        if parts.is_empty() {
            self.record(second, cap);
            return self.go_below(second, below);
        }
        self.state = State::Parts { parts, below, cap };
        Ok(Vec::new())
    }

    /// All that can be had of `second` is here: on to the page below it.
    fn go_below(&mut self, second: Timestamp, below: Page) -> Result<Vec<Head>, PagerError> {
        if below.received == 0 {
            self.state = State::Done;
            return Ok(Vec::new());
        }
        let below = Page { heads: below.heads.into_iter().filter(|head| head.created_at < second).collect(), ..below };
        self.walked(below)
    }

    fn record(&mut self, second: Timestamp, cap: usize) {
        match self.dense.last_mut().filter(|dense| dense.second == second) {
            Some(dense) => dense.cap = dense.cap.max(cap),
            None => self.dense.push(DenseSecond { second, cap }),
        }
    }

    /// What is asked to see what lies below `oldest`; `None` where nothing can.
    fn below(&self) -> Option<Filter> {
        self.filter.narrow_time(None, Some(self.oldest?.checked_sub(1)?))
    }

    /// The heads in a page that are new, from second `low` on, newest first; moves `oldest` down
    /// to the last of them.
    fn fresh(&mut self, heads: &[Head], low: Timestamp) -> Vec<Head> {
        let low = low.max(self.filter.since().unwrap_or(0));
        let high = self.oldest.or(self.filter.until()).unwrap_or(u64::MAX);
        let mut heads: Vec<_> = heads
            .iter()
            .filter(|head| (low..=high).contains(&head.created_at) && !self.seen.contains(&head.id))
            .copied()
            .collect();
        heads.sort_unstable_by(|a, b| b.created_at.cmp(&a.created_at).then(a.id.cmp(&b.id)));
        heads.dedup();
        if let Some(last) = heads.last() {
            if self.oldest != Some(last.created_at) {
                self.seen.clear();
                self.oldest = Some(last.created_at);
            }
            let of_oldest = heads.iter().rev().take_while(|head| head.created_at == last.created_at);
            self.seen.extend(of_oldest.map(|head| head.id));
        }
        heads
    }
}

/// A filter in two, by its kinds, else by its authors, else by its longest list, which is then
/// one of tag values; empty where none can be divided.
fn split(filter: &Filter) -> Vec<Filter> {
    fn halves<T: Copy>(list: impl Iterator<Item = T>) -> Option<(Vec<T>, Vec<T>)> {
        let mut low: Vec<_> = list.collect();
        let high = low.split_off(low.len() / 2);
        (!low.is_empty()).then_some((low, high))
    }
    if let Some((low, high)) = filter.kinds().and_then(|kinds| halves(kinds.iter().copied())) {
        [filter.narrow_kinds(low), filter.narrow_kinds(high)].into_iter().flatten().collect()
    } else if let Some((low, high)) = filter.authors().and_then(|authors| halves(authors.iter().copied())) {
        [filter.narrow_authors(low), filter.narrow_authors(high)].into_iter().flatten().collect()
    } else {
        filter.split().map(|(low, high)| vec![low, high]).unwrap_or_default()
    }
}
