//! Runs one job: pass after pass over two relays, until one finds nothing new.
//!
//! ```text
//! pass:  deletions and vanish requests, then everything; each step is
//!        ask ──ids──▶ mover (peer to local)
//!            └─ids──▶ mover (local to peer)
//! ```
//!
//! The three run side by side: what is found is moved while the comparison goes on.

mod ask;
mod error;
mod fates;
mod guard;
mod memory;
mod mover;
mod progress;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub use self::progress::{Phase, Progress};

use self::ask::{Compared, Comparison};
use self::error::JobError;
use self::memory::Memory;
use self::mover::{Mover, Tell};
use crate::clock;
use crate::job_spec::{JobSpec, Refusals, Side};
use crate::nostr::{EventId, Filter, Timestamp, kind};
use crate::outcome::{BySide, Ending, Gap, Ids, Report, Scope, Stored};
use crate::reconcile::{Reconciliation, Setup};
use crate::relay::{Link, Relay};
use crate::state::State;

/// The longest filter to send as it is, in bytes of JSON: half of the 128 KiB that strfry takes
/// as one message; the other half is for the query beside it. Longer ones are split.
const MAX_FILTER: usize = 60_000;

/// Tries to reach a relay that is not there, before the job fails.
const TRIES: u32 = 2;

/// How long a run that is stopped waits for the OKs of what it has sent.
const GRACE: Duration = Duration::from_secs(5);

/// Ids on their way from the comparison to a mover.
const FOUND_QUEUE: usize = 4096;

/// What may be asked of one run.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Compute the difference and move nothing.
    pub dry_run: bool,
    /// Put the ids themselves into the report.
    pub ids: bool,
    /// From when on events are compared where a side has to be listed; `None` for the whole
    /// filter. `created_at` is not the time of arrival, so only the whole filter proves anything.
    pub listed_since: Option<Timestamp>,
    /// Fill a peer that lists nothing at all, however much there is.
    pub allow_empty: bool,
    /// Whom a refusal of the destination tells something.
    pub refusals: Refusals,
    /// The longest pause after a pass that was cut off; every further one doubles it.
    pub retry_pause: Duration,
}

impl Default for RunOptions {
    fn default() -> Self {
        Self {
            dry_run: false,
            ids: false,
            listed_since: None,
            allow_empty: false,
            refusals: Refusals::default(),
            retry_pause: Duration::from_secs(2),
        }
    }
}

/// One run of one job.
pub struct Job {
    spec: Arc<JobSpec>,
    options: RunOptions,
    links: BySide<Link>,
    memory: Memory,
    progress: watch::Sender<Progress>,
    /// What only the peer has, and what only the local relay has.
    movers: BySide<Mover>,
    drops: BySide<u8>,
    /// Sides that refused negentropy in this run: a refusal, and above all a silence, is not
    /// waited for again.
    listed: BySide<bool>,
    strategy: Option<&'static str>,
    rounds: u64,
    gaps: Vec<Gap>,
    first_pass: Option<BySide<u64>>,
    passes: u32,
    /// The last pass that ran to its end.
    proof: Option<u32>,
    scope: Option<Scope>,
    started: Timestamp,
}

/// How a pass that ran to its end ended.
struct Pass {
    new: u64,
}

impl Job {
    /// A run over the two relays; nothing is asked of them yet. Without a state it remembers
    /// nothing from run to run.
    #[must_use]
    pub fn new(
        spec: JobSpec,
        local: &Relay,
        peer: &Relay,
        state: Option<State>,
        options: RunOptions,
    ) -> (Self, watch::Receiver<Progress>) {
        let spec = Arc::new(spec);
        let (progress, view) = watch::channel(Progress::default());
        let memory = Memory::new(state, &spec, options.refusals);
        let links = BySide { local: local.link(), peer: peer.link() };
        let mover = |holder| {
            let wanted = spec.direction.moves_from(holder) && !options.dry_run;
            Mover::new(holder, &spec, &links, wanted, memory.clone(), progress.clone())
        };
        let movers = BySide { local: mover(Side::Local), peer: mover(Side::Peer) };
        let job = Self {
            options,
            links,
            memory,
            progress,
            movers,
            drops: BySide::default(),
            listed: BySide::default(),
            strategy: None,
            rounds: 0,
            gaps: Vec::new(),
            first_pass: None,
            passes: 0,
            proof: None,
            scope: None,
            started: clock::now(),
            spec,
        };
        (job, view)
    }

