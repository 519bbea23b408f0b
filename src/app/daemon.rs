//! The daemon: schedules, streams, health. One owner of all of it, one inbox.
//!
//! `Config → build → run (start what is due, note what ended, reload) → drain`

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::sync::{mpsc, watch};
use tokio::task::{self, JoinSet};
use tokio_util::sync::CancellationToken;

use super::Relays;
use super::discovery::Discovery;
use super::jobs::{Entry, Jobs};
use super::notices::Notices;
use super::watch::Watch;
use crate::clock;
use crate::config::Config;
use crate::grasp;
use crate::job::{Job, RunOptions};
use crate::job_spec::{JobKey, Side};
use crate::job_state::JobState;
use crate::live::{self, LiveReport, LiveReports, Seen, Streams};
use crate::metrics::Metrics;
use crate::nostr::{RelayUrl, Timestamp};
use crate::outcome::{Ending, Report};
use crate::schedule::{Bounds, Scheduler, Start};
use crate::state::{DaemonLock, JobLock, LockError, State};

/// How often relays are looked at when nothing else happens, and the longest that a clock which
/// jumped goes unnoticed.
const TICK: Duration = Duration::from_secs(1);

/// How long a drain may take: systemd and people wait longer than this.
const DRAIN: Duration = Duration::from_secs(9);

/// When a job is tried again that another process holds.
const HELD_PAUSE: u64 = 30;

/// What the world outside tells the daemon.
#[derive(Debug)]
pub struct Signals {
    /// A new config; a bad one was refused before it came here.
    pub reload: mpsc::Receiver<Config>,
    /// Time to end.
    pub stop: CancellationToken,
    /// Told again and again that the daemon goes on, every second or so.
    pub beat: watch::Sender<()>,
}

/// A run that has ended.
struct Ended {
    job: JobKey,
    started: Timestamp,
    report: Report,
}

/// All of a daemon.
pub struct Daemon {
    /// What is configured and what was discovered.
    config: Config,
    discovery: Discovery,
    notices: Notices,
    relays: Relays,
    /// Connections for streams alone.
    live_relays: Relays,
    state: Option<State>,
    state_dir: PathBuf,
    /// What tells others that a daemon runs.
    _alive: Option<DaemonLock>,
    jobs: Jobs,
    scheduler: Scheduler,
    watch: Watch,
    running: JoinSet<Ended>,
    /// Whose each task is: one that ends in a fault cannot say so.
    tasks: HashMap<task::Id, JobKey>,
    streams: Streams,
    live_reports: LiveReports,
    metrics: Arc<Metrics>,
    /// Ends the jobs under way.
    stop: CancellationToken,
}

impl Daemon {
    /// Puts it together. Nothing is dialled yet.
    ///
    /// # Errors
    /// When a schedule cannot be used.
    pub fn build(config: Config, state: Option<State>, state_dir: PathBuf, metrics: Arc<Metrics>) -> Result<Self> {
        let (reports, live_reports) = live::reports();
        let alive = DaemonLock::take(&state_dir)
            .inspect_err(|error| tracing::warn!(%error, "`tieline status` will say that no daemon runs"));
        let stop = CancellationToken::new();
        let mut discovery = Discovery::new(config.clone(), metrics.clone(), stop.clone());
        discovery.start()?;
        let mut notices = Notices::default();
        notices.update(config.notify.as_ref(), &metrics)?;
        let mut daemon = Self {
            discovery,
            notices,
            relays: Relays::of(&config),
            live_relays: Relays::for_streams(&config),
            jobs: Jobs::read(&config.jobs, &Jobs::default())?,
            config,
            state,
            state_dir,
            _alive: alive.ok(),
            scheduler: Scheduler::new(Bounds::default()),
            watch: Watch::default(),
            running: JoinSet::new(),
            tasks: HashMap::new(),
            streams: Streams::new(reports),
            live_reports,
            metrics,
            stop,
        };
        daemon.watch.set(&daemon.config, &daemon.relays, &daemon.metrics);
        Ok(daemon)
    }

