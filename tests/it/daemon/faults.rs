//! Lines that are slow or end again and again, and processes that are killed over and over.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Peer, SOON, config, equal, eventually, job_becomes, notes, relay, start, stop};
use crate::support::cli::Cli;
use crate::support::events::{Author, EPOCH, Event, now};
use crate::support::model::{ModelRelay, Quirks};
use crate::support::proxy::Proxy;

/// 64 kbit/s, each way.
const SLOW: usize = 8000;

/// A connection that lasts so long.
const FLAP: Duration = Duration::from_secs(3);

/// How often a process is killed in the middle of its work.
const KILLS: usize = 20;

/// 80 events of 3 kB each way: half a minute on the line, more than any answer may take by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_line_that_moves_is_no_fault() {
    let long = "x".repeat(2700);
    let write = |author, count: u64| -> Vec<Event> {
        (0..count).map(|n| Author::new(author).note_saying(EPOCH + n, &long)).collect()
    };
    let (local, peer) = (relay(&write(1, 80)).await, relay(&write(2, 80)).await);
    let proxy = Proxy::start(peer.url()).await;
    proxy.set_throttle(Some(SLOW));
    let (cli, running) = start(&config(local.url(), &[Peer("p", proxy.url(), "interval_seconds: 1, live: true")]));
    let took = eventually(&cli, "both are equal", Duration::from_secs(120), || equal(&local, &peer, 160)).await;
    println!("equal after {took:?}");
    assert!(took > Duration::from_secs(25), "the line was not slow: {took:?}");
    job_becomes(&cli, "p", SOON * 2, |row| row["state"] == "converged").await;
    let row = super::job(&cli, "p").await.unwrap();
    assert_eq!(row["failures"], 0, "{row:#}");
    for fault in ["timed out", "no answer", "silent", "is lost", "ended early"] {
        assert!(!cli.log().contains(fault), "{fault}:\n{}", cli.log());
    }
    // Each was moved once.
    assert_eq!((local.offered().len(), peer.offered().len()), (80, 80));
    stop(&cli, running).await;
}

/// Every 3 s all connections end, while thousands of events are copied and others appear.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_flaps_every_three_seconds_is_synced() {
    const HISTORY: usize = 4000;
    let all = notes(1, HISTORY);
    let (local, peer) = (relay(&all[..3000]).await, relay(&all[1000..]).await);
    // So that the copy takes several of its lives.
    peer.change(|quirks| quirks.delay = Duration::from_millis(10));
    let (cli, running) = start(&config(local.url(), &[Peer("p", peer.url(), "interval_seconds: 1, live: true")]));
    let missing = |count: usize| 2 * count - local.ids(&json!({})).len() - peer.ids(&json!({})).len();
    let (mut flaps, mut amid, mut count) = (0, 0, HISTORY);
    let started = Instant::now();
    while flaps < 5 {
        local.fill(&[Author::new(2).note_saying(now(), &count.to_string())]);
        peer.fill(&[Author::new(3).note_saying(now(), &count.to_string())]);
        count += 2;
        sleep(Duration::from_millis(100)).await;
        if started.elapsed() > FLAP * (flaps + 1) {
            peer.disconnect();
            flaps += 1;
            amid += usize::from(missing(count) > 100);
        }
    }
    println!("{amid} of {flaps} ends in the middle of the copy; {} of {count} missing after them", missing(count));
    assert!(amid >= 2);
    peer.change(|quirks| quirks.delay = Duration::ZERO);
    let took = eventually(&cli, "both are equal", SOON * 3, || equal(&local, &peer, count)).await;
    println!("equal {took:?} after the last one");
    job_becomes(&cli, "p", SOON, |row| row["state"] == "converged").await;
    stop(&cli, running).await;
}

/// Two relays that lack much of each other, and take their time.
async fn apart(count: usize) -> (ModelRelay, ModelRelay) {
    let all = notes(1, count);
    let pair = (relay(&all[..count * 2 / 3]).await, relay(&all[count / 3..]).await);
    for relay in [&pair.0, &pair.1] {
        relay.change(|quirks: &mut Quirks| quirks.delay = Duration::from_millis(1));
    }
    pair
}

fn dice() -> fastrand::Rng {
    let seed = std::env::var("TIELINE_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("TIELINE_TEST_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Nothing is missing, the numbers add up, and there is nothing left to do.
async fn converges(cli: &Cli, local: &ModelRelay, peer: &ModelRelay, count: usize) {
    for relay in [local, peer] {
        relay.change(|quirks| quirks.delay = Duration::ZERO);
    }
    for run in 1..=3 {
        let output = cli.run(&["sync", "--json"]).await;
        let report = output.json_lines().remove(0);
        assert_eq!((output.code, &report["outcome"]), (0, &json!("converged")), "{report:#}");
        for (found, moved) in [("local_only", "uploaded"), ("peer_only", "downloaded")] {
            let outcomes = report[moved].as_object().unwrap().values();
            let total: u64 = outcomes
                .map(|outcome| match outcome {
                    Value::Object(reasons) => reasons.values().filter_map(Value::as_u64).sum(),
                    number => number.as_u64().unwrap_or(0),
                })
                .sum();
            assert_eq!(report[found], total, "{found}: {report:#}");
        }
        assert!(run == 1 || report["bodies_received"] == 0, "run {run} moves something: {report:#}");
    }
    assert!(equal(local, peer, count));
    for said in ["repair", "damaged", "without memory", "ERROR", "panicked"] {
        assert!(!cli.log().contains(said), "{said}:\n{}", cli.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_the_daemon_twenty_times_loses_nothing() {
    const COUNT: usize = 6000;
    let (mut dice, (local, peer)) = (dice(), apart(COUNT).await);
    let cli = Cli::with_config(&config(local.url(), &[Peer("p", peer.url(), "interval_seconds: 1, live: true")]));
    let mut amid = 0;
    for _ in 0..KILLS {
        let missing = || 2 * COUNT - local.ids(&json!({})).len() - peer.ids(&json!({})).len();
        let before = missing();
        let running = cli.spawn_logged(&["run"]);
        eventually(&cli, "it moves", SOON, || missing() < before || before == 0).await;
        sleep(Duration::from_millis(dice.u64(0..60))).await;
        running.signal("KILL").await;
        assert_eq!(running.finish().await.code, -1);
        amid += usize::from(missing() > 0);
    }
    println!("{amid} of {KILLS} in the middle of a transfer");
    assert!(amid > KILLS / 2);
    converges(&cli, &local, &peer, COUNT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_of_a_one_shot_twenty_times_loses_nothing() {
    const COUNT: usize = 6000;
    let (mut dice, (local, peer)) = (dice(), apart(COUNT).await);
    let cli = Cli::with_config(&config(local.url(), &[Peer("p", peer.url(), "")]));
    let mut amid = 0;
    for kill in 0..KILLS {
        let missing = || 2 * COUNT - local.ids(&json!({})).len() - peer.ids(&json!({})).len();
        let before = missing();
        let running = cli.spawn_logged(&["sync"]);
        // Before it has done much, and well into its transfer.
        if kill % 2 == 1 {
            eventually(&cli, "it moves", SOON, || missing() < before || before == 0).await;
        }
        sleep(Duration::from_millis(dice.u64(0..60))).await;
        running.signal("KILL").await;
        // It may have come to its end.
        running.finish().await;
        amid += usize::from(missing() > 0 && missing() < before);
    }
    println!("{amid} of {KILLS} in the middle of a transfer");
    assert!(amid >= KILLS / 4);
    converges(&cli, &local, &peer, COUNT).await;
}
