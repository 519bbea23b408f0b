//! `tieline sync`: each chosen job once, until it converges.

use std::collections::HashSet;
use std::io::IsTerminal;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::Args;
use futures::StreamExt;
use tokio_util::sync::CancellationToken;

use super::report::{Display, table};
use super::{Globals, OK, USAGE, open_state, print};
use crate::app::Relays;
use crate::clock;
use crate::config::filter_from_json;
use crate::job::{Job, RunOptions};
use crate::job_spec::{Direction, JobSpec, Limits, StrategyChoice};
use crate::nostr::RelayUrl;
use crate::outcome::{Ending, Report};
use crate::state::{JobLock, LockError, State};

/// Jobs under way at once. They share connections; more would share one core.
const JOBS_AT_ONCE: usize = 4;

/// A job ended partial.
const PARTIAL: u8 = 1;
/// A job failed or was blocked.
pub const FAILED: u8 = 3;
/// Another run holds a job.
const LOCKED: u8 = 4;
/// Stopped by a signal.
const INTERRUPTED: u8 = 130;

/// What to bring in step, and how.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 0 every job converged, 1 something is still missing, 2 usage or config error, \
                        3 a job failed or was blocked, 4 another run holds a job, 130 interrupted.")]
pub struct SyncArgs {
    /// The local relay, for a run without a config file
    #[arg(requires = "peer_url")]
    local_url: Option<RelayUrl>,
    /// The remote relay
    #[arg(requires = "filter")]
    peer_url: Option<RelayUrl>,
    /// Only this peer of the config (may be repeated)
    #[arg(long, conflicts_with = "local_url", value_name = "NAME")]
    peer: Vec<String>,
    /// Only this filter of the config, by its name; with URLs: a filter as JSON (may be repeated)
    #[arg(long, value_name = "NAME|JSON")]
    filter: Vec<String>,
    /// Which way events move [default: as configured; with URLs: pull]
    #[arg(long, value_enum)]
    direction: Option<Direction>,
    /// How the difference is found [default: as configured, or by what the relays can do]
    #[arg(long, value_enum)]
    strategy: Option<StrategyChoice>,
    /// Say what is missing where, and move nothing
    #[arg(long)]
    dry_run: bool,
    /// With --dry-run --json: list the ids
    #[arg(long, requires = "dry_run", requires = "json")]
    ids: bool,
    /// Fill a peer that lists nothing at all, however much there is to send
    #[arg(long)]
    allow_empty: bool,
    /// Print one JSON object per job and nothing else
    #[arg(long)]
    json: bool,
}

/// Runs the chosen jobs and returns the exit code.
pub async fn run(args: SyncArgs, globals: &Globals) -> Result<u8> {
    let (mut specs, relays, state_dir) = match (&args.local_url, &args.peer_url) {
        (Some(local), Some(peer)) => {
            (plain_jobs(&args, local, peer)?, Relays::plain([local, peer])?, globals.state_dir(None)?)
        }
        _ => {
            let config = globals.config()?;
            let state_dir = globals.state_dir(config.state_dir.as_ref())?;
            let relays = Relays::of(&config);
            (chosen(&args, config.jobs.into_iter().map(|job| job.spec).collect())?, relays, state_dir)
        }
    };
    for spec in &mut specs {
        spec.direction = args.direction.unwrap_or(spec.direction);
        spec.strategy = args.strategy.unwrap_or(spec.strategy);
    }
    let state = open_state(&state_dir).await?;
    let stop = CancellationToken::new();
    let signals = tokio::spawn(stop_on_signal(stop.clone()));
    let display = (std::io::stderr().is_terminal() && !globals.quiet).then(Display::new);
    let run =
        Run { args: &args, relays: &relays, state: state.as_ref(), dir: &state_dir, display: display.as_ref(), stop };
    let mut running = futures::stream::iter(specs).map(|spec| run.job(spec)).buffer_unordered(JOBS_AT_ONCE);
    let mut reports = Vec::new();
    while let Some(report) = running.next().await {
        if args.json {
            print(&serde_json::to_string(&report)?)?;
        }
        reports.push(report);
    }
    drop(running);
    signals.abort();
    let code = reports.iter().map(exit_code).max_by_key(|code| severity(*code)).unwrap_or(OK);
    // A quiet run that went well has nothing to say: cron would send it by mail.
    let silent = globals.quiet && code == OK && !args.dry_run;
    if !args.json && !silent {
        print(&table(&reports))?;
    }
    Ok(code)
}

struct Run<'a> {
    args: &'a SyncArgs,
    relays: &'a Relays,
    state: Option<&'a State>,
    dir: &'a Path,
    display: Option<&'a Display>,
    stop: CancellationToken,
}

