//! Which job is to run when. Pure: the time, luck and what became of a run come in; jobs to start
//! come out.
//!
//! No job runs twice at once, none is forgotten, and a time that was missed (sleep, a clock that
//! was set forward, a full house) is made up for once.

use std::collections::{BTreeMap, HashMap};

use crate::job_spec::JobKey;
use crate::nostr::{RelayUrl, Timestamp};

/// What starts a run of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum When {
    /// So many seconds after the start of the last run.
    Every(u64),
    /// At the times of a cron expression, in UTC.
    Cron(Box<croner::Cron>),
    /// Only when somebody asks for it.
    Manual,
}

/// A job, as the scheduler has it.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What starts it.
    pub when: When,
    /// The remote relay: what bounds its jobs among themselves.
    pub peer: RelayUrl,
    /// When it last ran to its end, in an earlier life of this process.
    pub last_start: Option<Timestamp>,
    /// When a pass over the whole filter last ran to its end.
    pub last_whole: Option<Timestamp>,
}

/// How many jobs may run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// In all.
    pub jobs: usize,
    /// With one peer.
    pub jobs_per_peer: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        // What bounds them all is memory: a job may hold its two spools (2 MiB each) and a listing
        // of 100,000 ids (4 MB), so 32 of them hold a quarter of a GiB, and far less where relays
        // speak negentropy and are in step. Time does not: a job mostly waits for relays, and a
        // run of equal sets is over within three round trips, so 32 places see to thousands of
        // jobs in five minutes. Two of a peer: a long copy leaves the other place to the rest of
        // that peer's jobs. So 15 peers may hang at once, each for the minute or so until it is
        // given up and its backoff begins, and there is a place for the others.
        Self { jobs: 32, jobs_per_peer: 2 }
    }
}

/// A run to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// Of which job.
    pub job: JobKey,
    /// Whether the whole filter is to be compared even where a side has to be listed.
    pub whole: bool,
}

/// What is known of a job.
#[derive(Debug)]
struct Entry {
    plan: Plan,
    due: Option<Timestamp>,
    /// When the whole filter is to be compared again.
    whole_due: Timestamp,
    running: bool,
    /// Asked for while it was running.
    again: bool,
    /// No longer configured; it is let go of when it has ended.
    gone: bool,
}

/// All jobs.
#[derive(Debug, Default)]
pub struct Scheduler {
    bounds: Bounds,
    jobs: BTreeMap<JobKey, Entry>,
    running: usize,
    running_per_peer: HashMap<RelayUrl, usize>,
    /// The latest time told.
    now: Timestamp,
}

/// The whole filter is compared at least this often, in seconds: `created_at` is not the time of
/// arrival, so only a whole pass proves anything.
const WHOLE_LEAST: u64 = 23 * 3600;
const WHOLE_MOST: u64 = 25 * 3600;

/// First runs after a start are spread over so many seconds, or over the job's interval.
const SPREAD: u64 = 30;

