//! Many clients at once, some of them hostile.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{QUERY, TestGateway, reconcile};
use crate::support::cli::Cli;
use crate::support::client::Client;
use crate::support::events::{Author, EPOCH, Event, ids};
use crate::support::relay::{TestRelay, free_port};

/// How many do what.
struct Crowd {
    /// Clients that ask for a few events, again and again, and as many at the relay itself: both
    /// meet with the same load.
    readers: usize,
    /// Clients that reconcile all events at once.
    reconcilers: usize,
    hostile: usize,
    events: usize,
    /// For how long readers read at the least.
    time: Duration,
}

/// What a crowd met with.
#[derive(Debug)]
struct Figures {
    /// The 99th percentile of a small REQ, through the gateway and at the relay itself.
    through: Duration,
    direct: Duration,
    requests: usize,
    /// From the first NEG-OPEN to the last answer, of all.
    reconciled: Duration,
    /// The most bytes that the gateway took.
    memory: u64,
}

/// Lets a crowd at a gateway in front of a relay that holds all but the last 100 of `all`.
/// `memory` says what the gateway takes.
async fn gather(crowd: Crowd, all: &[Event], gateway: &str, relay: &str, memory: impl Fn() -> u64) -> Figures {
    let until = Instant::now() + crowd.time;
    let through = join_all((0..crowd.readers).map(|n| read(gateway, n, until)));
    let direct = join_all((0..crowd.readers).map(|n| read(relay, n, until)));
    let started = Instant::now();
    let reconcilers = join_all((0..crowd.reconcilers).map(|_| async {
        // Own events begin later and go on longer.
        let (have, need) = patiently(gateway, &all[100..]).await;
        assert_eq!((have, need), (ids(&all[crowd.events - 100..]), ids(&all[..100])));
        started.elapsed()
    }));
    let hostile = join_all((0..crowd.hostile).map(|n| attack(gateway, n, until)));
    let watching = async {
        let mut most = 0;
        while Instant::now() < until {
            most = most.max(memory());
            sleep(Duration::from_millis(20)).await;
        }
        most
    };
    let (through, direct, reconciled, _, memory) = tokio::join!(through, direct, reconcilers, hostile, watching);
    Figures {
        requests: through.iter().map(Vec::len).sum(),
        through: percentile(through),
        direct: percentile(direct),
        reconciled: reconciled.into_iter().max().unwrap_or_default(),
        memory,
    }
}

fn percentile(times: Vec<Vec<Duration>>) -> Duration {
    let mut times: Vec<_> = times.into_iter().flatten().collect();
    times.sort();
    times[times.len() * 99 / 100]
}

/// Asks for ten events at a time, at a person's pace.
async fn read(url: &str, n: usize, until: Instant) -> Vec<Duration> {
    sleep(Duration::from_millis(n as u64 * 7 % 1000)).await;
    let mut client = Client::connect(url).await;
    let mut times = Vec::new();
    while Instant::now() < until {
        let filter = json!({"kinds": [1], "since": EPOCH + n as u64, "until": EPOCH + n as u64 + 9});
        let started = Instant::now();
        let answers = client.request(&filter).await;
        times.push(started.elapsed());
        assert!(answers.len() >= 10, "{answers:?}");
        sleep(Duration::from_millis(900 + n as u64 * 13 % 200)).await;
    }
    times
}

/// Reconciles, and comes again when it is told to.
async fn patiently(
    url: &str,
    own: &[Event],
) -> (std::collections::BTreeSet<String>, std::collections::BTreeSet<String>) {
    let mut client = Client::connect(url).await;
    for _ in 0..100 {
        match reconcile(&mut client, "r", &json!({"kinds": [1]}), own).await {
            Ok(found) => return found,
            Err(said) => assert!(said[2].as_str().unwrap().starts_with("rate-limited: too many concurrent"), "{said}"),
        }
        sleep(Duration::from_millis(500)).await;
    }
    panic!("it is never served")
}

