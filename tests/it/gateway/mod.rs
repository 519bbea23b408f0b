//! The gateway between clients and relays on sockets.

// What passes through, as it is.
mod passing;
// Plain HTTP, and who asks.
mod pages;
// What a session compares, and what it answers.
mod sessions;
// Each limit ends in its NEG-ERR.
mod limits;
// Relays, clients and gateways that end in the middle.
mod ends;
// Clients that are not ours, and Tieline between two gateways.
mod foreign;
// Many clients at once, some of them hostile.
mod crowd;
// The built program.
mod program;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use negentropy::{Id, Negentropy, NegentropyStorageVector};
use serde_json::{Value, json};
use tieline::config::Config;
use tieline::gateway::Gateway;
use tieline::metrics::{GatewayView, Metrics};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::support::client::Client;
use crate::support::events::{Event, now};

/// Longer than anything takes that happens at once, on a machine that has other things to do.
const SOON: Duration = Duration::from_secs(20);
/// An empty id list over everything: "list your ids".
const QUERY: &str = "6100000200";

/// A gateway in this process; it stops when it is dropped.
struct TestGateway {
    url: String,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl TestGateway {
    /// In front of the relay at this URL, with the usual limits.
    async fn start(relay: &str) -> Self {
        Self::with(relay, "limits: {allow_unrestricted: true}").await
    }

    /// With more in its part of the config.
    async fn with(relay: &str, more: &str) -> Self {
        let yaml = format!("local: {{url: '{relay}'}}\ngateway: {{listen: '127.0.0.1:0', {more}}}\n");
        let (config, _) = Config::from_yaml(&yaml, "peers.yaml", now()).unwrap();
        let settings = config.gateway.unwrap();
        let listener = TcpListener::bind(settings.listen).await.unwrap();
        let url = format!("ws://{}", listener.local_addr().unwrap());
        let (metrics, stop) = (Arc::new(Metrics::new()), CancellationToken::new());
        let gateway = Gateway::new(&settings, &config.local, metrics.gateway().clone()).unwrap();
        let task = tokio::spawn(gateway.serve(listener, stop.clone()));
        Self { url, metrics, stop, task }
    }

    fn view(&self) -> GatewayView {
        self.metrics.gateway().view()
    }

    /// Waits until it holds this.
    async fn holds(&self, what: impl Fn(GatewayView) -> bool) {
        let started = Instant::now();
        while !what(self.view()) {
            assert!(started.elapsed() < SOON, "it holds {:?}", self.view());
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until it holds nothing any more.
    async fn is_empty(&self) {
        self.holds(|view| view == GatewayView::default()).await;
    }

    /// How often sessions were refused for this reason.
    fn refused(&self, reason: &str) -> u64 {
        let start = format!("tieline_gateway_neg_errors_total{{reason=\"{reason}\"}} ");
        let text = self.metrics.text();
        text.lines().find_map(|line| line.strip_prefix(&start)).map_or(0, |count| count.parse().unwrap())
    }
}

impl Drop for TestGateway {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Opens a session that lists everything; nothing is read.
async fn open(client: &mut Client, id: &str, filter: &Value) {
    client.send(&json!(["NEG-OPEN", id, filter, QUERY])).await;
}

/// The next word on a session, whatever else comes before it.
async fn word(client: &mut Client, id: &str) -> Value {
    loop {
        let message = client.receive().await.expect("the connection stays");
        if message[1] == id && message[0].as_str().unwrap().starts_with("NEG-") {
            return message;
        }
    }
}

/// The ids in an answer to [`QUERY`].
fn listed(answer: &Value) -> Vec<String> {
    assert_eq!(answer[0], "NEG-MSG", "{answer}");
    let bytes = hex::decode(answer[2].as_str().unwrap()).unwrap();
    assert_eq!(bytes[..4], [0x61, 0, 0, 2], "{answer}");
    let count = bytes[4..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    bytes[4 + count..].chunks(32).map(hex::encode).collect()
}

/// What a session on this filter holds, in its order.
async fn inventory(url: &str, filter: &Value) -> Vec<String> {
    let mut client = Client::connect(url).await;
    open(&mut client, "i", filter).await;
    listed(&word(&mut client, "i").await)
}

/// Reconciles these events: the ids that are on one side only, ours first. The error is the
/// NEG-ERR.
async fn reconcile(
    client: &mut Client,
    id: &str,
    filter: &Value,
    own: &[Event],
) -> Result<(BTreeSet<String>, BTreeSet<String>), Value> {
    let mut storage = NegentropyStorageVector::new();
    for event in own {
        let bytes: [u8; 32] = hex::decode(&event.id).unwrap().try_into().unwrap();
        storage.insert(event.created_at, Id::from_byte_array(bytes)).unwrap();
    }
    storage.seal().unwrap();
    let mut negentropy = Negentropy::owned(storage, 60_000).unwrap();
    let query = hex::encode(negentropy.initiate().unwrap());
    client.send(&json!(["NEG-OPEN", id, filter, query])).await;
    let (mut have, mut need) = (Vec::new(), Vec::new());
    loop {
        let answer = word(client, id).await;
        if answer[0] == "NEG-ERR" {
            return Err(answer);
        }
        let answer = hex::decode(answer[2].as_str().unwrap()).unwrap();
        match negentropy.reconcile_with_ids(&answer, &mut have, &mut need).unwrap() {
            Some(query) => client.send(&json!(["NEG-MSG", id, hex::encode(query)])).await,
            None => break,
        }
    }
    client.send(&json!(["NEG-CLOSE", id])).await;
    let set = |ids: Vec<Id>| ids.iter().map(|id| hex::encode(id.as_bytes())).collect();
    Ok((set(have), set(need)))
}
