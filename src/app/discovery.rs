//! What the config file says and what discovery found, as one config.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::Relays;
use crate::config::{Config, GraspSettings, RelaySettings};
use crate::grasp::{self, Discovered};
use crate::job_spec::JobKey;
use crate::metrics::Metrics;
use crate::nostr::RelayUrl;

/// The config file's config, and discovery, where it is wanted.
pub(super) struct Discovery {
    configured: Config,
    running: Option<Running>,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
}

/// A discovery that runs.
struct Running {
    settings: GraspSettings,
    local: RelaySettings,
    found: watch::Receiver<Discovered>,
    converged: mpsc::UnboundedSender<JobKey>,
    /// Whether it ended by itself, which it never should.
    failed: bool,
    stop: CancellationToken,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl Discovery {
    /// Starts nothing yet.
    pub(super) fn new(configured: Config, metrics: Arc<Metrics>, stop: CancellationToken) -> Self {
        Self { configured, running: None, metrics, stop }
    }

    /// Starts discovery if it is wanted, and again if it was to be done otherwise until now.
    ///
    /// # Errors
    /// When the local relay's key cannot be read.
    pub(super) fn start(&mut self) -> Result<()> {
        let wanted = self.configured.grasp.as_ref();
        let local = &self.configured.local;
        if self.running.as_ref().is_some_and(|running| wanted == Some(&running.settings) && *local == running.local) {
            return Ok(());
        }
        self.running = None;
        let Some(settings) = wanted else { return Ok(()) };
        let (found_by_it, found) = watch::channel(Discovered::default());
        let (converged, converged_jobs) = mpsc::unbounded_channel();
        let stop = self.stop.child_token();
        let discovery = grasp::Discovery::new(settings.clone(), local.url.clone(), found_by_it, self.metrics.clone())
            .ok_or_else(|| anyhow!("grasp.service: {} has no host", settings.service))?;
        let running = discovery.run(Relays::alone(local)?, converged_jobs);
        tokio::spawn(stop.clone().run_until_cancelled_owned(running));
        self.running =
            Some(Running { settings: settings.clone(), local: local.clone(), found, converged, failed: false, stop });
        Ok(())
    }

    /// Waits until something else was found. Cancel safe.
    pub(super) async fn changed(&mut self) {
        if let Some(running) = self.running.as_mut().filter(|running| !running.failed) {
            if running.found.changed().await.is_ok() {
                return;
            }
            running.failed = true;
            tracing::error!("discovery ended in a fault: please report it; what it found is still followed");
        }
        std::future::pending().await
    }

    /// What is configured and found now.
    pub(super) fn effective(&mut self) -> Config {
        match &mut self.running {
            Some(running) => merge(&self.configured, &running.found.borrow_and_update()),
            None => self.configured.clone(),
        }
    }

    /// Whether all that the local relay holds is known.
    pub(super) fn is_complete(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.found.borrow().complete)
    }

    /// A new file, with what was found so far if that is still to be followed.
    pub(super) fn effective_with(&self, configured: &Config) -> Config {
        match &self.running {
            Some(running)
                if configured.grasp.as_ref() == Some(&running.settings) && configured.local == running.local =>
            {
                merge(configured, &running.found.borrow())
            }
            _ => configured.clone(),
        }
    }

    /// Takes the new file over.
    ///
    /// # Errors
    /// When the local relay's key cannot be read.
    pub(super) fn reconfigure(&mut self, configured: Config) -> Result<()> {
        self.configured = configured;
        self.start()
    }

    /// A job has converged: what it covers is complete.
    pub(super) fn converged(&self, job: JobKey) {
        if let Some(running) = &self.running {
            // Nobody asks any more when it has ended.
            let _ = running.converged.send(job);
        }
    }
}

