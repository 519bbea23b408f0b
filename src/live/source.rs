//! What is read from one relay: as many subscriptions as it allows, and which event goes where.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::outlet::{Offer, Outlet};
use super::packing::{Change, Pack, Packing};
use super::{FIRST_PAUSE, LAST_PAUSE, LiveReport, Reporter, STREAMS, Seen};
use crate::clock;
use crate::job_spec::{JobKey, JobSpec, RelativeTime, Side};
use crate::nostr::{Event, Filter, Timestamp, Validity};
use crate::relay::{Fault, Relay, RelayError, Stream, Streamed};

/// A filter as it is asked for: jobs that ask for the same share it.
pub(super) type Asked = (Filter, RelativeTime);

/// From one relay, by way of a job, to another.
#[derive(Debug)]
pub(super) struct Route {
    job: JobKey,
    spec: Arc<JobSpec>,
    asked: Asked,
    /// The side that is read.
    from: Side,
    to: Outlet,
}

impl Route {
    pub(super) fn new(job: JobKey, spec: Arc<JobSpec>, from: Side, to: Outlet) -> Self {
        Self { asked: (spec.filter.clone(), spec.relative), job, spec, from, to }
    }

    /// Whether an event is the job's business.
    fn takes(&self, event: &Event, now: Timestamp) -> bool {
        let matches = if self.spec.relative == RelativeTime::default() {
            self.spec.filter.matches(event)
        } else {
            self.spec.filter_at(now).is_some_and(|filter| filter.matches(event))
        };
        matches && !self.spec.exclude.iter().any(|filter| filter.matches(event))
    }
}

type Routes = Arc<[Route]>;

/// The routes that begin at one relay. Dropping it ends its streams.
pub(super) struct Source {
    relay: Relay,
    routes: watch::Sender<Routes>,
    _stop: DropGuard,
}

impl Source {
    /// Starts the task. What comes from the relay is noted in `seen`.
    pub(super) fn spawn(relay: Relay, seen: Seen, routes: Vec<Route>, reports: Reporter) -> Self {
        let (sender, receiver) = watch::channel(Routes::from(routes));
        let stop = CancellationToken::new();
        let reader = Reader { relay: relay.clone(), seen, routes: receiver, reports };
        tokio::spawn(stop.clone().run_until_cancelled_owned(run(reader)));
        Self { relay, routes: sender, _stop: stop.drop_guard() }
    }

    pub(super) fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Goes over to these routes; a subscription that stays is not disturbed.
    pub(super) fn set(&self, routes: Vec<Route>) {
        self.routes.send_replace(routes.into());
    }
}

/// What a subscription tells.
enum Heard {
    Listening(u64),
    Lost(u64),
    /// The relay allows no more subscriptions than it has.
    TooMany(u64),
}

/// An open subscription, or one that is being opened. Dropping it closes it.
struct Open {
    asked: Arc<BTreeSet<Asked>>,
    replaces: Vec<u64>,
    listens: bool,
    _stop: DropGuard,
}

/// The subscriptions of one relay.
struct Subscriptions {
    packing: Packing<Asked>,
    /// Subscriptions at once.
    allowed: usize,
    open: BTreeMap<u64, Open>,
    /// To be opened as soon as there is room.
    waiting: VecDeque<Pack<Asked>>,
    /// The jobs whose routes have been looked at.
    jobs: BTreeSet<JobKey>,
    reader: Reader,
    heard: mpsc::UnboundedSender<Heard>,
}

async fn run(reader: Reader) {
    let allowed = reader.relay.info().await.subscriptions(Some(STREAMS));
    let mut routes = reader.routes.clone();
    let (sender, mut heard) = mpsc::unbounded_channel();
    let mut subscriptions = Subscriptions {
        packing: Packing::new(allowed),
        allowed,
        open: BTreeMap::new(),
        waiting: VecDeque::new(),
        jobs: BTreeSet::new(),
        reader,
        heard: sender,
    };
    subscriptions.pack();
    loop {
        tokio::select! {
            changed = routes.changed() => match changed {
                Ok(()) => subscriptions.pack(),
                Err(_) => return,
            },
            // A sender is held above.
            Some(heard) = heard.recv() => subscriptions.hear(heard),
        }
    }
}

