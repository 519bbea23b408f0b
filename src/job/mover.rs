//! Drives one transfer: from the relay that has the events to the one that lacks them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use futures::future::try_join;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::fates::{Fates, Found};
use super::guard::Guard;
use super::memory::Memory;
use super::progress::Progress;
use crate::clock;
use crate::job_spec::{JobSpec, Side};
use crate::nostr::{Event, EventId, Prefix};
use crate::outcome::{BySide, Outcome, ParkReason, Stored};
use crate::relay::{Fault, Link, RelayError};
use crate::transfer::check::{Checked, Policy};
use crate::transfer::{self, Action, BatchId, Transfer, TransferLimits};

/// Ids taken from the reconciliation at once, and looked up in the state together.
const ADMIT: usize = 4096;

/// Ids wanted and not yet asked for, above which the reconciliation waits: plenty for the
/// transfer never to run dry, little enough (a megabyte) to hold.
const QUEUE: usize = 32_768;

/// Outcomes to remember are written in groups of this size.
const PARK_GROUP: usize = 1000;

/// Ids asked for at once, to see whether they are served: fewer than any relay's cap.
const SERVED_BATCH: usize = 50;

/// Hears of each event just before it is published.
pub(super) type Tell = Arc<dyn Fn(EventId) + Send + Sync>;

/// Hears of each event that the destination has newly stored.
pub(super) type TellStored = Arc<dyn Fn(Stored) + Send + Sync>;

/// One direction of a job, from its first pass to its last.
pub(super) struct Mover {
    holder: Side,
    source: Link,
    destination: Link,
    spec: Arc<JobSpec>,
    /// Whether the job's direction moves anything this way.
    wanted: bool,
    memory: Memory,
    progress: watch::Sender<Progress>,
    pub(super) tell: Option<Tell>,
    pub(super) storing: Option<TellStored>,
    /// What is to be told of the events under way, if they are stored.
    untold: HashMap<EventId, Stored>,
    pub(super) fates: Fates,
    /// Event bodies that came.
    pub(super) bodies: u64,
    /// Ids that this pass found and that were not known to be immovable.
    pub(super) new_in_pass: u64,
    /// The destination's last word, where it stopped taking events.
    pub(super) stopped: Option<String>,
    /// What the destination said when it last failed to take an event.
    pub(super) last_failure: Option<String>,
    to_park: Vec<(EventId, ParkReason)>,
    /// Whether the destination was asked in this run if it holds anything.
    looked: bool,
    /// Events that await their OK, with the time they were sent, by the name they were sent under.
    under_way: HashMap<u64, (EventId, Instant)>,
    /// The most of them: fewer after the destination was lost with some under way, until the one
    /// is alone that it cannot bear.
    window: usize,
    /// The event that was alone under way when the destination was last lost. A line that ends
    /// again and again ends on some event each time: only one on which it ends twice is blamed.
    pub(super) suspect: Option<EventId>,
}

/// By how much the window narrows with each such loss: from 1024 to 1 in two passes, so that the
/// third of the usual four suspects the event, the fourth blames it, and one more, which is granted
/// for this, goes on without it.
const NARROWING: usize = 32;

type Fetched = Result<(BatchId, Vec<Checked>, u64), RelayError>;

impl Mover {
    pub(super) fn new(
        holder: Side,
        spec: &Arc<JobSpec>,
        links: &BySide<Link>,
        wanted: bool,
        memory: Memory,
        progress: watch::Sender<Progress>,
    ) -> Self {
        Self {
            holder,
            source: links[holder].clone(),
            destination: links[holder.other()].clone(),
            spec: spec.clone(),
            wanted,
            memory,
            progress,
            tell: None,
            storing: None,
            untold: HashMap::new(),
            fates: Fates::default(),
            bodies: 0,
            new_in_pass: 0,
            stopped: None,
            last_failure: None,
            to_park: Vec::new(),
            looked: false,
            under_way: HashMap::new(),
            window: spec.limits.publishes_in_flight,
            suspect: None,
        }
    }

    /// Moves the ids that come in, until no more will come and each has its outcome.
    ///
    /// # Errors
    /// When one of the two relays is lost. What was acknowledged stays done.
    pub(super) async fn run(
        &mut self,
        pass: u32,
        mut found: mpsc::Receiver<EventId>,
        stop: &CancellationToken,
    ) -> Result<(), RelayError> {
        let result = self.transfer(pass, &mut found, stop).await;
        self.park().await;
        result
    }

