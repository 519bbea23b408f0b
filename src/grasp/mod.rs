//! GRASP-02: finds the relays that hold our git repositories, and says what is to be kept in step
//! with each.
//!
//! `local relay ─events→ index ─wanted→ targets ─filters→ Discovered`
//!
//! What comes out is what a config file might have said, and nothing further down knows where it
//! came from: history, live streams, backoff and proof are a job's as ever.

mod filters;
mod index;
mod listener;
mod place;
mod targets;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use self::filters::Layer;
use self::index::{Index, LeftOut, Wanted};
use self::listener::{Heard, Listener};
use self::place::Place;
use self::targets::{Bounds, Rules, Subscription, Targets};
use crate::config::{GraspSettings, Job, RelaySettings, Retry, Schedule, When};
use crate::job_spec::{Direction, JobKey, JobSpec, Limits, Refusals, RelativeTime, StrategyChoice};
use crate::metrics::Metrics;
use crate::nostr::RelayUrl;
use crate::relay::{Relay, is_same_listener};

/// What goes by streams is proven by a job so often: with NIP-77 one exchange, without it a
/// listing of the last day, and of everything once a day.
const PROOF: Duration = Duration::from_secs(3600);
/// How far before the last complete run a relay without negentropy is listed.
const OVERLAP: Duration = Duration::from_secs(24 * 3600);

/// How the names of discovered jobs begin.
pub const JOBS: &str = "grasp/";

/// Events on their way from the listener.
const HEARD_QUEUE: usize = 1024;

/// The relays to be followed, and what to keep in step with each: the whole picture, every time.
#[derive(Clone, Debug, Default)]
pub struct Discovered {
    /// The relays, the bootstrap relays among them.
    pub peers: Vec<RelaySettings>,
    /// One per filter, pulled and live.
    pub jobs: Vec<Job>,
    /// Whether all that the local relay holds went into it; before that, only what is new.
    pub complete: bool,
}

