//! From a peer's filters to jobs: what the filter says, else its peer, else the defaults.

use std::collections::HashSet;

use crate::job_spec::{Direction, JobKey, JobSpec, Limits, Refusals, RelativeTime, StrategyChoice};
use crate::nostr::{Filter, Timestamp};

use super::file::{self, FilterEntry};
use super::finding::{Findings, Path};
use super::relay::RelaySettings;
use super::schedule::{Schedule, ScheduleOptions};
use super::{filter, lint};

/// A job of the config, and when it runs.
#[derive(Clone, Debug)]
pub struct Job {
    /// What it is.
    pub spec: JobSpec,
    /// When it runs.
    pub schedule: Schedule,
    /// Whether it also passes events on as they appear.
    pub live: bool,
    /// Jobs that, together, covered at least as much before it: what they have completed, it has.
    pub replaces: Vec<JobKey>,
    /// Whom a refusal of the destination tells something. Where its policy asks for what it holds
    /// already, a job that comes later may be luckier.
    pub refusals: Refusals,
}

/// What one place of the file says about how jobs are done.
#[derive(Clone, Default)]
pub(super) struct JobOptions {
    enabled: Option<bool>,
    direction: Option<Direction>,
    schedule: ScheduleOptions,
    live: Option<bool>,
    strategy: Option<StrategyChoice>,
    limits: file::Limits,
    exclude: Vec<Filter>,
    allow_unrestricted: Option<bool>,
}

impl JobOptions {
    /// Reads what is written at one place.
    pub fn read(written: &file::JobOptions, now: Timestamp, at: &Path, findings: &mut Findings<'_>) -> Self {
        let mut exclude = Vec::new();
        for (index, text) in written.exclude.iter().flatten().enumerate() {
            let at = at.key("exclude").index(index);
            let Some((filter, relative)) = filter::read(&text.0, now, &at, findings) else { continue };
            if relative != RelativeTime::default() {
                // It would move with every start, and the job's key with it.
                findings.error(&at, "a relative time cannot be used in `exclude`");
            } else if filter == Filter::new() {
                findings.error(&at, "this excludes every event");
            }
            exclude.push(filter);
        }
        Self {
            enabled: written.enabled,
            direction: written.direction,
            schedule: ScheduleOptions::read(written, at, findings),
            live: written.live,
            strategy: written.strategy,
            limits: written.limits.unwrap_or_default(),
            exclude,
            allow_unrestricted: written.allow_unrestricted,
        }
    }

    /// These, and for what they leave open the ones below.
    pub fn over(mut self, below: &Self) -> Self {
        self.exclude.extend_from_slice(&below.exclude);
        Self {
            enabled: self.enabled.or(below.enabled),
            direction: self.direction.or(below.direction),
            schedule: self.schedule.over(&below.schedule),
            live: self.live.or(below.live),
            strategy: self.strategy.or(below.strategy),
            limits: over(&self.limits, &below.limits),
            exclude: self.exclude,
            allow_unrestricted: self.allow_unrestricted.or(below.allow_unrestricted),
        }
    }

    /// Whether the peer they belong to is used at all.
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }
}

/// The two relays of a list of jobs as far as they are known, and where the second is written.
pub(super) struct Pair<'a> {
    pub local: Option<&'a RelaySettings>,
    pub peer: Option<&'a RelaySettings>,
    pub at: &'a Path,
}

