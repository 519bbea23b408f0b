//! An independent client: a plain socket, to fill relays and to read them back.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

use super::events::{Author, Event};

/// No relay of these tests takes so long to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Events asked for at once; also the most that one second may hold.
const PAGE: usize = 5000;
/// Events sent before their OKs are read: neither side's buffers fill up.
const BURST: usize = 100;

/// One connection to a relay. Authenticates when asked to, as [`Client::author`]. Whatever it
/// does not expect is a panic: the test has failed.
pub struct Client {
    url: String,
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    challenge: Option<String>,
}

impl Client {
    /// The person the client authenticates as.
    pub fn author() -> Author {
        Author::new(0xc1)
    }

    pub async fn connect(url: &str) -> Self {
        let no_delay = true;
        let (socket, _) = connect_async_with_config(url, None, no_delay)
            .await
            .unwrap_or_else(|error| panic!("cannot connect to {url}: {error}"));
        Self { url: url.to_owned(), socket, challenge: None }
    }

    /// Authenticates to a relay that calls itself this, however it was reached.
    #[must_use]
    pub fn knowing_it_as(self, url: &str) -> Self {
        Self { url: url.to_owned(), ..self }
    }

    pub async fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string()).await;
    }

    pub async fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    /// The next message; `None` when the relay has closed the connection.
    pub async fn receive(&mut self) -> Option<Value> {
        let message: Value = serde_json::from_str(&self.receive_text().await?).unwrap();
        if message[0] == "AUTH" {
            self.challenge = message[1].as_str().map(str::to_owned);
        }
        Some(message)
    }

    /// The same as text.
    pub async fn receive_text(&mut self) -> Option<String> {
        let next = async {
            loop {
                match self.socket.next().await {
                    Some(Ok(Message::Text(text))) => return Some(text.to_string()),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    _ => return None,
                }
            }
        };
        let text = tokio::time::timeout(PATIENCE, next).await;
        text.unwrap_or_else(|_| panic!("{} does not answer", self.url))
    }

    /// Whether nothing comes for this long.
    pub async fn is_silent_for(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.socket.next()).await.is_err()
    }

    /// All that is answered to a REQ, up to the EOSE or CLOSED and with it.
    pub async fn request(&mut self, filter: &Value) -> Vec<Value> {
        for _ in 0..2 {
            self.send(&json!(["REQ", "q", filter])).await;
            let mut answers = Vec::new();
            while let Some(message) = self.receive().await {
                let ends = message[1] == "q" && (message[0] == "EOSE" || message[0] == "CLOSED");
                answers.push(message);
                if ends {
                    break;
                }
            }
            let end = answers.last().unwrap_or_else(|| panic!("{} closed the connection", self.url));
            if end[0] == "EOSE" {
                self.send(&json!(["CLOSE", "q"])).await;
                return answers;
            }
            if !end[2].as_str().is_some_and(|reason| reason.starts_with("auth-required:")) {
                return answers;
            }
            self.authenticate().await;
        }
        panic!("{} does not accept the client's AUTH", self.url)
    }

    /// Publishes one event and returns its OK.
    pub async fn publish(&mut self, event: &Event) -> (bool, String) {
        self.send_text(&format!(r#"["EVENT",{}]"#, event.json)).await;
        let (accepted, text) = self.ok().await;
        if text.starts_with("auth-required:") {
            self.authenticate().await;
            self.send_text(&format!(r#"["EVENT",{}]"#, event.json)).await;
            return self.ok().await;
        }
        (accepted, text)
    }

    async fn ok(&mut self) -> (bool, String) {
        loop {
            let message = self.receive().await.unwrap_or_else(|| panic!("{} closed the connection", self.url));
            if message[0] == "OK" {
                return (message[2] == true, message[3].as_str().unwrap_or_default().to_owned());
            }
        }
    }

    async fn authenticate(&mut self) {
        let challenge = self.challenge.take().unwrap_or_else(|| panic!("{} has sent no challenge", self.url));
        let event = Self::author().auth(&self.url, &challenge);
        self.send_text(&format!(r#"["AUTH",{}]"#, event.json)).await;
        let (accepted, text) = self.ok().await;
        assert!(accepted, "{} refuses the client's AUTH: {text}", self.url);
    }
}

/// Publishes events; every one has to be taken.
pub async fn fill(url: &str, events: &[Event]) {
    let Some((first, rest)) = events.split_first() else { return };
    let mut client = Client::connect(url).await;
    let (accepted, text) = client.publish(first).await;
    assert!(accepted, "{url} refuses {}: {text}", first.json);
    for burst in rest.chunks(BURST) {
        for event in burst {
            client.send_text(&format!(r#"["EVENT",{}]"#, event.json)).await;
        }
        for _ in burst {
            let (accepted, text) = client.ok().await;
            assert!(accepted, "{url} refuses an event: {text}");
        }
    }
}

/// All events that match, page by page down to the first, whatever the relay's page cap.
pub async fn events(url: &str, filter: &Value) -> Vec<Event> {
    let mut client = Client::connect(url).await;
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    let mut question = filter.clone();
    question["limit"] = json!(PAGE);
    // A filter without any condition matches nothing at nostr-relay.
    let since = filter["since"].as_u64().unwrap_or(1);
    question["since"] = json!(since);
    let mut last = filter["until"].as_u64();
    while last.is_none_or(|last| last >= since) {
        // nostr-relay leaves the second of `until` out: one more is asked for, and dropped here.
        if let Some(last) = last {
            question["until"] = json!(last + 1);
        }
        let answers = client.request(&question).await;
        let end = answers.last().unwrap();
        assert_eq!(end[0], "EOSE", "{url} refuses to list {filter}: {end}");
        let page = answers.iter().filter(|answer| answer[0] == "EVENT");
        let page = page.map(|answer| Event::read(&answer[2].to_string()).unwrap());
        let page: Vec<_> = page.filter(|event| last.is_none_or(|last| event.created_at <= last)).collect();
        let Some(oldest) = page.iter().map(|event| event.created_at).min() else { break };
        let known = found.len();
        found.extend(page.into_iter().filter(|event| seen.insert(event.id.clone())));
        // The oldest second may go on below the page, unless the page brought nothing new.
        let Some(next) = oldest.checked_sub(u64::from(found.len() == known)) else { break };
        last = Some(next);
    }
    found
}

/// The ids of all events that match.
pub async fn ids(url: &str, filter: &Value) -> BTreeSet<String> {
    super::events::ids(&events(url, filter).await)
}
