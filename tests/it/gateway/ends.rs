//! Relays, clients and gateways that end in the middle.

use std::time::Duration;

use serde_json::json;
use tieline::metrics::GatewayView;
use tokio::time::{Instant, sleep};

use super::{QUERY, SOON, TestGateway, inventory, listed, open, word};
use crate::support::client::Client;
use crate::support::events::{Author, EPOCH};
use crate::support::model::{ModelRelay, Quirks};
use crate::support::proxy::{Fault, Proxy};
use crate::support::relay::TestRelay;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_killed_in_the_middle_of_a_listing() {
    let relay = ModelRelay::start(Quirks::default()).await;
    relay.fill(&Author::new(1).notes(3000, EPOCH));
    let proxy = Proxy::start(relay.url()).await;
    let gateway = TestGateway::start(proxy.url()).await;
    // With the first frame, in the first page, between pages, and in a later one.
    for cut in [0, 1, 250, 501, 502, 503, 1700, 2900] {
        let mut client = Client::connect(&gateway.url).await;
        open(&mut client, "b", &json!({"kinds": [7]})).await;
        assert_eq!(listed(&word(&mut client, "b").await), Vec::<String>::new());
        proxy.set_fault(Fault::CutOnce(cut));
        open(&mut client, "a", &json!({"kinds": [1]})).await;
        let mut ended: Vec<_> = Vec::new();
        while let Some(said) = client.receive().await {
            assert_eq!(said[0], "NEG-ERR", "{cut}: {said}");
            assert_eq!(said[2], "closed: the connection to the relay was lost");
            ended.push(said[1].as_str().unwrap().to_owned());
        }
        ended.sort();
        assert_eq!(ended, ["a", "b"], "{cut}: each session is told, then the line ends as the relay's did");
        drop(client);
        gateway.is_empty().await;
    }
    assert_eq!(inventory(&gateway.url, &json!({"kinds": [1]})).await.len(), 3000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_relay_killed_with_sessions_open() {
    let relay = TestRelay::nostr_relay().await;
    relay.fill(&Author::new(1).notes(200, EPOCH)).await;
    let gateway = TestGateway::start(relay.url()).await;
    let mut client = Client::connect(&gateway.url).await;
    open(&mut client, "a", &json!({"kinds": [1]})).await;
    assert_eq!(listed(&word(&mut client, "a").await).len(), 200);
    relay.stop();
    assert_eq!(word(&mut client, "a").await, json!(["NEG-ERR", "a", "closed: the connection to the relay was lost"]));
    assert_eq!(client.receive().await, None);
    drop(client);
    gateway.is_empty().await;
}

/// Clients that vanish in every stage of a session leave nothing behind, and what they sent
/// before has arrived.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_vanish() {
    let relay = ModelRelay::start(Quirks::default()).await;
    relay.fill(&Author::new(1).notes(2000, EPOCH));
    let gateway = TestGateway::start(relay.url()).await;
    for n in 0..30_u64 {
        let mut client = Client::connect(&gateway.url).await;
        open(&mut client, "a", &json!({"kinds": [1]})).await;
        if n % 3 == 1 {
            sleep(Duration::from_millis(n)).await;
        } else if n % 3 == 2 {
            word(&mut client, "a").await;
            client.send(&json!(["NEG-MSG", "a", QUERY])).await;
        }
        let note = Author::new(2).note(EPOCH + n);
        client.send_text(&format!(r#"["EVENT",{}]"#, note.json)).await;
        drop(client);
    }
    gateway.is_empty().await;
    let author = Author::new(2).pubkey();
    assert_eq!(relay.ids(&json!({"authors": [author]})).len(), 30);
}

/// Sessions under way may finish; new ones, and new clients, are not taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_that_stops() {
    let relay = ModelRelay::start(Quirks::default()).await;
    relay.fill(&Author::new(1).notes(20, EPOCH));
    let mut gateway = TestGateway::start(relay.url()).await;
    let (mut busy, mut idle) = (Client::connect(&gateway.url).await, Client::connect(&gateway.url).await);
    let mut stuck = Client::connect(&gateway.url).await;
    for client in [&mut busy, &mut stuck] {
        open(client, "a", &json!({"kinds": [1]})).await;
        word(client, "a").await;
    }
    let started = Instant::now();
    gateway.stop.cancel();
    assert_eq!(idle.receive().await, None, "who does nothing is let go at once");
    assert!(started.elapsed() < Duration::from_secs(2));
    assert!(tokio_tungstenite::connect_async(&gateway.url).await.is_err());
    busy.send(&json!(["NEG-MSG", "a", QUERY])).await;
    assert_eq!(listed(&word(&mut busy, "a").await).len(), 20);
    open(&mut busy, "b", &json!({"kinds": [1]})).await;
    assert_eq!(word(&mut busy, "b").await[2], "closed: the gateway is stopping");
    busy.send(&json!(["NEG-CLOSE", "a"])).await;
    assert_eq!(busy.receive().await, None);
    assert_eq!(word(&mut stuck, "a").await[2], "closed: the gateway is stopping");
    assert_eq!(stuck.receive().await, None);
    tokio::time::timeout(SOON, &mut gateway.task).await.expect("it ends").unwrap();
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(gateway.view(), GatewayView::default());
}