/// One filter of one relay, by its job's key.
type Filters = HashMap<JobKey, (RelayUrl, Layer, usize, &'static str)>;

/// Discovery under way.
pub struct Discovery {
    settings: GraspSettings,
    local_url: RelayUrl,
    index: Index,
    /// The index that the history now being read makes: it takes the place of the other when it
    /// is complete.
    next: Option<Index>,
    targets: Targets,
    filters: Filters,
    /// Relays of which was asked whether they are our own.
    looked_at: BTreeSet<RelayUrl>,
    /// Whether the relays may be others than when they were last looked at.
    to_look: bool,
    complete: bool,
    found: watch::Sender<Discovered>,
    metrics: Arc<Metrics>,
    said: Said,
}

/// What the log was told last.
#[derive(Default)]
struct Said {
    left_out: LeftOut,
    refused: BTreeSet<RelayUrl>,
}

impl Discovery {
    /// Nothing is asked yet. What is found goes to `found`; `None` for a service without a host,
    /// which no URL of a relay is.
    #[must_use]
    pub fn new(
        settings: GraspSettings,
        local_url: RelayUrl,
        found: watch::Sender<Discovered>,
        metrics: Arc<Metrics>,
    ) -> Option<Self> {
        let service = Place::of_relay(&settings.service)?;
        let own = BTreeSet::from_iter([Some(service.clone()), Place::of_relay(&local_url)].into_iter().flatten());
        let targets = Targets::new(Rules {
            own,
            bootstrap: settings.bootstrap.clone(),
            allow: settings.allow.clone(),
            deny: settings.deny.clone(),
            allow_private: settings.allow_private,
            bounds: Bounds::with_relays(settings.max_relays),
        });
        Some(Self {
            index: Index::new(service),
            next: None,
            targets,
            filters: HashMap::new(),
            looked_at: BTreeSet::new(),
            to_look: false,
            complete: false,
            settings,
            local_url,
            found,
            metrics,
            said: Said::default(),
        })
    }

    /// Runs for ever, over a connection to the local relay of its own. `converged` brings the keys
    /// of jobs whose history is complete.
    pub async fn run(mut self, local: Relay, mut converged: mpsc::UnboundedReceiver<JobKey>) {
        let (heard_by_us, mut heard) = mpsc::channel(HEARD_QUEUE);
        let listening = Listener::new(local.link(), heard_by_us).run();
        tokio::pin!(listening);
        self = self.published().await;
        let mut looks = FuturesUnordered::new();
        // When the batch closes that is open: it is not put off by what comes later.
        let mut closes: Option<Instant> = None;
        loop {
            if std::mem::take(&mut self.to_look) {
                looks.extend(self.unknown().into_iter().map(|relay| look(self.local_url.clone(), relay)));
            }
            tokio::select! {
                () = &mut listening => return,
                Some(heard) = heard.recv() => match heard {
                    Heard::Begin => self.next = Some(Index::new(self.index.service().clone())),
                    Heard::Past(event) => if let Some(next) = &mut self.next {
                        next.fold(&event);
                    },
                    Heard::Complete => {
                        if let Some(next) = self.next.take() {
                            self.index = next;
                        }
                        closes = None;
                        self.complete = true;
                        self = self.published().await;
                    }
                    Heard::News(event) => {
                        self.index.fold(&event);
                        if let Some(next) = &mut self.next {
                            next.fold(&event);
                        }
                        closes.get_or_insert_with(|| Instant::now() + self.settings.batch_window);
                    }
                },
                Some(job) = converged.recv() => if let Some((relay, layer, number, part)) = self.filters.get(&job) {
                    self.targets.confirm(relay, *layer, *number, part);
                },
                Some((relay, is_ours)) = looks.next(), if !looks.is_empty() => if is_ours {
                    tracing::info!(%relay, "leads to our own relay");
                    self.targets.is_own(&relay);
                    self = self.published().await;
                },
                () = at(closes) => {
                    closes = None;
                    self = self.published().await;
                }
            }
        }
    }

    /// Works out what is to be followed now, and hands it on where it has changed. For thousands of
    /// filters that takes a good part of a second, so it is done where nothing waits for it.
    async fn published(mut self) -> Self {
        let worked_out = tokio::task::spawn_blocking(move || {
            self.publish();
            self
        });
        match worked_out.await {
            Ok(this) => this,
            // It is not cancelled: there was a fault, which ends this task as it would have here.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }

    fn publish(&mut self) {
        self.to_look = true;
        let wanted = self.index.wanted();
        self.targets.update(&wanted);
        let mut discovered = Discovered { complete: self.complete, ..Discovered::default() };
        let mut filters = Filters::new();
        for url in self.targets.relays() {
            let peer = self.peer(url);
            for subscription in self.targets.subscriptions(url) {
                let Subscription { layer, number, part, .. } = subscription;
                let job = self.job(&peer, subscription);
                filters.insert(job.spec.key(), (url.clone(), layer, number, part));
                discovered.jobs.push(job);
            }
            discovered.peers.push(peer);
        }
        self.filters = filters;
        self.say(&wanted);
        self.found.send_if_modified(|before| {
            let changed = (before.complete, &before.peers) != (discovered.complete, &discovered.peers)
                || shape(before) != shape(&discovered);
            if changed {
                tracing::info!(
                    repositories = wanted.repositories.len(),
                    relays = discovered.peers.len(),
                    filters = discovered.jobs.len(),
                    "what is to be followed has changed"
                );
                *before = discovered;
            }
            changed
        });
    }

    /// The relays of which it is yet to be asked whether they are our own by another name.
    fn unknown(&mut self) -> Vec<RelayUrl> {
        let new: Vec<_> = self.targets.relays().filter(|url| !self.looked_at.contains(*url)).cloned().collect();
        // Asked again when they come back after they were dropped.
        self.looked_at = self.targets.relays().cloned().collect();
        new
    }

    fn peer(&self, url: &RelayUrl) -> RelaySettings {
        RelaySettings {
            // A host is named by one relay of each scheme: names are unique, as URLs are.
            name: url.as_str().strip_prefix("wss://").unwrap_or(url.as_str()).to_owned(),
            url: url.clone(),
            auth: self.settings.auth.clone(),
            ca_file: None,
            proxy: None,
            retry: Retry::default(),
            public_only: !self.settings.allow_private && !self.targets.is_bootstrap(url),
        }
    }

    fn job(&self, peer: &RelaySettings, subscription: Subscription) -> Job {
        let Subscription { layer, number, part, filter, was } = subscription;
        let name = match (layer, part) {
            (Layer::Announcements, _) => format!("{JOBS}{layer}"),
            (_, "") => format!("{JOBS}{layer}-{number}"),
            (_, part) => format!("{JOBS}{layer}-{number}-{part}"),
        };
        let spec = |filter| JobSpec {
            peer: peer.name.clone(),
            name: name.clone(),
            local_url: self.local_url.clone(),
            peer_url: peer.url.clone(),
            filter,
            relative: RelativeTime::default(),
            direction: Direction::Pull,
            strategy: StrategyChoice::Auto,
            exclude: Vec::new(),
            limits: Limits::default(),
        };
        Job {
            replaces: was.into_iter().map(|filter| spec(filter).key()).collect(),
            spec: spec(filter),
            schedule: Schedule { when: When::Every(PROOF), overlap: OVERLAP },
            live: true,
            refusals: match layer {
                // Most announcements are refused, whatever relay they are found at.
                Layer::Announcements => Refusals::HoldFor("grasp/announcements"),
                _ => Refusals::HoldForOne,
            },
        }
    }

    /// Tells the log and the metrics of what is not followed, once.
    fn say(&mut self, wanted: &Wanted) {
        let left_out = self.targets.left_out();
        self.metrics.discovered(wanted.repositories.len(), left_out.counts());
        if left_out != self.said.left_out {
            for (what, count) in left_out.counts().into_iter().filter(|(_, count)| *count > 0) {
                tracing::warn!(what, count, "there are too many to follow: some are left out");
            }
            self.said.left_out = left_out;
        }
        let refused = self.targets.refused();
        for (relay, refusal) in refused.iter().filter(|(relay, _)| !self.said.refused.contains(*relay)) {
            tracing::info!(%relay, %refusal, "a relay that announcements name is not followed");
        }
        self.said.refused = refused.keys().cloned().collect();
    }
}

/// What of the jobs decides whether they changed.
fn shape(discovered: &Discovered) -> Vec<(JobKey, &str)> {
    discovered.jobs.iter().map(|job| (job.spec.key(), job.spec.name.as_str())).collect()
}

async fn look(local: RelayUrl, relay: RelayUrl) -> (RelayUrl, bool) {
    let is_ours = is_same_listener(&relay, &local).await;
    (relay, is_ours)
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
