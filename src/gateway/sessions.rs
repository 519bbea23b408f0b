//! The negentropy side of one client's connection: does what the responder wants done, and takes
//! the relay's answers to our own subscriptions out of the stream.

use std::collections::VecDeque;
use std::future::{Future, pending};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::Shared;
use super::budget::{Slot, most_events};
use super::inventory::{Hold, Work, Worked};
use super::listing::{Listing, Step};
use super::message::{NegMessage, Wanted};
use super::names::Names;
use super::refusal::Refusal;
use super::responder::{Action, Responder};
use crate::clock;
use crate::nostr::RelayMessage;

/// How long a session waits for the listings of others: clients wait 10 s for a first answer, and
/// one that says "again later" is better than none.
const TURN: Duration = Duration::from_secs(8);

/// The negentropy side of one client's connection.
pub(super) struct Sessions {
    shared: Arc<Shared>,
    responder: Responder,
    names: Names,
    /// Sessions to be listed, one after the other.
    queue: VecDeque<Turn>,
    /// A place among the listings of all clients, while it is waited for.
    place: Option<Pin<Box<dyn Future<Output = Slot> + Send>>>,
    listing: Option<(Listing, Slot)>,
    work: JoinSet<Worked>,
    /// Frames for the client, and for the relay.
    pub(super) to_client: VecDeque<String>,
    pub(super) to_relay: VecDeque<String>,
}

struct Turn {
    session: u64,
    wanted: Wanted,
    since: Instant,
}

