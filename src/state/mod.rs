//! What Tieline remembers between runs: jobs, their history, parked ids, what relays can do.
//!
//! One SQLite file that several processes may have open: the daemon, a one-shot run, `status`.
//! In a process one thread owns the connection; the others hold a [`State`] and send it commands.
//! It holds no event content and no keys, and losing it costs time, never correctness.

mod capabilities;
mod dir;
mod error;
mod jobs;
mod lock;
mod parked;
mod schema;
mod status;
mod worker;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

pub use capabilities::Capability;
pub use dir::{default_dir, is_root};
pub use error::StateError;
pub use jobs::{HourRow, JobNote, JobRow, RUNS_KEPT, RunNote, RunRow};
pub use lock::{DaemonLock, JobLock, LockError};
pub use parked::{ParkedCount, ParkedRow, scope};
pub use status::{Configured, StatusView};

use crate::job_spec::{JobKey, JobSpec};
use crate::nostr::{EventId, RelayUrl, Timestamp};
use crate::outcome::{ParkReason, Report};
use worker::{Command, Reply};

/// A handle to the state. Clones share one connection.
///
/// Every call may fail where the disk does; what was read stays right, and what could not be
/// written is found again by the next run.
#[derive(Clone, Debug)]
pub struct State {
    path: Arc<Path>,
    inbox: mpsc::Sender<Command>,
}

impl State {
    /// Opens the state in `dir`, which is made where it is missing, and forgets what expired.
    ///
    /// # Errors
    /// When the directory or the file cannot be used.
    pub async fn open(dir: &Path, now: Timestamp) -> Result<Self, StateError> {
        Self::start(dir, move |dir| {
            let mut db = schema::open(dir)?;
            match worker::prune(&mut db, now).map_err(|error| StateError::new(&dir.join(schema::FILE), error)) {
                // Expired rows are not believed, whether or not there is room to remove them.
                Ok(()) | Err(StateError::Full { .. } | StateError::Busy { .. }) => Ok(db),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Opens the state to look at it, without making or changing anything.
    ///
    /// # Errors
    /// When there is no state in `dir`, or it cannot be read.
    pub async fn open_read_only(dir: &Path) -> Result<Self, StateError> {
        Self::start(dir, schema::open_read_only).await
    }

    async fn start(
        dir: &Path,
        open: impl FnOnce(&Path) -> Result<rusqlite::Connection, StateError> + Send + 'static,
    ) -> Result<Self, StateError> {
        let path: Arc<Path> = dir.join(schema::FILE).into();
        let inbox = worker::spawn(dir, path.clone(), open).await?;
        Ok(Self { path, inbox })
    }

    /// Which of the ids are known not to be movable to `dst`: facts about the destination
    /// alone, and those of the given scopes.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub async fn parked(
        &self,
        dst: &RelayUrl,
        scopes: &[String],
        ids: Vec<EventId>,
        now: Timestamp,
    ) -> Result<HashSet<EventId>, StateError> {
        let (dst, scopes) = (dst.to_string(), scopes.to_vec());
        self.ask(|reply| Command::Parked { dst, scopes, ids, now, reply }).await
    }

    /// Remembers that ids cannot be moved to `dst` for now, `max_per_dst` of them at the most:
    /// those that expire first make room. What holds where is said by [`scope`].
    ///
    /// # Errors
    /// When the state cannot be written.
    pub async fn park(
        &self,
        dst: &RelayUrl,
        scope: &str,
        facts: Vec<(EventId, ParkReason)>,
        now: Timestamp,
        max_per_dst: u64,
    ) -> Result<(), StateError> {
        let (dst, scope) = (dst.to_string(), scope.to_owned());
        self.ask(|reply| Command::Park { dst, scope, facts, now, max_per_dst, reply }).await
    }

    /// Forgets what was refused because `dst` held it, or held something newer: it was found empty.
    ///
    /// # Errors
    /// When the state cannot be written.
    pub async fn forget_held(&self, dst: &RelayUrl) -> Result<u64, StateError> {
        let dst = dst.to_string();
        self.ask(|reply| Command::ForgetHeld { dst, reply }).await
    }

    /// Forgets the parked ids of a destination, or all of them, and says how many there were.
    ///
    /// # Errors
    /// When the state cannot be written.
    pub async fn forget_parked(&self, dst: Option<&RelayUrl>) -> Result<u64, StateError> {
        let dst = dst.map(RelayUrl::to_string);
        self.ask(|reply| Command::ForgetParked { dst, reply }).await
    }

    /// The parked ids of a destination, or all of them: those that hold longest first, `limit`
    /// at the most.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub async fn list_parked(
        &self,
        dst: Option<&RelayUrl>,
        now: Timestamp,
        limit: u32,
    ) -> Result<Vec<ParkedRow>, StateError> {
        let dst = dst.map(RelayUrl::to_string);
        self.ask(|reply| Command::ListParked { dst, now, limit, reply }).await
    }

    /// How many ids are parked, by destination and reason; ids that expired since the last run
    /// count.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub async fn parked_counts(&self) -> Result<Vec<ParkedCount>, StateError> {
        self.ask(|reply| Command::ParkedCounts { reply }).await
    }

    /// Notes that a run of the job starts.
    ///
    /// # Errors
    /// When the state cannot be written.
    pub async fn begin_run(&self, job: &JobSpec, now: Timestamp) -> Result<(), StateError> {
        let job = job.into();
        self.ask(|reply| Command::BeginRun { job, now, reply }).await
    }

    /// Notes how a run of the job ended; `whole` when a pass over the whole filter ran to its
    /// end.
    ///
    /// # Errors
    /// When the state cannot be written.
    pub async fn end_run(&self, job: &JobSpec, report: &Report, whole: bool, now: Timestamp) -> Result<(), StateError> {
        let job = job.into();
        // A dry run may list millions of ids: they are for its own output.
        let report = Box::new(Report { ids: None, ..report.clone() });
        self.ask(|reply| Command::EndRun { job, report, whole, now, reply }).await
    }

    /// Notes where a run stands.
    ///
    /// # Errors
    /// When the state cannot be written.
    pub async fn note_run(&self, key: JobKey, note: RunNote) -> Result<(), StateError> {
        self.ask(|reply| Command::NoteRun { key, note, reply }).await
    }

    /// Forgets jobs that will not come back.
    ///
    /// # Errors
    /// When the state cannot be written.
    pub async fn forget_jobs(&self, keys: Vec<JobKey>) -> Result<(), StateError> {
        self.ask(|reply| Command::ForgetJobs { keys, reply }).await
    }

    /// Notes what a daemon says of jobs between their runs; `all` when these are all that it has.
    ///
    /// # Errors
    /// When the state cannot be written.
    pub async fn note_jobs(&self, notes: Vec<JobNote>, all: bool) -> Result<(), StateError> {
        self.ask(|reply| Command::NoteJobs { notes, all, reply }).await
    }

    /// Every job that is in a daemon's plan or ran here, by peer and filter; jobs that are no
    /// longer configured also, for a while. A run that was killed could not say so: what it last
    /// said does not stand here.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub async fn job_rows(&self) -> Result<Vec<JobRow>, StateError> {
        let mut rows = self.ask(|reply| Command::JobRows { reply }).await?;
        status::look_at_runs(&mut rows, |key| JobLock::is_held(self.dir(), key));
        Ok(rows)
    }

