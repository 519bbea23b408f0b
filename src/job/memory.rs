//! What a job remembers from run to run. Losing it costs time, never correctness: when the state
//! cannot be read or written the job says so once and goes on.

use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use super::progress::Progress;
use crate::clock;
use crate::job_spec::{JobKey, JobSpec, Refusals, Side};
use crate::nostr::{EventId, NegRefusal, RelayUrl};
use crate::outcome::{BySide, ParkReason, Report};
use crate::relay::Link;
use crate::state::{Capability, RunNote, State, StateError, scope};

/// The word under which the state keeps what is known of NIP-77.
const NIP77: &str = "nip77";

const HOUR: u64 = 3600;

/// How often the state learns where a run stands: as often as a person looks, so that a hundred
/// jobs under way write no more than a hundred small rows a second.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// A job's part of the state; without a state it remembers nothing.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    state: Option<State>,
    job: JobKey,
    max_parked: u64,
    refusals: Refusals,
    complained: Arc<AtomicBool>,
}

impl Memory {
    pub(super) fn new(state: Option<State>, spec: &JobSpec, refusals: Refusals) -> Self {
        let (job, max_parked) = (spec.key(), spec.limits.parked_ids);
        Self { state, job, max_parked, refusals, complained: Arc::default() }
    }

    /// Whether most of what is found may not be for the destination.
    pub(super) fn expects_refusals(&self) -> bool {
        self.refusals != Refusals::HoldForAll
    }

    /// Where a refusal holds that might be none at another time.
    fn refused_for(&self) -> String {
        match self.refusals {
            Refusals::HoldForAll => String::new(),
            Refusals::HoldFor(name) => name.to_owned(),
            Refusals::HoldForOne => self.job.to_string(),
        }
    }

    /// Which of the ids are known not to be movable now.
    pub(super) async fn parked(&self, source: &RelayUrl, dst: &RelayUrl, ids: Vec<EventId>) -> HashSet<EventId> {
        let Some(state) = &self.state else { return HashSet::new() };
        let scopes = [source.to_string(), self.job.to_string(), self.refused_for()];
        self.or_default(state.parked(dst, &scopes, ids, clock::now()).await)
    }

    /// Forgets what `dst` refused because of what it held: it holds nothing now.
    pub(super) async fn forget_held(&self, dst: &RelayUrl) {
        if let Some(state) = &self.state {
            let forgotten = self.or_default(state.forget_held(dst).await);
            tracing::info!(relay = %dst, forgotten, "holds nothing of what it held: refused events are offered again");
        }
    }

    /// Remembers ids that cannot be moved for now.
    pub(super) async fn park(&self, source: &RelayUrl, dst: &RelayUrl, facts: Vec<(EventId, ParkReason)>) {
        let Some(state) = &self.state else { return };
        let mut by_scope: HashMap<String, Vec<_>> = HashMap::new();
        for (id, reason) in facts {
            let scope = if reason.may_change() { self.refused_for() } else { scope(reason, source, self.job) };
            by_scope.entry(scope).or_default().push((id, reason));
        }
        for (scope, facts) in by_scope {
            self.or_default(state.park(dst, &scope, facts, clock::now(), self.max_parked).await);
        }
    }

    /// Whether a relay is known not to speak NIP-77.
    pub(super) async fn lacks_nip77(&self, relay: &RelayUrl) -> bool {
        let Some(state) = &self.state else { return false };
        let known = self.or_default(state.capability(relay, NIP77, clock::now()).await);
        known.is_some_and(|capability| capability.verdict == "no")
    }

    /// Remembers what a relay's answer to NEG-OPEN showed: never for longer than a day, and
    /// silence only when it was heard three times in a row.
    pub(super) async fn learn_nip77(&self, relay: &RelayUrl, refusal: Option<&NegRefusal>) {
        let Some(state) = &self.state else { return };
        let now = clock::now();
        let known = self.or_default(state.capability(relay, NIP77, now).await);
        let capability = match refusal {
            Some(NegRefusal::Unsupported(_)) => Capability { verdict: "no".into(), strikes: 0, until: now + 24 * HOUR },
            Some(NegRefusal::Silent) => {
                let strikes = known.map_or(0, |known| known.strikes) + 1;
                let verdict = if strikes >= 3 { "no" } else { "silent" };
                Capability { verdict: verdict.into(), strikes, until: now + HOUR }
            }
            // It answers: what was held against it is forgotten.
            None if known.is_some() => Capability { verdict: "yes".into(), strikes: 0, until: now + 24 * HOUR },
            _ => return,
        };
        self.or_default(state.set_capability(relay, NIP77, capability).await);
    }

    pub(super) async fn begin(&self, spec: &JobSpec) {
        if let Some(state) = &self.state {
            self.or_default(state.begin_run(spec, clock::now()).await);
        }
    }

    /// Writes down where a run stands, when that has changed. It goes on until it is dropped.
    pub(super) async fn follow(&self, links: &BySide<Link>, mut progress: watch::Receiver<Progress>) -> Infallible {
        let Some(state) = &self.state else { return std::future::pending().await };
        let mut noted = None;
        loop {
            tokio::time::sleep(NOTE_EVERY).await;
            if progress.changed().await.is_err() {
                return std::future::pending().await;
            }
            let Progress { phase, stored, .. } = *progress.borrow_and_update();
            let reached = Side::BOTH.iter().all(|&side| links[side].relay().is_connected());
            let bytes = Side::BOTH.map(|side| links[side].meter().sent() + links[side].meter().received());
            let note =
                RunNote { state: phase.state(reached), down: stored.peer, up: stored.local, bytes: bytes.iter().sum() };
            if noted != Some(note) {
                noted = Some(note);
                self.or_default(state.note_run(self.job, note).await);
            }
        }
    }

    pub(super) async fn end(&self, spec: &JobSpec, report: &Report, whole: bool) {
        if let Some(state) = &self.state {
            self.or_default(state.end_run(spec, report, whole, clock::now()).await);
        }
    }

    fn or_default<T: Default>(&self, result: Result<T, StateError>) -> T {
        result.unwrap_or_else(|error| {
            if !self.complained.swap(true, Ordering::Relaxed) {
                tracing::warn!(%error, "going on without memory: refused events may be offered again");
            }
            T::default()
        })
    }
}