impl Sessions {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let responder = Responder::new(shared.limits.clone(), clock::instant());
        let chance = u128::from(fastrand::u64(..)) << 64 | u128::from(fastrand::u64(..));
        Self {
            shared,
            responder,
            names: Names::new(chance),
            queue: VecDeque::new(),
            place: None,
            listing: None,
            work: JoinSet::new(),
            to_client: VecDeque::new(),
            to_relay: VecDeque::new(),
        }
    }

    /// Takes a negentropy message of the client's.
    pub(super) fn receive(&mut self, frame: &str) {
        let budget = &self.shared.budget;
        let slot = || budget.session().map(|slot| Box::new(slot) as Hold);
        self.responder.receive(NegMessage::parse(frame), slot, clock::instant());
        self.carry_out();
    }

    /// Whether a client's frame would mix up its subscriptions with ours.
    pub(super) fn collide(&self, frame: &str) -> bool {
        self.names.collide(frame)
    }

    /// Takes a frame of the relay's if it is an answer to us; says whether it was.
    pub(super) fn take(&mut self, frame: &str) -> bool {
        if !self.names.own(frame) {
            return false;
        }
        // Of its own accord a relay says nothing under our ids that could not be read.
        if let (Some((listing, _)), Ok(message)) = (&mut self.listing, RelayMessage::parse(frame)) {
            let step = listing.take(message, &mut self.names, clock::instant());
            self.go_on(step);
        }
        true
    }

    /// Waits until something has happened here. Cancel safe.
    pub(super) async fn changed(&mut self) {
        let place = async {
            match &mut self.place {
                Some(place) => place.await,
                None => pending().await,
            }
        };
        tokio::select! {
            slot = place => {
                self.place = None;
                self.start(slot);
            }
            Some(worked) = self.work.join_next() => {
                // The task only waits for the thread that works, and that catches its own faults.
                if let Ok(worked) = worked {
                    self.responder.worked(worked, clock::instant());
                }
            }
        }
        self.carry_out();
    }

    /// Ends what has taken too long.
    pub(super) fn tick(&mut self, now: Instant) {
        self.responder.tick(now);
        while let Some(turn) = self.queue.pop_front_if(|turn| now >= turn.since + TURN) {
            self.responder.listed(turn.session, Err(Refusal::Listings));
        }
        if let Some(late) = self.listing.as_ref().and_then(|(listing, _)| listing.tick(now).err()) {
            self.go_on(Err(late));
        }
        self.carry_out();
    }

    /// When to tick next.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let turn = self.queue.front().map(|turn| turn.since + TURN);
        let listing = self.listing.as_ref().map(|(listing, _)| listing.deadline());
        [self.responder.deadline(), turn, listing].into_iter().flatten().min()
    }

    /// Ends all sessions, for this reason.
    pub(super) fn end_all(&mut self, refusal: &Refusal) {
        self.responder.end_all(refusal);
        self.carry_out();
    }

    /// Takes no new sessions.
    pub(super) const fn stop(&mut self) {
        self.responder.stop();
    }

    /// Whether no session is open.
    pub(super) fn is_idle(&self) -> bool {
        self.responder.is_idle()
    }

    /// Does all that the responder wants done.
    fn carry_out(&mut self) {
        while let Some(action) = self.responder.poll() {
            match action {
                Action::Send(frame) => self.to_client.push_back(frame),
                Action::Refuse { frame, reason } => {
                    self.shared.metrics.refused(reason);
                    self.to_client.push_back(frame);
                }
                Action::List { session, wanted } => {
                    self.queue.push_back(Turn { session, wanted, since: clock::instant() });
                }
                Action::Forget { session } => self.forget(session),
                Action::Work(work) => self.work(work),
            }
        }
        if self.queue.is_empty() {
            self.place = None;
        } else if self.listing.is_none() && self.place.is_none() {
            self.place = Some(Box::pin(self.shared.budget.listing()));
        }
    }

    /// Answers a query where that stalls nobody.
    fn work(&mut self, work: Work) {
        let session = work.session;
        let leave = self.shared.budget.answers();
        self.work.spawn(async move {
            // The semaphore is never closed.
            let permit = leave.acquire_owned().await;
            let worked = tokio::task::spawn_blocking(move || {
                let worked = work.run();
                drop(permit);
                worked
            });
            let fault = |_| Worked { session, result: Err(Refusal::Fault("a query could not be answered".to_owned())) };
            worked.await.unwrap_or_else(fault)
        });
    }

    /// Begins the next listing.
    fn start(&mut self, slot: Slot) {
        let Some(turn) = self.queue.pop_front() else { return };
        let most = most_events(&self.shared.limits);
        let (memory, now) = (self.shared.budget.memory(), clock::instant());
        let mut listing = Listing::new(turn.session, turn.wanted, self.shared.known.get(), most, memory, now);
        let step = listing.start(&mut self.names);
        self.listing = Some((listing, slot));
        self.go_on(Ok(step));
    }

    fn go_on(&mut self, step: Result<Step, Refusal>) {
        let Some((listing, _)) = &mut self.listing else { return };
        self.to_relay.extend(std::iter::from_fn(|| listing.poll()));
        let result = match step {
            Ok(Step::Wait) => return,
            Ok(Step::Done) => Ok(()),
            Err(refusal) => Err(refusal),
        };
        let Some((listing, slot)) = self.end_listing() else { return };
        let session = listing.session;
        let result = result.map(|()| {
            let (pages, memory) = listing.finish();
            self.shared.metrics.listed(pages.iter().map(Vec::len).sum());
            (pages, Box::new(memory) as Hold)
        });
        drop(slot);
        self.responder.listed(session, result);
        self.carry_out();
    }

    fn forget(&mut self, session: u64) {
        self.queue.retain(|turn| turn.session != session);
        if self.listing.as_ref().is_some_and(|(listing, _)| listing.session == session) {
            self.end_listing();
        }
    }

    /// Takes the listing away, whatever it came to, and tells the relay where it is under way.
    fn end_listing(&mut self) -> Option<(Listing, Slot)> {
        let (mut listing, slot) = self.listing.take()?;
        listing.close();
        self.to_relay.extend(std::iter::from_fn(|| listing.poll()));
        self.shared.known.learn(listing.known());
        Some((listing, slot))
    }
}
