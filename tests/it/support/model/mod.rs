//! The scripted relay: a good one in memory (NIP-01, 09, 11, 42, 62, 77), until a quirk says
//! otherwise. It records every frame.

mod connection;
mod quirks;
mod record;
mod store;

pub use quirks::{Auth, Info, Neg, Quirks, Verdict};
pub use record::{Frame, Way};

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{broadcast, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::events::{self, Event};
use super::http::wants_websocket;
use record::Record;
use store::{Filter, Store};

/// More stored events than a test publishes before a connection gets round to them.
const LIVE_BACKLOG: usize = 100_000;

/// A scripted relay on loopback; it stops when it is dropped.
pub struct ModelRelay {
    shared: Arc<Shared>,
    stop: Mutex<DropGuard>,
}

/// What all connections share.
struct Shared {
    url: String,
    quirks: Mutex<Quirks>,
    store: Mutex<Store>,
    record: Mutex<Record>,
    /// Accepted events, for live subscriptions.
    live: broadcast::Sender<Arc<Event>>,
    /// Raised to end all connections there are.
    disconnects: watch::Sender<usize>,
}

impl Shared {
    fn quirks(&self) -> MutexGuard<'_, Quirks> {
        self.quirks.lock().unwrap()
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap()
    }
}

impl ModelRelay {
    pub async fn start(quirks: Quirks) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let shared = Arc::new(Shared {
            quirks: Mutex::new(quirks),
            store: Mutex::new(Store::new(&url)),
            record: Mutex::default(),
            live: broadcast::channel(LIVE_BACKLOG).0,
            disconnects: watch::channel(0).0,
            url,
        });
        let stop = Mutex::new(serve_at(listener, shared.clone()));
        Self { shared, stop }
    }

    /// Ends all connections and listens no more; what it holds stays.
    pub fn stop(&self) {
        *self.stop.lock().unwrap() = CancellationToken::new().drop_guard();
    }

    /// Listens again, where it did before.
    pub async fn start_again(&self) {
        let address = self.url().trim_start_matches("ws://");
        for _ in 0..500 {
            // The task that held the port may not have ended yet.
            if let Ok(listener) = TcpListener::bind(address).await {
                *self.stop.lock().unwrap() = serve_at(listener, self.shared.clone());
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{address} is taken");
    }

    pub fn url(&self) -> &str {
        &self.shared.url
    }

    /// Puts events into the store, unchecked and unrecorded: forged ones too. Live subscriptions
    /// hear of them.
    pub fn fill(&self, events: &[Event]) {
        for event in events {
            self.shared.store().add(event);
            // Nobody may be listening.
            let _ = self.shared.live.send(Arc::new(event.clone()));
        }
    }

    /// Drops events without any trace, as a relay does that cleans up.
    pub fn forget(&self, events: &[Event]) {
        events.iter().for_each(|event| self.shared.store().remove(&event.id));
    }

    /// The ids of all events held that match.
    pub fn ids(&self, filter: &Value) -> BTreeSet<String> {
        let filter = Filter::read(filter).unwrap();
        events::ids(self.shared.store().query(&filter))
    }

    /// Changes the quirks, from the next message on.
    pub fn change(&self, change: impl FnOnce(&mut Quirks)) {
        change(&mut self.shared.quirks());
    }

    /// The decision about events that it makes now, to build another upon.
    pub fn quirks_on_event(&self) -> impl Fn(&Event) -> Verdict + Send + Sync + 'static {
        let decide = self.shared.quirks().on_event.clone();
        move |event| decide.as_ref().map_or(Verdict::Usual, |decide| decide(event))
    }

    /// Ends all connections there are; new ones are welcome.
    pub fn disconnect(&self) {
        self.shared.disconnects.send_modify(|count| *count += 1);
    }

    /// How many messages with this verb it got.
    pub fn received(&self, verb: &str) -> usize {
        self.shared.record().count(Way::Received, verb)
    }

    /// How many messages with this verb it sent.
    pub fn sent(&self, verb: &str) -> usize {
        self.shared.record().count(Way::Sent, verb)
    }

    /// The ids of the events it was offered by EVENT, in order, repeats included.
    pub fn offered(&self) -> Vec<String> {
        self.shared.record().event_ids(Way::Received)
    }

    /// The ids of the events whose bodies it sent, in order, repeats included.
    pub fn served(&self) -> Vec<String> {
        self.shared.record().event_ids(Way::Sent)
    }

    /// Everything that was said.
    pub fn frames(&self) -> Vec<Frame> {
        self.shared.record().frames().to_vec()
    }

    /// Forgets what was said so far.
    pub fn clear_record(&self) {
        self.shared.record().clear();
    }
}

/// Serves until the guard is dropped.
fn serve_at(listener: TcpListener, shared: Arc<Shared>) -> DropGuard {
    let stop = CancellationToken::new();
    tokio::spawn(stop.clone().run_until_cancelled_owned(accept(listener, shared, stop.clone())));
    stop.drop_guard()
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, stop: CancellationToken) {
    for number in 1.. {
        let (stream, _) = listener.accept().await.unwrap();
        // As real relays do: else a second short frame waits 40 ms for the first one's receipt.
        stream.set_nodelay(true).unwrap();
        let (shared, stop) = (shared.clone(), stop.clone());
        let mut disconnects = shared.disconnects.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                () = serve(stream, number, shared) => {}
                _ = disconnects.changed() => {}
                () = stop.cancelled() => {}
            }
        });
    }
}

async fn serve(stream: TcpStream, number: usize, shared: Arc<Shared>) {
    if wants_websocket(&stream).await {
        connection::serve(stream, number, shared).await;
    } else {
        serve_info(stream, shared).await;
    }
}

async fn serve_info(mut stream: TcpStream, shared: Arc<Shared>) {
    // What is asked does not matter; it is read so that the close does not look like a reset.
    let _ = stream.read(&mut [0; 4096]).await;
    let (status, kind, body) = match shared.quirks().info.clone() {
        Info::Document(document) => ("200 OK", "application/nostr+json", document.to_string()),
        Info::Other(status, kind, body) => (status, kind, body),
        Info::None => return,
    };
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nconnection: close\r\n");
    // The client may be gone.
    let _ = stream.write_all(format!("{head}\r\n{body}").as_bytes()).await;
    let _ = stream.shutdown().await;
}
