//! What a sync costs: answers, bytes, memory and time, between relays on loopback.
//!
//! `cargo bench --bench sync [-- reconcile|memory|rate…]`. The relays are strfry where
//! `TIELINE_TEST_STRFRY` says where it is, else `nostr-relay-builder`; each is a process of its
//! own, and so is the `tieline` that is measured, so that no figure holds another's part.

mod client;
mod events;
mod measure;
mod relay;

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use comfy_table::{Table, presets::ASCII_MARKDOWN};

use events::Events;
use measure::{Run, seconds};
use relay::BenchRelay;

/// Events to copy, and events that both sides have.
const COMMON: usize = 100_000;
/// Events that one side has alone.
const APART: usize = 1_000;
/// Events in the runs whose memory is measured.
const MANY: usize = 200_000;
const FEW: usize = 1_000;

/// The window of the plain client, as wide as Tieline's own.
const IN_FLIGHT: usize = 256;

/// Times each client copies everything. They take turns, and the middle time of each counts:
/// what else the machine does then falls on both.
const ROUNDS: usize = 3;

/// One relay filter for all runs: it admits deletions, so that a pass has its two steps.
const FILTER: &str = r#"{"kinds":[1,5]}"#;

const CASES: [&str; 3] = ["reconcile", "memory", "rate"];

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == relay::CHILD) {
        return relay::serve().await;
    }
    let named: Vec<&str> = args.iter().map(String::as_str).filter(|arg| !arg.starts_with("--")).collect();
    if let Some(unknown) = named.iter().find(|name| !CASES.contains(name)) {
        bail!("{unknown}: no such case; there are {}", CASES.join(", "));
    }
    // `cargo test --all-targets` runs this program too, and has no use for figures.
    if named.is_empty() && !args.iter().any(|arg| arg == "--bench") {
        return Ok(());
    }
    let chosen = |case| named.is_empty() || named.contains(&case);

    let events = Events::load(MANY)?;
    let mut figures = Figures::default();
    if chosen("reconcile") {
        reconcile(&events, &mut figures).await?;
    }
    if chosen("memory") {
        memory(&events, &mut figures).await?;
    }
    if chosen("rate") {
        rate(&events, &mut figures).await?;
    }
    println!("\nRelays: {}. Events: {} bytes on average.\n{}", relay::kind(), events.average(), figures.table());
    Ok(())
}

/// What it takes to find a difference, and to find none.
async fn reconcile(events: &Events, figures: &mut Figures) -> Result<()> {
    // What one side has alone is spread over all times, or the newest there is: a frame of 60,000
    // bytes is soon full in the first case, because the neighbours of each event are listed too.
    let every = (COMMON + 2 * APART) / APART;
    let spread = |n: usize| n % every;
    let newest = |n: usize| if n < COMMON { 2 } else { n % 2 };
    for (layout, side_of) in [("spread evenly", &spread as &dyn Fn(usize) -> usize), ("the newest", &newest)] {
        let all = &events.all()[..COMMON + 2 * APART];
        let without = |side| {
            let kept = all.iter().enumerate().filter(move |(n, _)| side_of(*n) != side);
            kept.map(|(_, event)| event.as_str())
        };
        let (local, peer) = tokio::try_join!(BenchRelay::start(without(0)), BenchRelay::start(without(1)))?;
        let run = measure::tieline(&local, &peer, &["--dry-run", "--filter", FILTER]).await?;
        ensure!(run.number("local_only") == APART as u64 && run.number("peer_only") == APART as u64, "{run}");
        let case = format!("{COMMON} events in common, {APART} more on each side, {layout}, dry run");
        figures.add(&case, "NIP-77 answers", run.number("negentropy_rounds"), "at most 12");
        figures.add(&case, "bytes, both sides and ways", run.bytes(), "");
        figures.add(&case, "time", seconds(run.job_time()), "");
    }

    let equal = &events.all()[..COMMON];
    let (local, peer) = tokio::try_join!(BenchRelay::start(equal), BenchRelay::start(equal))?;
    let run = measure::tieline(&local, &peer, &["--filter", FILTER, "--direction", "both"]).await?;
    ensure!(run.number("local_only") == 0 && run.number("peer_only") == 0, "{run}");
    let case = format!("equal sets of {COMMON}, direction both");
    figures.add(&case, "NIP-77 answers, in two steps of one exchange", run.number("negentropy_rounds"), "4");
    figures.add(&case, "bytes, both sides and ways", run.bytes(), "below 3000");
    figures.add(&case, "event bodies received", run.number("bodies_received"), "0");
    figures.add(&case, "time", seconds(run.job_time()), "");
    Ok(())
}