    async fn transfer(
        &mut self,
        pass: u32,
        found: &mut mpsc::Receiver<EventId>,
        stop: &CancellationToken,
    ) -> Result<(), RelayError> {
        let (source, destination) = (self.source.relay().info().await, self.destination.relay().info().await);
        // Where most of what is found is not for the destination, a row of refusals says nothing.
        let refusals_in_a_row = if self.memory.expects_refusals() { u32::MAX } else { transfer::REFUSALS_IN_A_ROW };
        let mut transfer = Transfer::new(TransferLimits {
            batch: source.ids_per_request(),
            fetches_in_flight: self.spec.limits.fetches_in_flight.min(source.subscriptions(None)),
            publishes_in_flight: self.window,
            spool_bytes: self.spec.limits.spool_bytes,
            refusals_in_a_row,
        });
        let policy = Arc::new(Policy {
            now: clock::now(),
            exclude: self.spec.exclude.clone(),
            authenticated_as: self.destination.relay().authenticates_as(),
            destination: self.destination.relay().url().clone(),
            max_message: destination.max_message_length,
        });
        let guard = Arc::new(Guard::new(&self.source, &self.destination));
        let mut publisher = self.destination.publisher();
        self.under_way.clear();
        self.untold.clear();
        let mut fetches = FuturesUnordered::new();
        let mut group = Vec::with_capacity(ADMIT);
        let mut more = true;
        let mut stopping = false;
        loop {
            while let Some(action) = transfer.poll() {
                match action {
                    Action::Fetch { batch, ids } => {
                        let fetch = fetch(self.source.clone(), guard.clone(), policy.clone(), batch, ids);
                        fetches.push(fetch.boxed());
                    }
                    Action::Publish { id, raw } => {
                        if let Some(tell) = &self.tell {
                            tell(id);
                        }
                        if self.storing.is_some()
                            && let Ok(event) = Event::parse(&raw)
                        {
                            self.untold.insert(id, Stored::of(&event));
                        }
                        let token = publisher.send(id, raw).await;
                        self.under_way.insert(token, (id, clock::instant()));
                    }
                    Action::Settle { id, outcome, park } => self.settle(id, outcome, park).await,
                }
            }
            if transfer.is_done() {
                break;
            }
            tokio::select! {
                count = found.recv_many(&mut group, ADMIT), if more && transfer.queued() < QUEUE => {
                    if count == 0 {
                        more = false;
                        transfer.no_more();
                    } else {
                        self.admit(pass, &mut group, &mut transfer).await?;
                    }
                }
                () = stop.cancelled(), if !stopping => {
                    stopping = true;
                    transfer.close();
                }
                Some(fetched) = fetches.next(), if !fetches.is_empty() => {
                    let (batch, checked, bodies): (BatchId, Vec<Checked>, u64) = fetched?;
                    self.bodies += bodies;
                    transfer.fetched(batch, checked);
                }
                ack = publisher.next(), if !self.under_way.is_empty() => {
                    let Some((id, sent)) = self.under_way.remove(&ack.token) else { continue };
                    let waited = clock::instant().saturating_duration_since(sent);
                    match ack.answer {
                        Ok(answer) => transfer.acked(id, Some(answer), waited),
                        // No OK in time: that event's fault, perhaps.
                        Err(RelayError { fault: Fault::TimedOut(_), .. }) => transfer.acked(id, None, waited),
                        Err(error) => {
                            // It was under way when the relay was lost, as `cut_off` has to know.
                            self.under_way.insert(ack.token, (id, sent));
                            return Err(error);
                        }
                    }
                }
            }
        }
        self.stopped = transfer.stopped().map(ToString::to_string);
        self.last_failure = transfer.last_failure().map(ToString::to_string).or(self.last_failure.take());
        Ok(())
    }

    /// Takes note that a pass ended on this error. A destination that is lost over and over with
    /// events under way may break on one of them, which would keep all others from it for ever.
    pub(super) async fn cut_off(&mut self, error: &RelayError) {
        let lost = matches!(error.fault, Fault::Lost(_)) && error.url == *self.destination.relay().url();
        if !lost || self.under_way.is_empty() {
            return;
        }
        if self.window > 1 {
            self.window = (self.window / NARROWING).max(1);
            return;
        }
        for id in self.under_way.drain().map(|(_, (id, _))| id).collect::<Vec<_>>() {
            if self.suspect.replace(id) != Some(id) {
                continue;
            }
            tracing::warn!(relay = %error.url, event = %id, "disconnects on this event: it is left out for a day");
            self.settle(id, Outcome::Refused(Prefix::Closed), Some(ParkReason::Refused(Prefix::Closed))).await;
        }
        self.park().await;
    }

