//! The jobs of a daemon: what is configured, what runs, how it went.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use anyhow::{Context, Result};
use tokio::sync::watch;

use crate::config::{self, When as Configured};
use crate::job::Progress;
use crate::job_spec::{JobKey, JobSpec, Refusals};
use crate::job_state::JobState;
use crate::nostr::Timestamp;
use crate::outcome::Ending;
use crate::schedule::{Plan, When};
use crate::state::{JobNote, JobRow};

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
    course: Course,
}

/// How a job fares.
#[derive(Clone, Debug, Default)]
struct Course {
    /// When the last run that ended well began: what a listing need not go behind.
    last_complete: Option<Timestamp>,
    /// How the last run ended; nothing before the first.
    ended: Option<JobState>,
    /// The run under way.
    progress: Option<watch::Receiver<Progress>>,
    /// What the state was last told.
    noted: Option<(JobState, Option<Timestamp>)>,
}

impl Course {
    /// Of a job that took the place of others.
    fn inherited(replaced: &[JobKey], before: &Jobs) -> Self {
        let last_complete = earliest(replaced, |key| before.0.get(&key)?.course.last_complete);
        Self { last_complete, ..Self::default() }
    }
}

impl Entry {
    /// How it is doing; `reached` when both relays are connected.
    pub(super) fn state(&self, reached: bool) -> JobState {
        let waiting = || if reached { JobState::Connected } else { JobState::Idle };
        match &self.course.progress {
            Some(progress) => progress.borrow().phase.state(reached),
            None => self.course.ended.unwrap_or_else(waiting),
        }
    }
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
                course: known.map_or_else(|| Course::inherited(&job.replaces, before), |known| known.course.clone()),
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
                last_start: row.and_then(|row| row.last_attempt),
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
        Some(entry.course.last_complete?.saturating_sub(entry.overlap))
    }

    /// Takes over what the state remembers of jobs that are new to this process.
    pub(super) fn remember(&mut self, rows: &[JobRow]) {
        let rows: HashMap<&str, &JobRow> = rows.iter().map(|row| (row.key.as_str(), row)).collect();
        for (key, entry) in self.0.iter_mut().filter(|(_, entry)| entry.course.noted.is_none()) {
            let Some(row) = rows.get(key.to_string().as_str()) else { continue };
            // What another process's daemon waits for, this one does not.
            let left = row.state.abandoned();
            entry.course.ended = Some(left).filter(|left| *left != JobState::Idle);
            if row.running {
                // It says so itself.
                entry.course.noted = Some((JobState::Idle, None));
            }
        }
    }

    /// Notes that a run is under way.
    pub(super) fn started(&mut self, key: JobKey, progress: watch::Receiver<Progress>) {
        if let Some(entry) = self.0.get_mut(&key) {
            entry.course.progress = Some(progress);
        }
    }

    /// Notes how a run ended that began at `started`; `waits` when its relays are to be left alone
    /// for now.
    pub(super) fn ended(&mut self, key: JobKey, ending: Ending, started: Timestamp, waits: bool) {
        let Some(Entry { course, .. }) = self.0.get_mut(&key) else { return };
        course.progress = None;
        course.ended = match JobState::after(ending) {
            JobState::Idle => None,
            JobState::Failed if waits => Some(JobState::BackingOff),
            state => Some(state),
        };
        if ending == Ending::Converged {
            course.last_complete = Some(started);
        }
    }

    /// What the state is to be told: what changed of the jobs that wait, or `all`. `look` says how
    /// a job is doing and when it is due. A run under way speaks for itself.
    pub(super) fn notes(
        &mut self,
        all: bool,
        look: impl Fn(JobKey, &Entry) -> (JobState, Option<Timestamp>),
    ) -> Vec<JobNote> {
        let mut notes = Vec::new();
        for (key, entry) in &mut self.0 {
            let (state, due) = look(*key, entry);
            let (before, runs) = (entry.course.noted, entry.course.progress.is_some());
            if all || !runs && before != Some((state, due)) {
                let changed = !runs && before.is_none_or(|(before, _)| before != state);
                notes.push(JobNote::new(&entry.spec, changed.then_some(state), due));
                entry.course.noted = Some((if runs { before.map_or(state, |(before, _)| before) } else { state }, due));
            }
        }
        notes
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