/// The most memory the `tieline` process had at a time.
async fn memory(events: &Events, figures: &mut Figures) -> Result<()> {
    let mib = |run: &Run| format!("{:.1} MiB", run.peak_kib as f64 / 1024.0);
    for (count, target) in [(FEW, ""), (MANY, "as with 1000")] {
        let equal = &events.all()[..count];
        let (local, peer) = tokio::try_join!(BenchRelay::start(equal), BenchRelay::start(equal))?;
        let run = measure::tieline(&local, &peer, &["--filter", FILTER, "--direction", "both"]).await?;
        figures.add(&format!("equal sets of {count}"), "peak memory (VmHWM)", mib(&run), target);
    }
    let (local, peer) =
        tokio::try_join!(BenchRelay::start(&events.all()[..0]), BenchRelay::start(&events.all()[..MANY]))?;
    let run = measure::tieline(&local, &peer, &["--filter", FILTER, "--direction", "pull"]).await?;
    copied(&run, MANY)?;
    let case = format!("copy of {MANY} events into an empty relay");
    figures.add(&case, "peak memory (VmHWM)", mib(&run), "below 48 MiB");
    figures.add(&case, "time", seconds(run.wall), "");
    Ok(())
}

/// How fast events are copied, beside a client that has nothing to do but send them.
async fn rate(events: &Events, figures: &mut Figures) -> Result<()> {
    let wanted = &events.all()[..COMMON];
    let peer = BenchRelay::start(wanted).await?;
    let (mut plain, mut copies) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let empty = BenchRelay::start(&wanted[..0]).await?;
        plain.push(client::send(empty.url(), wanted, IN_FLIGHT).await?);
        drop(empty);
        let empty = BenchRelay::start(&wanted[..0]).await?;
        let run = measure::tieline(&empty, &peer, &["--filter", FILTER, "--direction", "pull"]).await?;
        copied(&run, COMMON)?;
        let (plain, copy) = (seconds(plain[round]), seconds(run.wall));
        println!("round {}: plain client {plain}, tieline {copy} ({} of CPU)", round + 1, seconds(run.cpu));
        copies.push(run);
    }
    plain.sort();
    copies.sort_by_key(|run| run.wall);
    let (plain, copy) = (plain[ROUNDS / 2], &copies[ROUNDS / 2]);
    let per_second = |time: Duration| format!("{:.0} events/s", COMMON as f64 / time.as_secs_f64());
    let case = format!("{COMMON} events into an empty relay, the middle of {ROUNDS} runs");
    figures.add(&case, &format!("plain client, {IN_FLIGHT} EVENTs in flight"), per_second(plain), "");
    figures.add(&case, "tieline, from start to exit", per_second(copy.wall), "");
    let cpu = copy.cpu.as_secs_f64() * 1e6 / COMMON as f64;
    figures.add(&case, "tieline's CPU per event", format!("{cpu:.0} µs"), "");
    let ratio = 100.0 * plain.as_secs_f64() / copy.wall.as_secs_f64();
    figures.add(&case, "tieline's rate to the plain client's", format!("{ratio:.0} %"), "at least 85 %");
    Ok(())
}

fn copied(run: &Run, count: usize) -> Result<()> {
    ensure!(run.text("outcome") == "converged", "{run}");
    ensure!(run.report["downloaded"]["stored"] == count, "{run}");
    Ok(())
}

/// What was measured, in rows.
#[derive(Default)]
struct Figures(Vec<[String; 4]>);

impl Figures {
    fn add(&mut self, case: &str, what: &str, figure: impl ToString, target: &str) {
        println!("{case}: {what}: {}", figure.to_string());
        self.0.push([case.to_owned(), what.to_owned(), figure.to_string(), target.to_owned()]);
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(ASCII_MARKDOWN).set_header(["case", "measured", "figure", "target"]);
        table.add_rows(&self.0);
        table
    }
}
