//! What goes wrong with the state, in words that say what to do about it.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

/// Why the state cannot be used. None of it makes a sync wrong: what is not remembered is found
/// again.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// There is no state to look at.
    #[error("{path}: no state here: nothing has run yet, or --state-dir names another directory")]
    Absent {
        /// The file.
        path: PathBuf,
    },
    /// Another process held the file for longer than a write takes.
    #[error("{path}: another process holds the file: try again, or name another directory with --state-dir")]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The thread that owns the file is gone.
    #[error("{path}: the thread that owns the state has stopped: restart tieline")]
    Closed {
        /// The file.
        path: PathBuf,
    },
    /// Not a database, or a damaged one.
    #[error("{path}: not a state file, or a damaged one: move the file away: it costs time, never correctness")]
    Corrupt {
        /// The file.
        path: PathBuf,
    },
    /// No room to write.
    #[error("{path}: no room left to write: free some, or name another directory with --state-dir")]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// The system cannot read or write it.
    #[error("{path}: {what}: repair it, or name another directory with --state-dir")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system says: in the message already, and so no source of it.
        what: io::Error,
    },
    /// Something that is no directory stands in its place.
    #[error("{path}: not a directory: name another with --state-dir")]
    NotADirectory {
        /// What should be a directory.
        path: PathBuf,
    },
    /// This user may not use it.
    #[error(
        "{path}: permission denied: give it to the user who runs tieline, or name another directory with --state-dir"
    )]
    Permission {
        /// The file or directory.
        path: PathBuf,
    },
    /// It can be read and not written.
    #[error("{path}: read-only: make it writable, or name another directory with --state-dir")]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// Anything else that SQLite says.
    #[error("{path}: {what}: if it persists, move the file away: it costs time, never correctness")]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// What SQLite says: in the message already, and so no source of it.
        what: rusqlite::Error,
    },
    /// Written by another version of Tieline.
    #[error(
        "{path}: its layout is version {found} and this tieline knows version {known}: run the version of tieline \
         that wrote it, or move the file away: it costs time, never correctness"
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// What it says it is.
        found: usize,
        /// What this program writes.
        known: usize,
    },
}

impl StateError {
    /// What SQLite said of the file at `path`.
    pub(super) fn new(path: &Path, source: rusqlite::Error) -> Self {
        let path = path.to_path_buf();
        let Some(error) = source.sqlite_error() else { return Self::Sqlite { path, what: source } };
        match error.code {
            ErrorCode::CannotOpen | ErrorCode::PermissionDenied => Self::Permission { path },
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Self::Busy { path },
            ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => Self::Corrupt { path },
            ErrorCode::DiskFull => Self::Full { path },
            ErrorCode::ReadOnly => Self::ReadOnly { path },
            // The index of the write-ahead log could not grow: only a full disk does that.
            _ if error.extended_code == SQLITE_IOERR_SHMSIZE => Self::Full { path },
            _ => Self::Sqlite { path, what: source },
        }
    }

    /// What the system said of the file or directory at `path`.
    pub(super) fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_path_buf();
        match source.kind() {
            io::ErrorKind::PermissionDenied => Self::Permission { path },
            io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => Self::NotADirectory { path },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnly { path },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path },
            _ => Self::Io { path, what: source },
        }
    }
}