/// Whatever a client should not do.
async fn attack(url: &str, n: usize, until: Instant) {
    let filter = json!({"kinds": [1]});
    while Instant::now() < until {
        let mut client = Client::connect(url).await;
        match n % 5 {
            // Opens the same session over and over, and leaves.
            0 => {
                for _ in 0..50 {
                    client.send(&json!(["NEG-OPEN", "x", filter, QUERY])).await;
                }
            }
            // Sends what is no message.
            1 => {
                for query in ["61ff", "zz", &"61".repeat(400_000), "610002ffffff7f"] {
                    client.send(&json!(["NEG-OPEN", "x", filter, query])).await;
                    let said: Value = client.receive().await.unwrap();
                    assert!(said[0] == "NEG-ERR" || said[0] == "NEG-MSG", "{said}");
                }
            }
            // Asks for much and reads nothing.
            2 => {
                for id in 0..8 {
                    client.send(&json!(["NEG-OPEN", id.to_string(), filter, QUERY])).await;
                }
                sleep(Duration::from_millis(700)).await;
            }
            // Holds sessions open.
            3 => {
                client.send(&json!(["NEG-OPEN", "x", filter, QUERY])).await;
                client.receive().await.unwrap();
                sleep(Duration::from_secs(1)).await;
            }
            // Ids that are too long, and deep JSON.
            _ => {
                client.send(&json!(["NEG-OPEN", "x".repeat(100_000), filter, QUERY])).await;
                client.send_text(&format!("[\"NEG-OPEN\",\"x\",{}", "[".repeat(100_000))).await;
                assert_eq!(client.receive().await.unwrap()[0], "NOTICE");
                assert_eq!(client.receive().await.unwrap()[0], "NEG-ERR");
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_crowd_is_served() {
    let crowd = Crowd { readers: 20, reconcilers: 8, hostile: 5, events: 2000, time: Duration::from_secs(5) };
    let relay = TestRelay::in_process().await;
    let all = Author::new(1).notes(crowd.events, EPOCH);
    relay.fill(&all[..crowd.events - 100]).await;
    let gateway = TestGateway::start(relay.url()).await;
    let held = || gateway.view().inventory_bytes.unsigned_abs();
    let figures = gather(crowd, &all, &gateway.url, relay.url(), held).await;
    println!("{figures:?}");
    // Two blocks for each session that there can be.
    assert!(figures.requests > 20 && figures.memory <= 64 * 2 * 40_960, "{figures:?}");
    assert!(figures.reconciled < Duration::from_secs(30), "{figures:?}");
    gateway.is_empty().await;
}

/// 500 clients, 50 of them reconciling 20,000 events each, 20 hostile, before a gateway that is a
/// process of its own. The relay is strfry where `TIELINE_TEST_STRFRY` says where it is. The
/// figures say nothing unless it is built with `--release` and the machine has nothing else to
/// do: `cargo test --release --test it a_large_crowd -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it takes a minute of an idle machine"]
async fn a_large_crowd_is_served() {
    let crowd = Crowd { readers: 430, reconcilers: 50, hostile: 20, events: 20_000, time: Duration::from_secs(30) };
    let relay = match TestRelay::strfry().await {
        Some(relay) => relay,
        None => TestRelay::in_process().await,
    };
    let all = Author::new(1).notes(crowd.events, EPOCH);
    relay.fill(&all[..crowd.events - 100]).await;
    let port = free_port();
    let cli = Cli::with_config(&format!(
        "local: {{url: '{}'}}\ngateway: {{listen: '127.0.0.1:{port}', limits: {{sessions: 80}}}}\n",
        relay.url()
    ));
    let running = cli.spawn_logged(&["gateway"]);
    let url = format!("ws://127.0.0.1:{port}");
    while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
        sleep(Duration::from_millis(20)).await;
    }
    let before = resident(running.id());
    let figures = gather(crowd, &all, &url, relay.url(), || resident(running.id())).await;
    println!("{}: {figures:?}, {before} bytes before", relay.name());
    running.signal("TERM").await;
    assert_eq!(running.finish().await.code, 0, "{}", cli.log());
    assert!(figures.memory <= 256 << 20);
    assert!(figures.through <= figures.direct * 2 + Duration::from_millis(5), "{figures:?}");
}

/// Resident bytes of a process.
fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or_default() * 4096
}
