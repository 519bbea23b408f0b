//! Whole jobs against the scripted relay, which answers as PROTOCOL.md says that relays do. Each
//! ends with a report that adds up, and with an ending that the test names.

mod auth;
mod neg_open;
mod publishing;
mod reading;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::json;
use tempfile::TempDir;
use tieline::job::{Job, RunOptions};
use tieline::job_spec::{Direction, JobSpec, Limits, RelativeTime, StrategyChoice};
use tieline::nostr::Keys;
use tieline::outcome::{Ending, Moved, Report};
use tieline::relay::{Relay, RelayOptions, client_config};
use tieline::state::{Capability, State};
use tokio_util::sync::CancellationToken;

use crate::support::client::Client;
use crate::support::events::{Author, EPOCH, Event, now};
use crate::support::model::{ModelRelay, Quirks};

/// No job of these tests takes so long.
const PATIENCE: Duration = Duration::from_secs(60);
const HOUR: u64 = 3600;
const DAY: u64 = 24 * HOUR;

/// A job between a good relay and one with quirks; every run has connections of its own.
struct Case {
    local: ModelRelay,
    peer: ModelRelay,
    /// Where the peer is reached, unless straight.
    at: Option<String>,
    direction: Direction,
    /// Whether there is a key for the peer.
    key: bool,
    limits: Limits,
    /// Events of the peer's under no id that anybody could ask for.
    nameless: u64,
    answer_timeout: Duration,
    cooldown: Duration,
    state: State,
    _directory: TempDir,
}

impl Case {
    async fn new(quirks: Quirks, direction: Direction) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            local: ModelRelay::start(Quirks::default()).await,
            peer: ModelRelay::start(quirks).await,
            at: None,
            direction,
            key: false,
            limits: Limits::default(),
            nameless: 0,
            answer_timeout: Duration::from_secs(20),
            cooldown: Duration::from_millis(100),
            state: State::open(directory.path(), now()).await.unwrap(),
            _directory: directory,
        }
    }

    /// A pull of `count` notes beside as many that both have.
    async fn pull(quirks: Quirks, count: usize) -> Self {
        let case = Self::new(quirks, Direction::Pull).await;
        case.peer.fill(&notes(2 * count));
        case.local.fill(&notes(count));
        case
    }

    /// A push of `count` notes beside as many that both have.
    async fn push(quirks: Quirks, count: usize) -> Self {
        let case = Self::new(quirks, Direction::Push).await;
        case.local.fill(&notes(2 * count));
        case.peer.fill(&notes(count));
        case
    }

    /// With a key that the peer accepts.
    fn with_key(mut self) -> Self {
        self.key = true;
        self
    }

    /// With a peer that is given up soon.
    fn impatient(mut self) -> Self {
        self.answer_timeout = Duration::from_millis(300);
        self.limits.passes = 2;
        self
    }

    /// Where the peer is, as a message names it.
    fn peer_url(&self) -> &str {
        self.at.as_deref().unwrap_or(self.peer.url())
    }

    /// One run to its end, over notes.
    async fn run(&self) -> Report {
        self.run_filter(r#"{"kinds":[1]}"#).await
    }

    /// The same over something else. The report is held against what the relays had and have.
    async fn run_filter(&self, filter: &str) -> Report {
        let before = [&self.local, &self.peer].map(held);
        let tls = client_config(None).unwrap();
        let relay = |url: &str, keys| {
            Relay::spawn(RelayOptions {
                keys,
                answer_timeout: self.answer_timeout,
                neg_open_timeout: Duration::from_millis(300),
                cooldown: self.cooldown,
                ..RelayOptions::new(url.parse().unwrap(), tls.clone())
            })
        };
        let key = self.key.then(|| Keys::parse(&Client::author().secret()).unwrap());
        let (local, peer) = (relay(self.local.url(), None), relay(self.peer_url(), key));
        let spec = JobSpec {
            peer: "peer".into(),
            name: "notes".into(),
            local_url: local.url().clone(),
            peer_url: peer.url().clone(),
            filter: filter.parse().unwrap(),
            relative: RelativeTime::default(),
            direction: self.direction,
            strategy: StrategyChoice::Auto,
            exclude: Vec::new(),
            limits: self.limits.clone(),
        };
        let options = RunOptions { retry_pause: Duration::from_millis(100), ..RunOptions::default() };
        let (job, _progress) = Job::new(spec, &local, &peer, Some(self.state.clone()), options);
        let report = tokio::time::timeout(PATIENCE, job.run(CancellationToken::new())).await.expect("it ends");
        self.adds_up(&report, &before);
        report
    }

    /// Every id has one outcome, what is called stored is there, and what is called converged is.
    fn adds_up(&self, report: &Report, before: &[BTreeSet<String>; 2]) {
        let [local, peer] = before;
        for (moved, found, from, to, relay) in [
            (&report.downloaded, report.peer_only, peer, local, &self.local),
            (&report.uploaded, report.local_only, local, peer, &self.peer),
        ] {
            assert_eq!(moved.total(), found, "{report:#?}");
            let after = held(relay);
            let gained = after.difference(to).count() as u64;
            let converged = report.outcome == Ending::Converged;
            if converged {
                assert!(moved.stored <= gained, "{report:#?}");
                let left = from.difference(&after).count() as u64;
                let explained = found - moved.stored + self.nameless;
                assert!(left <= explained, "{left} are missing without a word: {report:#?}");
            }
        }
        // A second too dense to list is told by itself.
        let told = report.error.is_some() || !report.gaps.is_empty();
        assert_eq!(told, report.outcome != Ending::Converged, "{report:#?}");
        if let (Some(error), Ending::Failed | Ending::Blocked) = (&report.error, report.outcome) {
            assert!(error.starts_with(&format!("{}: ", self.peer_url())), "it does not name the relay: {error}");
        }
    }

    /// What is remembered of the peer's negentropy.
    async fn remembered(&self) -> Option<Capability> {
        self.state.capability(&self.peer.url().parse().unwrap(), "nip77", now()).await.unwrap()
    }

    /// Why an id is parked, and for how long from now, roughly.
    async fn parked(&self, id: &str) -> Option<(String, u64)> {
        let rows = self.state.list_parked(None, now(), 1000).await.unwrap();
        let row = rows.into_iter().find(|row| row.id == id)?;
        Some((row.reason, row.until.saturating_sub(now()).next_multiple_of(60)))
    }
}

/// Runs cases side by side: what they do is mostly to wait.
async fn all(cases: impl IntoIterator<Item = impl Future<Output = ()>>) {
    // Boxed, because a case is too much for a stack that holds many.
    futures::future::join_all(cases.into_iter().map(Box::pin)).await;
}

fn held(relay: &ModelRelay) -> BTreeSet<String> {
    relay.ids(&json!({}))
}

fn notes(count: usize) -> Vec<Event> {
    Author::new(1).notes(count, EPOCH)
}

/// What became of the ids besides the stored ones, in words, such as `2 refused:blocked`.
fn not_stored(moved: &Moved) -> String {
    let mut words = Vec::new();
    let mut add = |word: String, count| {
        if count > 0 {
            words.push(format!("{count} {word}"));
        }
    };
    add("duplicate".into(), moved.duplicate);
    moved.refused.iter().for_each(|(reason, count)| add(format!("refused:{reason}"), *count));
    moved.skipped.iter().for_each(|(reason, count)| add(format!("skipped:{reason}"), *count));
    add("vanished".into(), moved.vanished);
    add("failed".into(), moved.failed);
    add("not-wanted".into(), moved.not_wanted);
    add("parked".into(), moved.parked);
    words.join(", ")
}
