//! Clients that are not ours, and Tieline between two gateways.

use std::collections::BTreeSet;
use std::time::Duration;

use nostr_sdk::prelude::{
    Client as Sdk, Filter, JsonUtil, Kind, MemoryDatabase, MemoryDatabaseOptions, NostrDatabase, SyncDirection,
    SyncOptions,
};
use serde_json::json;
use tieline::job_spec::{Direction, StrategyChoice};

use super::TestGateway;
use crate::support::events::{Author, EPOCH, Event, ids};
use crate::support::relay::TestRelay;
use crate::support::run::Run;

/// nostr-sdk with these events in its database.
async fn sdk(gateway: &TestGateway, events: &[Event]) -> Sdk {
    let database = MemoryDatabase::with_opts(MemoryDatabaseOptions { events: true, max_events: None });
    for event in events {
        database.save_event(&nostr_sdk::Event::from_json(&event.json).unwrap()).await.unwrap();
    }
    let client = Sdk::builder().database(database).build();
    client.add_relay(&gateway.url).await.unwrap();
    client.connect().await;
    client.wait_for_connection(Duration::from_secs(10)).await;
    client
}

async fn held(client: &Sdk) -> BTreeSet<String> {
    let events = client.database().query(Filter::new().kind(Kind::TextNote)).await.unwrap();
    events.into_iter().map(|event| event.id.to_hex()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nostr_sdk_converges_with_a_relay_without_nip_77() {
    let all = Author::new(1).notes(1500, EPOCH);
    let relay = TestRelay::nostr_relay().await;
    relay.fill(&all[..1000]).await;
    let gateway = TestGateway::start(relay.url()).await;
    let client = sdk(&gateway, &all[400..]).await;
    let options = SyncOptions::default().direction(SyncDirection::Both);
    let output = client.sync(Filter::new().kind(Kind::TextNote), &options).await.unwrap();
    assert_eq!((output.received.len(), output.sent.len()), (400, 500), "{:?}", output.send_failures);
    assert_eq!(held(&client).await, ids(&all));
    assert_eq!(relay.ids(&json!({"kinds": [1]})).await, ids(&all));
    let again = client.sync(Filter::new().kind(Kind::TextNote), &options).await.unwrap();
    assert_eq!((again.received.len(), again.sent.len(), again.local.len(), again.remote.len()), (0, 0, 0, 0));
    client.shutdown().await;
    gateway.is_empty().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tieline_mediates_between_two_gateways() {
    let all = Author::new(1).notes(1200, EPOCH);
    let (local, peer) = (TestRelay::nostr_relay().await, TestRelay::nostr_relay().await);
    local.fill(&all[..800]).await;
    peer.fill(&all[300..]).await;
    let (at_local, at_peer) = (TestGateway::start(local.url()).await, TestGateway::start(peer.url()).await);
    let mut run = Run::new(&at_local.url, &at_peer.url, &json!({"kinds": [1]}), Direction::Both);
    run.spec.strategy = StrategyChoice::Mediated;
    let report = run.converges().await;
    assert_eq!((report.local_only, report.peer_only, report.strategy), (300, 400, Some("mediated")));
    for relay in [&local, &peer] {
        assert_eq!(relay.ids(&json!({"kinds": [1]})).await, ids(&all));
    }
    run.is_idle().await;
    at_local.is_empty().await;
    at_peer.is_empty().await;
}

/// A filter too big for the gateway is reconciled in windows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tieline_splits_what_a_gateway_finds_too_big() {
    let all = Author::new(1).notes(1200, EPOCH);
    let (local, peer) = (TestRelay::in_process().await, TestRelay::nostr_relay().await);
    local.fill(&all[..800]).await;
    peer.fill(&all[300..]).await;
    let gateway = TestGateway::with(peer.url(), "limits: {events_per_filter: 200}").await;
    let mut run = Run::new(local.url(), &gateway.url, &json!({"kinds": [1]}), Direction::Both);
    run.spec.strategy = StrategyChoice::Mediated;
    run.converges().await;
    assert!(gateway.refused("events") > 0);
    for relay in [&local, &peer] {
        assert_eq!(relay.ids(&json!({"kinds": [1]})).await, ids(&all));
    }
}

/// `strfry sync`, where `TIELINE_TEST_STRFRY` says where it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strfry_sync_converges() {
    let Some(strfry) = TestRelay::strfry().await else {
        println!("skipped: TIELINE_TEST_STRFRY is not set");
        return;
    };
    let all = Author::new(1).notes(1500, EPOCH);
    let relay = TestRelay::nostr_relay().await;
    relay.fill(&all[..1000]).await;
    strfry.fill(&all[400..]).await;
    let gateway = TestGateway::start(relay.url()).await;
    let TestRelay::Process(process) = &strfry else { panic!() };
    let filter = r#"{"kinds":[1]}"#;
    let output = process.command(&["sync", &gateway.url, "--filter", filter, "--dir", "both"]).await;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(relay.ids(&json!({"kinds": [1]})).await, ids(&all), "{output:?}");
    assert_eq!(strfry.ids(&json!({"kinds": [1]})).await, ids(&all), "{output:?}");
}
