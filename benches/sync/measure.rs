//! Runs `tieline sync` as users do, and watches the process.

use std::fmt;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tieline::clock;
use tokio::process::Command;

use crate::relay::BenchRelay;

/// How often the process is looked at. Its peak only grows, so the last look is as good as all.
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// The unit of process times in `/proc`: the same on every Linux.
const TICKS_PER_SECOND: f64 = 100.0;

/// A finished run.
pub struct Run {
    /// The line that `--json` prints.
    pub report: Value,
    /// From the start of the process to its end.
    pub wall: Duration,
    /// The most memory it had resident, in KiB.
    pub peak_kib: u64,
    /// What it computed, on all cores.
    pub cpu: Duration,
}

/// One `tieline sync LOCAL PEER` with more arguments, without any state from before.
pub async fn tieline(local: &BenchRelay, peer: &BenchRelay, args: &[&str]) -> Result<Run> {
    let state = tempfile::tempdir()?;
    let started = clock::instant();
    let child = Command::new(env!("CARGO_BIN_EXE_tieline"))
        .args(["--quiet", "sync", "--json", "--state-dir"])
        .arg(state.path())
        .args(args)
        .args([local.url(), peer.url()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let pid = child.id().context("tieline has ended already")?;
    let (mut peak_kib, mut cpu) = (0, Duration::ZERO);
    let mut looks = tokio::time::interval(BETWEEN_LOOKS);
    let output = child.wait_with_output();
    tokio::pin!(output);
    let output = loop {
        tokio::select! {
            output = &mut output => break output?,
            _ = looks.tick() => {
                peak_kib = peak(pid).unwrap_or(peak_kib);
                cpu = cpu_time(pid).unwrap_or(cpu);
            }
        }
    };
    let wall = clock::instant() - started;
    let printed = String::from_utf8(output.stdout)?;
    ensure!(output.status.success(), "tieline ended with {}: {printed}", output.status);
    Ok(Run { report: serde_json::from_str(&printed)?, wall, peak_kib, cpu })
}

fn peak(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

fn cpu_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in brackets may hold spaces; user and system time are the 12th and 13th behind it.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let ticks = fields.get(11)?.parse::<u32>().ok()? + fields.get(12)?.parse::<u32>().ok()?;
    Some(Duration::from_secs_f64(f64::from(ticks) / TICKS_PER_SECOND))
}

impl Run {
    /// A number of the report.
    pub fn number(&self, key: &str) -> u64 {
        self.report[key].as_u64().unwrap_or_default()
    }

    /// A text of the report.
    pub fn text(&self, key: &str) -> &str {
        self.report[key].as_str().unwrap_or_default()
    }

    /// All WebSocket text of the job: both sides, both ways.
    pub fn bytes(&self) -> u64 {
        let counts = ["bytes_sent", "bytes_received"].map(|way| &self.report[way]);
        counts.iter().flat_map(|sides| [&sides["local"], &sides["peer"]]).filter_map(Value::as_u64).sum()
    }

    /// What the job took by its own report.
    pub fn job_time(&self) -> Duration {
        Duration::from_millis(self.number("duration_ms"))
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not what was expected: {}", self.report)
    }
}

/// A time for people.
pub fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}
