//! Locks that a process holds until it ends, however it ends: one of each job, so that no two runs
//! of it are under way at once; one of all daemons, so that others see whether there is one.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::job_spec::JobKey;

/// Why a job was not locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another run holds it.
    #[error("{path}: another run holds this job{}: wait for it to end", by(.holder))]
    Held {
        /// The file of the lock.
        path: PathBuf,
        /// The process that holds it, where it could be read.
        holder: Option<u32>,
    },
    /// The file of the lock cannot be used.
    #[error("{path}: {source}: repair it, or name another directory with --state-dir")]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

fn by(holder: &Option<u32>) -> String {
    holder.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

/// A job is ours until this is dropped, or the process ends however it ends.
#[derive(Debug)]
pub struct JobLock {
    _file: File,
}

impl JobLock {
    /// Takes the lock of a job, or says who has it. It never waits.
    ///
    /// # Errors
    /// When another run holds the job, or the file of the lock cannot be used.
    pub fn take(dir: &Path, key: JobKey) -> Result<Self, LockError> {
        let dir = dir.join("locks");
        let io = |path: &Path, source| LockError::Io { path: path.to_path_buf(), source };
        fs::create_dir_all(&dir).map_err(|error| io(&dir, error))?;
        // The file stays when the lock goes: removing it would let two runs lock two files.
        let path = dir.join(format!("{key}.lock"));
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| io(&path, error))?;
        let mut taken = file.try_lock();
        for _ in 0..LOOKS {
            if !matches!(taken, Err(TryLockError::WouldBlock)) {
                break;
            }
            wait();
            taken = file.try_lock();
        }
        match taken {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let holder = fs::read_to_string(&path).ok().and_then(|pid| pid.trim().parse().ok());
                return Err(LockError::Held { path, holder });
            }
            Err(TryLockError::Error(error)) => return Err(io(&path, error)),
        }
        // For people only: on a full disk the lock holds without it.
        let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
        Ok(Self { _file: file })
    }

    /// Whether a run holds the job with this key, in hex.
    #[must_use]
    pub fn is_held(dir: &Path, key: &str) -> bool {
        let file = File::open(dir.join("locks").join(format!("{key}.lock")));
        file.is_ok_and(|file| matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }
}

/// Whoever looks whether a lock is held has it for some microseconds: who wants it tries so often
/// before it believes that there is another run.
const LOOKS: u32 = 3;

#[allow(clippy::disallowed_methods, reason = "milliseconds, and only where another run holds the job")]
fn wait() {
    std::thread::sleep(Duration::from_millis(2));
}

/// A daemon runs until this is dropped, or the process ends however it ends. There may be several.
#[derive(Debug)]
pub struct DaemonLock {
    _file: File,
}

impl DaemonLock {
    /// Says that a daemon runs on the state in `dir`.
    ///
    /// # Errors
    /// When the file of the lock cannot be used.
    pub fn take(dir: &Path) -> Result<Self, LockError> {
        let path = dir.join(DAEMON);
        let io = |source| LockError::Io { path: path.clone(), source };
        let file = File::options().write(true).create(true).truncate(false).open(&path).map_err(io)?;
        // Only somebody who looks, for microseconds, holds it alone.
        file.lock_shared().map_err(io)?;
        Ok(Self { _file: file })
    }

    /// Whether a daemon runs on the state in `dir`.
    #[must_use]
    pub fn is_held(dir: &Path) -> bool {
        let file = File::open(dir.join(DAEMON));
        file.is_ok_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)))
    }
}

const DAEMON: &str = "daemon.lock";

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::state::tests::job;

    #[test]
    fn a_run_that_was_killed_holds_nothing() {
        let (dir, key) = (tempfile::tempdir().unwrap(), job("a").key());
        assert!(!JobLock::is_held(dir.path(), &key.to_string()));
        let lock = JobLock::take(dir.path(), key).unwrap();
        assert!(JobLock::is_held(dir.path(), &key.to_string()));
        drop(lock);
        assert!(!JobLock::is_held(dir.path(), &key.to_string()));
    }

    #[test]
    fn several_daemons_are_seen_as_one() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!DaemonLock::is_held(dir.path()));
        let (first, second) = (DaemonLock::take(dir.path()).unwrap(), DaemonLock::take(dir.path()).unwrap());
        assert!(DaemonLock::is_held(dir.path()) && DaemonLock::is_held(dir.path()), "looking takes nothing away");
        drop(first);
        assert!(DaemonLock::is_held(dir.path()));
        drop(second);
        assert!(!DaemonLock::is_held(dir.path()));
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "in a thread of its own")]
    fn who_looks_is_no_other_run() {
        let (dir, key) = (tempfile::tempdir().unwrap(), job("a").key());
        drop(JobLock::take(dir.path(), key).unwrap());
        let (path, stop) = (dir.path().to_path_buf(), std::sync::atomic::AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let _ = JobLock::is_held(&path, &key.to_string());
                    std::thread::sleep(Duration::from_micros(500));
                }
            });
            let refused = (0..2000).filter(|_| JobLock::take(dir.path(), key).is_err()).count();
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
            assert_eq!(refused, 0);
        });
    }

    #[test]
    fn one_run_of_a_job_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let (notes, other) = (job("notes").key(), job("other").key());
        let first = JobLock::take(dir.path(), notes).unwrap();
        let Err(LockError::Held { path, holder }) = JobLock::take(dir.path(), notes) else { panic!("taken twice") };
        assert_eq!((path, holder), (dir.path().join(format!("locks/{notes}.lock")), Some(std::process::id())));
        JobLock::take(dir.path(), other).expect("another job is free");

        drop(first);
        JobLock::take(dir.path(), notes).expect("free again");
    }

    #[test]
    fn another_process_holds_it_until_it_is_killed() {
        let dir = tempfile::tempdir().unwrap();
        let key = job("notes").key();
        drop(JobLock::take(dir.path(), key).unwrap());
        let path = dir.path().join(format!("locks/{key}.lock"));
        // This very test binary, told below to hold the lock.
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "state::lock::tests::holds_a_lock_when_told_to", "--ignored", "--nocapture"])
            .env("TIELINE_TEST_LOCK_DIR", dir.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = child.id();
        let mut lines = io::BufRead::lines(io::BufReader::new(child.stdout.take().unwrap()));
        assert!(lines.any(|line| line.unwrap().contains("locked")), "the child never had the lock");

        let held = JobLock::take(dir.path(), key).unwrap_err().to_string();
        assert_eq!(held, format!("{}: another run holds this job (process {pid}): wait for it to end", path.display()));
        child.kill().unwrap();
        child.wait().unwrap();
        JobLock::take(dir.path(), key).expect("free when its holder is dead");
    }

    #[test]
    #[ignore = "the other process of the test above"]
    fn holds_a_lock_when_told_to() {
        let Some(dir) = std::env::var_os("TIELINE_TEST_LOCK_DIR") else { return };
        let _lock = JobLock::take(Path::new(&dir), job("notes").key()).unwrap();
        println!("locked");
        io::stdin().read_line(&mut String::new()).unwrap();
    }

    #[test]
    fn a_file_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("locks"), "").unwrap();
        let error = JobLock::take(dir.path(), job("notes").key()).unwrap_err();
        assert!(matches!(&error, LockError::Io { path, .. } if path.ends_with("locks")), "{error}");
    }
}
