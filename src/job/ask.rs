//! Drives one reconciler: puts its questions to the two relays and hands on what it finds.

use std::collections::VecDeque;
use std::time::Duration;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

use super::JobError;
use super::memory::Memory;
use crate::job_spec::Side;
use crate::nostr::{Event, EventId, Filter, NegRefusal, PeerText, Timestamp};
use crate::outcome::{BySide, Gap};
use crate::reconcile::{Action, Answer, Head, Page, Question, Reconciler, Reconciliation};
use crate::relay::{Fault, Link, NegSession, RelayError};

/// How long to wait when a relay has too many sessions under way.
const BUSY_PAUSE: Duration = Duration::from_secs(1);

/// A connection that ends on a NEG-OPEN this often says that the relay cannot take one.
pub(super) const DROPS: u8 = 2;

/// A comparison of one filter, as far as it has come.
pub(super) struct Comparison<'a> {
    pub(super) links: &'a BySide<Link>,
    pub(super) memory: &'a Memory,
    /// Where ids go that only this side has.
    pub(super) found: BySide<mpsc::Sender<EventId>>,
    /// How often the connection to a side ended on a NEG-OPEN, in this run.
    pub(super) drops: &'a mut BySide<u8>,
    /// The most ids to find on the local side while the peer shows nothing at all.
    pub(super) empty_guard: Option<u64>,
}

/// What a comparison came to, besides the ids.
#[derive(Debug)]
pub(super) struct Compared {
    pub(super) strategy: &'static str,
    pub(super) gaps: Vec<Gap>,
    pub(super) rounds: u64,
    /// Sides that were found to have to be listed.
    pub(super) listed: BySide<bool>,
}

/// A session that answers queries about one filter.
struct OpenSession {
    filter: Filter,
    session: NegSession,
}

struct Answered {
    side: Side,
    session: Option<OpenSession>,
    answer: Result<Answer, RelayError>,
    /// Whether the question opened a session.
    opened: bool,
}

impl Comparison<'_> {
    /// Compares to the end.
    ///
    /// # Errors
    /// When a relay is lost, or breaks the rules, or the empty guard strikes.
    pub(super) async fn run(mut self, mut machine: Reconciliation) -> Result<Compared, JobError> {
        let mut sessions: BySide<Option<OpenSession>> = BySide::default();
        let mut answers: FuturesUnordered<BoxFuture<'static, Answered>> = FuturesUnordered::new();
        // Held back until the peer has shown that it holds anything.
        let mut held: VecDeque<EventId> = VecDeque::new();
        loop {
            match machine.poll() {
                Some(Action::Ask(side, question)) => {
                    let link = self.links[side].clone();
                    let session = sessions[side].take();
                    answers.push(Box::pin(ask(side, link, session, question)));
                }
                Some(Action::Found { on: Side::Local, id }) if self.guards(&machine) => {
                    held.push_back(id);
                    let most = self.empty_guard.unwrap_or(u64::MAX);
                    if held.len() as u64 > most {
                        return Err(JobError::EmptyPeer { relay: self.links.peer.relay().url().clone(), most });
                    }
                }
                Some(Action::Found { on, id }) => {
                    self.release(&mut held).await;
                    self.report(on, id).await;
                }
                Some(Action::Done) => {
                    self.release(&mut held).await;
                    break;
                }
                None => {
                    let Some(Answered { side, session, answer, opened }) = answers.next().await else {
                        return Err(JobError::Stuck);
                    };
                    sessions[side] = session;
                    let answer = self.answer(side, answer, opened).await?;
                    machine.handle(side, answer).map_err(|error| self.fault(error))?;
                }
            }
        }
        let refused = machine.refusals();
        Ok(Compared {
            strategy: machine.strategy(),
            gaps: machine.gaps().to_vec(),
            rounds: machine.rounds(),
            listed: BySide { local: refused.local.is_some(), peer: refused.peer.is_some() },
        })
    }

    fn guards(&self, machine: &Reconciliation) -> bool {
        self.empty_guard.is_some() && !machine.has_shown(Side::Peer)
    }

    async fn release(&self, held: &mut VecDeque<EventId>) {
        for id in held.drain(..) {
            self.report(Side::Local, id).await;
        }
    }

    async fn report(&self, on: Side, id: EventId) {
        // A mover that has gone has failed, and the whole pass with it.
        let _ = self.found[on].send(id).await;
    }

    /// Makes an answer of what happened, where the reconciler can do something about it.
    async fn answer(
        &mut self,
        side: Side,
        answer: Result<Answer, RelayError>,
        opened: bool,
    ) -> Result<Answer, RelayError> {
        let url = self.links[side].relay().url();
        match answer {
            Ok(Answer::Neg(message)) => {
                if opened {
                    self.drops[side] = 0;
                    self.memory.learn_nip77(url, None).await;
                }
                Ok(Answer::Neg(message))
            }
            Ok(Answer::Refused(refusal)) => {
                tracing::debug!(relay = %url, %refusal, "no negentropy");
                self.memory.learn_nip77(url, Some(&refusal)).await;
                if matches!(refusal, NegRefusal::Busy(_)) {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                Ok(Answer::Refused(refusal))
            }
            Ok(page @ Answer::Page(_)) => Ok(page),
            Err(error @ RelayError { fault: Fault::Lost(_), .. }) if opened => {
                self.drops[side] += 1;
                if self.drops[side] >= DROPS {
                    let refusal = NegRefusal::Unsupported(PeerText::new("disconnects on NEG-OPEN"));
                    self.memory.learn_nip77(url, Some(&refusal)).await;
                }
                Err(error)
            }
            Err(error) => Err(error),
        }
    }

    fn fault(&self, error: crate::reconcile::ReconcileError) -> JobError {
        let relay = error.side().map(|side| self.links[side].relay().url().clone());
        JobError::Reconcile { relay, error }
    }
}

async fn ask(side: Side, link: Link, session: Option<OpenSession>, question: Question) -> Answered {
    match question {
        Question::Neg { filter, message } => {
            let (mut open, opened) = match session {
                Some(mut open) if open.filter == filter => {
                    open.session.query(message);
                    (open, false)
                }
                // Another window's session, if any, is closed by being dropped here.
                _ => match link.as_asked(filter.clone()).await {
                    Ok(asked) => (OpenSession { session: link.reconcile(asked, message), filter }, true),
                    Err(error) => return Answered { side, session: None, answer: Err(error), opened: false },
                },
            };
            let (session, answer) = match open.session.answer().await {
                Ok(Ok(message)) => (Some(open), Ok(Answer::Neg(message))),
                Ok(Err(refusal)) => (None, Ok(Answer::Refused(refusal))),
                Err(error) => (None, Err(error)),
            };
            Answered { side, session, answer, opened }
        }
        Question::Page { filter, limit } => {
            let answer = page(&link, filter, limit).await.map(Answer::Page);
            Answered { side, session, answer, opened: false }
        }
    }
}

async fn page(link: &Link, filter: Filter, limit: usize) -> Result<Page, RelayError> {
    let last = filter.until().unwrap_or(Timestamp::MAX);
    let mut heads = Vec::new();
    let take = |event: Result<Event, EventId>| {
        // What comes under a wrong id is not on this side, whatever it says.
        if let Ok(event) = event
            && event.created_at() <= last
        {
            heads.push(Head { created_at: event.created_at(), id: event.id() });
        }
    };
    let (received, hint) = link.stored(link.as_asked(filter).await?, limit, take).await?;
    Ok(Page { heads, received, hint })
}
