//! A relay as a process of its own, in a directory of its own.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tokio::net::TcpStream;

use super::free_port;

/// Starting takes one second, or many on a busy machine.
const TRIES: u32 = 600;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// Killed when dropped.
pub struct Process {
    name: &'static str,
    url: String,
    child: Child,
    directory: TempDir,
    program: PathBuf,
}

impl Process {
    /// `nostr-relay` from PyPI. It is started with uvicorn, which is one process: its default,
    /// gunicorn, leaves a worker behind when it is killed, and a socket in the home directory.
    pub(super) async fn nostr_relay() -> Self {
        let program = venv().join("bin/nostr-relay");
        assert!(program.exists(), "{} is missing: run tests/install-relays.sh", program.display());
        let configure = |port, _: &Path| {
            // The sender of an event that fails a validator waits 2 s, then 4 s and so on, and
            // events of these tests may be old: only the signature is checked.
            format!(
                "storage:
  sqlalchemy.url: sqlite+aiosqlite:///nostr.sqlite3
  num_concurrent_reqs: 10
  num_concurrent_adds: 2
  validators: [nostr_relay.validators.is_signed]
gunicorn: {{bind: \"127.0.0.1:{port}\", loglevel: warning}}
subscription_limit: 1000
max_limit: 6000
"
            )
        };
        Self::start("nostr-relay", &program, configure, |config| {
            let mut command = Command::new(&program);
            command.arg("-c").arg(config).args(["serve", "--use-uvicorn"]);
            command
        })
        .await
    }

    /// strfry with NIP-77, taking events of any time.
    pub(super) async fn strfry(program: &OsStr) -> Self {
        let configure = |port, directory: &Path| {
            let db = directory.join("db");
            fs::create_dir(&db).unwrap();
            format!(
                r#"
db = "{}"
dbParams {{
    mapsize = 4294967296
}}
events {{
    maxEventSize = 65536
    rejectEventsNewerThanSeconds = 3153600000
    rejectEventsOlderThanSeconds = 3153600000
    rejectEphemeralEventsOlderThanSeconds = 60
    ephemeralEventsLifetimeSeconds = 300
    maxNumTags = 2000
    maxTagValSize = 1024
}}
relay {{
    bind = "127.0.0.1"
    port = {port}
    nofiles = 0
    maxFilterLimit = 5000
    maxSubsPerConnection = 100
    negentropy {{
        enabled = true
        maxSyncEvents = 1000000
    }}
}}
"#,
                db.display()
            )
        };
        Self::start("strfry", Path::new(program), configure, |config| {
            let mut command = Command::new(program);
            command.arg(format!("--config={}", config.display())).arg("relay");
            command
        })
        .await
    }

    async fn start(
        name: &'static str,
        program: &Path,
        configure: impl FnOnce(u16, &Path) -> String,
        command: impl FnOnce(&Path) -> Command,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = free_port();
        let config = directory.path().join("config");
        fs::write(&config, configure(port, directory.path())).unwrap();
        let log = File::create(directory.path().join("log")).unwrap();
        let child = command(&config)
            .current_dir(&directory)
            .env("HOME", directory.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let url = format!("ws://127.0.0.1:{port}");
        let mut process = Self { name, url, child, directory, program: program.to_owned() };
        for _ in 0..TRIES {
            if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return process;
            }
            if let Some(status) = process.child.try_wait().unwrap() {
                panic!("{name} ended with {status}:\n{}", process.log());
            }
            tokio::time::sleep(BETWEEN_TRIES).await;
        }
        panic!("{name} does not listen:\n{}", process.log());
    }

    pub fn name(&self) -> &str {
        self.name
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs another command of the program (strfry's), on the same database.
    pub async fn command(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = tokio::process::Command::new(&self.program);
        command.arg(format!("--config={}", self.directory.path().join("config").display())).args(arguments);
        command.current_dir(&self.directory).env("HOME", self.directory.path()).kill_on_drop(true);
        let output = tokio::time::timeout(Duration::from_secs(60), command.output()).await;
        output.unwrap_or_else(|_| panic!("{} {arguments:?} does not end", self.name)).unwrap()
    }

    /// What it has printed.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself; that is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn venv() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::env::var_os("TIELINE_TEST_VENV").map_or_else(|| root.join("target/test-relays"), |venv| root.join(venv))
}