    /// Tells of each event just before it is published: a stream would take it for news, and
    /// send it back to where it came from.
    #[must_use]
    pub fn telling(mut self, tell: impl Fn(EventId) + Send + Sync + 'static) -> Self {
        let tell: Tell = Arc::new(tell);
        for side in Side::BOTH {
            self.movers[side].tell = Some(tell.clone());
        }
        self
    }

    /// Tells of each event that the local relay has newly stored.
    #[must_use]
    pub fn storing(mut self, tell: impl Fn(Stored) + Send + Sync + 'static) -> Self {
        self.movers.peer.storing = Some(Arc::new(tell));
        self
    }

    /// Runs until a pass finds nothing new, something is in the way, or `stop` is cancelled. The
    /// report adds up in each case, and is written to the state.
    pub async fn run(mut self, stop: CancellationToken) -> Report {
        let started = clock::instant();
        if !self.options.dry_run {
            self.memory.begin(&self.spec).await;
        }
        let (memory, links, progress) = (self.memory.clone(), self.links.clone(), self.progress.subscribe());
        let noting = !self.options.dry_run;
        let (ending, error) = tokio::select! {
            end = self.passes(&stop) => end,
            never = memory.follow(&links, progress), if noting => match never {},
            // The OKs of what was sent are waited for, but not for ever.
            () = async { stop.cancelled().await; tokio::time::sleep(GRACE).await } => (Ending::Interrupted, None),
        };
        for side in Side::BOTH {
            self.movers[side].park().await;
        }
        self.progress.send_modify(|progress| progress.phase = Phase::Done);
        let report = self.report(ending, error, clock::instant() - started);
        if !self.options.dry_run {
            let whole = self.scope.is_none() && matches!(ending, Ending::Converged | Ending::Partial);
            self.memory.end(&self.spec, &report, whole).await;
        }
        log(&self.spec, &report);
        report
    }

    async fn passes(&mut self, stop: &CancellationToken) -> (Ending, Option<JobError>) {
        let mut tries = 0;
        loop {
            self.passes += 1;
            let result = self.pass(stop).await;
            let last = self.passes >= self.spec.limits.passes;
            match result {
                Ok(_) if self.options.dry_run => return (Ending::DryRun, None),
                Ok(Pass { new: 0 }) if self.gaps.is_empty() => return (Ending::Converged, None),
                Ok(Pass { new: 0 }) => return (Ending::Partial, None),
                Ok(_) => {
                    if let Some(error) = self.stopped() {
                        return (Ending::Blocked, Some(error));
                    }
                    if last {
                        return (Ending::Partial, Some(self.still_missing()));
                    }
                }
                Err(JobError::Interrupted) => return (Ending::Interrupted, None),
                Err(error) if error.ending() == Ending::Blocked => return (Ending::Blocked, Some(error)),
                Err(error) => {
                    if let JobError::Relay(lost) = &error {
                        for side in Side::BOTH {
                            self.movers[side].cut_off(lost).await;
                        }
                    }
                    tries += 1;
                    // To find the event that a relay breaks on takes one pass more.
                    let suspects = Side::BOTH.iter().any(|&side| self.movers[side].suspect.is_some());
                    let last = self.passes >= self.spec.limits.passes + u32::from(suspects);
                    if last || error.is_unreachable() && tries >= TRIES {
                        return (Ending::Failed, Some(error));
                    }
                    tracing::debug!(job = %self.spec, %error, "a pass ended early");
                    tokio::select! {
                        () = self.pause(tries) => {}
                        () = stop.cancelled() => return (Ending::Interrupted, None),
                    }
                }
            }
        }
    }

