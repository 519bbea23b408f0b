//! Relays as processes of their own, filled before they are asked anything.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nostr_relay_builder::prelude::{
    Event, JsonUtil, LocalRelay, MemoryDatabase, MemoryDatabaseOptions, NostrDatabase, RateLimit, RelayBuilder,
};
use tempfile::TempDir;
use tokio::net::TcpStream;

/// This program with this argument is a relay.
pub const CHILD: &str = "--relay";

/// Starting takes well below a second, or many on a busy machine.
const TRIES: u32 = 600;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// A relay; it ends when it is dropped.
pub struct BenchRelay {
    url: String,
    child: Child,
    _directory: TempDir,
}

/// What the relays are.
pub fn kind() -> &'static str {
    if strfry().is_some() { "strfry" } else { "nostr-relay-builder, in memory" }
}

fn strfry() -> Option<OsString> {
    std::env::var_os("TIELINE_TEST_STRFRY")
}

impl BenchRelay {
    /// A relay that holds these events.
    pub async fn start<E: AsRef<str>>(events: impl IntoIterator<Item = E>) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let child = match strfry() {
            Some(program) => start_strfry(Path::new(&program), directory.path(), port, events),
            None => start_builder(port, events),
        }?;
        let mut relay = Self { url: format!("ws://127.0.0.1:{port}"), child, _directory: directory };
        for _ in 0..TRIES {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.is_ok() {
                return Ok(relay);
            }
            if let Some(status) = relay.child.try_wait()? {
                bail!("the relay ended with {status}");
            }
            tokio::time::sleep(BETWEEN_TRIES).await;
        }
        bail!("the relay does not listen");
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for BenchRelay {
    fn drop(&mut self) {
        // SIGTERM, which `Child` cannot send: a database is closed in order then.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

/// strfry as it comes, but that it takes events of any time.
fn start_strfry<E: AsRef<str>>(
    program: &Path,
    directory: &Path,
    port: u16,
    events: impl IntoIterator<Item = E>,
) -> Result<Child> {
    let config = directory.join("strfry.conf");
    let db = directory.join("db");
    fs::create_dir(&db)?;
    let text = format!(
        r#"
db = "{}"
events {{
    rejectEventsNewerThanSeconds = 3153600000
    rejectEventsOlderThanSeconds = 3153600000
}}
relay {{
    bind = "127.0.0.1"
    port = {port}
    nofiles = 0
}}
"#,
        db.display()
    );
    fs::write(&config, text)?;
    let log = File::create(directory.join("log"))?;
    let command = |verb: &[&str]| -> Result<Command> {
        let mut command = Command::new(program);
        command.arg(format!("--config={}", config.display())).args(verb).current_dir(directory);
        command.stdout(log.try_clone()?).stderr(log.try_clone()?);
        Ok(command)
    };
    let mut import = command(&["import", "--no-verify"])?.stdin(Stdio::piped()).spawn()?;
    write_lines(import.stdin.take().context("no pipe")?, events)?;
    let status = import.wait()?;
    ensure!(status.success(), "strfry import ended with {status}");
    Ok(command(&["relay"])?.stdin(Stdio::null()).spawn()?)
}

/// This program again, as a relay. It ends with its standard input at the latest.
fn start_builder<E: AsRef<str>>(port: u16, events: impl IntoIterator<Item = E>) -> Result<Child> {
    let mut child =
        Command::new(std::env::current_exe()?).arg(CHILD).arg(port.to_string()).stdin(Stdio::piped()).spawn()?;
    let stdin = child.stdin.as_mut().context("no pipe")?;
    write_lines(&mut *stdin, events)?;
    writeln!(stdin)?;
    Ok(child)
}

fn write_lines<E: AsRef<str>>(to: impl Write, events: impl IntoIterator<Item = E>) -> Result<()> {
    let mut to = BufWriter::new(to);
    for event in events {
        writeln!(to, "{}", event.as_ref())?;
    }
    Ok(to.flush()?)
}

/// The relay of [`start_builder`]: events up to an empty line, then requests on the port that
/// the second argument names.
pub async fn serve() -> Result<()> {
    let port = std::env::args().nth(2).context("a port is missing")?.parse()?;
    let database = MemoryDatabase::with_opts(MemoryDatabaseOptions { events: true, max_events: None });
    let mut lines = BufReader::new(std::io::stdin()).lines();
    for line in lines.by_ref() {
        let line = line?;
        if line.is_empty() {
            break;
        }
        database.save_event(&Event::from_json(line)?).await?;
    }
    let unlimited = RateLimit { max_reqs: 1000, notes_per_minute: u32::MAX };
    let relay = LocalRelay::new(RelayBuilder::default().port(port).database(database).rate_limit(unlimited));
    relay.run().await?;
    let end = tokio::task::spawn_blocking(move || lines.for_each(drop));
    Ok(end.await?)
}
