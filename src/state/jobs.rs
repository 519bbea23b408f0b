//! The jobs that ran, and the history of their runs.

use rusqlite::types::Type;
use rusqlite::{Connection, Row, TransactionBehavior, named_params, params};
use serde::Serialize;
use serde_json::value::RawValue;

use super::schema::{from_int, to_int};
use crate::job_spec::{JobKey, JobSpec, Side};
use crate::job_state::JobState;
use crate::nostr::Timestamp;
use crate::outcome::{Ending, Report};

/// A job, as `status` shows it. Counts, bytes and duration are those of its last run, or of the
/// one under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobRow {
    /// Its key, in hex.
    pub key: String,
    /// The peer's name.
    pub peer: String,
    /// The filter's name.
    pub filter: String,
    /// `pull`, `push` or `both`.
    pub direction: String,
    /// What it does, or how its last run ended.
    pub state: JobState,
    /// Whether a run is under way, in whatever process.
    pub running: bool,
    /// Whether the daemon, or the config, has it; a job that was called for once stays for a while.
    pub configured: bool,
    /// When its last run began, if there was one.
    pub last_attempt: Option<Timestamp>,
    /// When a run last converged.
    pub last_success: Option<Timestamp>,
    /// When a pass over the whole filter last ran to its end.
    pub last_whole: Option<Timestamp>,
    /// Events stored at the local relay.
    pub down: u64,
    /// Events stored at the peer.
    pub up: u64,
    /// Bytes sent and received, at both relays.
    pub bytes: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// What went wrong in the last run.
    pub last_error: Option<String>,
    /// Runs in a row that failed.
    pub failures: u64,
    /// When it is due, where a daemon is there to run it.
    pub next_run: Option<Timestamp>,
}

impl JobRow {
    /// Of a job that never ran.
    pub(super) fn new(job: &JobSpec) -> Self {
        Self {
            key: job.key().to_string(),
            peer: job.peer.clone(),
            filter: job.name.clone(),
            direction: job.direction.as_str().to_owned(),
            state: JobState::Idle,
            running: false,
            configured: true,
            last_attempt: None,
            last_success: None,
            last_whole: None,
            down: 0,
            up: 0,
            bytes: 0,
            duration_ms: 0,
            last_error: None,
            failures: 0,
            next_run: None,
        }
    }
}

/// Where a run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunNote {
    /// What it does.
    pub state: JobState,
    /// Events stored at the local relay so far.
    pub down: u64,
    /// Events stored at the peer so far.
    pub up: u64,
    /// Bytes sent and received so far, at both relays.
    pub bytes: u64,
}

/// What the daemon says of a job between its runs.
#[derive(Debug)]
pub struct JobNote {
    pub(super) job: Job,
    state: Option<JobState>,
    next_run: Option<Timestamp>,
}

impl JobNote {
    /// `state` is left out where it did not change: another process may run the job just now, and
    /// says so itself.
    #[must_use]
    pub fn new(job: &JobSpec, state: Option<JobState>, next_run: Option<Timestamp>) -> Self {
        Self { job: job.into(), state, next_run }
    }
}

/// A run that ended.
#[derive(Clone, Debug, Serialize)]
pub struct RunRow {
    /// The key of its job, in hex.
    pub job: String,
    /// When it began.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Timestamp,
    /// The [`Report`], as `sync --json` printed it.
    pub report: Box<RawValue>,
}

/// What the runs that ended within one hour moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourRow {
    /// Its first second: a whole hour, UTC.
    pub start: Timestamp,
    /// Events stored at the local relay.
    pub down: u64,
    /// Events stored at peers.
    pub up: u64,
}

/// What of a job is kept.
#[derive(Debug)]
pub(super) struct Job {
    key: String,
    peer: String,
    filter: String,
    direction: &'static str,
}

impl From<&JobSpec> for Job {
    fn from(spec: &JobSpec) -> Self {
        Self {
            key: spec.key().to_string(),
            peer: spec.peer.clone(),
            filter: spec.name.clone(),
            direction: spec.direction.as_str(),
        }
    }
}