    /// Waits, and not as long as others who were cut off at the same moment.
    async fn pause(&self, tries: u32) {
        self.progress.send_modify(|progress| progress.phase = Phase::Waiting);
        let most = self.options.retry_pause * (1 << (tries - 1).min(3));
        tokio::time::sleep(clock::jittered(most)).await;
    }

    /// One pass from the beginning.
    async fn pass(&mut self, stop: &CancellationToken) -> Result<Pass, JobError> {
        let pass = self.passes;
        self.progress.send_modify(|progress| (progress.phase, progress.pass) = (Phase::Connecting, pass));
        self.gaps.clear();
        for side in Side::BOTH {
            self.movers[side].new_in_pass = 0;
        }
        // `None` when the relative times of the filter have come to exclude each other: nothing
        // can match, and nothing is missing.
        let all = self.spec.filter_at(self.started).map(Filter::conditioned);
        let requests = all.as_ref().and_then(|all| all.narrow_kinds([kind::DELETION, kind::VANISH]));
        let steps = if self.options.dry_run || requests == all { vec![all] } else { vec![requests, all] };
        let whole = steps.len() - 1;
        for (index, step) in steps.into_iter().enumerate() {
            for part in step.into_iter().flat_map(parts) {
                self.step(part, index == whole, stop).await?;
            }
        }
        let found = BySide { local: self.movers.local.fates.len(), peer: self.movers.peer.fates.len() };
        self.first_pass.get_or_insert(found);
        // What lies in a second that could not be listed was not compared.
        if self.gaps.is_empty() {
            self.proof = Some(pass);
        }
        Ok(Pass { new: Side::BOTH.map(|side| self.movers[side].new_in_pass).iter().sum() })
    }

    /// Compares one filter and moves what is found.
    async fn step(&mut self, filter: Filter, whole: bool, stop: &CancellationToken) -> Result<(), JobError> {
        let (local, peer) = tokio::join!(self.links.local.relay().info(), self.links.peer.relay().info());
        let mut speaks_nip77 = BySide { local: true, peer: true };
        for side in Side::BOTH {
            let refuses = self.listed[side] || self.drops[side] >= ask::DROPS;
            speaks_nip77[side] = !refuses && !self.memory.lacks_nip77(self.spec.url(side)).await;
        }
        let lists = !speaks_nip77.local || !speaks_nip77.peer;
        let since = self.options.listed_since.filter(|_| lists);
        let Some(filter) = filter.narrow_time(since, None) else { return Ok(()) };
        self.scope = since.map(|since| Scope { since });
        let machine = Reconciliation::new(Setup {
            filter,
            choice: self.spec.strategy,
            now: clock::now(),
            speaks_nip77,
            page_limit: BySide { local: local.page_limit(), peer: peer.page_limit() },
            max_query: BySide { local: local.max_query(), peer: peer.max_query() },
            inventory_events: self.spec.limits.inventory_events,
        });
        self.strategy = Some(machine.strategy());
        self.progress.send_modify(|progress| progress.phase = Phase::Reconciling);
        let (to_peer, from_local) = mpsc::channel(FOUND_QUEUE);
        let (to_local, from_peer) = mpsc::channel(FOUND_QUEUE);
        let uploads = self.spec.direction.moves_from(Side::Local) && !self.options.dry_run;
        let comparison = Comparison {
            links: &self.links,
            memory: &self.memory,
            found: BySide { local: to_peer, peer: to_local },
            drops: &mut self.drops,
            // A peer may well have no deletion requests; that it has nothing at all is odd.
            empty_guard: (whole && uploads && !self.options.allow_empty).then_some(self.spec.limits.empty_guard),
        };
        let progress = &self.progress;
        let compare = async {
            let compared = tokio::select! {
                compared = comparison.run(machine) => compared.map(Some),
                // What was found so far goes no further; the movers see to what they have sent.
                () = stop.cancelled() => Ok(None),
            };
            progress.send_modify(|progress| progress.phase = Phase::Transferring);
            compared
        };
        let pass = self.passes;
        let BySide { local: up, peer: down } = &mut self.movers;
        let upload = async { up.run(pass, from_local, stop).await.map_err(JobError::from) };
        let download = async { down.run(pass, from_peer, stop).await.map_err(JobError::from) };
        let (compared, (), ()) = tokio::try_join!(compare, upload, download)?;
        let Some(Compared { strategy, gaps, rounds, listed }) = compared else { return Err(JobError::Interrupted) };
        self.strategy = Some(strategy);
        self.rounds += rounds;
        for side in Side::BOTH {
            self.listed[side] |= listed[side];
        }
        self.gaps.extend(gaps);
        Ok(())
    }

