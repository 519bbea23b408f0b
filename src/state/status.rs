//! What an operator is shown.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use serde::Serialize;

use super::{DaemonLock, JobRow, ParkedCount, State, StateError};
use crate::job_spec::JobSpec;
use crate::job_state::JobState;
use crate::nostr::Timestamp;

/// The object that `tieline status --json` prints and `/status` answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StatusView {
    /// Whether a daemon runs on this state. Without one nothing is due.
    pub daemon: bool,
    /// Jobs, by peer and filter.
    pub jobs: Vec<JobRow>,
    /// What is parked, by destination and reason.
    pub parked: Vec<ParkedCount>,
}

/// What a config says, for the time when no daemon does.
#[derive(Clone, Debug, Default)]
pub struct Configured {
    /// Its jobs.
    pub jobs: Vec<JobSpec>,
    /// Whether a daemon finds more by itself.
    pub discovers: bool,
}

impl State {
    /// All that `status` shows. A daemon that runs knows what is configured; where none does the
    /// config is asked, and where there is none either every job counts as configured that ran.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub async fn status(&self, config: Option<&Configured>, now: Timestamp) -> Result<StatusView, StateError> {
        let (rows, parked) = (self.job_rows().await?, self.parked_counts().await?);
        Ok(StatusView::new(rows, parked, DaemonLock::is_held(self.dir()), config, now))
    }
}

impl StatusView {
    /// Of a state that is not there: nothing has run, and a daemon that runs without a state
    /// could not say more.
    #[must_use]
    pub fn empty(dir: &Path, config: Option<&Configured>, now: Timestamp) -> Self {
        let daemon = DaemonLock::is_held(dir);
        let mut status = Self::new(Vec::new(), Vec::new(), false, config, now);
        status.daemon = daemon;
        status
    }

    fn new(
        mut rows: Vec<JobRow>,
        parked: Vec<ParkedCount>,
        daemon: bool,
        config: Option<&Configured>,
        now: Timestamp,
    ) -> Self {
        if !daemon {
            ask_config(&mut rows, config);
        }
        for row in &mut rows {
            if row.running {
                let since = row.last_attempt.map_or(0, |began| now.saturating_sub(began));
                row.duration_ms = since.saturating_mul(1000);
            }
            if !daemon || row.running || !row.configured {
                row.next_run = None;
            }
            if !daemon && !row.running {
                row.state = row.state.abandoned();
            }
        }
        Self { daemon, jobs: rows, parked }
    }

    /// Without jobs that are not configured, unless a run of them is under way; and how many
    /// there were.
    #[must_use]
    pub fn current(mut self) -> (Self, usize) {
        let all = self.jobs.len();
        self.jobs.retain(|job| job.configured || job.running);
        let others = all - self.jobs.len();
        (self, others)
    }
}

/// Marks which jobs a config has, under the names that they have there, and adds those that never
/// ran.
fn ask_config(rows: &mut Vec<JobRow>, config: Option<&Configured>) {
    let Some(Configured { jobs, discovers }) = config else {
        rows.iter_mut().for_each(|row| row.configured = true);
        return;
    };
    let mut written: HashMap<String, &JobSpec> = jobs.iter().map(|job| (job.key().to_string(), job)).collect();
    for row in rows.iter_mut() {
        match written.remove(&row.key) {
            Some(job) => {
                (row.peer, row.filter, row.configured) = (job.peer.clone(), job.name.clone(), true);
            }
            None => row.configured &= discovers,
        }
    }
    let mut keys = HashSet::new();
    let new = jobs.iter().map(JobRow::new).filter(|row| written.contains_key(&row.key) && keys.insert(row.key.clone()));
    rows.extend(new);
    rows.sort_by(|a, b| (&a.peer, &a.filter, &a.direction, &a.key).cmp(&(&b.peer, &b.filter, &b.direction, &b.key)));
}