impl Subscriptions {
    fn pack(&mut self) {
        let routes = self.reader.routes.borrow().clone();
        let listens = |asked: &Asked| self.open.values().any(|open| open.listens && open.asked.contains(asked));
        for route in routes.iter().filter(|route| !self.jobs.contains(&route.job) && listens(&route.asked)) {
            // What it needs is there already, and will not tell it so.
            self.reader.tell(LiveReport::Gap { job: route.job });
        }
        self.jobs = routes.iter().map(|route| route.job).collect();
        let wanted: BTreeMap<Asked, usize> =
            routes.iter().map(|route| (route.asked.clone(), route.spec.filter.to_string().len())).collect();
        let Change { open, close, left_out } = self.packing.set(&wanted);
        close.into_iter().for_each(|id| self.close(id));
        self.waiting.extend(open);
        // Each of these makes room for the next; the others take what is left.
        self.waiting.make_contiguous().sort_by_key(|pack| pack.replaces.is_empty());
        self.open_waiting();
        if !left_out.is_empty() {
            let relay = self.reader.relay.url();
            tracing::warn!(%relay, filters = left_out.len(), "no room for their streams: they go by schedule alone");
        }
    }

    fn open_waiting(&mut self) {
        while let Some(pack) = self.waiting.pop_front() {
            if self.open.len() >= self.allowed {
                if self.open.values().any(|open| !open.replaces.is_empty()) {
                    return self.waiting.push_front(pack);
                }
                // No room will be made: what this one replaces goes first, and its jobs see to
                // what comes in between.
                pack.replaces.iter().for_each(|id| self.close(*id));
            }
            self.open(pack);
        }
    }

    fn open(&mut self, Pack { id, items, replaces, .. }: Pack<Asked>) {
        let relay = self.reader.relay.url();
        tracing::debug!(%relay, stream = id, filters = items.len(), ?replaces, "opening a stream");
        let stop = CancellationToken::new();
        let asked = Arc::new(items.into_iter().collect::<BTreeSet<_>>());
        let replaced = replaces.iter().filter_map(|id| self.open.get(id)).filter(|open| open.listens);
        let subscription = Subscription {
            id,
            covered: replaced.flat_map(|open| open.asked.iter().cloned()).collect(),
            asked: asked.clone(),
            reader: self.reader.clone(),
            heard: self.heard.clone(),
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(subscription.follow()));
        self.open.insert(id, Open { asked, replaces, listens: false, _stop: stop.drop_guard() });
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            Heard::Listening(id) => {
                let Some(open) = self.open.get_mut(&id) else { return };
                tracing::debug!(relay = %self.reader.relay.url(), stream = id, "listening");
                open.listens = true;
                let replaced = std::mem::take(&mut open.replaces);
                // Lost with what it had missed still untold.
                for lost in replaced.iter().filter_map(|id| self.open.get(id)).filter(|open| !open.listens) {
                    self.reader.gap(|asked| lost.asked.contains(asked));
                }
                replaced.into_iter().for_each(|id| self.close(id));
                self.open_waiting();
            }
            Heard::Lost(id) => {
                if let Some(open) = self.open.get_mut(&id) {
                    open.listens = false;
                }
            }
            Heard::TooMany(id) => {
                // One that was refused before all were made anew has been heard already, and one
                // that is alone asks again by itself, after a pause.
                if !self.open.contains_key(&id) || self.open.len() == 1 {
                    return;
                }
                // A refusal comes at once, and what tells that the others listen may take a while:
                // half is tried before few that listen are taken for all that may.
                let listen = self.open.values().filter(|open| open.listens).count();
                let allowed = listen.max(self.open.len() / 2).max(1);
                let relay = self.reader.relay.url();
                tracing::info!(%relay, allowed, "takes fewer subscriptions than were asked for: they are joined");
                self.packing.narrow(allowed);
                self.allowed = allowed;
                self.open.clear();
                self.waiting.clear();
                self.pack();
            }
        }
    }

    /// Closes one, open or not yet, and what it was to replace.
    fn close(&mut self, id: u64) {
        let waiting = self.waiting.iter().position(|pack| pack.id == id);
        let waiting = waiting.and_then(|at| self.waiting.remove(at)).map(|pack| pack.replaces);
        let replaces = self.open.remove(&id).map(|open| open.replaces).or(waiting).unwrap_or_default();
        replaces.into_iter().for_each(|id| self.close(id));
    }
}

