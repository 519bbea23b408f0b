//! Notices of what was newly stored.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::world::{READERS, Repository, accepted, grasp_relay};
use super::{SOON, config, eventually, holds, start, stop};
use crate::support::events::EPOCH;
use crate::support::model::{ModelRelay, Quirks};

/// A web server that keeps the bodies that were posted with the token.
async fn server() -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/stored", listener.local_addr().unwrap());
    let bodies: Arc<Mutex<Vec<Value>>> = Arc::default();
    let kept = bodies.clone();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let kept = kept.clone();
            tokio::spawn(async move {
                let (mut text, mut buffer) = (String::new(), vec![0; 1 << 16]);
                loop {
                    let read = stream.read(&mut buffer).await.unwrap();
                    text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
                    let body = text.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str(body).ok());
                    if let Some(body) = body {
                        assert!(text.contains("authorization: Bearer t0ken\r\n"), "{text}");
                        kept.lock().unwrap().push(body);
                        break;
                    }
                }
                let answer = b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n";
                stream.write_all(answer).await.unwrap();
            });
        }
    });
    (url, bodies)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_newly_stored_is_told_once_and_without_content() {
    let (local, remote) = (grasp_relay().await, ModelRelay::start(Quirks::default()).await);
    let repository = Repository::new(1, "r", &[remote.url()]);
    let events: Vec<_> = [repository.announcement(local.url(), EPOCH)]
        .into_iter()
        .chain((1..=30).map(|n| repository.root(READERS[0], 1621, "a", EPOCH + n)))
        .collect();
    remote.fill(&events);
    // The local relay has one of them already.
    crate::support::client::fill(local.url(), &events[..1]).await;
    let (url, bodies) = server().await;
    let tokens = tempfile::tempdir().unwrap();
    let token = tokens.path().join("token");
    std::fs::write(&token, "t0ken\n").unwrap();
    std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let yaml = config(&local, &[&remote], ", allow_private: true")
        + &format!("notify: {{url: '{url}', token_file: '{}'}}\n", token.display());
    let (cli, running) = start(&yaml);
    holds(&cli, &local, &accepted(local.url(), &events), SOON).await;
    let told = || -> BTreeMap<String, Value> {
        let bodies = bodies.lock().unwrap();
        let events = bodies.iter().flat_map(|body| body["events"].as_array().unwrap());
        events.map(|event| (event["id"].as_str().unwrap().to_owned(), event.clone())).collect()
    };
    eventually(&cli, "all are told", SOON, || told().len() >= 30).await;
    // One that a stream brings.
    let live = repository.root(READERS[1], 1617, "a", EPOCH + 100);
    remote.fill(std::slice::from_ref(&live));
    eventually(&cli, "the live one is told", SOON, || told().contains_key(&live.id)).await;
    let told = told();
    assert_eq!(told.len(), 31, "not what the relay had already");
    let expected = serde_json::json!({
        "id": live.id, "kind": 1617, "pubkey": live.pubkey, "addresses": [repository.address()],
    });
    assert_eq!(told[&live.id], expected);
    let all: usize = bodies.lock().unwrap().iter().map(|body| body["events"].as_array().unwrap().len()).sum();
    assert_eq!(all, 31, "each is told once");
    assert!(bodies.lock().unwrap().len() < 10, "they are grouped");
    stop(&cli, running).await;
}
