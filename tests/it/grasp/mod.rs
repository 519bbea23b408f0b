//! GRASP-02, end to end: the daemon beside a relay that takes what belongs to its repositories.

// From one bootstrap relay to everything the local relay accepts; then live; then in chaos.
mod closure;
// Faults that are known of others: each was seen to lose events, or to ask for them for ever.
mod faults;
// Notices of what was newly stored.
mod notify;
// What repositories look like, and what a GRASP relay takes.
mod world;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::support::cli::{Cli, Running};
use crate::support::model::ModelRelay;

/// Longer than anything takes that does not wait for a backoff.
const SOON: Duration = Duration::from_secs(60);

/// A config with discovery alone.
fn config(local: &ModelRelay, bootstrap: &[&ModelRelay], more: &str) -> String {
    let urls: Vec<_> = bootstrap.iter().map(|relay| format!("'{}'", relay.url())).collect();
    format!(
        "local: {{url: '{url}', retry: {{base: 1s, cap: 2s}}}}\n\
         grasp: {{service: '{url}', bootstrap: [{}], batch_window: 300ms{more}}}\n",
        urls.join(", "),
        url = local.url(),
    )
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
        assert!(started.elapsed() < within, "{what}: not within {within:?}; the log: {}", keep(cli));
        sleep(Duration::from_millis(50)).await;
    }
    started.elapsed()
}

/// Waits until a relay holds exactly these ids.
async fn holds(cli: &Cli, relay: &ModelRelay, wanted: &BTreeSet<String>, within: Duration) -> Duration {
    let started = Instant::now();
    loop {
        let held = relay.ids(&json!({}));
        if held == *wanted {
            return started.elapsed();
        }
        let (missing, extra) = (wanted.difference(&held).count(), held.difference(wanted).count());
        let first: Vec<_> = wanted.symmetric_difference(&held).take(5).collect();
        assert!(started.elapsed() < within, "{missing} missing, {extra} too many: {first:?}; the log: {}", keep(cli));
        sleep(Duration::from_millis(100)).await;
    }
}

/// Puts the log where it can be read after the test.
fn keep(cli: &Cli) -> String {
    let name = cli.directory().file_name().unwrap().to_string_lossy();
    let path = std::env::temp_dir().join(format!("tieline-grasp{name}.log"));
    std::fs::write(&path, cli.log()).unwrap();
    path.display().to_string()
}

async fn status(cli: &Cli) -> Value {
    let output = cli.run(&["status", "--json"]).await;
    assert_eq!(output.code, 0, "{output:#?}");
    output.json_lines().remove(0)
}

/// The jobs in `status`, as `peer filter state`.
async fn jobs(cli: &Cli) -> Vec<(String, String, String)> {
    let text = |job: &Value, key: &str| job[key].as_str().unwrap_or_default().to_owned();
    let status = status(cli).await;
    let jobs = status["jobs"].as_array().unwrap().iter();
    jobs.map(|job| (text(job, "peer"), text(job, "filter"), text(job, "state"))).collect()
}

/// Waits until every job of a peer that ran has converged, and there are so many.
async fn converges(cli: &Cli, peer: &str, least: usize, within: Duration) {
    let started = Instant::now();
    loop {
        let all: Vec<_> = jobs(cli).await.into_iter().filter(|(of, ..)| of == peer).collect();
        if all.len() >= least && all.iter().all(|(.., state)| state == "converged") {
            return;
        }
        assert!(started.elapsed() < within, "{peer}: {all:#?}; the log: {}", keep(cli));
        sleep(Duration::from_millis(200)).await;
    }
}

/// Ends it as a service manager does, and it has to end well.
async fn stop(cli: &Cli, running: Running) {
    running.signal("TERM").await;
    let output = running.finish().await;
    assert_eq!(output.code, 0, "{}", keep(cli));
    assert!(!cli.log().contains("panicked"), "{}", keep(cli));
}