/// Says of each job whether a run is under way, which its lock tells, and takes back what a run
/// said that was killed.
pub(super) fn look_at_runs(rows: &mut [JobRow], is_held: impl Fn(&str) -> bool) {
    // A lock is looked at where the row says that it may be held: there may be thousands.
    let may_run = |state: JobState| state.is_of_a_run() || matches!(state, JobState::Connected | JobState::BackingOff);
    for row in rows.iter_mut().filter(|row| may_run(row.state)) {
        row.running = is_held(&row.key);
        if !row.running && row.state.is_of_a_run() {
            row.state = JobState::Idle;
            row.last_error = Some("the last run was cut off; the next one begins anew, and nothing is lost".to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::tests::job;

    const NOW: Timestamp = 1_800_000_000;

    fn row(name: &str, state: JobState) -> JobRow {
        let due = Some(NOW + 100);
        JobRow { state, last_attempt: Some(NOW - 7), next_run: due, ..JobRow::new(&job(name)) }
    }

    fn seen(mut rows: Vec<JobRow>, held: &str, daemon: bool, config: Option<&Configured>) -> StatusView {
        let held = job(held).key().to_string();
        look_at_runs(&mut rows, |key| key == held);
        StatusView::new(rows, Vec::new(), daemon, config, NOW)
    }

    #[test]
    fn a_run_is_under_way_while_its_lock_is_held() {
        for daemon in [true, false] {
            let rows = vec![row("a", JobState::Transferring), row("b", JobState::Reconciling)];
            let jobs = seen(rows, "a", daemon, None).jobs;
            assert_eq!((jobs[0].state, jobs[0].running, jobs[0].duration_ms), (JobState::Transferring, true, 7000));
            assert_eq!((jobs[1].state, jobs[1].running, jobs[1].duration_ms), (JobState::Idle, false, 0));
            assert!(jobs[1].last_error.as_ref().unwrap().contains("cut off"), "daemon: {daemon}");
            assert_eq!(jobs[0].next_run, None, "it runs now");
        }
    }

    #[test]
    fn without_a_daemon_nothing_is_due() {
        for (state, left) in [
            (JobState::BackingOff, JobState::Failed),
            (JobState::Connected, JobState::Idle),
            (JobState::Converged, JobState::Converged),
        ] {
            let rows = || vec![row("a", state)];
            let job = &seen(rows(), "", true, None).jobs[0];
            assert_eq!((job.state, job.next_run), (state, Some(NOW + 100)));
            let job = &seen(rows(), "", false, None).jobs[0];
            assert_eq!((job.state, job.next_run), (left, None));
        }
    }

    #[test]
    fn the_daemon_says_what_is_configured_and_else_the_config() {
        let gone = JobRow { configured: false, ..row("gone", JobState::Converged) };
        let rows = || vec![gone.clone(), row("found", JobState::Converged)];
        let names = |status: StatusView| status.current().0.jobs.into_iter().map(|job| job.filter).collect::<Vec<_>>();
        let config = |discovers| Configured { jobs: vec![job("gone"), job("new"), job("new")], discovers };

        assert_eq!(names(seen(rows(), "", true, Some(&config(false)))), ["found"]);
        assert_eq!(names(seen(rows(), "", false, Some(&config(false)))), ["gone", "new"]);
        assert_eq!(names(seen(rows(), "", false, Some(&config(true)))), ["found", "gone", "new"]);
        assert_eq!(names(seen(rows(), "", false, None)), ["gone", "found"]);
        let (status, others) = seen(rows(), "", true, None).current();
        assert_eq!((status.jobs.len(), others), (1, 1));

        let running = JobRow { state: JobState::Reconciling, ..gone };
        assert_eq!(names(seen(vec![running], "gone", true, None)), ["gone"], "called for by hand, just now");
    }

    #[test]
    fn a_job_that_never_ran_is_idle() {
        let config = Configured { jobs: vec![job("new")], discovers: false };
        let status = StatusView::empty(Path::new("/nonexistent"), Some(&config), NOW);
        assert_eq!(status.jobs, [JobRow::new(&job("new"))]);
        assert_eq!((status.daemon, status.jobs[0].state, status.jobs[0].last_attempt), (false, JobState::Idle, None));
    }
}
