//! The file: how it is opened, and what stands in it.

use std::ffi::OsString;
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};

use super::StateError;

/// Its name in the state directory.
pub const FILE: &str = "tieline.db";

/// Opens the file to write, makes it where it is missing, and brings its layout up to date.
pub fn open(dir: &Path) -> Result<Connection, StateError> {
    // It says who syncs with whom: nobody else's business.
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(|error| StateError::io(dir, error))?;
    let path = dir.join(FILE);
    let mut opened = prepare(&path);
    for _ in 0..BUSY_TRIES {
        if !matches!(&opened, Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy)) {
            break;
        }
        wait();
        opened = prepare(&path);
    }
    known_version(&path, opened)
}

/// SQLite does not wait for another process while a new file goes over to a write-ahead log, so
/// two that start together have to try again: for five seconds.
const BUSY_TRIES: u32 = 100;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

#[allow(clippy::disallowed_methods, reason = "on the state's own thread, for another process")]
fn wait() {
    std::thread::sleep(BUSY_PAUSE);
}

fn prepare(path: &Path) -> rusqlite::Result<(Connection, usize)> {
    let mut db = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE)?;
    // A commit survives kill -9 at once, and a power cut after the next checkpoint.
    db.pragma_update(None, "journal_mode", "wal")?;
    db.pragma_update(None, "synchronous", "normal")?;
    let found = migrate(&mut db)?;
    Ok((db, found))
}

/// Opens the file to read, and makes nothing.
pub fn open_read_only(dir: &Path) -> Result<Connection, StateError> {
    let path = dir.join(FILE);
    if !path.try_exists().map_err(|error| StateError::io(&path, error))? {
        return Err(StateError::Absent { path });
    }
    let opened = match look(&path, OpenFlags::empty()) {
        // Who may not write beside the file cannot join its writers, and need not while there
        // are none: their log stands beside it.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen) && !log_of(&path).exists() => {
            look(&immutable(&path), OpenFlags::SQLITE_OPEN_URI)
        }
        opened => opened,
    };
    match opened {
        // Whoever made it is about to fill it, or was killed before: nothing was remembered yet.
        Ok((_, 0)) => Err(StateError::Absent { path }),
        opened => known_version(&path, opened),
    }
}

fn look(path: &Path, flags: OpenFlags) -> rusqlite::Result<(Connection, usize)> {
    let db = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY | flags)?;
    let found = version(&db)?;
    Ok((db, found))
}

fn connect(path: &Path, flags: OpenFlags) -> rusqlite::Result<Connection> {
    // The one thread that uses the connection owns it.
    let db = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    // Other processes write for milliseconds, and for a second or two when they prune much.
    db.busy_timeout(Duration::from_secs(10))?;
    Ok(db)
}

fn known_version(path: &Path, opened: rusqlite::Result<(Connection, usize)>) -> Result<Connection, StateError> {
    let (db, found) = opened.map_err(|error| StateError::new(path, error))?;
    let known = MIGRATIONS.len();
    if found == known { Ok(db) } else { Err(StateError::Version { path: path.to_path_buf(), found, known }) }
}

/// Takes the steps that the file has not seen, and returns the version it then has.
fn migrate(db: &mut Connection) -> rusqlite::Result<usize> {
    if version(db)? >= MIGRATIONS.len() {
        return version(db);
    }
    let step = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Asked again: another process may have taken them while this one waited to write.
    let found = version(&step)?;
    for sql in MIGRATIONS.iter().skip(found) {
        step.execute_batch(sql)?;
    }
    let reached = found.max(MIGRATIONS.len());
    step.pragma_update(None, "user_version", reached as u32)?;
    step.commit()?;
    Ok(reached)
}

fn version(db: &Connection) -> rusqlite::Result<usize> {
    db.pragma_query_value(None, "user_version", |row| row.get::<_, u32>(0)).map(|version| version as usize)
}

fn log_of(path: &Path) -> PathBuf {
    let mut log = OsString::from(path);
    log.push("-wal");
    log.into()
}

/// The URI under which SQLite reads the file without looking for writers.
fn immutable(path: &Path) -> PathBuf {
    let path = path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23");
    format!("file:{path}?immutable=1").into()
}

/// SQLite has signed numbers only. What does not fit is as good as the largest.
pub fn to_int(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// The number that `to_int` wrote.
pub fn from_int(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

/// Step `n` brings a file of version `n` to version `n + 1`. A step that was released stays as
/// it is.
const MIGRATIONS: [&str; 2] = [FIRST, PLANNED];

/// Which jobs a daemon has in its plan.
const PLANNED: &str = "ALTER TABLE jobs ADD COLUMN planned INTEGER NOT NULL DEFAULT 0;";

const FIRST: &str = "
CREATE TABLE jobs (
    key TEXT PRIMARY KEY,
    peer TEXT NOT NULL,
    filter TEXT NOT NULL,
    direction TEXT NOT NULL,
    state TEXT NOT NULL,
    last_attempt INTEGER NOT NULL,
    last_success INTEGER,
    last_whole INTEGER,
    down INTEGER NOT NULL DEFAULT 0,
    up INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0,
    duration_ms INTEGER NOT NULL DEFAULT 0,
    last_error TEXT,
    failures INTEGER NOT NULL DEFAULT 0,
    next_run INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    started INTEGER NOT NULL,
    ended INTEGER NOT NULL,
    report TEXT NOT NULL
) STRICT;
CREATE INDEX runs_of_job ON runs (job, id);

CREATE TABLE parked (
    dst TEXT NOT NULL,
    id BLOB NOT NULL,
    scope TEXT NOT NULL,
    reason TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (dst, id, scope)
) STRICT, WITHOUT ROWID;
CREATE INDEX parked_until ON parked (dst, until);

-- Kept beside the table because counting its rows reads all of them.
CREATE TABLE parked_counts (
    dst TEXT NOT NULL,
    reason TEXT NOT NULL,
    ids INTEGER NOT NULL,
    PRIMARY KEY (dst, reason)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER parked_in AFTER INSERT ON parked BEGIN
    INSERT INTO parked_counts (dst, reason, ids) VALUES (new.dst, new.reason, 1)
        ON CONFLICT DO UPDATE SET ids = ids + 1;
END;
CREATE TRIGGER parked_out AFTER DELETE ON parked BEGIN
    UPDATE parked_counts SET ids = ids - 1 WHERE dst = old.dst AND reason = old.reason;
END;
CREATE TRIGGER parked_anew AFTER UPDATE OF reason ON parked WHEN new.reason <> old.reason BEGIN
    UPDATE parked_counts SET ids = ids - 1 WHERE dst = old.dst AND reason = old.reason;
    INSERT INTO parked_counts (dst, reason, ids) VALUES (new.dst, new.reason, 1)
        ON CONFLICT DO UPDATE SET ids = ids + 1;
END;

CREATE TABLE capabilities (
    relay TEXT NOT NULL,
    what TEXT NOT NULL,
    verdict TEXT NOT NULL,
    strikes INTEGER NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (relay, what)
) STRICT, WITHOUT ROWID;
";