/// What all subscriptions of a relay share.
#[derive(Clone)]
struct Reader {
    relay: Relay,
    /// What the relay is known to have.
    seen: Seen,
    routes: watch::Receiver<Routes>,
    reports: Reporter,
}

struct Subscription {
    id: u64,
    asked: Arc<BTreeSet<Asked>>,
    /// What those ask for that it replaces, and that listen until it does: nothing is missed.
    covered: BTreeSet<Asked>,
    reader: Reader,
    heard: mpsc::UnboundedSender<Heard>,
}

impl Subscription {
    /// Listens, over one connection after another.
    async fn follow(mut self) {
        let link = self.reader.relay.link();
        let mut pause = FIRST_PAUSE;
        let mut told = false;
        loop {
            let now = clock::now();
            // A filter whose relative times exclude each other matches nothing, now and later.
            let filters: Vec<Filter> =
                self.asked.iter().filter_map(|(filter, relative)| relative.of(filter, now)).collect();
            if filters.is_empty() {
                return;
            }
            let mut listened = false;
            let error = self.read(link.listen(filters), &mut listened).await;
            tracing::debug!(%error, "a stream ended");
            let _ = self.heard.send(Heard::Lost(self.id));
            if listened {
                (told, pause) = (true, FIRST_PAUSE);
            } else if let Fault::Closed(reason) = &error.fault
                && reason.is_about_subscriptions()
            {
                let _ = self.heard.send(Heard::TooMany(self.id));
            }
            if !std::mem::replace(&mut told, true) {
                // The history need not wait for a stream that does not come.
                self.gap();
            }
            self.covered.clear();
            tokio::time::sleep(clock::jittered(pause)).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// Passes on what one stream brings, until it ends.
    async fn read(&mut self, mut stream: Stream, listened: &mut bool) -> RelayError {
        loop {
            match stream.next().await {
                Ok(Streamed::Listening) => {
                    *listened = true;
                    self.listens();
                }
                // What is stored already, or comes while it is asked for: the gap is told after it.
                Ok(Streamed::Event(_)) if !*listened => {}
                Ok(Streamed::Event(event)) => self.reader.pass_on(*event),
                Err(error) => return error,
            }
        }
    }

    fn listens(&mut self) {
        self.reader.tell(LiveReport::Listening { relay: self.reader.relay.url().clone() });
        // Before anything is heard, so that nothing lies between.
        self.gap();
        // A relay may close a stream and be asked again on it (a pause, an AUTH), when those that
        // it replaced are gone.
        self.covered.clear();
        let _ = self.heard.send(Heard::Listening(self.id));
    }

    fn gap(&self) {
        self.reader.gap(|asked| self.asked.contains(asked) && !self.covered.contains(asked));
    }
}

impl Reader {
    fn pass_on(&self, event: Event) {
        self.seen.insert(event.id());
        let (now, arrived) = (clock::now(), clock::instant());
        let routes = self.routes.borrow().clone();
        let takers: Vec<&Route> = routes.iter().filter(|route| route.takes(&event, now)).collect();
        // 40 µs: a stream of a thousand events a second leaves the core idle.
        if takers.is_empty() || event.verify_signature() == Validity::WrongSignature {
            return;
        }
        let event = Arc::new(event);
        for Route { job, from, to, .. } in takers {
            to.offer(Offer { event: event.clone(), job: *job, from: *from, arrived });
        }
    }

    /// Leaves what these may have missed to their jobs.
    fn gap(&self, is_missed: impl Fn(&Asked) -> bool) {
        for route in self.routes.borrow().iter().filter(|route| is_missed(&route.asked)) {
            self.tell(LiveReport::Gap { job: route.job });
        }
    }

    fn tell(&self, report: LiveReport) {
        self.reports.tell(report);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job_spec::{Direction, Limits, StrategyChoice};
    use crate::live::{LiveReports, reports};
    use crate::relay::{RelayOptions, client_config};

    fn spec() -> JobSpec {
        JobSpec {
            peer: "peer".into(),
            name: "all".into(),
            local_url: "ws://127.0.0.1:1".parse().unwrap(),
            peer_url: "ws://127.0.0.1:2".parse().unwrap(),
            filter: Filter::new(),
            relative: RelativeTime::default(),
            direction: Direction::Pull,
            strategy: StrategyChoice::Auto,
            exclude: Vec::new(),
            limits: Limits::default(),
        }
    }

    fn reader() -> (Reader, watch::Sender<Routes>, LiveReports) {
        let spec = Arc::new(spec());
        // Nothing is dialled before anything is asked.
        let relay =
            |url: &crate::nostr::RelayUrl| Relay::spawn(RelayOptions::new(url.clone(), client_config(None).unwrap()));
        let (reporter, told) = reports();
        let to = Outlet::spawn(relay(&spec.local_url), Seen::default(), reporter.clone());
        let route = Route::new(spec.key(), spec.clone(), Side::Peer, to);
        let (routes, view) = watch::channel(Routes::from(vec![route]));
        let reader = Reader { relay: relay(&spec.peer_url), seen: Seen::default(), routes: view, reports: reporter };
        (reader, routes, told)
    }

    async fn gaps(told: &mut LiveReports) -> usize {
        let mut gaps = 0;
        while let Ok(Some(report)) = tokio::time::timeout(std::time::Duration::from_millis(50), told.recv()).await {
            gaps += usize::from(matches!(report, LiveReport::Gap { .. }));
        }
        gaps
    }

    /// A relay that closes a stream as `rate-limited:` or `auth-required:` is asked again on the
    /// same stream, long after the one that was replaced is gone.
    #[tokio::test]
    async fn what_was_covered_once_is_not_covered_the_second_time() {
        let (reader, _routes, mut told) = reader();
        let asked = BTreeSet::from([(Filter::new(), RelativeTime::default())]);
        let (heard, _heard) = mpsc::unbounded_channel();
        let mut subscription = Subscription { id: 1, covered: asked.clone(), asked: Arc::new(asked), reader, heard };
        subscription.listens();
        assert_eq!(gaps(&mut told).await, 0, "the one before listens");
        subscription.listens();
        assert_eq!(gaps(&mut told).await, 1);
    }

    #[tokio::test]
    async fn a_relay_that_refuses_before_it_listens_is_not_taken_for_one_that_allows_one() {
        let (reader, _routes, _told) = reader();
        let (heard, _heard) = mpsc::unbounded_channel();
        let asked = |kind: u16| (Filter::new().narrow_kinds([kind]).unwrap(), RelativeTime::default());
        let mut subscriptions = Subscriptions {
            packing: Packing::new(71),
            allowed: 71,
            open: BTreeMap::new(),
            waiting: VecDeque::new(),
            jobs: BTreeSet::new(),
            reader,
            heard,
        };
        let wanted: BTreeMap<Asked, usize> = (0..70).map(|kind| (asked(kind), 20)).collect();
        let change = subscriptions.packing.set(&wanted);
        change.open.into_iter().for_each(|pack| subscriptions.open(pack));
        assert_eq!(subscriptions.open.len(), 70);
        // The refusals of those that are too many come before any EOSE.
        subscriptions.hear(Heard::TooMany(69));
        assert_eq!(subscriptions.allowed, 35);
    }
}