    fn still_missing(&mut self) -> JobError {
        let said = Side::BOTH.into_iter().find_map(|holder| {
            let said = self.movers[holder].last_failure.take()?;
            Some(format!("{}: {said}", self.spec.url(holder.other())))
        });
        JobError::StillMissing { passes: self.passes, said }
    }

    fn stopped(&mut self) -> Option<JobError> {
        Side::BOTH.into_iter().find_map(|holder| {
            let reason = self.movers[holder].stopped.take()?;
            Some(JobError::Stopped { relay: self.spec.url(holder.other()).clone(), reason })
        })
    }

    fn report(&self, ending: Ending, error: Option<JobError>, took: Duration) -> Report {
        let (up, down) = (&self.movers.local, &self.movers.peer);
        let (uploaded, downloaded) = (up.fates.counts(self.proof), down.fates.counts(self.proof));
        let first = self.first_pass.unwrap_or(BySide { local: up.fates.len(), peer: down.fates.len() });
        let meter = |side: Side| self.links[side].meter();
        let ids = self.options.ids.then(|| Ids {
            local_only_ids: up.fates.ids().map(ToString::to_string).collect(),
            peer_only_ids: down.fates.ids().map(ToString::to_string).collect(),
        });
        Report {
            peer: self.spec.peer.clone(),
            filter: self.spec.name.clone(),
            direction: self.spec.direction,
            strategy: self.strategy,
            outcome: ending,
            passes: self.passes,
            scope: self.scope,
            local_only: first.local,
            peer_only: first.peer,
            parked: uploaded.parked + downloaded.parked,
            downloaded,
            uploaded,
            gaps: self.gaps.clone(),
            negentropy_rounds: self.rounds,
            bytes_sent: BySide { local: meter(Side::Local).sent(), peer: meter(Side::Peer).sent() },
            bytes_received: BySide { local: meter(Side::Local).received(), peer: meter(Side::Peer).received() },
            bodies_received: up.bodies + down.bodies,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            error: error.map(|error| error.to_string()),
            ids,
        }
    }
}

/// The filter in parts that fit into one message each.
fn parts(filter: Filter) -> Vec<Filter> {
    if filter.to_string().len() <= MAX_FILTER {
        return vec![filter];
    }
    match filter.split() {
        Some((low, high)) => parts(low).into_iter().chain(parts(high)).collect(),
        None => vec![filter],
    }
}

/// The one line that ends each job.
fn log(spec: &JobSpec, report: &Report) {
    tracing::info!(
        peer = %spec.peer,
        filter = %spec.name,
        direction = %spec.direction,
        outcome = %report.outcome,
        strategy = report.strategy.unwrap_or("none"),
        passes = report.passes,
        downloaded = report.downloaded.stored,
        uploaded = report.uploaded.stored,
        parked = report.parked,
        duration_ms = report.duration_ms,
        gaps = report.gaps.len(),
        error = report.error.as_deref(),
        "job ended"
    );
}
