//! One listing of the relay for a session's inventory, over the client's own connection: frames
//! to the relay go out, its answers come in. No socket is touched here.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::budget::Memory;
use super::inventory::Item;
use super::message::Wanted;
use super::names::Names;
use super::refusal::Refusal;
use crate::nostr::{EoseHint, Event, Filter, RelayMessage, Timestamp};
use crate::reconcile::{Head, Page, PageSize, Pager, Question};
use crate::relay::quota;

/// How long the relay may say nothing about what was asked.
const ANSWER: Duration = Duration::from_secs(30);

/// The last second that can be compared: the one after stands for infinity in NIP-77.
const TOP: Timestamp = Timestamp::MAX - 1;

/// What is known of the relay, by all listings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) page: PageSize,
    /// Whether it takes `until` for the first second that does not match, as nostr-relay does.
    pub(super) excludes_until: Option<bool>,
}

/// Where a listing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// More is to come.
    Wait,
    /// All is listed.
    Done,
}

/// A listing under way.
pub(super) struct Listing {
    /// The session it is for.
    pub(super) session: u64,
    plan: Plan,
    known: Known,
    /// Whether an event has proven what is known of `until`: where none is served to this client,
    /// that says nothing to others.
    proven: bool,
    /// The page that waits until it is known how to ask for it.
    waiting: Option<(Filter, usize)>,
    asked: Option<Asked>,
    /// Frames for the relay.
    frames: VecDeque<String>,
    pages: Vec<Vec<Item>>,
    count: usize,
    most: usize,
    memory: Memory,
    deadline: Instant,
}

enum Plan {
    /// One REQ, as the client wrote it: a `limit` means what the relay makes of it.
    Once { text: Box<str>, filter: Filter },
    /// Page by page.
    Paged(Box<Pager>),
}

/// A REQ under way.
struct Asked {
    name: String,
    what: What,
    heads: Vec<Head>,
    received: usize,
    quota: usize,
}

/// What a REQ is for.
enum What {
    /// What is to be listed.
    Page(Filter),
    /// Any event, to ask for by `until`.
    Any(Filter),
    /// An event, with `until` at its second, or one later.
    Named { head: Head, later: bool },
}

impl Listing {
    /// Begins; nothing is asked yet.
    pub(super) fn new(session: u64, wanted: Wanted, known: Known, most: usize, memory: Memory, now: Instant) -> Self {
        let Wanted { filter, limited } = wanted;
        let plan = match limited {
            Some(text) => Plan::Once { text, filter },
            None => Plan::Paged(Box::new(Pager::new(filter.conditioned(), TOP, known.page))),
        };
        Self {
            session,
            plan,
            known,
            proven: false,
            waiting: None,
            asked: None,
            frames: VecDeque::new(),
            pages: Vec::new(),
            count: 0,
            most,
            memory,
            deadline: now + ANSWER,
        }
    }

    /// When the relay has been silent for too long.
    pub(super) const fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether it has been.
    pub(super) fn tick(&self, now: Instant) -> Result<(), Refusal> {
        if now >= self.deadline { Err(Refusal::Silent(ANSWER)) } else { Ok(()) }
    }

    /// What was learnt of the relay.
    pub(super) fn known(&self) -> Known {
        let page = match &self.plan {
            Plan::Paged(pager) => pager.size(),
            Plan::Once { .. } => self.known.page,
        };
        Known { page, excludes_until: self.known.excludes_until.filter(|_| self.proven) }
    }

    /// What was listed, and the memory it takes.
    pub(super) fn finish(self) -> (Vec<Vec<Item>>, Memory) {
        (self.pages, self.memory)
    }

    /// The next frame for the relay: also where the listing has failed, or is not wanted any more.
    pub(super) fn poll(&mut self) -> Option<String> {
        self.frames.pop_front()
    }

    /// Ends what is under way at the relay.
    pub(super) fn close(&mut self) {
        if let Some(asked) = self.asked.take() {
            self.frames.push_back(close(&asked.name));
        }
    }

