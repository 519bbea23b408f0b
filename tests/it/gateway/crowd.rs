//! Many clients at once, some of them hostile.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{QUERY, TestGateway, reconcile};
use crate::support::client::Client;
use crate::support::events::{Author, EPOCH, Event, ids};
use crate::support::relay::TestRelay;

/// How many do what.
struct Crowd {
    /// Clients that ask for a few events, again and again, and as many at the relay itself.
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
    /// The most bytes of inventories.
    inventories: i64,
}

async fn gather(crowd: Crowd) -> Figures {
    let relay = TestRelay::in_process().await;
    let all = Author::new(1).notes(crowd.events, EPOCH);
    relay.fill(&all[..crowd.events - 100]).await;
    let gateway = TestGateway::with(relay.url(), "limits: {sessions: 80, total: 2m}").await;
    let (all, url, gateway) = (&all, relay.url(), &gateway);

    let until = Instant::now() + crowd.time;
    let through = join_all((0..crowd.readers / 2).map(|n| read(&gateway.url, n, until)));
    let direct = join_all((0..crowd.readers.div_ceil(2)).map(|n| read(url, n, until)));
    let started = Instant::now();
    let reconcilers = join_all((0..crowd.reconcilers).map(|_| async {
        // Own events begin later and go on longer.
        let own = &all[100..];
        let (have, need) = patiently(&gateway.url, own).await;
        assert_eq!((have, need), (ids(&all[crowd.events - 100..]), ids(&all[..100])));
        started.elapsed()
    }));
    let hostile = join_all((0..crowd.hostile).map(|n| attack(&gateway.url, n, until)));
    let watching = async {
        let mut most = 0;
        while Instant::now() < until {
            most = most.max(gateway.view().inventory_bytes);
            sleep(Duration::from_millis(20)).await;
        }
        most
    };
    let (through, direct, reconciled, _, inventories) = tokio::join!(through, direct, reconcilers, hostile, watching);
    gateway.is_empty().await;
    let requests = through.iter().map(Vec::len).sum();
    Figures {
        through: percentile(through),
        direct: percentile(direct),
        requests,
        reconciled: reconciled.into_iter().max().unwrap_or_default(),
        inventories,
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
    let crowd = Crowd { readers: 40, reconcilers: 8, hostile: 5, events: 2000, time: Duration::from_secs(5) };
    let figures = gather(crowd).await;
    println!("{figures:?}");
    assert!(figures.requests > 40 && figures.reconciled < Duration::from_secs(30), "{figures:?}");
}

/// 500 clients, 50 of them reconciling 20,000 events each, 20 hostile. The figures say nothing
/// unless it is built with `--release` and the machine has nothing else to do:
/// `cargo test --release --test it a_large_crowd -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it takes a minute of an idle machine"]
async fn a_large_crowd_is_served() {
    // As many readers at the relay itself as through the gateway: both meet with the same load.
    let crowd = Crowd { readers: 860, reconcilers: 50, hostile: 20, events: 20_000, time: Duration::from_secs(30) };
    let figures = gather(crowd).await;
    println!("{figures:?}");
    assert!(figures.inventories <= 256 << 20);
    assert!(figures.through <= figures.direct * 2 + Duration::from_millis(5), "{figures:?}");
}
