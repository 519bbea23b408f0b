//! What passes through, as it is.

use std::net::Ipv4Addr;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, accept_async, connect_async};

use super::{SOON, TestGateway, inventory, open, word};
use crate::support::client::Client;
use crate::support::events::{Author, EPOCH, ids};
use crate::support::model::{ModelRelay, Quirks};
use crate::support::relay::TestRelay;

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// A relay that says nothing of its own: what it hears comes out here, and it says what it is
/// told to.
struct Parrot {
    url: String,
    heard: mpsc::UnboundedReceiver<Message>,
    says: mpsc::UnboundedSender<Message>,
}

impl Parrot {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let (hears, heard) = mpsc::unbounded_channel();
        let (says, mut said) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut socket = loop {
                // A request for the information document is no WebSocket.
                let (stream, _) = listener.accept().await.unwrap();
                if let Ok(socket) = accept_async(stream).await {
                    break socket;
                }
            };
            loop {
                tokio::select! {
                    message = socket.next() => match message {
                        Some(Ok(message)) => _ = hears.send(message),
                        _ => break,
                    },
                    Some(message) = said.recv() => socket.send(message).await.unwrap(),
                }
            }
        });
        Self { url, heard, says }
    }

    async fn hears(&mut self) -> Message {
        tokio::time::timeout(SOON, self.heard.recv()).await.expect("it hears something").expect("it still listens")
    }
}

async fn next(socket: &mut Socket) -> Message {
    tokio::time::timeout(SOON, socket.next()).await.expect("something comes").expect("the line holds").unwrap()
}

/// The goodbye, and then the end of the line.
async fn goodbye(socket: &mut Socket) -> Option<CloseFrame> {
    let Message::Close(frame) = next(socket).await else { panic!("no goodbye") };
    let after = tokio::time::timeout(SOON, socket.next()).await.expect("the line ends");
    assert!(!matches!(after, Some(Ok(_))), "{after:?} after the goodbye");
    frame
}

async fn connect(gateway: &TestGateway) -> Socket {
    connect_async(&gateway.url).await.unwrap().0
}

