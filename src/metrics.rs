//! What is counted, for Prometheus. Labels are configured names and closed sets, so that no
//! stranger makes a series.

mod gateway;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

pub use self::gateway::{Counted, GatewayMetrics, GatewayView};

use crate::health::{Connections, Status};
use crate::job_spec::Side;
use crate::nostr::Timestamp;
use crate::outcome::{Moved, Outcome, Report};

/// Seconds: a stream on loopback takes milliseconds, a relay far away most of a second.
pub const LAGS: [f64; 9] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Seconds: equal sets take milliseconds, a first copy hours.
const RUNS: [f64; 9] = [0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RelayLabel {
    relay: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabel {
    relay: String,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabel {
    peer: String,
    direction: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByteLabel {
    peer: String,
    side: &'static str,
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PeerLabel {
    peer: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct JobLabel {
    peer: String,
    filter: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WhatLabel {
    what: &'static str,
}

type Seconds = Family<PeerLabel, Histogram, fn() -> Histogram>;

/// How a relay is doing, as last told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayHealth {
    /// Whether there is a connection.
    pub connected: bool,
    /// How it is doing.
    pub status: Status,
    /// Failures since it was last stable.
    pub failures: u32,
}

/// What streams have passed on since the process began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveTotals {
    /// Events stored at the local relay.
    pub down: u64,
    /// Events stored at peers.
    pub up: u64,
    /// Events by lag: up to each of [`LAGS`], and above the last.
    pub lags: [u64; LAGS.len() + 1],
}

#[derive(Default)]
struct LiveCounters {
    down: AtomicU64,
    up: AtomicU64,
    lags: [AtomicU64; LAGS.len() + 1],
}

/// Everything that is counted. One owner writes; [`Metrics::text`] reads.
pub struct Metrics {
    registry: Registry,
    connected: Family<RelayLabel, Gauge>,
    attempts: Family<AttemptLabel, Counter>,
    status: Family<RelayLabel, Gauge>,
    failures: Family<RelayLabel, Gauge>,
    events: Family<EventLabel, Counter>,
    bytes: Family<ByteLabel, Counter>,
    rounds: Family<PeerLabel, Counter>,
    runs: Seconds,
    jobs: Family<StateLabel, Gauge>,
    last_success: Family<JobLabel, Gauge>,
    lag: Seconds,
    tracked: Gauge,
    relays_connected: Gauge,
    relays_dead: Gauge,
    synced: Family<PeerLabel, Counter>,
    repositories: Gauge,
    left_out: Family<WhatLabel, Gauge>,
    notices: Family<ResultLabel, Counter>,
    gateway: GatewayMetrics,
    /// Kept beside their series, which cannot be read back.
    health: Mutex<BTreeMap<String, RelayHealth>>,
    live: LiveCounters,
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Metrics {
    /// All at zero.
    #[must_use]
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("tieline"),
            connected: Family::default(),
            attempts: Family::default(),
            status: Family::default(),
            failures: Family::default(),
            events: Family::default(),
            bytes: Family::default(),
            rounds: Family::default(),
            runs: Family::new_with_constructor(|| Histogram::new(RUNS)),
            jobs: Family::default(),
            last_success: Family::default(),
            lag: Family::new_with_constructor(|| Histogram::new(LAGS)),
            tracked: Gauge::default(),
            relays_connected: Gauge::default(),
            relays_dead: Gauge::default(),
            synced: Family::default(),
            repositories: Gauge::default(),
            left_out: Family::default(),
            notices: Family::default(),
            gateway: GatewayMetrics::default(),
            health: Mutex::default(),
            live: LiveCounters::default(),
        };
        metrics.register();
        metrics
    }

    /// Counters end in `_total`: the encoder adds it.
    fn register(&mut self) {
        let to = &mut self.registry;
        to.register("relay_connected", "Whether there is a connection to the relay", self.connected.clone());
        to.register("connection_attempts", "Connections tried, by result", self.attempts.clone());
        to.register(
            "relay_status",
            "1 healthy, 2 disconnected, 3 degraded, 4 rate-limited, 5 dead",
            self.status.clone(),
        );
        to.register("relay_failures", "Failures since the relay was last stable", self.failures.clone());
        to.register("events", "Events found missing, by direction and outcome", self.events.clone());
        to.register("bytes", "Bytes of WebSocket messages, by side", self.bytes.clone());
        to.register("negentropy_rounds", "Negentropy queries answered", self.rounds.clone());
        to.register("run_seconds", "How long runs took", self.runs.clone());
        to.register("jobs", "Jobs by state", self.jobs.clone());
        to.register(
            "last_success_timestamp_seconds",
            "When a run of the job last converged",
            self.last_success.clone(),
        );
        to.register("live_lag_seconds", "From an event's arrival to the other relay's OK", self.lag.clone());
        to.register("relays_tracked", "Relays configured or discovered", self.tracked.clone());
        to.register("relays_connected", "Relays connected now", self.relays_connected.clone());
        to.register("relays_dead", "Relays that have failed for a day", self.relays_dead.clone());
        to.register("events_synced", "Events stored at either relay, by runs and streams", self.synced.clone());
        to.register("grasp_repositories", "Repositories that are followed", self.repositories.clone());
        to.register("grasp_left_out", "What discovery found too many of to follow", self.left_out.clone());
        to.register("notices", "Events told to notify.url, and those dropped instead", self.notices.clone());
        self.gateway.register(to);
    }

    /// In the text format of Prometheus.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a text cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }

    /// What the gateway counts, and is counted by.
    #[must_use]
    pub fn gateway(&self) -> &GatewayMetrics {
        &self.gateway
    }

    /// A run of a job has ended.
    pub fn ran(&self, report: &Report, now: Timestamp) {
        let peer = || report.peer.clone();
        for (direction, moved) in [("down", &report.downloaded), ("up", &report.uploaded)] {
            for (outcome, count) in outcomes(moved) {
                if count > 0 {
                    self.events.get_or_create(&EventLabel { peer: peer(), direction, outcome }).inc_by(count);
                }
            }
        }
        for side in Side::BOTH {
            for (direction, count) in [("sent", report.bytes_sent[side]), ("received", report.bytes_received[side])] {
                let label = ByteLabel { peer: peer(), side: side.as_str(), direction };
                self.bytes.get_or_create(&label).inc_by(count);
            }
        }
        let synced = report.downloaded.stored + report.uploaded.stored;
        self.synced.get_or_create(&PeerLabel { peer: peer() }).inc_by(synced);
        self.rounds.get_or_create(&PeerLabel { peer: peer() }).inc_by(report.negentropy_rounds);
        let took = Duration::from_millis(report.duration_ms).as_secs_f64();
        self.runs.get_or_create(&PeerLabel { peer: peer() }).observe(took);
        if report.outcome == crate::outcome::Ending::Converged {
            let label = JobLabel { peer: peer(), filter: report.filter.clone() };
            self.last_success.get_or_create(&label).set(signed(now));
        }
    }

    /// A stream has passed an event on.
    pub fn passed(&self, peer: &str, from: Side, outcome: Outcome, lag: Duration) {
        let direction = if from == Side::Peer { "down" } else { "up" };
        let is_stored = outcome == Outcome::Stored;
        let outcome = match outcome {
            Outcome::Stored => "stored",
            Outcome::Duplicate => "duplicate",
            Outcome::Failed => "failed",
            _ => "refused",
        };
        self.events.get_or_create(&EventLabel { peer: peer.to_owned(), direction, outcome }).inc();
        let lag = lag.as_secs_f64();
        self.lag.get_or_create(&PeerLabel { peer: peer.to_owned() }).observe(lag);
        let bucket = LAGS.iter().position(|&most| lag <= most).unwrap_or(LAGS.len());
        self.live.lags[bucket].fetch_add(1, Ordering::Relaxed);
        if is_stored {
            self.synced.get_or_create(&PeerLabel { peer: peer.to_owned() }).inc();
            let moved = if from == Side::Peer { &self.live.down } else { &self.live.up };
            moved.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What streams have passed on, in all.
    #[must_use]
    pub fn live(&self) -> LiveTotals {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LiveTotals { down: read(&self.live.down), up: read(&self.live.up), lags: self.live.lags.each_ref().map(read) }
    }

    /// How a relay is doing; `since` is what was told of it before.
    pub fn relay(&self, name: &str, view: &Connections, since: &Connections, status: Status, failures: u32) {
        let label = RelayLabel { relay: name.to_owned() };
        self.connected.get_or_create(&label).set(i64::from(view.connected));
        self.status.get_or_create(&label).set(status as i64);
        self.failures.get_or_create(&label).set(i64::from(failures));
        for (result, now, before) in
            [("ok", view.connections, since.connections), ("failed", view.failures, since.failures)]
        {
            let label = AttemptLabel { relay: name.to_owned(), result };
            self.attempts.get_or_create(&label).inc_by(now.saturating_sub(before));
        }
        self.health().insert(name.to_owned(), RelayHealth { connected: view.connected, status, failures });
    }

    /// Every relay that was told of, by name.
    #[must_use]
    pub fn relay_health(&self) -> Vec<(String, RelayHealth)> {
        self.health().iter().map(|(name, health)| (name.clone(), *health)).collect()
    }

    /// A job is no longer run: its gauge would go on telling how it once was.
    pub fn forget_job(&self, peer: &str, filter: &str) {
        self.last_success.remove(&JobLabel { peer: peer.to_owned(), filter: filter.to_owned() });
    }

    /// A relay is no longer followed: its series would go on telling how it once was, and strangers
    /// could make ever more of them.
    pub fn forget_relay(&self, name: &str) {
        let label = RelayLabel { relay: name.to_owned() };
        for gauge in [&self.connected, &self.status, &self.failures] {
            gauge.remove(&label);
        }
        for result in ["ok", "failed"] {
            self.attempts.remove(&AttemptLabel { relay: name.to_owned(), result });
        }
        let peer = || name.to_owned();
        for (direction, other) in [("down", "sent"), ("up", "received")] {
            for (outcome, _) in outcomes(&Moved::default()) {
                self.events.remove(&EventLabel { peer: peer(), direction, outcome });
            }
            for side in Side::BOTH {
                self.bytes.remove(&ByteLabel { peer: peer(), side: side.as_str(), direction: other });
            }
        }
        for counter in [&self.rounds, &self.synced] {
            counter.remove(&PeerLabel { peer: peer() });
        }
        for histogram in [&self.runs, &self.lag] {
            histogram.remove(&PeerLabel { peer: peer() });
        }
        self.health().remove(name);
    }

    fn health(&self) -> MutexGuard<'_, BTreeMap<String, RelayHealth>> {
        // Each entry is written whole, so that a fault elsewhere leaves none half done.
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many relays there are, are connected, are dead.
    pub fn relays(&self, tracked: usize, connected: usize, dead: usize) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.tracked.set(count(tracked));
        self.relays_connected.set(count(connected));
        self.relays_dead.set(count(dead));
    }

    /// What discovery follows, and what it found too many of, by what it is.
    pub fn discovered(&self, repositories: usize, left_out: impl IntoIterator<Item = (&'static str, usize)>) {
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        self.repositories.set(count(repositories));
        for (what, left) in left_out {
            self.left_out.get_or_create(&WhatLabel { what }).set(count(left));
        }
    }

    /// Events were told to the web server that wants to know.
    pub fn notices_posted(&self, events: usize) {
        self.notices.get_or_create(&ResultLabel { result: "posted" }).inc_by(events as u64);
    }

    /// Events were not told to it, because it is away or too slow.
    pub fn notices_dropped(&self, events: usize) {
        self.notices.get_or_create(&ResultLabel { result: "dropped" }).inc_by(events as u64);
    }

    /// How many jobs are in each state.
    pub fn jobs<'a>(&self, states: impl IntoIterator<Item = &'a str>) {
        self.jobs.clear();
        for state in states {
            self.jobs.get_or_create(&StateLabel { state: state.to_owned() }).inc();
        }
    }
}

fn outcomes(moved: &Moved) -> [(&'static str, u64); 7] {
    [
        ("stored", moved.stored),
        ("duplicate", moved.duplicate),
        ("refused", moved.refused.values().sum()),
        ("skipped", moved.skipped.values().sum()),
        ("vanished", moved.vanished),
        ("failed", moved.failed),
        ("parked", moved.parked),
    ]
}

fn signed(now: Timestamp) -> i64 {
    i64::try_from(now).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relay_is_counted_by_what_is_new() {
        let metrics = Metrics::new();
        let first = Connections { connections: 1, connected: true, ..Connections::default() };
        let second = Connections { connections: 1, failures: 2, ..Connections::default() };
        metrics.relay("p", &first, &Connections::default(), Status::Healthy, 0);
        metrics.relay("p", &second, &first, Status::Disconnected, 2);
        let text = metrics.text();
        assert!(text.contains(r#"tieline_connection_attempts_total{relay="p",result="ok"} 1"#), "{text}");
        assert!(text.contains(r#"tieline_connection_attempts_total{relay="p",result="failed"} 2"#));
        assert!(text.contains(r#"tieline_relay_status{relay="p"} 2"#));
        assert!(text.contains(r#"tieline_relay_connected{relay="p"} 0"#));
        let health = RelayHealth { connected: false, status: Status::Disconnected, failures: 2 };
        assert_eq!(metrics.relay_health(), [("p".to_owned(), health)]);
        metrics.forget_relay("p");
        assert_eq!(metrics.relay_health(), []);
        assert!(!metrics.text().contains("relay_connected{"));
    }

    #[test]
    fn a_lag_counts_in_one_place() {
        let metrics = Metrics::new();
        let refused = Outcome::Refused(crate::nostr::Prefix::Blocked);
        for (from, outcome, millis) in [
            (Side::Peer, Outcome::Stored, 5),
            (Side::Peer, refused, 6),
            (Side::Local, Outcome::Stored, 700),
            (Side::Local, Outcome::Stored, 9000),
        ] {
            metrics.passed("p", from, outcome, Duration::from_millis(millis));
        }
        assert_eq!(metrics.live(), LiveTotals { down: 1, up: 2, lags: [1, 1, 0, 0, 0, 0, 0, 1, 0, 1] });
    }
}