pub(super) fn begin(db: &Connection, job: &Job, now: Timestamp) -> rusqlite::Result<()> {
    upsert(db, job, JobState::Reconciling, now)?;
    db.prepare_cached("UPDATE jobs SET down = 0, up = 0, bytes = 0, duration_ms = 0 WHERE key = ?1")?
        .execute([&job.key])?;
    Ok(())
}

pub(super) fn note_run(db: &Connection, key: JobKey, note: RunNote) -> rusqlite::Result<()> {
    db.prepare_cached("UPDATE jobs SET state = ?2, down = ?3, up = ?4, bytes = ?5 WHERE key = ?1")?.execute(
        params![key.to_string(), note.state.as_str(), to_int(note.down), to_int(note.up), to_int(note.bytes)],
    )?;
    Ok(())
}

pub(super) fn end(
    db: &mut Connection,
    job: &Job,
    report: &Report,
    whole: bool,
    now: Timestamp,
) -> rusqlite::Result<()> {
    let json = serde_json::to_string(report).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
    let started = now.saturating_sub(report.duration_ms / 1000);
    let state = JobState::after(report.outcome);
    // What becomes of the count of failures: times, plus.
    let (times, plus) = match report.outcome {
        Ending::Converged | Ending::Partial => (0, 0),
        Ending::Blocked | Ending::Failed => (1, 1),
        Ending::DryRun | Ending::Interrupted | Ending::Locked => (1, 0),
    };
    let bytes: u64 = Side::BOTH.iter().map(|&side| report.bytes_sent[side] + report.bytes_received[side]).sum();

    let db = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Its beginning is not there when the disk was full then.
    upsert(&db, job, state, started)?;
    db.prepare_cached(
        "UPDATE jobs SET last_success = coalesce(:success, last_success), last_whole = coalesce(:whole, last_whole),
           down = :down, up = :up, bytes = :bytes, duration_ms = :duration_ms, last_error = :error,
           failures = failures * :times + :plus
         WHERE key = :key",
    )?
    .execute(named_params! {
        ":key": job.key,
        ":success": (report.outcome == Ending::Converged).then_some(to_int(now)),
        ":whole": whole.then_some(to_int(now)),
        ":down": to_int(report.downloaded.stored),
        ":up": to_int(report.uploaded.stored),
        ":bytes": to_int(bytes),
        ":duration_ms": to_int(report.duration_ms),
        ":error": report.error,
        ":times": times,
        ":plus": plus,
    })?;
    db.prepare_cached("INSERT INTO runs (job, started, ended, report) VALUES (?1, ?2, ?3, ?4)")?.execute(params![
        job.key,
        to_int(started),
        to_int(now),
        json
    ])?;
    db.prepare_cached(
        "DELETE FROM runs WHERE job = ?1 AND id <=
           (SELECT id FROM runs WHERE job = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)",
    )?
    .execute(params![job.key, RUNS_KEPT])?;
    db.commit()
}

fn upsert(db: &Connection, job: &Job, state: JobState, started: Timestamp) -> rusqlite::Result<()> {
    db.prepare_cached(
        "INSERT INTO jobs (key, peer, filter, direction, state, last_attempt) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT DO UPDATE SET peer = excluded.peer, filter = excluded.filter, direction = excluded.direction,
           state = excluded.state, last_attempt = excluded.last_attempt",
    )?
    .execute(params![job.key, job.peer, job.filter, job.direction, state.as_str(), to_int(started)])?;
    Ok(())
}

/// Writes what the daemon says of jobs; `all` when it has no others.
pub(super) fn note(db: &mut Connection, notes: &[JobNote], all: bool) -> rusqlite::Result<()> {
    let db = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    if all {
        db.execute("UPDATE jobs SET planned = 0", [])?;
    }
    for JobNote { job, state, next_run } in notes {
        db.prepare_cached(
            "INSERT INTO jobs (key, peer, filter, direction, state, last_attempt, next_run, planned)
             VALUES (?1, ?2, ?3, ?4, coalesce(?5, 'idle'), ?7, ?6, 1)
             ON CONFLICT DO UPDATE SET peer = excluded.peer, filter = excluded.filter,
               direction = excluded.direction, state = coalesce(?5, state), next_run = excluded.next_run, planned = 1",
        )?
        .execute(params![
            job.key,
            job.peer,
            job.filter,
            job.direction,
            state.map(JobState::as_str),
            next_run.map(to_int),
            NEVER
        ])?;
    }
    db.commit()
}