impl Run<'_> {
    async fn job(&self, spec: JobSpec) -> Report {
        let args = self.args;
        let options =
            RunOptions { dry_run: args.dry_run, ids: args.ids, allow_empty: args.allow_empty, ..RunOptions::default() };
        // A dry run changes nothing, so it need not wait for anybody.
        let lock = if args.dry_run { Ok(None) } else { JobLock::take(self.dir, spec.key()).map(Some) };
        let _held = match lock {
            Ok(lock) => lock,
            Err(error @ LockError::Held { .. }) => return Report::unstarted(&spec, Ending::Locked, error.to_string()),
            Err(error @ LockError::Io { .. }) => {
                tracing::warn!(%error, "going on without a lock: do not start this job twice");
                None
            }
        };
        let Some((local, peer)) = self.relays.both(&spec) else {
            // Relays and jobs are made from one config, so there is a fault where one is missing.
            let fault = self.relays.fault(&spec).unwrap_or("its relays are not known");
            let report = Report::unstarted(&spec, Ending::Failed, fault.to_owned());
            if !args.dry_run {
                unstarted(self.state, &spec, &report).await;
            }
            return report;
        };
        let shown = spec.clone();
        let (job, view) = Job::new(spec, local, peer, self.state.cloned(), options);
        match self.display {
            Some(display) => tokio::join!(job.run(self.stop.clone()), display.follow(&shown, view)).0,
            None => job.run(self.stop.clone()).await,
        }
    }
}

/// Remembers a run that could not begin.
async fn unstarted(state: Option<&State>, spec: &JobSpec, report: &Report) {
    if let Some(state) = state
        && let Err(error) = state.end_run(spec, report, false, clock::now()).await
    {
        tracing::warn!(%error, "the state is behind");
    }
}

/// The jobs of a run without a config file: one per filter.
fn plain_jobs(args: &SyncArgs, local: &RelayUrl, peer: &RelayUrl) -> Result<Vec<JobSpec>> {
    if local == peer {
        bail!("{local} is both relays: there is nothing to compare");
    }
    let number =
        |index: usize| if args.filter.len() == 1 { "filter".to_owned() } else { format!("filter-{}", index + 1) };
    let job = |(index, text): (usize, &String)| {
        let (filter, relative) =
            filter_from_json(text, clock::now()).context("--filter: expected a NIP-01 filter as JSON")?;
        Ok(JobSpec {
            peer: peer.to_string(),
            name: number(index),
            local_url: local.clone(),
            peer_url: peer.clone(),
            filter,
            relative,
            direction: Direction::Pull,
            strategy: StrategyChoice::Auto,
            exclude: Vec::new(),
            limits: Limits::default(),
        })
    };
    args.filter.iter().enumerate().map(job).collect()
}

/// The jobs of the config that were asked for; all of them if none was named.
fn chosen(args: &SyncArgs, jobs: Vec<JobSpec>) -> Result<Vec<JobSpec>> {
    for name in &args.peer {
        if !jobs.iter().any(|job| job.peer == *name) {
            bail!("--peer {name}: the config has no such peer, or it is disabled");
        }
    }
    for name in &args.filter {
        if !jobs.iter().any(|job| job.name == *name) {
            bail!(
                "--filter {name}: the config has no filter of this name (a JSON filter needs two relay URLs before it)"
            );
        }
    }
    let is_chosen = |job: &JobSpec| {
        (args.peer.is_empty() || args.peer.contains(&job.peer))
            && (args.filter.is_empty() || args.filter.contains(&job.name))
    };
    let mut keys = HashSet::new();
    let chosen: Vec<_> = jobs
        .into_iter()
        .filter(is_chosen)
        .filter(|job| {
            let new = keys.insert(job.key());
            if !new {
                tracing::warn!(%job, "the same job stands in the config twice: it runs once");
            }
            new
        })
        .collect();
    if chosen.is_empty() {
        bail!("nothing to do: the config has no enabled peer with such a filter");
    }
    Ok(chosen)
}

/// The first signal ends the jobs in order; the second one the process.
async fn stop_on_signal(stop: CancellationToken) {
    signal().await;
    stop.cancel();
    signal().await;
    std::process::exit(i32::from(INTERRUPTED));
}

async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        }
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}

fn exit_code(report: &Report) -> u8 {
    match report.outcome {
        // A second that could not be listed leaves the difference unknown.
        Ending::DryRun if !report.gaps.is_empty() => PARTIAL,
        Ending::Converged | Ending::DryRun => OK,
        Ending::Partial => PARTIAL,
        Ending::Blocked | Ending::Failed => FAILED,
        Ending::Locked => LOCKED,
        Ending::Interrupted => INTERRUPTED,
    }
}

/// Which of several jobs' codes the run ends with: what a person has to look at first.
fn severity(code: u8) -> usize {
    [OK, PARTIAL, LOCKED, USAGE, FAILED, INTERRUPTED].iter().position(|known| *known == code).unwrap_or_default()
}
