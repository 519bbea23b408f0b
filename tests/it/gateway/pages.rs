//! Plain HTTP, and who asks.

use std::net::Ipv4Addr;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::Error;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::TestGateway;
use crate::support::model::{Info, ModelRelay, Quirks};
use crate::support::relay::TestRelay;

/// An HTTP server that gives one answer to all, and tells what it was asked.
async fn server(answer: &'static str) -> (String, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("ws://{}", listener.local_addr().unwrap());
    let (hears, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                let Ok(byte) = stream.read_u8().await else { break };
                head.push(byte);
            }
            let head = String::from_utf8(head).unwrap().to_lowercase();
            // What the gateway asks for itself is of no interest.
            if !head.contains("user-agent: tieline") {
                _ = hears.send(head);
            }
            // The client may have gone.
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (url, heard)
}

async fn ask(gateway: &TestGateway, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(gateway.url.trim_start_matches("ws://")).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.to_lowercase(), body.to_owned())
}

async fn get(gateway: &TestGateway, place: &str, headers: &str) -> (String, String) {
    ask(
        gateway,
        &format!("GET {place} HTTP/1.1\r\nHost: relay.example\r\nUser-Agent: a\r\nConnection: close\r\n{headers}\r\n"),
    )
    .await
}

const DOCUMENT: &str = "Accept: text/html, application/nostr+json\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_is_passed_on_with_77() {
    let limitation = json!({"max_message_length": 70_000, "max_subscriptions": 20});
    let info = Info::Document(json!({"name": "m", "supported_nips": [1, 11], "limitation": limitation, "x": [{}]}));
    let relay = ModelRelay::start(Quirks { info, ..Quirks::default() }).await;
    let gateway = TestGateway::start(relay.url()).await;
    let (head, body) = get(&gateway, "/", DOCUMENT).await;
    assert!(head.starts_with("http/1.1 200") && head.contains("content-type: application/nostr+json"), "{head}");
    let document: Value = serde_json::from_str(&body).unwrap();
    let expected = json!({
        "name": "m", "supported_nips": [1, 11, 77], "x": [{}], "negentropy": 1,
        "limitation": {
            "max_message_length": 70_000, "max_subscriptions": 20, "max_negentropy_events": 1_000_000,
            "max_negentropy_sessions": 8,
        },
    });
    assert_eq!(document, expected);

    for (status, kind, body) in [("200 OK", "text/plain", "no JSON"), ("404 Not Found", "text/html", "<p>none</p>")] {
        relay.change(|quirks| quirks.info = Info::Other(status, kind, body.to_owned()));
        let (head, passed) = get(&gateway, "/", DOCUMENT).await;
        assert!(head.starts_with(&format!("http/1.1 {}", status.to_lowercase())) && head.contains(kind), "{head}");
        assert_eq!(passed, body);
    }
    relay.change(|quirks| quirks.info = Info::Other("200 OK", "application/nostr+json", " ".repeat(300_000)));
    assert!(get(&gateway, "/", DOCUMENT).await.0.starts_with("http/1.1 502"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_relay_gains_77() {
    let relay = TestRelay::nostr_relay().await;
    let gateway = TestGateway::start(relay.url()).await;
    let (_, body) = get(&gateway, "/", "Accept: application/nostr+json\r\n").await;
    let document: Value = serde_json::from_str(&body).unwrap();
    assert!(document["supported_nips"].as_array().unwrap().contains(&json!(77)), "{document}");
    assert!(document["software"].is_string(), "{document}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_pages_pass_as_they_are() {
    const ANSWER: &str = "HTTP/1.1 301 Moved Permanently\r\nLocation: /there\r\nX-Relay: a\r\nSet-Cookie: b=c\r\n\
                          Connection: close\r\nContent-Length: 5\r\n\r\nmoved";
    let (url, mut heard) = server(ANSWER).await;
    let gateway = TestGateway::start(&url).await;
    let (head, body) = get(&gateway, "/page?a=b%20c", "Accept: text/html\r\nCookie: d=e\r\n").await;
    assert!(head.starts_with("http/1.1 301"), "{head}");
    for line in ["location: /there", "x-relay: a", "set-cookie: b=c", "content-length: 5"] {
        assert!(head.contains(line), "{line}: {head}");
    }
    assert_eq!(body, "moved");
    let asked = heard.recv().await.unwrap();
    assert!(asked.starts_with("get /page?a=b%20c http/1.1"), "{asked}");
    for line in ["cookie: d=e", "x-forwarded-for: 127.0.0.1", "x-forwarded-host: relay.example"] {
        assert!(asked.contains(line), "{line}: {asked}");
    }
    // Whatever is asked for, it is the relay that is asked.
    for request in ["OPTIONS *", "GET http://evil.example/x", "GET //evil.example/x", "GET @evil.example"] {
        let (head, _) =
            ask(&gateway, &format!("{request} HTTP/1.1\r\nHost: x\r\nUser-Agent: a\r\nConnection: close\r\n\r\n"))
                .await;
        assert!(head.starts_with("http/1.1 301") || head.starts_with("http/1.1 400"), "{request}: {head}");
    }
    let (head, _) = ask(&gateway, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").await;
    assert!(head.starts_with("http/1.1 405") && head.contains("allow: get, head, options"), "{head}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_asks_is_told_and_only_trusted_proxies_are_believed() {
    const REFUSES: &str = "HTTP/1.1 403 Forbidden\r\nContent-Length: 7\r\n\r\nnot you";
    for (trusted, expected) in
        [("[]", "x-forwarded-for: 127.0.0.1\r\n"), ("[127.0.0.0/8]", "x-forwarded-for: 6.6.6.6, 127.0.0.1\r\n")]
    {
        let (url, mut heard) = server(REFUSES).await;
        let gateway = TestGateway::with(&url, &format!("trusted_proxies: {trusted}")).await;
        let mut request = format!("{}/inbox", gateway.url).into_client_request().unwrap();
        request.headers_mut().insert("X-Forwarded-For", "6.6.6.6".parse().unwrap());
        request.headers_mut().insert("X-Real-IP", "6.6.6.6".parse().unwrap());
        // The relay's own answer to a handshake it does not want is the client's to see.
        let Error::Http(answer) = connect_async(request).await.unwrap_err() else { panic!() };
        assert_eq!((answer.status().as_u16(), answer.body().as_deref()), (403, Some(b"not you".as_slice())));
        let asked = heard.recv().await.unwrap();
        assert!(asked.starts_with("get /inbox http/1.1") && asked.contains(expected), "{asked}");
        assert_eq!(asked.contains("x-real-ip: 6.6.6.6"), trusted != "[]", "{asked}");
        assert!(!asked.contains("sec-websocket-extensions"), "{asked}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_no_relay_is_said_at_the_door() {
    let gateway = TestGateway::start("ws://127.0.0.1:1").await;
    let Error::Http(answer) = connect_async(&gateway.url).await.unwrap_err() else { panic!() };
    assert_eq!(answer.status(), 502);
    assert!(get(&gateway, "/", "").await.0.starts_with("http/1.1 502"));
    gateway.is_empty().await;

    let relay = ModelRelay::start(Quirks::default()).await;
    let gateway = TestGateway::start(relay.url()).await;
    let upgrade = "Connection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n";
    let request = |more: &str| format!("GET / HTTP/1.1\r\nHost: x\r\n{upgrade}{more}\r\n");
    let mut stream = TcpStream::connect(gateway.url.trim_start_matches("ws://")).await.unwrap();
    for (more, status) in
        [("", "400"), ("Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 8\r\n", "426")]
    {
        stream.write_all(request(more).as_bytes()).await.unwrap();
        let mut answer = [0; 1024];
        let read = stream.read(&mut answer).await.unwrap();
        assert!(String::from_utf8_lossy(&answer[..read]).starts_with(&format!("HTTP/1.1 {status}")), "{status}");
    }
    // One that says nothing is let go of.
    let mut silent = TcpStream::connect(gateway.url.trim_start_matches("ws://")).await.unwrap();
    silent.write_all(b"GET / HT").await.unwrap();
    let end = tokio::time::timeout(Duration::from_secs(15), silent.read(&mut [0; 100])).await;
    assert!(end.is_ok(), "it is waited for");
    let (head, _) = get(&gateway, "/", &format!("X: {}\r\n", "x".repeat(100_000))).await;
    assert!(head.starts_with("http/1.1 431") || head.is_empty(), "{head}");
    // A good one afterwards.
    let (socket, _) = connect_async(&gateway.url).await.unwrap();
    drop(socket.split());
}
