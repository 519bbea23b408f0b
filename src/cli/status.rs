//! `tieline status` and `tieline parked`: what the state remembers, also while the daemon runs.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use indicatif::{HumanBytes, HumanCount, HumanDuration};

use super::{Globals, OK, print};
use crate::clock;
use crate::nostr::{RelayUrl, Timestamp};
use crate::state::{Configured, JobRow, State, StateError, StatusView};

/// How often `--watch` looks again.
const WATCH: Duration = Duration::from_secs(2);

/// Parked ids listed at the most: more is for a database, not for eyes.
const LISTED: u32 = 10_000;

/// What to show.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Only this peer
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// Also jobs that are not configured, or no longer, and are still remembered
    #[arg(long)]
    all: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Show it again every two seconds
    #[arg(long)]
    watch: bool,
}

/// Which parked ids.
#[derive(Debug, Args)]
pub struct ParkedArgs {
    /// Only those that are not sent to this relay: the name of a peer, `local`, or a URL
    #[arg(long, value_name = "NAME|URL")]
    peer: Option<String>,
    /// Forget them: they are tried again at the next run
    #[arg(long)]
    forget: bool,
    /// Print one JSON object per id
    #[arg(long)]
    json: bool,
}

/// Shows what jobs did.
pub async fn run(args: &StatusArgs, globals: &Globals) -> Result<u8> {
    let (config, named) = globals.known_config()?;
    let dir = globals.state_dir(named.as_ref())?;
    let config = config.map(|config| Configured {
        discovers: config.grasp.is_some(),
        jobs: config.jobs.into_iter().map(|job| job.spec).collect(),
    });
    loop {
        let now = clock::now();
        let mut status = read(&dir, config.as_ref(), now).await?;
        if let Some(peer) = &args.peer {
            status.jobs.retain(|job| job.peer == *peer);
        }
        let (status, hidden) = if args.all { (status, 0) } else { status.current() };
        let text = if args.json { serde_json::to_string(&status)? } else { table(&status, hidden, now) };
        if !args.watch {
            print(&text)?;
            return Ok(OK);
        }
        // Clears the screen, as watch(1) does, where it is one.
        print(&if args.json { text } else { format!("\u{1b}[2J\u{1b}[H{text}") })?;
        tokio::select! {
            () = tokio::time::sleep(WATCH) => {}
            _ = tokio::signal::ctrl_c() => return Ok(OK),
        }
    }
}

/// Lists parked ids, or forgets them.
pub async fn parked(args: &ParkedArgs, globals: &Globals) -> Result<u8> {
    let dir = globals.known_state_dir()?;
    let relay = args.peer.as_deref().map(|peer| relay(peer, globals)).transpose()?;
    if args.forget {
        let state = State::open(&dir, clock::now()).await?;
        let count = state.forget_parked(relay.as_ref()).await?;
        print(&format!("{} forgotten", HumanCount(count)))?;
        return Ok(OK);
    }
    let state = match State::open_read_only(&dir).await {
        Err(StateError::Absent { .. }) => return Ok(OK),
        state => state?,
    };
    let now = clock::now();
    for row in state.list_parked(relay.as_ref(), now, LISTED).await? {
        let line = if args.json {
            serde_json::to_string(&row)?
        } else {
            let left = HumanDuration(Duration::from_secs(row.until.saturating_sub(now)));
            format!("{}  {:<20} {}  for {left}", row.id, row.reason, row.dst)
        };
        print(&line)?;
    }
    Ok(OK)
}

/// A relay by its name in the config, or by its URL.
fn relay(name: &str, globals: &Globals) -> Result<RelayUrl> {
    if let Ok(url) = name.parse() {
        return Ok(url);
    }
    let config = globals.config()?;
    match std::iter::once(&config.local).chain(&config.peers).find(|relay| relay.name == name) {
        Some(relay) => Ok(relay.url.clone()),
        None => bail!("--peer {name}: neither a relay of the config nor a URL"),
    }
}

/// A state that is not there yet is an empty one.
async fn read(dir: &Path, config: Option<&Configured>, now: Timestamp) -> Result<StatusView> {
    match State::open_read_only(dir).await {
        Ok(state) => Ok(state.status(config, now).await?),
        Err(StateError::Absent { .. }) => Ok(StatusView::empty(dir, config, now)),
        Err(error) => Err(error.into()),
    }
}

/// The table; `hidden` jobs are not in it.
fn table(status: &StatusView, hidden: usize, now: Timestamp) -> String {
    let daemon = if status.daemon { "the daemon is running" } else { "no daemon is running" };
    let hidden = match hidden {
        0 => String::new(),
        count => format!("\n{} that ran once and not configured: --all shows them", HumanCount(count as u64)),
    };
    if status.jobs.is_empty() {
        return format!("nothing has run yet; {daemon}{hidden}");
    }
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY);
    table.set_header([
        "job",
        "state",
        "last run",
        "last success",
        "stored ↓/↑",
        "traffic",
        "took",
        "fails",
        "next run",
    ]);
    for job in &status.jobs {
        table.add_row([
            name(job),
            job.state.to_string(),
            ago(job.last_attempt, now),
            ago(job.last_success, now),
            format!("{} / {}", HumanCount(job.down), HumanCount(job.up)),
            HumanBytes(job.bytes).to_string(),
            format!("{} ms", job.duration_ms),
            job.failures.to_string(),
            next(job, now),
        ]);
    }
    let mut text = table.to_string();
    text.push_str(&format!("\n{daemon}{hidden}"));
    for job in &status.jobs {
        if let Some(error) = &job.last_error {
            text.push_str(&format!("\n{}/{}: {error}", job.peer, job.filter));
        }
    }
    for parked in &status.parked {
        text.push_str(&format!("\n{} parked for {}: {}", HumanCount(parked.count), parked.destination, parked.reason));
    }
    text
}

fn name(job: &JobRow) -> String {
    let mark = if job.configured { "" } else { ", not configured" };
    format!("{}/{} ({}){mark}", job.peer, job.filter, job.direction)
}

fn ago(at: Option<Timestamp>, now: Timestamp) -> String {
    at.map_or_else(
        || "never".to_owned(),
        |at| format!("{} ago", HumanDuration(Duration::from_secs(now.saturating_sub(at)))),
    )
}

fn next(job: &JobRow, now: Timestamp) -> String {
    match job.next_run {
        None if job.running => "now".to_owned(),
        None => "-".to_owned(),
        Some(at) if at <= now => "due".to_owned(),
        Some(at) => format!("in {}", HumanDuration(Duration::from_secs(at - now))),
    }
}