pub(super) fn rows(db: &Connection) -> rusqlite::Result<Vec<JobRow>> {
    db.prepare_cached("SELECT * FROM jobs ORDER BY peer, filter, direction, key")?.query_map([], job_row)?.collect()
}

fn job_row(row: &Row<'_>) -> rusqlite::Result<JobRow> {
    let time = |column| row.get::<_, Option<i64>>(column).map(|time| time.map(from_int));
    Ok(JobRow {
        key: row.get("key")?,
        peer: row.get("peer")?,
        filter: row.get("filter")?,
        direction: row.get("direction")?,
        // A word of another version is none of ours.
        state: JobState::named(row.get_ref("state")?.as_str()?).unwrap_or(JobState::Idle),
        running: false,
        configured: row.get("planned")?,
        last_attempt: Some(row.get("last_attempt")?).filter(|at| *at != NEVER).map(from_int),
        last_success: time("last_success")?,
        last_whole: time("last_whole")?,
        down: from_int(row.get("down")?),
        up: from_int(row.get("up")?),
        bytes: from_int(row.get("bytes")?),
        duration_ms: from_int(row.get("duration_ms")?),
        last_error: row.get("last_error")?,
        failures: from_int(row.get("failures")?),
        next_run: time("next_run")?,
    })
}

pub(super) fn runs(db: &Connection, key: Option<JobKey>, since: Timestamp) -> rusqlite::Result<Vec<RunRow>> {
    let mut rows = db.prepare_cached(
        "SELECT job, started, ended, report FROM runs WHERE (?1 IS NULL OR job = ?1) AND ended > ?2 ORDER BY id",
    )?;
    rows.query_map(params![key.map(|key| key.to_string()), to_int(since)], |row| {
        let report = RawValue::from_string(row.get(3)?)
            .map_err(|error| rusqlite::Error::FromSqlConversionFailure(3, Type::Text, error.into()))?;
        Ok(RunRow { job: row.get(0)?, started: from_int(row.get(1)?), ended: from_int(row.get(2)?), report })
    })?
    .collect()
}

pub(super) fn moved_per_hour(db: &Connection, since: Timestamp) -> rusqlite::Result<Vec<HourRow>> {
    let mut rows = db.prepare_cached(
        "SELECT ended / 3600 * 3600, sum(report ->> '$.downloaded.stored'), sum(report ->> '$.uploaded.stored')
         FROM runs WHERE ended >= ?1 GROUP BY 1 ORDER BY 1",
    )?;
    rows.query_map([to_int(since)], |row| {
        Ok(HourRow { start: from_int(row.get(0)?), down: from_int(row.get(1)?), up: from_int(row.get(2)?) })
    })?
    .collect()
}

/// Forgets jobs and their runs.
pub(super) fn forget(db: &mut Connection, keys: &[JobKey]) -> rusqlite::Result<()> {
    let db = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for key in keys.iter().map(ToString::to_string) {
        db.prepare_cached("DELETE FROM jobs WHERE key = ?1")?.execute([&key])?;
        db.prepare_cached("DELETE FROM runs WHERE job = ?1")?.execute([&key])?;
    }
    db.commit()
}

/// Forgets the jobs that are no longer run: an active one runs once a day at least, or is in a
/// daemon's plan.
pub(super) fn prune(db: &Connection, now: Timestamp) -> rusqlite::Result<()> {
    if db
        .execute("DELETE FROM jobs WHERE last_attempt < ?1 AND planned = 0", [to_int(now.saturating_sub(JOBS_HELD))])?
        > 0
    {
        db.execute("DELETE FROM runs WHERE job NOT IN (SELECT key FROM jobs)", [])?;
    }
    Ok(())
}

/// Stands in the place of a time for a job that never ran.
const NEVER: i64 = 0;

/// Runs kept of a job: a day of five-minute runs, for the page that plots them.
pub const RUNS_KEPT: u32 = 300;

/// How long a job that does not run is remembered: long enough for an operator to come back to
/// one that is run by hand, short enough for relays that were discovered once to go.
const JOBS_HELD: u64 = 90 * 24 * 60 * 60;
