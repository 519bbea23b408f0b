//! Runs a job through the library.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::ClientConfig;
use serde_json::Value;
use tieline::job::{Job, RunOptions};
use tieline::job_spec::{Direction, JobSpec, Limits, RelativeTime, StrategyChoice};
use tieline::nostr::RelayUrl;
use tieline::outcome::{Ending, Report};
use tieline::relay::{Relay, RelayOptions, client_config};
use tieline::state::State;
use tokio_util::sync::CancellationToken;

use super::events::now;

/// No run of these tests takes so long, unless it hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A job, and how to run it. Every run has connections of its own, as if by another process.
pub struct Run {
    pub spec: JobSpec,
    pub options: RunOptions,
    /// How long a relay may say nothing of use.
    pub answer_timeout: Duration,
    /// How long a relay may say nothing on NEG-OPEN: one that ignores it makes every run wait.
    pub neg_open_timeout: Duration,
    pub state: Option<State>,
}

impl Run {
    /// Without a state, without a limit that matters here, and with short pauses.
    pub fn new(local: &str, peer: &str, filter: &Value, direction: Direction) -> Self {
        let spec = JobSpec {
            peer: "peer".into(),
            name: "filter".into(),
            local_url: local.parse().unwrap(),
            peer_url: peer.parse().unwrap(),
            filter: filter.to_string().parse().unwrap(),
            relative: RelativeTime::default(),
            direction,
            strategy: StrategyChoice::Auto,
            exclude: Vec::new(),
            limits: Limits::default(),
        };
        Self {
            spec,
            options: RunOptions { retry_pause: Duration::from_millis(20), ..RunOptions::default() },
            answer_timeout: Duration::from_secs(30),
            neg_open_timeout: Duration::from_secs(2),
            state: None,
        }
    }

    /// Everything, both ways.
    pub fn both(local: &str, peer: &str) -> Self {
        Self::new(local, peer, &serde_json::json!({}), Direction::Both)
    }

    /// With what earlier runs have left.
    #[must_use]
    pub fn knowing(mut self, state: &State) -> Self {
        self.state = Some(state.clone());
        self
    }

    /// Without events that match this.
    #[must_use]
    pub fn excluding(mut self, filter: &Value) -> Self {
        self.spec.exclude.push(filter.to_string().parse().unwrap());
        self
    }

    /// Runs it to its end. Every id it found has one outcome, and the report says the same.
    pub async fn once(&self) -> Report {
        let (local, peer) = (self.relay(&self.spec.local_url), self.relay(&self.spec.peer_url));
        let (job, _progress) = Job::new(self.spec.clone(), &local, &peer, self.state.clone(), self.options);
        let report = tokio::time::timeout(PATIENCE, job.run(CancellationToken::new())).await;
        let report = report.unwrap_or_else(|_| panic!("{} does not end", self.spec));
        // A later pass finds more where one relay has let go of what both had.
        let adds_up = |found, total| if report.passes == 1 { total == found } else { total >= found };
        assert!(adds_up(report.local_only, report.uploaded.total()), "does not add up: {report:#?}");
        assert!(adds_up(report.peer_only, report.downloaded.total()), "does not add up: {report:#?}");
        assert_eq!(report.parked, report.uploaded.parked + report.downloaded.parked, "does not add up: {report:#?}");
        report
    }

    /// Runs it, and it must converge.
    pub async fn converges(&self) -> Report {
        let report = self.once().await;
        assert_eq!(report.outcome, Ending::Converged, "{report:#?}");
        assert_eq!(report.error, None);
        report
    }

    /// Runs it when nothing is left to do: one pass, and not one event body.
    pub async fn is_idle(&self) -> Report {
        let report = self.converges().await;
        assert_eq!((report.passes, report.bodies_received), (1, 0), "{report:#?}");
        report
    }

    fn relay(&self, url: &RelayUrl) -> Relay {
        static TLS: OnceLock<Arc<ClientConfig>> = OnceLock::new();
        let tls = TLS.get_or_init(|| client_config(None).unwrap()).clone();
        Relay::spawn(RelayOptions {
            answer_timeout: self.answer_timeout,
            neg_open_timeout: self.neg_open_timeout,
            ..RelayOptions::new(url.clone(), tls)
        })
    }
}

/// The state in this directory.
pub async fn state(directory: &Path) -> State {
    State::open(directory, now()).await.unwrap()
}
