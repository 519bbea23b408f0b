//! Where the events of streams go: one task per relay that is written to.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use super::{FIRST_PAUSE, LAST_PAUSE, LiveReport, Reporter, Seen};
use crate::clock;
use crate::job_spec::{JobKey, Side};
use crate::nostr::{Event, EventId, Prefix};
use crate::outcome::{Outcome, Skip, Stored};
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
    pending: Pending,
    reports: Reporter,
}

/// The jobs that offered an event that waits or is under way: the first one's copy stands for
/// those of the others, and what it may have lost all have.
#[derive(Clone, Debug, Default)]
struct Pending(Arc<Mutex<HashMap<EventId, BTreeSet<JobKey>>>>);

impl Pending {
    fn lock(&self) -> MutexGuard<'_, HashMap<EventId, BTreeSet<JobKey>>> {
        // Held for one look, never across an await; a panic under it would be that look's own.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An event came to its end; returns whose it was.
    fn end(&self, id: EventId) -> BTreeSet<JobKey> {
        self.lock().remove(&id).unwrap_or_default()
    }
}

impl Outlet {
    /// Starts the task. What is in `seen` is not offered.
    pub(super) fn spawn(relay: Relay, seen: Seen, reports: Reporter) -> Self {
        let (inbox, offers) = mpsc::channel(MOST_UNDER_WAY);
        let bytes = Arc::<AtomicUsize>::default();
        let pending = Pending::default();
        tokio::spawn(run(relay.clone(), seen.clone(), offers, bytes.clone(), pending.clone(), reports.clone()));
        Self { relay, seen, inbox, bytes, pending, reports }
    }

    pub(super) fn relay(&self) -> &Relay {
        &self.relay
    }

    pub(super) fn seen(&self) -> &Seen {
        &self.seen
    }

    /// Queues an event that the relay is not known to have, or tells of a gap where there is no
    /// room.
    pub(super) fn offer(&self, offer: Offer) {
        let (id, weight) = (offer.event.id(), offer.event.raw().len());
        {
            let mut pending = self.pending.lock();
            if let Some(jobs) = pending.get_mut(&id) {
                jobs.insert(offer.job);
                return;
            }
            if !self.seen.insert(id) {
                return;
            }
            pending.insert(id, BTreeSet::from([offer.job]));
        }
        let has_room = self.bytes.fetch_add(weight, Ordering::Relaxed) + weight <= MOST_BYTES;
        if has_room && self.inbox.try_send(offer).is_ok() {
            return;
        }
        self.bytes.fetch_sub(weight, Ordering::Relaxed);
        // In this order: whoever offers it in between is told.
        self.seen.forget(id);
        for job in self.pending.end(id) {
            self.reports.tell(LiveReport::Gap { job });
        }
    }
}

async fn run(
    relay: Relay,
    seen: Seen,
    mut offers: mpsc::Receiver<Offer>,
    bytes: Arc<AtomicUsize>,
    pending: Pending,
    reports: Reporter,
) {
    let policy = Policy {
        now: clock::now(),
        // Every job has its own: its route has looked.
        exclude: Vec::new(),
        authenticated_as: relay.authenticates_as(),
        destination: relay.url().clone(),
        max_message: relay.info().await.max_message_length,
    };
    let publisher = relay.link().publisher();
    let under_way = HashMap::new();
    let mut writer = Writer { relay, seen, policy, publisher, under_way, away: None, bytes, pending, reports };
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
    pending: Pending,
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
        match self.policy.skip(&event, &Requests::default()) {
            Some(Skip::TooLarge) => {
                self.give_up(&sent);
                return;
            }
            Some(_) => return self.done(&sent),
            None => {}
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
        match &ack.answer {
            Ok((false, reason)) if is_transient(reason.prefix) => self.lost(&sent),
            Ok((false, reason)) if reason.prefix == Prefix::Invalid => _ = self.give_up(&sent),
            Ok(_) => self.done(&sent),
            Err(_) => self.lost(&sent),
        }
    }

    fn done(&self, sent: &Sent) {
        self.bytes.fetch_sub(sent.weight, Ordering::Relaxed);
        self.pending.end(sent.id);
    }

    /// Leaves an event to its jobs.
    fn lost(&self, sent: &Sent) {
        for job in self.give_up(sent) {
            self.tell(LiveReport::Gap { job });
        }
    }

    /// Forgets an event, so that another copy of it has its chance: an id says nothing of how it is
    /// written, and one may be padded until nobody takes it. Returns whose it was.
    fn give_up(&self, sent: &Sent) -> BTreeSet<JobKey> {
        self.bytes.fetch_sub(sent.weight, Ordering::Relaxed);
        // In this order: whoever offers it in between is told.
        self.seen.forget(sent.id);
        self.pending.end(sent.id)
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
            self.until = now + clock::jittered(self.pause);
        }
        may
    }
}

/// Whether a refusal may be another one, or none, the next time.
const fn is_transient(prefix: Prefix) -> bool {
    matches!(prefix, Prefix::Closed | Prefix::Error | Prefix::RateLimited | Prefix::Unknown | Prefix::Unsupported)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::reports;
    use crate::relay::{RelayOptions, client_config};

    const EVENT: &str = r#"{"id":"ID","pubkey":"PUBKEY","created_at":1,"kind":1,"tags":[],"content":"","sig":"SIG"}"#;

    fn event() -> Arc<Event> {
        let pubkey = "11".repeat(32);
        let id = {
            use sha2::Digest;
            hex::encode(sha2::Sha256::digest(format!(r#"[0,"{pubkey}",1,1,[],""]"#)))
        };
        let raw = EVENT.replace("ID", &id).replace("PUBKEY", &pubkey).replace("SIG", &"22".repeat(64));
        Arc::new(Event::parse(&raw).unwrap())
    }

    /// Two relays send the same event, and what waits for the third is lost: by the time that the
    /// first one's job looks for it, that relay may have gone.
    #[tokio::test]
    async fn a_lost_event_is_a_gap_of_all_who_offered_it() {
        // Nobody listens there.
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let options = RelayOptions::new(format!("ws://{free}").parse().unwrap(), client_config(None).unwrap());
        let (reporter, mut told) = reports();
        let outlet = Outlet::spawn(Relay::spawn(options), Seen::default(), reporter);
        let jobs = [1, 2].map(|n| JobKey::new([n; 16]));
        for job in jobs {
            outlet.offer(Offer { event: event(), job, from: Side::Peer, arrived: clock::instant() });
        }
        let mut gaps = Vec::new();
        let all = async {
            while gaps.len() < 2 {
                if let Some(LiveReport::Gap { job }) = told.recv().await {
                    gaps.push(job);
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), all).await.expect("a gap of each");
        assert_eq!(gaps, jobs);
        assert!(outlet.pending.lock().is_empty() && outlet.bytes.load(Ordering::Relaxed) == 0);
    }
}
