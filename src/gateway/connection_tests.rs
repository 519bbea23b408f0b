use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::io::DuplexStream;
use tokio::task::JoinHandle;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::Role;

use super::super::Gateway;
use super::*;
use crate::config::Config;
use crate::metrics::{GatewayMetrics, GatewayView};

type Socket = WebSocketStream<DuplexStream>;

/// A connection, with both far ends in hand. Time stands still but when all wait.
struct World {
    client: Socket,
    relay: Socket,
    running: JoinHandle<()>,
    metrics: GatewayMetrics,
    started: Instant,
}

impl World {
    async fn new() -> Self {
        let yaml = "local: {url: 'ws://127.0.0.1:1'}\ngateway: {}\n";
        let (config, _) = Config::from_yaml(yaml, "peers.yaml", 1_700_000_000).unwrap();
        let metrics = GatewayMetrics::default();
        let gateway = Gateway::new(&config.gateway.unwrap(), &config.local, metrics.clone()).unwrap();
        gateway.shared.known.set_limit(500);
        let socket = async |stream, role| WebSocketStream::from_raw_socket(stream, role, None).await;
        let (client, to_client) = tokio::io::duplex(1 << 16);
        let (relay, to_relay) = tokio::io::duplex(1 << 16);
        let (to_client, to_relay) = (socket(to_client, Role::Server).await, socket(to_relay, Role::Client).await);
        let connection = Connection::new(Leg::new(to_client), Leg::new(to_relay), gateway.shared.clone());
        Self {
            client: socket(client, Role::Client).await,
            relay: socket(relay, Role::Server).await,
            running: tokio::spawn(connection.run(CancellationToken::new())),
            metrics,
            started: clock::instant(),
        }
    }
}

/// Listens, which answers pings, and says nothing.
fn listen(mut socket: Socket) -> JoinHandle<Vec<Value>> {
    tokio::spawn(async move {
        let mut heard = Vec::new();
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Text(text) = message {
                heard.push(serde_json::from_str(&text).unwrap());
            }
        }
        heard
    })
}

async fn next(socket: &mut Socket) -> Value {
    loop {
        if let Message::Text(text) = socket.next().await.unwrap().unwrap() {
            return serde_json::from_str(&text).unwrap();
        }
    }
}

fn open(id: &str) -> Message {
    Message::text(json!(["NEG-OPEN", id, {"kinds": [1]}, "6100000200"]).to_string())
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_does_not_answer_a_listing_is_not_waited_for() {
    let World { mut client, relay, running, metrics, started } = World::new().await;
    let relay = listen(relay);
    client.send(open("a")).await.unwrap();
    client.send(open("b")).await.unwrap();
    // b waits for a's turn no longer than clients wait.
    let busy = "rate-limited: too many concurrent listings of the relay";
    assert_eq!(next(&mut client).await, json!(["NEG-ERR", "b", busy]));
    assert_eq!((clock::instant() - started).as_secs(), 8);
    assert_eq!(next(&mut client).await, json!(["NEG-ERR", "a", "error: no answer from the relay within 30 s"]));
    assert_eq!((clock::instant() - started).as_secs(), 30);
    assert_eq!(metrics.view(), GatewayView::default());
    drop(client);
    running.await.unwrap();
    let heard = relay.await.unwrap();
    assert_eq!((&heard[0][0], &heard[1][0], heard.len()), (&json!("REQ"), &json!("CLOSE"), 2), "{heard:?}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_shows_no_sign_of_life_is_let_go() {
    let mut world = World::new().await;
    let relay = listen(world.relay);
    world.client.send(open("a")).await.unwrap();
    (&mut world.running).await.unwrap();
    let passed = (clock::instant() - world.started).as_secs();
    assert!((120..=125).contains(&passed), "{passed}");
    relay.await.unwrap();

    // One that answers pings stays.
    let mut world = World::new().await;
    let (client, relay) = (listen(world.client), listen(world.relay));
    let waited = tokio::time::timeout(Duration::from_secs(3600), &mut world.running).await;
    assert!(waited.is_err() && !client.is_finished() && !relay.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_relay_that_shows_no_sign_of_life_is_gone() {
    let world = World::new().await;
    let client = listen(world.client);
    world.running.await.unwrap();
    client.await.unwrap();
    drop(world.relay);
}

#[tokio::test]
async fn a_text_that_only_our_subscriptions_have_is_not_passed_on() {
    let mut world = World::new().await;
    world.client.send(open("a")).await.unwrap();
    let asked = next(&mut world.relay).await;
    let name = asked[1].as_str().unwrap();
    world.client.send(Message::text(json!(["REQ", name, {}]).to_string())).await.unwrap();
    assert_eq!(next(&mut world.client).await[0], "NOTICE");
    // What the relay says under it is ours, whatever the client made of it.
    world.relay.send(Message::text(json!(["EOSE", name]).to_string())).await.unwrap();
    assert_eq!(next(&mut world.client).await, json!(["NEG-MSG", "a", "6100000200"]));
    assert_eq!(next(&mut world.relay).await, json!(["CLOSE", name]));
    world.client.send(Message::text("[\"REQ\",\"x\",{}]")).await.unwrap();
    assert_eq!(next(&mut world.relay).await, json!(["REQ", "x", {}]));
}

/// A client that reads nothing stops its own listing, and must not keep others from theirs.
#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_loses_its_sessions() {
    let World { mut client, mut relay, running, metrics, started } = World::new().await;
    client.send(open("a")).await.unwrap();
    assert_eq!(next(&mut relay).await[0], "REQ");
    assert_eq!((metrics.view().sessions, metrics.view().listings), (1, 1));
    let text = "x".repeat(100_000);
    let flood = tokio::spawn(async move {
        for _ in 0..8 {
            relay.send(Message::text(json!(["NOTICE", text]).to_string())).await.unwrap();
        }
        listen(relay).await.unwrap()
    });
    while metrics.view() != GatewayView::default() {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert!((10..=11).contains(&(clock::instant() - started).as_secs()));
    // What it was sent is still there.
    let mut notices = 0;
    let said = loop {
        let said = next(&mut client).await;
        if said[0] != "NOTICE" {
            break said;
        }
        notices += 1;
    };
    assert_eq!(said, json!(["NEG-ERR", "a", "closed: the client has not caught up for 10 s"]));
    while notices < 8 {
        assert_eq!(next(&mut client).await[0], "NOTICE");
        notices += 1;
    }
    drop(client);
    running.await.unwrap();
    assert_eq!(flood.await.unwrap()[0][0], "CLOSE");
}