/// Texts that a parser would write otherwise, or not take at all.
fn texts() -> Vec<String> {
    let deep = format!("[\"REQ\",\"d\",{}{}]", "[".repeat(100_000), "]".repeat(100_000));
    vec![
        "[ \"REQ\" ,\t\"a\",\n{ \"kinds\" : [ 1 , 1.0e0 ] , \"kinds\":[2] } ]".to_owned(),
        r#"["EVENT",{"content":"[\"NEG-OPEN\"] \u00e9 é \ud83d\ude00","x":1e400}]"#.to_owned(),
        format!(r#"["REQ","{}",{{}}]"#, "x".repeat(100_000)),
        r#"{"NEG-OPEN":1}"#.to_owned(),
        r#"["\u004eEG-OPEN","a",{},"61"]"#.to_owned(),
        "not JSON at all".to_owned(),
        String::new(),
        "[".to_owned(),
        deep,
        format!(r#"["EVENT",{{"content":"{}"}}]"#, "y".repeat(1_500_000)),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_pass_byte_for_byte_and_in_order() {
    let mut relay = Parrot::start().await;
    let gateway = TestGateway::start(&relay.url).await;
    let client = connect(&gateway).await;
    let mut all = texts();
    all.extend((0..2000).map(|n| format!("[\"EVENT\",{n}]")));
    let (mut to_relay, mut to_client) = client.split();
    let sending = async {
        for text in &all {
            to_relay.feed(Message::text(text.as_str())).await.unwrap();
        }
        to_relay.flush().await.unwrap();
    };
    let passing = async {
        for text in &all {
            assert_eq!(relay.hears().await, Message::text(text.as_str()));
        }
        for text in &all {
            relay.says.send(Message::text(text.as_str())).unwrap();
        }
        for text in &all {
            let message = tokio::time::timeout(SOON, to_client.next()).await.unwrap().unwrap().unwrap();
            assert_eq!(message, Message::text(text.as_str()));
        }
    };
    tokio::join!(sending, passing);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_codes_are_carried_over() {
    for (code, reason) in [(CloseCode::Normal, ""), (CloseCode::Policy, "be gone"), (CloseCode::Library(4242), "é")] {
        let frame = CloseFrame { code, reason: reason.into() };
        let mut relay = Parrot::start().await;
        let gateway = TestGateway::start(&relay.url).await;
        let mut client = connect(&gateway).await;
        client.send(Message::text("[\"REQ\"]")).await.unwrap();
        client.send(Message::Close(Some(frame.clone()))).await.unwrap();
        assert_eq!(relay.hears().await, Message::text("[\"REQ\"]"), "what came before it arrives before it");
        assert_eq!(relay.hears().await, Message::Close(Some(frame.clone())));
        assert_eq!(goodbye(&mut client).await, Some(frame.clone()));
        gateway.is_empty().await;

        let relay = Parrot::start().await;
        let gateway = TestGateway::start(&relay.url).await;
        let mut client = connect(&gateway).await;
        relay.says.send(Message::text("last words")).unwrap();
        relay.says.send(Message::Close(Some(frame.clone()))).unwrap();
        assert_eq!(next(&mut client).await, Message::text("last words"));
        assert_eq!(goodbye(&mut client).await, Some(frame));
        gateway.is_empty().await;
    }
    // Without a code there is none on the other side.
    let relay = Parrot::start().await;
    let gateway = TestGateway::start(&relay.url).await;
    let mut client = connect(&gateway).await;
    relay.says.send(Message::Close(None)).unwrap();
    assert_eq!(goodbye(&mut client).await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binary_and_oversized_messages_are_refused() {
    let mut relay = Parrot::start().await;
    let gateway = TestGateway::with(&relay.url, "limits: {message_bytes: 10000}").await;
    let mut client = connect(&gateway).await;
    client.send(Message::binary(vec![1, 2, 3])).await.unwrap();
    let notice = json!(["NOTICE", "invalid: binary messages are not taken"]).to_string();
    assert_eq!(next(&mut client).await, Message::text(notice));
    let largest = "x".repeat(10_000);
    client.send(Message::text(largest.as_str())).await.unwrap();
    assert_eq!(relay.hears().await, Message::text(largest.as_str()), "the connection lives, and nothing binary passed");

    client.send(Message::text(format!("{largest}x"))).await.unwrap();
    assert_eq!(goodbye(&mut client).await.unwrap().code, CloseCode::Size);
    assert!(matches!(relay.hears().await, Message::Close(_)));
    gateway.is_empty().await;
}

/// A client that does not read is not read for: the relay feels it, and nothing piles up between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_side_is_felt_by_the_other() {
    let relay = Parrot::start().await;
    let gateway = TestGateway::start(&relay.url).await;
    let mut client = connect(&gateway).await;
    client.send(Message::text("hello")).await.unwrap();
    let text = "x".repeat(1 << 20);
    for _ in 0..100 {
        relay.says.send(Message::text(text.as_str())).unwrap();
    }
    // 100 MB: what neither socket buffer takes has to stay with the relay.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = resident();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(resident() < before + (20 << 20), "it piles up");
    for _ in 0..100 {
        assert_eq!(next(&mut client).await.len(), text.len());
    }
}

fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    status.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or_default() * 4096
}

/// Subscriptions and sessions have namespaces of their own, and ours are never seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_id_may_name_a_subscription_and_a_session() {
    let relay = ModelRelay::start(Quirks { closes_after_eose: true, ..Quirks::default() }).await;
    let events = Author::new(1).notes(700, EPOCH);
    relay.fill(&events);
    let gateway = TestGateway::start(relay.url()).await;
    let mut client = Client::connect(&gateway.url).await;
    client.send(&json!(["REQ", "x", {"kinds": [1], "limit": 5}])).await;
    open(&mut client, "x", &json!({"kinds": [1]})).await;
    let (mut served, mut answered, mut ended) = (0, false, false);
    while !(answered && ended) {
        let message = client.receive().await.unwrap();
        assert_eq!(message[1], "x", "{message}");
        match message[0].as_str().unwrap() {
            "EVENT" => served += 1,
            "EOSE" => ended = true,
            "NEG-MSG" => {
                assert_eq!(super::listed(&message).len(), 700);
                answered = true;
            }
            "CLOSED" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(served, 5);
    // The subscription is live, the session frozen.
    let new = Author::new(2).note(EPOCH + 5000);
    let mut writer = Client::connect(&gateway.url).await;
    assert!(writer.publish(&new).await.0);
    client.send(&json!(["NEG-MSG", "x", super::QUERY])).await;
    assert_eq!(super::listed(&word(&mut client, "x").await).len(), 700);
    client.send(&json!(["NEG-CLOSE", "x"])).await;
    assert_eq!(inventory(&gateway.url, &json!({"kinds": [1]})).await.len(), 701);
    assert!(relay.frames().iter().all(|frame| !frame.verb.starts_with("NEG")), "the relay sees negentropy");
}

/// The same through the gateway as without it, at real relays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_behind_it_is_the_relay() {
    for relay in TestRelay::each().await {
        let gateway = TestGateway::start(relay.url()).await;
        let events = Author::new(1).notes(300, EPOCH);
        crate::support::client::fill(&gateway.url, &events).await;
        let all = json!({"kinds": [1]});
        assert_eq!(relay.ids(&all).await, ids(&events), "{}", relay.name());
        assert_eq!(crate::support::client::ids(&gateway.url, &all).await, ids(&events), "{}", relay.name());
        gateway.is_empty().await;
    }
}
