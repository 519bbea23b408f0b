//! Where the events of streams go: one task per relay that is written to.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::{FIRST_PAUSE, LAST_PAUSE, LiveReport, Reporter, Seen};
use crate::clock;
use crate::job_spec::{JobKey, Side};
use crate::nostr::{Event, EventId, Prefix};
use crate::outcome::{Outcome, Stored};
use crate::relay::{Ack, Fault, Publisher, Relay, RelayError};
use crate::transfer::check::{Policy, Requests};

/// Events that wait or are under way, above which the rest is left to a job: the destination is
/// too slow for a stream.
const MOST_UNDER_WAY: usize = 1000;

/// Bytes of them: as many as that of the usual 400 bytes are a tenth of it.
const MOST_BYTES: usize = 4 << 20;

/// An event for a relay.
pub(super) struct Offer {
    /// Its signature is right.
    pub(super) event: Arc<Event>,
    /// The job it belongs to.
    pub(super) job: JobKey,
    /// The side it came from.
    pub(super) from: Side,
    pub(super) arrived: Instant,
}

/// A way to a relay. Clones share one queue; the last one dropped ends the task.
#[derive(Clone, Debug)]
pub(super) struct Outlet {
    relay: Relay,
    seen: Seen,
    inbox: mpsc::Sender<Offer>,
    bytes: Arc<AtomicUsize>,
}

impl Outlet {
    /// Starts the task. What is in `seen` is not offered.
    pub(super) fn spawn(relay: Relay, seen: Seen, reports: Reporter) -> Self {
        let (inbox, offers) = mpsc::channel(MOST_UNDER_WAY);
        let bytes = Arc::<AtomicUsize>::default();
        tokio::spawn(run(relay.clone(), seen.clone(), offers, bytes.clone(), reports));
        Self { relay, seen, inbox, bytes }
    }

    pub(super) fn relay(&self) -> &Relay {
        &self.relay
    }

    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Queues an event that the relay is not known to have; says whether there was room.
    pub(super) fn offer(&self, offer: Offer) -> bool {
        let (id, weight) = (offer.event.id(), offer.event.raw().len());
        if !self.seen.insert(id) {
            return true;
        }
        let has_room = self.bytes.fetch_add(weight, Ordering::Relaxed) + weight <= MOST_BYTES;
        if has_room && self.inbox.try_send(offer).is_ok() {
            return true;
        }
        self.bytes.fetch_sub(weight, Ordering::Relaxed);
        self.seen.forget(id);
        false
    }
}

async fn run(relay: Relay, seen: Seen, mut offers: mpsc::Receiver<Offer>, bytes: Arc<AtomicUsize>, reports: Reporter) {
    let policy = Policy {
        now: clock::now(),
        // Every job has its own: its route has looked.
        exclude: Vec::new(),
        authenticated_as: relay.authenticates_as(),
        destination: relay.url().clone(),
        max_message: relay.info().await.max_message_length,
    };
    let publisher = relay.link().publisher();
    let mut writer = Writer { relay, seen, policy, publisher, under_way: HashMap::new(), away: None, bytes, reports };
    let mut more = true;
    // What is under way when nothing more comes has an answer still, or is lost and said to be.
    while more || !writer.under_way.is_empty() {
        tokio::select! {
            offer = offers.recv(), if more && writer.under_way.len() < MOST_UNDER_WAY => match offer {
                Some(offer) => writer.publish(offer).await,
                None => more = false,
            },
            ack = writer.publisher.next(), if !writer.under_way.is_empty() => writer.acked(&ack),
        }
    }
}

struct Writer {
    relay: Relay,
    seen: Seen,
    policy: Policy,
    publisher: Publisher,
    under_way: HashMap<u64, Sent>,
    away: Option<Away>,
    bytes: Arc<AtomicUsize>,
    reports: Reporter,
}

/// An event that awaits its OK.
struct Sent {
    id: EventId,
    weight: usize,
    job: JobKey,
    from: Side,
    arrived: Instant,
    /// Where it is the local relay that stores it.
    told: Option<Box<Stored>>,
}

impl Writer {
    async fn publish(&mut self, Offer { event, job, from, arrived }: Offer) {
        let told = (from == Side::Peer).then(|| Box::new(Stored::of(&event)));
        let sent = Sent { id: event.id(), weight: event.raw().len(), job, from, arrived, told };
        if self.relay.is_connected() {
            self.away = None;
        }
        if self.away.as_mut().is_some_and(|away| !away.may_try(clock::instant())) {
            return self.lost(&sent);
        }
        self.policy.now = clock::now();
        if self.policy.skip(&event, &Requests::default()).is_some() {
            self.bytes.fetch_sub(sent.weight, Ordering::Relaxed);
            return;
        }
        let token = self.publisher.send(sent.id, event.raw().into()).await;
        self.under_way.insert(token, sent);
    }

    fn acked(&mut self, ack: &Ack) {
        let Some(mut sent) = self.under_way.remove(&ack.token) else { return };
        let lag = clock::instant().saturating_duration_since(sent.arrived);
        let outcome = match &ack.answer {
            Ok((_, reason)) if reason.prefix == Prefix::Duplicate => Outcome::Duplicate,
            Ok((true, reason)) if !matches!(reason.prefix, Prefix::Purgatory | Prefix::Mute) => Outcome::Stored,
            Ok((_, reason)) => Outcome::Refused(reason.prefix),
            Err(_) => Outcome::Failed,
        };
        let stored = sent.told.take().filter(|_| outcome == Outcome::Stored);
        self.tell(LiveReport::Passed { job: sent.job, from: sent.from, outcome, stored, lag });
        if let Err(RelayError { fault: Fault::Unreachable(_), .. }) = &ack.answer {
            self.away.get_or_insert_with(|| Away::new(clock::instant()));
        }
        let is_lost = match &ack.answer {
            Ok((accepted, reason)) => !accepted && is_transient(reason.prefix),
            Err(_) => true,
        };
        if is_lost {
            self.lost(&sent);
        } else {
            self.bytes.fetch_sub(sent.weight, Ordering::Relaxed);
        }
    }

    /// Leaves an event to its job.
    fn lost(&self, sent: &Sent) {
        self.bytes.fetch_sub(sent.weight, Ordering::Relaxed);
        self.seen.forget(sent.id);
        self.tell(LiveReport::Gap { job: sent.job });
    }

    fn tell(&self, report: LiveReport) {
        self.reports.tell(report);
    }
}

/// A destination that could not be reached: publishing dials, and is not to do so for each event.
struct Away {
    until: Instant,
    pause: Duration,
}

impl Away {
    fn new(now: Instant) -> Self {
        Self { until: now + FIRST_PAUSE, pause: FIRST_PAUSE }
    }

    /// Whether one event may find out now; the next one waits longer.
    fn may_try(&mut self, now: Instant) -> bool {
        let may = now >= self.until;
        if may {
            self.pause = (self.pause * 2).min(LAST_PAUSE);
            self.until = now + self.pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        }
        may
    }
}

/// Whether a refusal may be another one, or none, the next time.
const fn is_transient(prefix: Prefix) -> bool {
    matches!(prefix, Prefix::Closed | Prefix::Error | Prefix::RateLimited | Prefix::Unknown | Prefix::Unsupported)
}
