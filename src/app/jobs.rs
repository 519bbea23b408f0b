//! The jobs of a daemon: what is configured, what runs, how it went.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::config::{self, When as Configured};
use crate::job_spec::{JobKey, JobSpec, Refusals};
use crate::nostr::Timestamp;
use crate::outcome::Ending;
use crate::schedule::{Plan, When};
use crate::state::JobRow;

/// A configured job.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) spec: Arc<JobSpec>,
    pub(super) live: bool,
    pub(super) refusals: Refusals,
    /// The jobs whose place it took.
    replaces: Vec<JobKey>,
    when: When,
    /// Seconds before the last complete run from which a side without negentropy is listed.
    overlap: u64,
    /// When the last run that ended well began: what a listing need not go behind.
    last_complete: Option<Timestamp>,
    /// The word for `status`.
    pub(super) state: &'static str,
}

/// All configured jobs, by key.
#[derive(Debug, Default)]
pub(super) struct Jobs(BTreeMap<JobKey, Entry>);

impl Jobs {
    /// The jobs of a config; what is known of them from before is kept.
    ///
    /// # Errors
    /// When a cron expression has values out of range.
    pub(super) fn read(configured: &[config::Job], before: &Self) -> Result<Self> {
        let mut jobs = BTreeMap::new();
        for job in configured {
            let key = job.spec.key();
            let when = read(&job.schedule.when).with_context(|| format!("the schedule of {}", job.spec))?;
            let known = before.0.get(&key);
            let entry = Entry {
                spec: Arc::new(job.spec.clone()),
                live: job.live,
                refusals: job.refusals,
                replaces: job.replaces.clone(),
                when,
                overlap: job.schedule.overlap.as_secs(),
                last_complete: match known {
                    Some(known) => known.last_complete,
                    None => earliest(&job.replaces, |key| before.0.get(&key)?.last_complete),
                },
                state: known.map_or("idle", |known| known.state),
            };
            jobs.insert(key, entry);
        }
        Ok(Self(jobs))
    }

    pub(super) fn get(&self, key: JobKey) -> Option<&Entry> {
        self.0.get(&key)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (JobKey, &Entry)> {
        self.0.iter().map(|(key, entry)| (*key, entry))
    }

    /// What the scheduler needs to know, with what the state remembers of earlier runs.
    pub(super) fn plans(&self, rows: &[JobRow]) -> BTreeMap<JobKey, Plan> {
        let rows: HashMap<&str, &JobRow> = rows.iter().map(|row| (row.key.as_str(), row)).collect();
        let plan = |(key, entry): (&JobKey, &Entry)| {
            let row = rows.get(key.to_string().as_str());
            let plan = Plan {
                when: entry.when.clone(),
                peer: entry.spec.peer_url.clone(),
                last_start: row.map(|row| row.last_attempt),
                last_whole: row
                    .and_then(|row| row.last_whole)
                    .or_else(|| earliest(&entry.replaces, |key| rows.get(key.to_string().as_str())?.last_whole)),
            };
            (*key, plan)
        };
        self.0.iter().map(plan).collect()
    }

    /// From when on a side that cannot reconcile is to be listed; `None` for all of it.
    pub(super) fn listed_since(&self, key: JobKey, whole: bool) -> Option<Timestamp> {
        let entry = self.0.get(&key).filter(|_| !whole)?;
        Some(entry.last_complete?.saturating_sub(entry.overlap))
    }

    /// Notes what a job is doing.
    pub(super) fn set_state(&mut self, key: JobKey, state: &'static str) {
        if let Some(entry) = self.0.get_mut(&key) {
            entry.state = state;
        }
    }

    /// Notes how a run ended that began at `started`.
    pub(super) fn ended(&mut self, key: JobKey, ending: Ending, started: Timestamp) {
        let Some(entry) = self.0.get_mut(&key) else { return };
        entry.state = match ending {
            Ending::Converged | Ending::DryRun => "converged",
            Ending::Partial => "partial",
            Ending::Blocked => "blocked",
            Ending::Failed => "failed",
            Ending::Locked | Ending::Interrupted => "idle",
        };
        if ending == Ending::Converged {
            entry.last_complete = Some(started);
        }
    }
}

/// The earliest time of these jobs; `None` where one of them has none, or there are none.
fn earliest(jobs: &[JobKey], time: impl Fn(JobKey) -> Option<Timestamp>) -> Option<Timestamp> {
    jobs.iter().map(|job| time(*job)).min().flatten()
}

fn read(when: &Configured) -> Result<When> {
    Ok(match when {
        Configured::Every(interval) => When::Every(interval.as_secs().max(1)),
        Configured::Cron(cron) => When::Cron(Box::new(cron.to_string().parse()?)),
        Configured::Manual => When::Manual,
    })
}
