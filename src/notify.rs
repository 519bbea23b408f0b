//! Posts what was newly stored at the local relay (ids, kinds and addresses, never content), so
//! that a git server fetches data at once.
//!
//! A notice is a hint: what is lost when the server is away is counted, and nothing waits for it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use url::Url;

use crate::clock;
use crate::metrics::Metrics;
use crate::outcome::Stored;

/// What was stored within this time of the first goes with it.
const GROUP: Duration = Duration::from_millis(500);
/// Events in one notice: 200 kB at the most.
const MOST: usize = 500;
/// Events that wait while the server does not answer: a few MB.
const QUEUE: usize = 10_000;
/// Tries to post one notice, and the wait after the first; every further one doubles it.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);
/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Takes what was stored. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Outbox {
    queue: mpsc::Sender<Stored>,
    metrics: Arc<Metrics>,
}

impl Outbox {
    /// Puts an event into the next notice, or drops and counts it where too many wait.
    pub fn tell(&self, stored: Stored) {
        if self.queue.try_send(stored).is_err() {
            self.metrics.notices_dropped(1);
        }
    }
}

/// Posts notices.
#[derive(Debug)]
pub struct Notifier {
    url: Url,
    token: Option<String>,
    client: reqwest::Client,
    queue: mpsc::Receiver<Stored>,
    metrics: Arc<Metrics>,
}

/// Why a notice was not taken.
#[derive(Debug, thiserror::Error)]
enum PostError {
    #[error("{}", without_url(.0))]
    Http(reqwest::Error),
    #[error("it answered {0}")]
    Status(reqwest::StatusCode),
}

impl PostError {
    /// Whether another try may do better.
    fn is_transient(&self) -> bool {
        match self {
            Self::Http(_) => true,
            Self::Status(status) => status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429),
        }
    }
}

impl Notifier {
    /// Posts to `url`, with a bearer token if there is one.
    #[must_use]
    pub fn new(url: Url, token: Option<String>, client: reqwest::Client, metrics: Arc<Metrics>) -> (Self, Outbox) {
        let (queue, inbox) = mpsc::channel(QUEUE);
        let outbox = Outbox { queue, metrics: metrics.clone() };
        (Self { url, token, client, queue: inbox, metrics }, outbox)
    }

    /// Posts until all outboxes are gone and what they held is posted.
    pub async fn run(mut self) {
        while let Some(first) = self.queue.recv().await {
            let closes = Instant::now() + GROUP;
            let mut group = vec![first];
            while group.len() < MOST {
                match timeout_at(closes, self.queue.recv()).await {
                    Ok(Some(stored)) => group.push(stored),
                    Ok(None) | Err(_) => break,
                }
            }
            self.deliver(&group).await;
        }
    }

    async fn deliver(&self, group: &[Stored]) {
        let body = json!({ "events": group });
        let mut pause = PAUSE;
        for attempt in 1..=TRIES {
            let error = match self.post(&body).await {
                Ok(()) => return self.metrics.notices_posted(group.len()),
                Err(error) => error,
            };
            if attempt == TRIES || !error.is_transient() {
                tracing::warn!(%error, events = group.len(), attempt, "notify.url did not take a notice: it is dropped");
                return self.metrics.notices_dropped(group.len());
            }
            tracing::debug!(%error, attempt, "notify.url did not take a notice");
            tokio::time::sleep(clock::jittered(pause)).await;
            pause *= 2;
        }
    }

    async fn post(&self, body: &serde_json::Value) -> Result<(), PostError> {
        let mut request = self.client.post(self.url.clone()).timeout(PATIENCE).json(body);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let status = request.send().await.map_err(PostError::Http)?.status();
        if status.is_success() { Ok(()) } else { Err(PostError::Status(status)) }
    }
}

/// The URL may hold a password.
fn without_url(error: &reqwest::Error) -> &'static str {
    if error.is_timeout() {
        "it did not answer in time"
    } else if error.is_connect() {
        "it cannot be reached"
    } else {
        "the request failed"
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::nostr::{EventId, PublicKey};

    fn stored(n: u8) -> Stored {
        Stored { id: EventId::new([n; 32]), kind: 1621, pubkey: PublicKey::new([1; 32]), addresses: vec!["a".into()] }
    }

    /// A server that answers each request with the next of these, and returns their heads and bodies.
    async fn server(answers: Vec<&'static str>) -> (Url, tokio::task::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/stored", listener.local_addr().unwrap()).parse().unwrap();
        let task = tokio::spawn(async move {
            let mut heard = Vec::new();
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut request = String::new();
                let mut buffer = [0; 65536];
                while !request.contains("]}") {
                    let read = stream.read(&mut buffer).await.unwrap();
                    request.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
                }
                heard.push(request);
                let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
            heard
        });
        (url, task)
    }

    fn client() -> reqwest::Client {
        let tls = crate::relay::client_config(None).unwrap();
        crate::relay::http_client(&tls, None, false, crate::relay::Redirects::Followed)
    }

    #[tokio::test]
    async fn a_group_is_posted_and_posted_again() {
        let (url, server) = server(vec!["503 Busy", "200 OK", "403 Forbidden", "204 No"]).await;
        let metrics = Arc::new(Metrics::new());
        let (notifier, outbox) = Notifier::new(url, Some("s3cret".into()), client(), metrics.clone());
        let running = tokio::spawn(notifier.run());
        (1..=3).for_each(|n| outbox.tell(stored(n)));
        tokio::time::sleep(GROUP * 2).await;
        // By now the first notice waits for its second try: this one is refused for good.
        tokio::time::sleep(PAUSE).await;
        outbox.tell(stored(4));
        tokio::time::sleep(GROUP * 2).await;
        outbox.tell(stored(5));
        drop(outbox);
        running.await.unwrap();
        let heard = server.await.unwrap();
        assert!(heard[0].contains("authorization: Bearer s3cret"), "{}", heard[0]);
        let body = |n: usize| -> serde_json::Value {
            serde_json::from_str(heard[n].split("\r\n\r\n").nth(1).unwrap()).unwrap()
        };
        assert_eq!(body(0), body(1));
        let first = json!({"id": "01".repeat(32), "kind": 1621, "pubkey": "01".repeat(32), "addresses": ["a"]});
        assert_eq!(body(0)["events"][0], first);
        assert_eq!([0, 2, 3].map(|n| body(n)["events"].as_array().unwrap().len()), [3, 1, 1]);
        let text = metrics.text();
        assert!(text.contains(r#"tieline_notices_total{result="posted"} 4"#), "{text}");
        assert!(text.contains(r#"tieline_notices_total{result="dropped"} 1"#), "{text}");
    }

    #[tokio::test]
    async fn what_does_not_fit_is_dropped_and_counted() {
        let metrics = Arc::new(Metrics::new());
        let (_notifier, outbox) = Notifier::new("http://127.0.0.1:1".parse().unwrap(), None, client(), metrics.clone());
        (0..QUEUE + 7).for_each(|_| outbox.tell(stored(1)));
        assert!(metrics.text().contains(r#"tieline_notices_total{result="dropped"} 7"#));
    }
}