impl Scheduler {
    /// No jobs yet.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, ..Self::default() }
    }

    /// Sets the jobs: those that are new get their first time, those that are gone are not started
    /// again, those that stay are not disturbed. `luck` gives numbers from 0 to 1.
    pub fn set(&mut self, plans: BTreeMap<JobKey, Plan>, now: Timestamp, mut luck: impl FnMut() -> f64) {
        self.told(now);
        self.jobs.retain(|key, entry| plans.contains_key(key) || entry.running);
        for (key, entry) in &mut self.jobs {
            entry.gone = !plans.contains_key(key);
        }
        for (key, plan) in plans {
            match self.jobs.get_mut(&key) {
                // The peer is part of the key, and what ran is known better here.
                Some(entry) if entry.plan.when == plan.when => {}
                Some(entry) => {
                    entry.plan.when = plan.when;
                    if !entry.running {
                        entry.due = next(&entry.plan.when, entry.plan.last_start.unwrap_or(now), now, luck());
                    }
                }
                None => {
                    let due = first(&plan, now, luck());
                    let whole_due = plan.last_whole.map_or(now, |last| last.min(now) + whole_after(luck()));
                    self.jobs.insert(key, Entry { plan, due, whole_due, running: false, again: false, gone: false });
                }
            }
        }
    }

    /// Asks for a run of a job at a time, or earlier; a gap in a live stream does.
    pub fn ask(&mut self, job: JobKey, at: Timestamp) {
        if let Some(entry) = self.jobs.get_mut(&job) {
            if entry.running {
                entry.again = true;
            } else {
                entry.due = Some(entry.due.map_or(at, |due| due.min(at)));
            }
        }
    }

    /// The next run to start now, the longest overdue first. `ready` says of a peer until when
    /// nothing is to be asked of it.
    pub fn poll(&mut self, now: Timestamp, ready: impl Fn(&RelayUrl) -> Option<Timestamp>) -> Option<Start> {
        self.told(now);
        if self.running >= self.bounds.jobs {
            return None;
        }
        let (&job, _) = self
            .jobs
            .iter()
            .filter(|(_, entry)| !entry.running && entry.due.is_some_and(|due| due <= now))
            .filter(|(_, entry)| self.has_room(&entry.plan.peer) && ready(&entry.plan.peer).is_none())
            .min_by_key(|(_, entry)| entry.due)?;
        let entry = self.jobs.get_mut(&job)?;
        entry.running = true;
        entry.plan.last_start = Some(now);
        self.running += 1;
        *self.running_per_peer.entry(entry.plan.peer.clone()).or_default() += 1;
        Some(Start { job, whole: entry.whole_due <= now })
    }

    /// A run has ended; `whole` when a pass over the whole filter ran to its end. Returns when
    /// the job is due again.
    pub fn ended(&mut self, job: JobKey, whole: bool, now: Timestamp, luck: f64) -> Option<Timestamp> {
        self.told(now);
        let entry = self.jobs.get_mut(&job).filter(|entry| entry.running)?;
        entry.running = false;
        self.running -= 1;
        if let Some(count) = self.running_per_peer.get_mut(&entry.plan.peer) {
            *count -= 1;
        }
        self.running_per_peer.retain(|_, count| *count > 0);
        if entry.gone {
            self.jobs.remove(&job);
            return None;
        }
        if whole {
            entry.whole_due = now + whole_after(luck);
        }
        let started = entry.plan.last_start.unwrap_or(now);
        let again = std::mem::take(&mut entry.again);
        entry.due = if again { Some(now) } else { next(&entry.plan.when, started, now, luck) };
        entry.due
    }

    /// When [`Self::poll`] may have something new to say, if nothing happens before.
    #[must_use]
    pub fn next_due(&self, now: Timestamp, ready: impl Fn(&RelayUrl) -> Option<Timestamp>) -> Option<Timestamp> {
        let idle = self.jobs.values().filter(|entry| !entry.running);
        idle.filter_map(|entry| entry.due.map(|due| due.max(ready(&entry.plan.peer).unwrap_or(now)))).min()
    }

    /// When a job is due.
    #[must_use]
    pub fn due(&self, job: JobKey) -> Option<Timestamp> {
        self.jobs.get(&job)?.due
    }

    /// A clock that was set back must not put off what was due soon.
    fn told(&mut self, now: Timestamp) {
        if now < self.now {
            let back = self.now - now;
            for entry in self.jobs.values_mut() {
                if !matches!(entry.plan.when, When::Cron(_)) {
                    entry.due = entry.due.map(|due| due.saturating_sub(back).max(now));
                }
                entry.whole_due = entry.whole_due.saturating_sub(back);
            }
        }
        self.now = now;
    }

    fn has_room(&self, peer: &RelayUrl) -> bool {
        self.running_per_peer.get(peer).is_none_or(|running| *running < self.bounds.jobs_per_peer)
    }
}

/// When a job is due for the first time in this process.
fn first(plan: &Plan, now: Timestamp, luck: f64) -> Option<Timestamp> {
    match plan.when {
        When::Every(seconds) => {
            let spread = now + scale(seconds.min(SPREAD), luck);
            // One that ran shortly before the restart keeps its time.
            let due = plan.last_start.filter(|last| *last <= now).map_or(now, |last| last + seconds);
            Some(due.clamp(spread, now + seconds))
        }
        When::Cron(_) => next(&plan.when, now, now, luck),
        When::Manual => None,
    }
}

/// When a job is due after a run that began at `started`; never before `now`.
fn next(when: &When, started: Timestamp, now: Timestamp, luck: f64) -> Option<Timestamp> {
    match when {
        When::Every(seconds) => {
            // Within a twentieth of the interval, so that jobs that began together drift apart.
            let jitter = scale(seconds / 20, luck);
            // A clock that was set back must not make the wait longer than the interval.
            Some((started.min(now) + seconds + jitter).max(now))
        }
        When::Cron(cron) => {
            let at = i64::try_from(now).ok().and_then(|now| chrono::DateTime::from_timestamp(now, 0))?;
            let next = cron.find_next_occurrence(&at, false).ok()?;
            u64::try_from(next.timestamp()).ok()
        }
        When::Manual => None,
    }
}

fn whole_after(luck: f64) -> u64 {
    WHOLE_LEAST + scale(WHOLE_MOST - WHOLE_LEAST, luck)
}

/// A part of a number of seconds.
fn scale(seconds: u64, part: f64) -> u64 {
    // Intervals in seconds are far below 2^52, and the part is not negative.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let scaled = (seconds as f64 * part.clamp(0.0, 1.0)).round() as u64;
    scaled
}

#[cfg(test)]
mod tests;