/// Both as one. What is configured goes before what was found: a relay has the settings and the
/// name that the file gives it, and no found relay takes the name of a configured one.
fn merge(configured: &Config, found: &Discovered) -> Config {
    let mut config = configured.clone();
    let known: HashMap<&RelayUrl, &str> = configured.peers.iter().map(|peer| (&peer.url, peer.name.as_str())).collect();
    let mut names: HashSet<String> = configured.peers.iter().map(|peer| peer.name.clone()).collect();
    names.insert(configured.local.name.clone());
    let mut names_of: HashMap<&RelayUrl, String> = HashMap::new();
    for peer in &found.peers {
        if let Some(name) = known.get(&peer.url) {
            names_of.insert(&peer.url, (*name).to_owned());
            continue;
        }
        let mut name = peer.name.clone();
        while !names.insert(name.clone()) {
            name.push('+');
        }
        names_of.insert(&peer.url, name.clone());
        config.peers.push(RelaySettings { name, ..peer.clone() });
    }
    let keys: HashSet<JobKey> = configured.jobs.iter().map(|job| job.spec.key()).collect();
    for job in found.jobs.iter().filter(|job| !keys.contains(&job.spec.key())) {
        let mut job = job.clone();
        if let Some(name) = names_of.get(&job.spec.peer_url) {
            job.spec.peer.clone_from(name);
        }
        config.jobs.push(job);
    }
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Job, Retry, Schedule, When};
    use crate::job_spec::{Direction, JobSpec, Limits, Refusals, RelativeTime, StrategyChoice};
    use crate::nostr::Filter;

    const FILE: &str = "local: {url: 'ws://127.0.0.1:7777'}\n\
        peers: [{name: mine, url: 'wss://a.example', direction: both, filters: [{kinds: [1]}]},\n\
                {name: b.example, url: 'wss://other.example', direction: pull, filters: [{kinds: [1]}]}]";

    fn found(hosts: &[&str], filter: &str) -> Discovered {
        let url = |host: &str| -> RelayUrl { format!("wss://{host}").parse().unwrap() };
        let peer = |host: &&str| RelaySettings {
            name: (*host).to_owned(),
            url: url(host),
            auth: None,
            ca_file: None,
            proxy: None,
            retry: Retry::default(),
            public_only: true,
        };
        let job = |host: &&str| Job {
            spec: JobSpec {
                peer: (*host).to_owned(),
                name: "grasp/announcements".into(),
                local_url: "ws://127.0.0.1:7777".parse().unwrap(),
                peer_url: url(host),
                filter: filter.parse::<Filter>().unwrap(),
                relative: RelativeTime::default(),
                direction: Direction::Pull,
                strategy: StrategyChoice::Auto,
                exclude: Vec::new(),
                limits: Limits::default(),
            },
            schedule: Schedule { when: When::Manual, overlap: std::time::Duration::ZERO },
            live: true,
            replaces: Vec::new(),
            refusals: Refusals::HoldForOne,
        };
        Discovered { peers: hosts.iter().map(peer).collect(), jobs: hosts.iter().map(job).collect(), complete: true }
    }

    #[test]
    fn what_is_configured_goes_before_what_was_found() {
        let (config, _) = Config::from_yaml(FILE, "peers.yaml", 0).unwrap();
        let config = merge(&config, &found(&["a.example", "b.example", "c.example"], r#"{"kinds":[30617]}"#));
        let peers: Vec<_> = config.peers.iter().map(|peer| (peer.name.as_str(), peer.public_only)).collect();
        assert_eq!(peers, [("mine", false), ("b.example", false), ("b.example+", true), ("c.example", true)]);
        let jobs: Vec<_> = config.jobs.iter().map(|job| (job.spec.peer.as_str(), job.live)).collect();
        assert_eq!(
            jobs,
            [("mine", false), ("b.example", false), ("mine", true), ("b.example+", true), ("c.example", true)]
        );
    }

    #[test]
    fn a_job_that_is_configured_is_not_found_again() {
        let file = FILE.replace("{name: b.example, url: 'wss://other.example'", "{name: b, url: 'wss://b.example'");
        let (config, _) = Config::from_yaml(&file, "peers.yaml", 0).unwrap();
        let merged = merge(&config, &found(&["b.example"], r#"{"kinds":[1]}"#));
        assert_eq!((merged.peers.len(), merged.jobs.len()), (2, 2));
        assert!(merged.jobs.iter().all(|job| !job.live));
    }
}
