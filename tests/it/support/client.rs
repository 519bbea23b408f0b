//! An independent client: a plain socket, to fill relays and to read them back.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

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
        let (socket, _) = connect_async(url).await.unwrap_or_else(|error| panic!("cannot connect to {url}: {error}"));
        Self { url: url.to_owned(), socket, challenge: None }
    }

    pub async fn send(&mut self, message: &Value) {
        self.send_text(&message.to_string()).await;
    }

    pub async fn send_text(&mut self, text: &str) {
        self.socket.send(Message::text(text)).await.unwrap();
    }

    /// The next message; `None` when the relay has closed the connection.
    pub async fn receive(&mut self) -> Option<Value> {
        let next = async {
            loop {
                match self.socket.next().await {
                    Some(Ok(Message::Text(text))) => return Some(serde_json::from_str(&text).unwrap()),
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    _ => return None,
                }
            }
        };
        let message: Option<Value> =
            tokio::time::timeout(PATIENCE, next).await.unwrap_or_else(|_| panic!("{} does not answer", self.url));
        if let Some(["AUTH", challenge]) = message.as_ref().and_then(words).as_deref() {
            self.challenge = Some((*challenge).to_owned());
        }
        message
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

fn words(message: &Value) -> Option<Vec<&str>> {
    message.as_array()?.iter().map(Value::as_str).collect()
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
    let mut page_filter = filter.clone();
    page_filter["limit"] = json!(PAGE);
    // A filter without any condition matches nothing at nostr-relay.
    if page_filter["since"].is_null() {
        page_filter["since"] = json!(1);
    }
    loop {
        let answers = client.request(&page_filter).await;
        let end = answers.last().unwrap();
        assert_eq!(end[0], "EOSE", "{url} refuses to list {filter}: {end}");
        let page: Vec<Event> = answers
            .iter()
            .filter(|answer| answer[0] == "EVENT")
            .map(|answer| Event::read(&answer[2].to_string()).unwrap())
            .collect();
        let Some(oldest) = page.iter().map(|event| event.created_at).min() else { return found };
        let new: Vec<Event> = page.into_iter().filter(|event| seen.insert(event.id.clone())).collect();
        // The oldest second may go on below the page, unless the page brought nothing new.
        let Some(until) = (if new.is_empty() { oldest.checked_sub(1) } else { Some(oldest) }) else { return found };
        page_filter["until"] = json!(until);
        if page_filter["since"].as_u64() > Some(until) {
            return found;
        }
        found.extend(new);
    }
}

/// The ids of all events that match.
pub async fn ids(url: &str, filter: &Value) -> BTreeSet<String> {
    super::events::ids(&events(url, filter).await)
}