    /// Asks the first question.
    pub(super) fn start(&mut self, names: &mut Names) -> Step {
        if let Plan::Once { text, filter } = &self.plan {
            let name = names.issue();
            self.frames.push_back(format!(r#"["REQ","{name}",{text}]"#));
            self.asked = Some(Asked::new(name, What::Page(filter.clone()), usize::MAX));
        } else {
            self.ask(names);
        }
        self.step()
    }

    /// Takes a message about one of our subscriptions.
    ///
    /// # Errors
    /// When the listing has failed. It is over then.
    pub(super) fn take(&mut self, message: RelayMessage<'_>, names: &mut Names, now: Instant) -> Result<Step, Refusal> {
        let sub = match &message {
            RelayMessage::Event { sub, .. } | RelayMessage::Eose { sub, .. } | RelayMessage::Closed { sub, .. } => sub,
            _ => return Ok(Step::Wait),
        };
        // One that was closed may go on for a while.
        if self.asked.as_ref().is_none_or(|asked| asked.name != sub.as_ref()) {
            return Ok(Step::Wait);
        }
        self.deadline = now + ANSWER;
        match message {
            RelayMessage::Event { event, .. } => self.event(event).map(|()| Step::Wait),
            RelayMessage::Eose { hint, .. } => self.answered(hint, names),
            RelayMessage::Closed { reason, .. } => {
                self.asked = None;
                Err(Refusal::Relay(reason))
            }
            _ => Ok(Step::Wait),
        }
    }

    fn event(&mut self, raw: &str) -> Result<(), Refusal> {
        let Some(asked) = &mut self.asked else { return Ok(()) };
        asked.received += 1;
        if asked.received > asked.quota {
            return Err(Refusal::Listing("it sends far more events than were asked for".to_owned()));
        }
        // What comes under a wrong id is not there, whatever it says.
        let Ok(event) = Event::parse(raw) else { return Ok(()) };
        let matches = match &asked.what {
            What::Page(filter) | What::Any(filter) => filter.matches(&event),
            What::Named { head, .. } => head.id == event.id(),
        };
        if !matches {
            return Ok(());
        }
        let held = self.count + asked.heads.len() + 1;
        if held > self.most.saturating_add(self.known.page.limit) {
            // Those of one page may be known already; that many cannot all be.
            return Err(Refusal::Events { max: self.most });
        }
        if !self.memory.hold(held) {
            return Err(if held > self.most { Refusal::Events { max: self.most } } else { Refusal::Memory });
        }
        asked.heads.push(Head { created_at: event.created_at(), id: event.id() });
        Ok(())
    }

    fn answered(&mut self, hint: Option<EoseHint>, names: &mut Names) -> Result<Step, Refusal> {
        let Some(Asked { name, what, heads, received, .. }) = self.asked.take() else { return Ok(Step::Wait) };
        // The relay goes on with it until it is told not to.
        self.frames.push_back(close(&name));
        match what {
            What::Page(_) => {
                let heads = match &mut self.plan {
                    Plan::Once { .. } => heads.into_iter().filter(|head| head.created_at <= TOP).collect(),
                    Plan::Paged(pager) => {
                        let heads = pager
                            .take(Page { heads, received, hint })
                            .map_err(|error| Refusal::Listing(error.to_string()))?;
                        if let Some(dense) = pager.take_dense().first() {
                            return Err(Refusal::Dense { second: dense.second, cap: dense.cap });
                        }
                        heads
                    }
                };
                self.keep(heads)?;
            }
            What::Any(_) => match heads.first() {
                Some(head) => self.ask_named(*head, false, names),
                // It holds nothing that could be lost.
                None => self.learn(false, false),
            },
            What::Named { later: false, head } if heads.is_empty() => self.ask_named(head, true, names),
            // One that does not come either way is gone.
            What::Named { later, .. } => self.learn(later && !heads.is_empty(), !heads.is_empty()),
        }
        if self.asked.is_none() {
            self.ask(names);
        }
        Ok(self.step())
    }

    const fn step(&self) -> Step {
        if self.asked.is_some() { Step::Wait } else { Step::Done }
    }

    fn keep(&mut self, heads: Vec<Head>) -> Result<(), Refusal> {
        self.count += heads.len();
        if self.count > self.most {
            return Err(Refusal::Events { max: self.most });
        }
        if !heads.is_empty() {
            self.pages.push(heads.into_iter().map(|head| (head.created_at, head.id)).collect());
        }
        Ok(())
    }

    fn learn(&mut self, excludes: bool, proven: bool) {
        (self.known.excludes_until, self.proven) = (Some(excludes), proven);
    }

    /// Asks the next question, once it is known how to; none is left at the end.
    fn ask(&mut self, names: &mut Names) {
        let Plan::Paged(pager) = &mut self.plan else { return };
        if self.waiting.is_none()
            && let Some(Question::Page { filter, limit }) = pager.next_question()
        {
            self.waiting = Some((filter, limit));
        }
        let Some((filter, limit)) = self.waiting.take() else { return };
        let asked = match (filter.until(), self.known.excludes_until) {
            (None, _) | (_, Some(false)) => filter.clone(),
            (Some(until), Some(true)) => filter.with_until(until.checked_add(1)),
            (Some(_), None) => {
                let any = filter.with_until(None);
                self.waiting = Some((filter, limit));
                // An event that is listed already serves as well as any.
                return match self.pages.first().and_then(|page| page.first()) {
                    Some(&(created_at, id)) => self.ask_named(Head { created_at, id }, false, names),
                    None => self.request(names, What::Any(any.clone()), &any, 1),
                };
            }
        };
        self.request(names, What::Page(filter), &asked, limit);
    }

    fn ask_named(&mut self, head: Head, later: bool, names: &mut Names) {
        let until = head.created_at.saturating_add(u64::from(later));
        let filter = Filter::of_ids([head.id]).with_until(Some(until));
        self.request(names, What::Named { head, later }, &filter, 1);
    }

    fn request(&mut self, names: &mut Names, what: What, filter: &Filter, limit: usize) {
        let name = names.issue();
        self.frames.push_back(format!(r#"["REQ","{name}",{}]"#, filter.to_value(Some(limit))));
        self.asked = Some(Asked::new(name, what, quota(limit)));
    }
}

impl Asked {
    const fn new(name: String, what: What, quota: usize) -> Self {
        Self { name, what, heads: Vec::new(), received: 0, quota }
    }
}

fn close(name: &str) -> String {
    format!(r#"["CLOSE","{name}"]"#)
}

#[cfg(test)]
#[path = "listing_tests.rs"]
mod tests;
