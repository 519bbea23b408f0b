//! The thread that owns the connection, and the commands it takes.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::{mpsc, oneshot};

use super::jobs::{self, HourRow, Job, JobNote, JobRow, RunNote, RunRow};
use super::parked::{self, ParkedCount, ParkedRow};
use super::{Capability, StateError, capabilities};
use crate::job_spec::JobKey;
use crate::nostr::{EventId, Timestamp};
use crate::outcome::{ParkReason, Report};

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, StateError>>;

/// What the thread is asked for; each is what the method of [`super::State`] of that name says.
pub enum Command {
    BeginRun {
        job: Job,
        now: Timestamp,
        reply: Reply<()>,
    },
    Capability {
        relay: String,
        what: &'static str,
        now: Timestamp,
        reply: Reply<Option<Capability>>,
    },
    EndRun {
        job: Job,
        report: Box<Report>,
        whole: bool,
        now: Timestamp,
        reply: Reply<()>,
    },
    ForgetHeld {
        dst: String,
        reply: Reply<u64>,
    },
    ForgetParked {
        dst: Option<String>,
        reply: Reply<u64>,
    },
    JobRows {
        reply: Reply<Vec<JobRow>>,
    },
    ListParked {
        dst: Option<String>,
        now: Timestamp,
        limit: u32,
        reply: Reply<Vec<ParkedRow>>,
    },
    ForgetJobs {
        keys: Vec<JobKey>,
        reply: Reply<()>,
    },
    MovedPerHour {
        since: Timestamp,
        reply: Reply<Vec<HourRow>>,
    },
    NoteJobs {
        notes: Vec<JobNote>,
        all: bool,
        reply: Reply<()>,
    },
    NoteRun {
        key: JobKey,
        note: RunNote,
        reply: Reply<()>,
    },
    Park {
        dst: String,
        scope: String,
        facts: Vec<(EventId, ParkReason)>,
        now: Timestamp,
        max_per_dst: u64,
        reply: Reply<()>,
    },
    Parked {
        dst: String,
        scopes: Vec<String>,
        ids: Vec<EventId>,
        now: Timestamp,
        reply: Reply<HashSet<EventId>>,
    },
    ParkedCounts {
        reply: Reply<Vec<ParkedCount>>,
    },
    RunRows {
        key: Option<JobKey>,
        since: Timestamp,
        reply: Reply<Vec<RunRow>>,
    },
    SetCapability {
        relay: String,
        what: &'static str,
        capability: Capability,
        reply: Reply<()>,
    },
}

/// Starts the thread. It opens the connection itself, and ends with the last handle.
pub async fn spawn(
    dir: &Path,
    path: Arc<Path>,
    open: impl FnOnce(&Path) -> Result<Connection, StateError> + Send + 'static,
) -> Result<mpsc::Sender<Command>, StateError> {
    let (inbox, mut commands) = mpsc::channel(INBOX);
    let (ready, opened) = oneshot::channel();
    let dir = PathBuf::from(dir);
    let run = {
        let path = path.clone();
        move || {
            let (opened, db) = match open(&dir) {
                Ok(db) => (Ok(()), Some(db)),
                Err(error) => (Err(error), None),
            };
            // Nobody waits where opening was given up; then there is no handle either.
            let _ = ready.send(opened);
            if let Some(db) = db {
                let mut worker = Worker { path, db };
                while let Some(command) = commands.blocking_recv() {
                    worker.serve(command);
                }
            }
        }
    };
    thread::Builder::new().name("state".to_owned()).spawn(run).map_err(|error| StateError::io(&path, error))?;
    opened.await.map_err(|_| StateError::Closed { path: path.to_path_buf() })??;
    Ok(inbox)
}

/// Forgets what holds no longer.
pub fn prune(db: &mut Connection, now: Timestamp) -> rusqlite::Result<()> {
    let db = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    parked::prune(&db, now)?;
    capabilities::prune(&db, now)?;
    jobs::prune(&db, now)?;
    db.commit()
}

struct Worker {
    path: Arc<Path>,
    db: Connection,
}

impl Worker {
    fn serve(&mut self, command: Command) {
        match command {
            Command::BeginRun { job, now, reply } => self.answer(reply, |db| jobs::begin(db, &job, now)),
            Command::Capability { relay, what, now, reply } => {
                self.answer(reply, |db| capabilities::read(db, &relay, what, now));
            }
            Command::EndRun { job, report, whole, now, reply } => self.answer(reply, |db| {
                jobs::end(db, &job, &report, whole, now)?;
                // Now and then: after runs, when nothing waits for the state.
                prune(db, now)
            }),
            Command::ForgetHeld { dst, reply } => self.answer(reply, |db| parked::forget_held(db, &dst)),
            Command::ForgetParked { dst, reply } => self.answer(reply, |db| parked::forget(db, dst.as_deref())),
            Command::JobRows { reply } => self.answer(reply, |db| jobs::rows(db)),
            Command::ListParked { dst, now, limit, reply } => {
                self.answer(reply, |db| parked::list(db, dst.as_deref(), now, limit));
            }
            Command::ForgetJobs { keys, reply } => self.answer(reply, |db| jobs::forget(db, &keys)),
            Command::MovedPerHour { since, reply } => self.answer(reply, |db| jobs::moved_per_hour(db, since)),
            Command::NoteJobs { notes, all, reply } => self.answer(reply, |db| jobs::note(db, &notes, all)),
            Command::NoteRun { key, note, reply } => self.answer(reply, |db| jobs::note_run(db, key, note)),
            Command::Park { dst, scope, facts, now, max_per_dst, reply } => {
                self.answer(reply, |db| parked::park(db, &dst, &scope, &facts, now, max_per_dst));
            }
            Command::Parked { dst, scopes, ids, now, reply } => {
                self.answer(reply, |db| parked::lookup(db, &dst, &scopes, ids, now));
            }
            Command::ParkedCounts { reply } => self.answer(reply, |db| parked::counts(db)),
            Command::RunRows { key, since, reply } => self.answer(reply, |db| jobs::runs(db, key, since)),
            Command::SetCapability { relay, what, capability, reply } => {
                self.answer(reply, |db| capabilities::write(db, &relay, what, &capability));
            }
        }
    }

    fn answer<T>(&mut self, reply: Reply<T>, work: impl FnOnce(&mut Connection) -> rusqlite::Result<T>) {
        let result = work(&mut self.db).map_err(|error| StateError::new(&self.path, error));
        // Who asked may have stopped waiting.
        let _ = reply.send(result);
    }
}

/// Commands that wait. Every sender awaits its answer, so there are no more than tasks.
const INBOX: usize = 64;
