//! The daemon, as a process of its own between relays on sockets.

// Peers that are down, go away, flap or fall silent.
mod peers;
// More streams than a relay allows, and jobs that overlap.
mod streams;
// Events that are passed on as they appear.
mod live;
// SIGHUP and SIGTERM.
mod signals;
// Lines that are slow or end again and again, and processes that are killed over and over.
mod faults;
// Thirty peers, for a while.
mod soak;
// What a service manager is told.
mod service;
// `status`, `parked`, HTTP, and what none of them says.
mod shown;
// What `status` says of jobs that wait, run, were cut off, or are not configured.
mod states;
// More than one process on one state, and what an idle one costs.
mod together;

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::cli::{Cli, Running};
use crate::support::events::{Author, Event};
use crate::support::model::{ModelRelay, Quirks};

/// Notes and what deletes them.
const FILTER: &str = "{kinds: [1, 5]}";
/// Longer than anything takes that happens at once, on a machine that has other things to do.
const SOON: Duration = Duration::from_secs(20);

/// A peer in a config: its name, its URL, and what else is said about it.
struct Peer<'a>(&'a str, &'a str, &'a str);

/// A config with one job a peer, each every second unless the peer says otherwise.
fn config(local: &str, peers: &[Peer<'_>]) -> String {
    let mut yaml = format!(
        "local: {{url: '{local}', retry: {{base: 1s, cap: 2s}}}}\n\
         defaults: {{direction: both, retry: {{base: 1s, cap: 2s}}}}\npeers:\n"
    );
    for Peer(name, url, more) in peers {
        let more = if more.is_empty() { "interval_seconds: 1" } else { more };
        yaml += &format!("- {{name: {name}, url: '{url}', {more}, filters: [{{name: notes, filter: {FILTER}}}]}}\n");
    }
    yaml
}

/// A good relay that holds these.
async fn relay(events: &[Event]) -> ModelRelay {
    let relay = ModelRelay::start(Quirks::default()).await;
    relay.fill(events);
    relay
}

fn start(yaml: &str) -> (Cli, Running) {
    let cli = Cli::with_config(yaml);
    let running = cli.spawn_logged(&["-vv", "run"]);
    (cli, running)
}

/// Waits until something holds, and returns how long that took.
async fn eventually(cli: &Cli, what: &str, within: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < within, "{what}: not within {within:?}:\n{}", cli.log());
        sleep(Duration::from_millis(20)).await;
    }
    started.elapsed()
}

/// Whether both hold the same, and so many events.
fn equal(a: &ModelRelay, b: &ModelRelay, count: usize) -> bool {
    let (a, b) = (a.ids(&json!({})), b.ids(&json!({})));
    a == b && a.len() == count
}

/// `status --json`.
async fn status(cli: &Cli) -> Value {
    let output = cli.run(&["status", "--json"]).await;
    assert_eq!(output.code, 0, "{output:#?}");
    output.json_lines().remove(0)
}

/// The row of one peer's job, once it is there.
async fn job(cli: &Cli, peer: &str) -> Option<Value> {
    status(cli).await["jobs"].as_array().unwrap().iter().find(|job| job["peer"] == peer).cloned()
}

/// Waits until the row of a peer's job is as wanted.
async fn job_becomes(cli: &Cli, peer: &str, within: Duration, wanted: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let row = job(cli, peer).await;
        if let Some(row) = row.clone().filter(&wanted) {
            return row;
        }
        assert!(started.elapsed() < within, "{peer}: {row:#?} after {within:?}:\n{}", cli.log());
        sleep(Duration::from_millis(100)).await;
    }
}

/// Ends it as a service manager does, and it has to end well.
async fn stop(cli: &Cli, running: Running) {
    running.signal("TERM").await;
    let started = Instant::now();
    let output = running.finish().await;
    assert_eq!(output.code, 0, "{}", cli.log());
    assert!(started.elapsed() < Duration::from_secs(10), "took {:?}:\n{}", started.elapsed(), cli.log());
    assert!(!cli.log().contains("panicked"), "{}", cli.log());
}

/// So many notes of one author, one a second from `EPOCH` on.
fn notes(author: u8, count: usize) -> Vec<Event> {
    Author::new(author).notes(count, crate::support::events::EPOCH)
}