/// The jobs of one peer. `at` is where its filters are written: there, or in the defaults.
pub(super) fn read(
    entries: &[FilterEntry],
    at: &Path,
    pair: &Pair<'_>,
    options: &JobOptions,
    now: Timestamp,
    findings: &mut Findings<'_>,
) -> Vec<Job> {
    if entries.is_empty() && findings.is_clean(at) {
        findings.error(at, "expected at least one filter");
    }
    let mut names = HashSet::new();
    let mut jobs = Vec::new();
    let mut seen = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let at = at.index(index);
        let name = entry.name.clone().unwrap_or_else(|| format!("filter-{}", index + 1));
        findings.check_name(&at.key("name"), &name);
        if !names.insert(name.clone()) {
            findings.error(&at.key("name"), "this peer has another filter of that name");
        }
        let options = JobOptions::read(&entry.job, now, &at, findings).over(options);
        let (text, at_filter) = match &entry.filter {
            Some(text) if entry.inline.0.is_empty() => (text, at.key("filter")),
            Some(_) => {
                findings.error(&at, "expected the keys of a filter here or under `filter`, not both");
                continue;
            }
            None => (&entry.inline, at.clone()),
        };
        let direction = options.direction;
        let places = [&at, pair.at, &Path::default().key("defaults")].map(|at| at.key("direction"));
        if direction.is_none() && places.iter().all(|at| findings.is_clean(at)) {
            let message = "this key is missing: say pull, push or both, for the filter, for the peer or in `defaults`";
            findings.error(&places[1], message);
        }
        let Some((filter, relative)) = filter::read(&text.0, now, &at_filter, findings) else { continue };
        if filter.is_unrestricted() && options.allow_unrestricted != Some(true) && findings.is_clean(&at) {
            let message = "this filter matches every event: if that is meant, say `allow_unrestricted: true`";
            findings.error(&at_filter, message);
        }
        let is_enabled = options.is_enabled();
        if is_enabled {
            seen.push((at_filter, filter.clone()));
        }
        let (Some(local), Some(peer), Some(direction), true) = (pair.local, pair.peer, direction, is_enabled) else {
            continue;
        };
        jobs.push(Job {
            schedule: options.schedule.settings(),
            live: options.live.unwrap_or_default(),
            replaces: Vec::new(),
            refusals: Refusals::default(),
            spec: JobSpec {
                peer: peer.name.clone(),
                name,
                local_url: local.url.clone(),
                peer_url: peer.url.clone(),
                filter,
                relative,
                direction,
                strategy: options.strategy.unwrap_or_default(),
                exclude: options.exclude,
                limits: limits(&options.limits),
            },
        });
    }
    lint::filters(&seen, at, findings);
    jobs
}

fn over(upper: &file::Limits, below: &file::Limits) -> file::Limits {
    file::Limits {
        passes: upper.passes.or(below.passes),
        inventory_events: upper.inventory_events.or(below.inventory_events),
        empty_guard: upper.empty_guard.or(below.empty_guard),
        fetches_in_flight: upper.fetches_in_flight.or(below.fetches_in_flight),
        publishes_in_flight: upper.publishes_in_flight.or(below.publishes_in_flight),
        spool_bytes: upper.spool_bytes.or(below.spool_bytes),
        parked_ids: upper.parked_ids.or(below.parked_ids),
        events_per_second: upper.events_per_second.or(below.events_per_second),
        bytes_per_second: upper.bytes_per_second.or(below.bytes_per_second),
    }
}

fn limits(written: &file::Limits) -> Limits {
    let usual = Limits::default();
    Limits {
        passes: written.passes.map_or(usual.passes, Into::into),
        inventory_events: written.inventory_events.map_or(usual.inventory_events, Into::into),
        empty_guard: written.empty_guard.unwrap_or(usual.empty_guard),
        fetches_in_flight: written.fetches_in_flight.map_or(usual.fetches_in_flight, Into::into),
        publishes_in_flight: written.publishes_in_flight.map_or(usual.publishes_in_flight, Into::into),
        spool_bytes: written.spool_bytes.map_or(usual.spool_bytes, Into::into),
        parked_ids: written.parked_ids.unwrap_or(usual.parked_ids),
        events_per_second: written.events_per_second.or(usual.events_per_second),
        bytes_per_second: written.bytes_per_second.or(usual.bytes_per_second),
    }
}
