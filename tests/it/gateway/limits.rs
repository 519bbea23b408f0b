//! Each limit ends in its NEG-ERR, and in nothing else.

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Error;

use super::{QUERY, TestGateway, inventory, listed, open, word};
use crate::support::client::Client;
use crate::support::events::{Author, EPOCH};
use crate::support::model::{ModelRelay, Quirks};

const FILTER: fn() -> Value = || json!({"kinds": [1]});

async fn relay(count: usize) -> ModelRelay {
    let relay = ModelRelay::start(Quirks::default()).await;
    relay.fill(&Author::new(1).notes(count, EPOCH));
    relay
}

/// The connection serves what it served before.
async fn lives(client: &mut Client) {
    let answers = client.request(&json!({"kinds": [1], "limit": 1})).await;
    // Words on sessions may still be under way.
    assert_eq!(answers.iter().filter(|answer| answer[1] == "q").count(), 2, "{answers:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_events() {
    let relay = relay(1001).await;
    let gateway = TestGateway::with(relay.url(), "limits: {events_per_filter: 1000}").await;
    let mut client = Client::connect(&gateway.url).await;
    open(&mut client, "a", &FILTER()).await;
    let said = word(&mut client, "a").await;
    assert_eq!(said, json!(["NEG-ERR", "a", "blocked: too many events match this filter", 1000]));
    gateway.holds(|view| view.sessions == 0 && view.listings == 0 && view.inventory_bytes == 0).await;
    open(&mut client, "a", &json!({"kinds": [1], "since": EPOCH + 1})).await;
    assert_eq!(listed(&word(&mut client, "a").await).len(), 1000, "the most that is permitted");
    lives(&mut client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_many_sessions() {
    let relay = relay(3).await;
    let gateway = TestGateway::with(relay.url(), "limits: {sessions_per_connection: 2, sessions: 3}").await;
    let (mut client, mut other) = (Client::connect(&gateway.url).await, Client::connect(&gateway.url).await);
    for id in ["a", "b"] {
        open(&mut client, id, &FILTER()).await;
        assert_eq!(listed(&word(&mut client, id).await).len(), 3);
    }
    open(&mut client, "c", &FILTER()).await;
    let said = word(&mut client, "c").await;
    assert_eq!(said[2], "rate-limited: too many concurrent sessions on this connection, at most 2");
    open(&mut other, "a", &FILTER()).await;
    assert_eq!(word(&mut other, "a").await[0], "NEG-MSG");
    open(&mut other, "b", &FILTER()).await;
    assert_eq!(word(&mut other, "b").await[2], "rate-limited: too many concurrent sessions");
    // One that is open may be opened anew, and one that was closed leaves room.
    open(&mut client, "a", &FILTER()).await;
    assert_eq!(word(&mut client, "a").await[0], "NEG-MSG");
    client.send(&json!(["NEG-CLOSE", "a"])).await;
    gateway.holds(|view| view.sessions == 2).await;
    open(&mut other, "b", &FILTER()).await;
    assert_eq!(word(&mut other, "b").await[0], "NEG-MSG");
    lives(&mut client).await;
    drop((client, other));
    gateway.is_empty().await;
}

/// Listings wait for one another; who would wait for longer than clients do is sent away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn listings_take_turns() {
    let relay = relay(3).await;
    relay.change(|quirks| quirks.delay = Duration::from_millis(300));
    let gateway = TestGateway::with(relay.url(), "limits: {listings: 1}").await;
    let url = &gateway.url;
    let waiting = join_all((0..4).map(|_| async move { inventory(url, &FILTER()).await.len() }));
    let watching = async {
        for _ in 0..100 {
            assert!(gateway.view().listings <= 1);
            sleep(Duration::from_millis(5)).await;
        }
    };
    assert_eq!(tokio::join!(waiting, watching).0, [3; 4]);

    relay.change(|quirks| quirks.delay = Duration::from_secs(3600));
    let (mut one, mut other) = (Client::connect(url).await, Client::connect(url).await);
    open(&mut one, "a", &FILTER()).await;
    gateway.holds(|view| view.listings == 1).await;
    let started = Instant::now();
    open(&mut other, "a", &FILTER()).await;
    assert_eq!(word(&mut other, "a").await[2], "rate-limited: too many concurrent listings of the relay");
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_shared() {
    let relay = relay(12_000).await;
    // 24 blocks of 1024 events: one inventory of 12,000 takes 12 of them.
    let gateway = TestGateway::with(relay.url(), "limits: {memory_bytes: 1000000}").await;
    let (mut client, mut other) = (Client::connect(&gateway.url).await, Client::connect(&gateway.url).await);
    open(&mut client, "a", &FILTER()).await;
    assert_eq!(listed(&word(&mut client, "a").await).len(), 12_000);
    assert_eq!(gateway.view().inventory_bytes, 12 * 1024 * 40);
    open(&mut client, "b", &FILTER()).await;
    word(&mut client, "b").await;
    open(&mut other, "c", &FILTER()).await;
    let said = word(&mut other, "c").await;
    assert_eq!(said[2], "rate-limited: too many concurrent inventories, their memory is used up");
    client.send(&json!(["NEG-CLOSE", "b"])).await;
    gateway.holds(|view| view.inventory_bytes == 12 * 1024 * 40 && view.sessions == 1).await;
    open(&mut other, "c", &FILTER()).await;
    assert_eq!(listed(&word(&mut other, "c").await).len(), 12_000);
    lives(&mut other).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_and_total_time() {
    let relay = relay(3).await;
    let gateway = TestGateway::with(relay.url(), "limits: {idle: 1s, total: 3s}").await;
    let mut client = Client::connect(&gateway.url).await;
    open(&mut client, "a", &FILTER()).await;
    open(&mut client, "b", &FILTER()).await;
    word(&mut client, "a").await;
    word(&mut client, "b").await;
    let started = Instant::now();
    loop {
        // b goes on asking; a does not.
        sleep(Duration::from_millis(500)).await;
        client.send(&json!(["NEG-MSG", "b", QUERY])).await;
        let said = client.receive().await.unwrap();
        if said[0] == "NEG-ERR" {
            assert_eq!(said, json!(["NEG-ERR", "a", "closed: no message for 1 s"]));
            assert!(started.elapsed() >= Duration::from_millis(900));
            // It came before the answer to b.
            word(&mut client, "b").await;
            break;
        }
    }
    loop {
        client.send(&json!(["NEG-MSG", "b", QUERY])).await;
        let said = word(&mut client, "b").await;
        if said[0] == "NEG-ERR" {
            assert_eq!(said[2], "closed: the session took longer than 3 s");
            break;
        }
        sleep(Duration::from_millis(300)).await;
    }
    assert_eq!(gateway.view().sessions, 0);
    lives(&mut client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_a_second() {
    let relay = relay(3).await;
    let gateway = TestGateway::with(relay.url(), "limits: {messages_per_second: 5}").await;
    let mut client = Client::connect(&gateway.url).await;
    for n in 0..50 {
        open(&mut client, &format!("s{n}"), &FILTER()).await;
    }
    let mut refused = 0;
    for _ in 0..50 {
        let said = client.receive().await.unwrap();
        refused += usize::from(said[2] == "rate-limited: more than 5 negentropy messages a second");
    }
    assert!((40..=45).contains(&refused), "{refused}");
    lives(&mut client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_that_match_everything() {
    let relay = relay(3).await;
    let gateway = TestGateway::with(relay.url(), "limits: {}").await;
    let mut client = Client::connect(&gateway.url).await;
    for filter in [json!({}), json!({"since": 1}), json!({"until": EPOCH})] {
        open(&mut client, "a", &filter).await;
        let said = word(&mut client, "a").await;
        assert_eq!(said[2], "blocked: a filter that matches every event is not reconciled here");
    }
    assert_eq!(relay.received("REQ"), 0, "nothing is asked of the relay for it");
    lives(&mut client).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_at_once() {
    let relay = relay(3).await;
    let gateway = TestGateway::with(relay.url(), "limits: {connections: 2}").await;
    let mut first = Client::connect(&gateway.url).await;
    let second = Client::connect(&gateway.url).await;
    let Error::Http(answer) = connect_async(&gateway.url).await.unwrap_err() else { panic!() };
    assert_eq!(answer.status(), 503);
    lives(&mut first).await;
    drop(second);
    gateway.holds(|view| view.connections == 1).await;
    lives(&mut Client::connect(&gateway.url).await).await;
}

/// A relay that says nothing to the listing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_never_ends_its_answer() {
    let relay = relay(3).await;
    relay.change(|quirks| quirks.never_eose = true);
    let gateway = TestGateway::with(relay.url(), "limits: {total: 2s}").await;
    let mut client = Client::connect(&gateway.url).await;
    open(&mut client, "a", &FILTER()).await;
    assert_eq!(word(&mut client, "a").await[2], "closed: the session took longer than 2 s");
    gateway.holds(|view| view.listings == 0 && view.inventory_bytes == 0).await;
    for _ in 0..100 {
        if relay.received("CLOSE") > 0 {
            break;
        }
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(relay.received("CLOSE"), 1, "the relay is told that nobody waits any more");
}
