//! The gateway: negentropy (NIP-77) in front of a relay that lacks it.
//!
//! Every client has a connection of its own to the relay, over which all it says passes as it is
//! (`connection`, `leg`), and plain HTTP as well (`door`, `page`, `upstream`, `forwarded`).
//! Negentropy alone is answered here: `responder` holds a client's sessions, `sessions` drives
//! it, `listing` asks the relay for what a session compares, under ids of our own (`names`), and
//! `inventory` answers. What all clients may use together is given out by `budget`.

mod budget;
mod connection;
mod door;
mod forwarded;
mod inventory;
mod known;
mod leg;
mod listing;
pub mod message;
mod names;
mod page;
mod refusal;
pub mod responder;
mod sessions;
mod upstream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::inventory::{Hold, Item, Work, Worked};
pub use self::refusal::Refusal;

use self::budget::Budget;
use self::known::Learnt;
use self::upstream::Upstream;
use crate::config::{GatewayLimits, GatewaySettings, Network, RelaySettings};
use crate::metrics::GatewayMetrics;
use crate::relay::TlsError;

/// How long a drain may take: sessions have 4 s of it, and farewells 3 s.
const DRAIN: Duration = Duration::from_secs(9);

/// A pause when a connection cannot be accepted, as when there are no file descriptors left: it
/// can be again only when one ends.
const PAUSE: Duration = Duration::from_millis(100);

/// What all clients share.
struct Shared {
    limits: GatewayLimits,
    trusted: Vec<Network>,
    budget: Budget,
    upstream: Upstream,
    known: Learnt,
    metrics: GatewayMetrics,
}

impl Shared {
    /// How much the relay lists at once. It is asked once, by the first client.
    async fn learn_limit(&self) {
        self.known.set_limit(self.upstream.page_limit().await);
    }
}

/// A gateway in front of one relay.
pub struct Gateway {
    shared: Arc<Shared>,
}

impl Gateway {
    /// Puts it together. Nothing is dialled yet; a task is spawned, so that it takes a runtime.
    ///
    /// # Errors
    /// When the relay's `ca_file` cannot be used.
    pub fn new(settings: &GatewaySettings, relay: &RelaySettings, metrics: GatewayMetrics) -> Result<Self, TlsError> {
        let shared = Shared {
            limits: settings.limits.clone(),
            trusted: settings.trusted_proxies.clone(),
            budget: Budget::new(&settings.limits, metrics.clone()),
            upstream: Upstream::new(relay)?,
            known: Learnt::default(),
            metrics,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Serves clients until `stop`; those that are there then may finish their sessions, within
    /// seconds.
    pub async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let clients = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, from)) => self.admit(&clients, stream, from, &stop),
                Err(error) => {
                    tracing::warn!(%error, "the gateway cannot accept a client");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(listener);
        clients.close();
        if tokio::time::timeout(DRAIN, clients.wait()).await.is_err() {
            tracing::warn!(clients = clients.len(), "clients of the gateway did not end in time");
        }
    }

    fn admit(&self, clients: &TaskTracker, stream: TcpStream, from: SocketAddr, stop: &CancellationToken) {
        const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        let Some(place) = self.shared.budget.connection() else {
            self.shared.metrics.refused("connections");
            // A new socket has room for so little; if not, the end of it says the same.
            let _ = stream.try_write(FULL);
            return;
        };
        let serving = door::serve(self.shared.clone(), stream, from, stop.clone());
        clients.spawn(async move {
            serving.await;
            drop(place);
        });
    }
}