    /// The runs that ended after `since`, of a job or of all, the oldest first.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub async fn run_rows(&self, key: Option<JobKey>, since: Timestamp) -> Result<Vec<RunRow>, StateError> {
        self.ask(|reply| Command::RunRows { key, since, reply }).await
    }

    /// What runs moved that ended at `since` or later, by the hour; hours without a run are left
    /// out. Only the last [`RUNS_KEPT`] runs of a job are known.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub async fn moved_per_hour(&self, since: Timestamp) -> Result<Vec<HourRow>, StateError> {
        self.ask(|reply| Command::MovedPerHour { since, reply }).await
    }

    /// What was learnt of a relay, such as whether it speaks `nip77`, while that holds.
    ///
    /// # Errors
    /// When the state cannot be read.
    pub async fn capability(
        &self,
        relay: &RelayUrl,
        what: &'static str,
        now: Timestamp,
    ) -> Result<Option<Capability>, StateError> {
        let relay = relay.to_string();
        self.ask(|reply| Command::Capability { relay, what, now, reply }).await
    }

    /// Remembers what was learnt of a relay.
    ///
    /// # Errors
    /// When the state cannot be written.
    pub async fn set_capability(
        &self,
        relay: &RelayUrl,
        what: &'static str,
        capability: Capability,
    ) -> Result<(), StateError> {
        let relay = relay.to_string();
        self.ask(|reply| Command::SetCapability { relay, what, capability, reply }).await
    }

    /// The directory of the file.
    fn dir(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> Result<T, StateError> {
        let closed = || StateError::Closed { path: self.path.to_path_buf() };
        let (reply, answer) = oneshot::channel();
        self.inbox.send(command(reply)).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }
}

#[cfg(test)]
mod tests;