    /// Decides for each id that was found whether it is to be moved.
    async fn admit(&mut self, pass: u32, group: &mut Vec<EventId>, transfer: &mut Transfer) -> Result<(), RelayError> {
        let (mut fresh, mut doubtful) = (Vec::new(), Vec::new());
        for id in group.drain(..) {
            match self.fates.found(id, pass) {
                Found::New if self.wanted => fresh.push(id),
                Found::New => _ = self.fates.settle(id, Outcome::NotWanted),
                Found::Again => {
                    self.new_in_pass += 1;
                    transfer.want(id);
                }
                Found::Doubtful => doubtful.push(id),
                Found::Known => {}
            }
        }
        if !fresh.is_empty() {
            let (source, destination) = (&self.source.relay().url().clone(), &self.destination.relay().url().clone());
            let mut parked = self.memory.parked(source, destination, fresh.clone()).await;
            if !parked.is_empty() && self.is_emptied().await? {
                self.memory.forget_held(destination).await;
                parked = self.memory.parked(source, destination, fresh.clone()).await;
            }
            for id in fresh {
                if parked.contains(&id) {
                    self.fates.settle(id, Outcome::Parked);
                } else {
                    self.new_in_pass += 1;
                    transfer.want(id);
                }
            }
        }
        let served = self.served(&doubtful).await?;
        for id in doubtful.into_iter().filter(|id| !served.contains(id)) {
            if self.fates.not_served(id) {
                self.new_in_pass += 1;
                transfer.want(id);
            } else {
                self.to_park.push((id, ParkReason::NotServed));
            }
        }
        let (holder, count) = (self.holder, self.fates.len());
        self.progress.send_modify(|progress| progress.found[holder] = count);
        Ok(())
    }

    /// Whether the destination, which once refused events for what it held, holds nothing of the
    /// job's filter now: it was reset. Asked once in a run, and only if anything is parked.
    async fn is_emptied(&mut self) -> Result<bool, RelayError> {
        if std::mem::replace(&mut self.looked, true) {
            return Ok(false);
        }
        // Some relays read a filter without any condition as nothing.
        let Some(filter) = self.spec.filter.narrow_time(Some(1), None) else { return Ok(false) };
        Ok(self.destination.list(filter, 1).await?.received == 0)
    }

    /// Which of the ids the destination returns when it is asked for them by name.
    async fn served(&self, ids: &[EventId]) -> Result<HashSet<EventId>, RelayError> {
        let mut served = HashSet::new();
        for batch in ids.chunks(SERVED_BATCH) {
            served.extend(self.destination.fetch(batch).await?.events.iter().map(Event::id));
        }
        Ok(served)
    }

    async fn settle(&mut self, id: EventId, outcome: Outcome, park: Option<ParkReason>) {
        let stored = self.fates.settle(id, outcome);
        if let (Some(tell), Some(event)) = (&self.storing, self.untold.remove(&id))
            && stored
        {
            tell(event);
        }
        let holder = self.holder;
        self.progress.send_modify(|progress| {
            progress.settled[holder] += 1;
            progress.stored[holder] += u64::from(stored);
        });
        if let Some(reason) = park {
            self.to_park.push((id, reason));
            if self.to_park.len() >= PARK_GROUP {
                self.park().await;
            }
        }
    }

    /// Writes down what is not to be tried again.
    pub(super) async fn park(&mut self) {
        if !self.to_park.is_empty() {
            let facts = std::mem::take(&mut self.to_park);
            self.memory.park(self.source.relay().url(), self.destination.relay().url(), facts).await;
        }
    }
}

/// Gets a batch from the source and looks at every event, on the blocking pool: signatures take
/// the time.
async fn fetch(source: Link, guard: Arc<Guard>, policy: Arc<Policy>, batch: BatchId, ids: Vec<EventId>) -> Fetched {
    let (listing, mut requests) = try_join(source.fetch(&ids), guard.naming(&ids)).await?;
    guard.about(&listing.events, &mut requests).await?;
    let bodies = listing.events.len() as u64;
    let mut checked: Vec<Checked> =
        listing.invalid.into_iter().filter(|id| ids.contains(id)).map(transfer::invalid).collect();
    let events = listing.events;
    let looked_at = tokio::task::spawn_blocking(move || {
        events.into_iter().map(|event| policy.check(event, &requests)).collect::<Vec<_>>()
    });
    match looked_at.await {
        Ok(looked_at) => checked.extend(looked_at),
        // A check does not panic, and is never cancelled; were it so, its ids would count as
        // not come, and be asked for again.
        Err(error) => tracing::error!(%error, "a batch could not be checked"),
    }
    Ok((batch, checked, bodies))
}