    /// Runs until it is told to stop, then drains.
    pub async fn run(mut self, mut signals: Signals) {
        self.plan().await;
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            signals.beat.send_replace(());
            tokio::select! {
                // A stream passes on hundreds of events a second: only what changes what is due
                // goes on below.
                Some(report) = self.live_reports.recv() => {
                    let mut is_due = self.heard(report);
                    while let Some(report) = self.live_reports.next_now() {
                        is_due |= self.heard(report);
                    }
                    if !is_due {
                        continue;
                    }
                }
                Some(ended) = self.running.join_next_with_id() => match ended {
                    Ok((id, ended)) => {
                        self.tasks.remove(&id);
                        self.ended(ended).await;
                    }
                    Err(error) => {
                        tracing::error!(%error, "a job's task ended in a fault: please report it");
                        if let Some(job) = self.tasks.remove(&error.id()) {
                            let now = clock::now();
                            self.jobs.ended(job, Ending::Failed, now, false);
                            self.scheduler.ended(job, false, now, fastrand::f64());
                        }
                    }
                },
                Some(config) = signals.reload.recv() => self.reload(config).await,
                () = self.discovery.changed() => self.follow_discovery().await,
                () = signals.stop.cancelled() => break,
                _ = tick.tick() => {}
            }
            self.look_at_relays();
            self.start_due();
            self.note(false).await;
        }
        self.drain().await;
    }

    /// Gives the scheduler the jobs, and each live one its streams.
    async fn plan(&mut self) {
        let rows = match &self.state {
            Some(state) => state.job_rows().await.unwrap_or_default(),
            None => Vec::new(),
        };
        self.jobs.remember(&rows);
        self.scheduler.set(self.jobs.plans(&rows), clock::now(), fastrand::f64);
        self.note(true).await;
        let live: Vec<_> =
            self.jobs.iter().filter(|(_, entry)| entry.live).map(|(job, entry)| (job, entry.spec.clone())).collect();
        self.streams.set(&live, |url| self.live_relays.get(url));
    }

    /// Starts what is due, as far as bounds and health allow.
    fn start_due(&mut self) {
        let now = clock::now();
        loop {
            let (watch, local) = (&self.watch, &self.config.local.url);
            let ready = |peer: &RelayUrl| watch.wait_until([local, peer], now);
            let Some(Start { job, whole }) = self.scheduler.poll(now, ready) else { return };
            self.start(job, whole, now);
        }
    }

    fn start(&mut self, job: JobKey, whole: bool, now: Timestamp) {
        let both = |entry: &Entry| self.relays.both(&entry.spec).map(|(local, peer)| (local.clone(), peer.clone()));
        let Some((entry, (local, peer))) = self.jobs.get(job).and_then(|entry| Some((entry, both(entry)?))) else {
            return self.cannot_start(job, now);
        };
        let lock = match JobLock::take(&self.state_dir, job) {
            Ok(lock) => Some(lock),
            Err(error @ LockError::Held { .. }) => {
                tracing::info!(job = %entry.spec, %error, "left to the other run");
                self.scheduler.ended(job, false, now, fastrand::f64());
                return self.scheduler.ask(job, now + HELD_PAUSE);
            }
            Err(error @ LockError::Io { .. }) => {
                tracing::warn!(%error, "going on without a lock");
                None
            }
        };
        let options = RunOptions {
            listed_since: self.jobs.listed_since(job, whole),
            refusals: entry.refusals,
            ..RunOptions::default()
        };
        let (mut run, progress) = Job::new((*entry.spec).clone(), &local, &peer, self.state.clone(), options);
        let seen: Vec<Seen> = Side::BOTH.iter().filter_map(|side| self.streams.seen(entry.spec.url(*side))).collect();
        run = run.telling(move |id| {
            for seen in &seen {
                seen.insert(id);
            }
        });
        if let Some(outbox) = self.notices.outbox().cloned() {
            run = run.storing(move |stored| outbox.tell(stored));
        }
        let stop = self.stop.child_token();
        self.jobs.started(job, progress);
        let task = self.running.spawn(async move {
            let report = run.run(stop).await;
            drop(lock);
            Ended { job, started: now, report }
        });
        self.tasks.insert(task.id(), job);
    }

    /// A job whose relays cannot be used fails each time that it is due.
    fn cannot_start(&mut self, job: JobKey, now: Timestamp) {
        let Some(Entry { spec, .. }) = self.jobs.get(job) else {
            // Jobs and schedule are taken from one config.
            tracing::error!(%job, "a job that is not configured: please report it");
            self.scheduler.ended(job, false, now, fastrand::f64());
            return;
        };
        let fault = self.relays.fault(spec).unwrap_or("its relays are not known");
        tracing::error!(job = %spec, error = fault, "cannot run; a reload tries again");
        let report = Report::unstarted(spec, Ending::Failed, fault.to_owned());
        let (state, spec) = (self.state.clone(), spec.clone());
        let task = self.running.spawn(async move {
            if let Some(state) = state
                && let Err(error) = state.end_run(&spec, &report, false, now).await
            {
                tracing::warn!(%error, "the state is behind");
            }
            Ended { job, started: now, report }
        });
        self.tasks.insert(task.id(), job);
    }

    async fn ended(&mut self, Ended { job, started, report }: Ended) {
        // What its relays did while it ran decides when it runs again.
        self.look_at_relays();
        let now = clock::now();
        // What is forgotten would be counted again under its name.
        if self.config.peers.iter().any(|peer| peer.name == report.peer) {
            self.metrics.ran(&report, now);
        }
        if report.outcome == Ending::Converged {
            self.discovery.converged(job);
        }
        let whole = report.scope.is_none() && matches!(report.outcome, Ending::Converged | Ending::Partial);
        self.scheduler.ended(job, whole, now, fastrand::f64());
        let Some(entry) = self.jobs.get(job) else {
            if report.filter.starts_with(grasp::JOBS) && self.discovery.is_complete() {
                self.forget_gone().await;
            }
            return;
        };
        let waits = self.watch.wait_until([&self.config.local.url, &entry.spec.peer_url], now);
        self.jobs.ended(job, report.outcome, started, waits.is_some());
        if report.outcome == Ending::Failed
            && let Some(retry) = waits
        {
            // The relay's patience says when, not the interval, which may be hours.
            self.scheduler.ask(job, retry);
        }
    }

    /// Writes down what changed of the jobs that wait; `all` when there are no others.
    async fn note(&mut self, all: bool) {
        let Some(state) = &self.state else { return };
        let (now, local) = (clock::now(), &self.config.local.url);
        let (scheduler, watch) = (&self.scheduler, &self.watch);
        let notes = self.jobs.notes(all, |job, entry| {
            let relays = [local, &entry.spec.peer_url];
            let waits = watch.wait_until(relays, now).unwrap_or(0);
            (entry.state(watch.are_connected(relays)), scheduler.due(job).map(|due| due.max(waits)))
        });
        if (all || !notes.is_empty())
            && let Err(error) = state.note_jobs(notes, all).await
        {
            tracing::warn!(%error, "the state is behind");
        }
    }

    /// Says whether a job may be due now.
    fn heard(&mut self, report: LiveReport) -> bool {
        match report {
            LiveReport::Listening { relay } => {
                self.watch.reached(&relay);
                true
            }
            LiveReport::Gap { job } => {
                self.scheduler.ask(job, clock::now());
                true
            }
            LiveReport::Passed { job, from, outcome, stored, lag } => {
                if let (Some(outbox), Some(stored)) = (self.notices.outbox(), stored) {
                    outbox.tell(*stored);
                }
                if let Some(entry) = self.jobs.get(job) {
                    self.metrics.passed(&entry.spec.peer, from, outcome, lag);
                }
                false
            }
        }
    }

    /// Takes over a new config: what did not change is not disturbed.
    async fn reload(&mut self, config: Config) {
        let taken = self.take_over(self.discovery.effective_with(&config));
        match taken.and_then(|()| self.discovery.reconfigure(config)) {
            Ok(()) => {
                self.watch.set(&self.config, &self.relays, &self.metrics);
                self.plan().await;
                tracing::info!(jobs = self.jobs.iter().count(), "the config was read again");
            }
            Err(error) => tracing::error!(error = format!("{error:#}"), "the old config stays in force"),
        }
    }

    /// Takes over what discovery has found since.
    async fn follow_discovery(&mut self) {
        let config = self.discovery.effective();
        match self.take_over(config) {
            Ok(()) => {
                self.watch.set(&self.config, &self.relays, &self.metrics);
                self.plan().await;
                if self.discovery.is_complete() {
                    self.forget_gone().await;
                }
            }
            Err(error) => tracing::error!(error = format!("{error:#}"), "what was discovered cannot be followed"),
        }
    }

    /// Forgets the jobs that discovery no longer wants, this process's and its predecessors':
    /// filters come and go, and `status` shows those there are.
    async fn forget_gone(&self) {
        let Some(state) = &self.state else { return };
        let forgotten = async {
            let rows = state.job_rows().await?;
            let gone = rows.into_iter().filter(|row| row.filter.starts_with(grasp::JOBS));
            let gone = gone.filter_map(|row| row.key.parse().ok()).filter(|job| self.jobs.get(*job).is_none());
            state.forget_jobs(gone.collect()).await
        };
        if let Err(error) = forgotten.await {
            tracing::warn!(%error, "the state is behind");
        }
    }

    fn take_over(&mut self, config: Config) -> Result<()> {
        let jobs = Jobs::read(&config.jobs, &self.jobs)?;
        if let Some(notify) = &config.notify {
            // Before anything is changed.
            notify.token().context("notify.token_file")?;
        }
        self.relays.update(&self.config, &config).context("the relays")?;
        self.live_relays.update(&self.config, &config).context("the relays")?;
        self.notices.update(config.notify.as_ref(), &self.metrics)?;
        let named = |config: &Config| -> HashSet<(String, String)> {
            config.jobs.iter().map(|job| (job.spec.peer.clone(), job.spec.name.clone())).collect()
        };
        for (peer, filter) in named(&self.config).difference(&named(&config)) {
            self.metrics.forget_job(peer, filter);
        }
        (self.jobs, self.config) = (jobs, config);
        Ok(())
    }

    /// Turns what connections did into health, metrics and log lines.
    fn look_at_relays(&mut self) {
        // Streams end with the daemon, which is no loss.
        let live = self.jobs.iter().filter(|(_, entry)| entry.live && !self.stop.is_cancelled());
        let live: HashSet<&RelayUrl> =
            live.flat_map(|(_, entry)| [&entry.spec.local_url, &entry.spec.peer_url]).collect();
        self.watch.look(&self.live_relays, &live, &self.metrics, clock::now());
        let (watch, local) = (&self.watch, &self.config.local.url);
        let states = self.jobs.iter().map(|(_, entry)| entry.state(watch.are_connected([local, &entry.spec.peer_url])));
        self.metrics.jobs(states.map(JobState::as_str));
    }

    /// No new work; what is under way may finish what it has sent, and writes its state.
    async fn drain(mut self) {
        tracing::info!(jobs = self.running.len(), "stopping");
        self.stop.cancel();
        let ended = tokio::time::timeout(DRAIN, async {
            while let Some(ended) = self.running.join_next().await {
                if let Ok(ended) = ended {
                    self.ended(ended).await;
                }
            }
        });
        if ended.await.is_err() {
            tracing::warn!(jobs = self.running.len(), "did not end in time");
        }
        self.notices.finish().await;
    }
}
