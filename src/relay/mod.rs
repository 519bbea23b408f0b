//! A relay as others see it: ask for events, publish one, reconcile; one connection for all.
//!
//! The handle holds no socket. Requests go to the task that owns it, under a token; what the
//! relay says comes back in order. A connection is made when there is something to ask, and again
//! after it was lost, never behind the back of whoever waits: what was under way fails first.

mod auth;
mod connection;
mod dial;
mod error;
mod info;
mod link;
mod pace;
mod request;
mod session;
mod tls;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tokio::sync::{OnceCell, mpsc, watch};

pub use self::dial::{dial, is_same_listener};
pub use self::error::{Fault, RelayError};
pub use self::info::RelayInfo;
pub use self::link::{Ack, Link, Listing, NegSession, Publisher, Stream, Streamed, quota};
pub use self::request::Meter;
pub use self::tls::{Redirects, TlsError, client_config, http_client};

use self::connection::Command;
use crate::health::Connections;
use crate::nostr::{Keys, RelayUrl};

/// How to reach a relay, and how patient to be with it.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// Where it is.
    pub url: RelayUrl,
    /// The key that answers its AUTH challenges.
    pub keys: Option<Keys>,
    /// Trusted certificates and the provider of TLS.
    pub tls: Arc<rustls::ClientConfig>,
    /// What the connection goes through: `socks5h://` or `http://`.
    pub proxy: Option<url::Url>,
    /// Whether addresses that are not of the public internet are refused, whatever name leads there.
    pub public_only: bool,
    /// EVENTs per second it is sent.
    pub events_per_second: Option<NonZeroU32>,
    /// Bytes of EVENTs per second it is sent.
    pub bytes_per_second: Option<NonZeroU32>,
    /// Subscriptions to hold open at once, where the relay allows so many; `None` for the usual.
    pub subscriptions: Option<usize>,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// How long to wait for progress on a request.
    pub answer_timeout: Duration,
    /// How long to wait for the first answer to a NEG-OPEN.
    pub neg_open_timeout: Duration,
    /// How long to send nothing new after the relay asked to slow down.
    pub cooldown: Duration,
}

impl RelayOptions {
    /// The usual patience: 10 s to connect, 30 s for an answer, 10 s for a first word on
    /// negentropy, 65 s of rest; no limit on what is published.
    #[must_use]
    pub fn new(url: RelayUrl, tls: Arc<rustls::ClientConfig>) -> Self {
        Self {
            url,
            keys: None,
            tls,
            proxy: None,
            public_only: false,
            events_per_second: None,
            bytes_per_second: None,
            subscriptions: None,
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(30),
            neg_open_timeout: Duration::from_secs(10),
            cooldown: Duration::from_secs(65),
        }
    }
}

struct Shared {
    options: RelayOptions,
    view: watch::Sender<Connections>,
    http: reqwest::Client,
    info: OnceCell<Option<RelayInfo>>,
    /// Whether it takes `until` for the first second that does not match.
    excludes_until: OnceCell<bool>,
    next_token: AtomicU64,
    pace: pace::Pace,
}

impl Shared {
    fn failed(&self, why: &str) {
        self.view.send_modify(|view| {
            (view.connected, view.failures, view.last_error) = (false, view.failures + 1, Some(why.to_owned()));
        });
    }

    /// NIP-11 is asked for once, and not waited for long: it is advice.
    async fn document(&self) -> Option<&RelayInfo> {
        const PATIENCE: Duration = Duration::from_secs(3);
        let ask = async || {
            let options = &self.options;
            // An address that stands in the URL is looked up by nobody, so it is looked at here.
            if options.public_only && options.proxy.is_none() && dial::is_private(&options.url) {
                return None;
            }
            info::ask(&options.url, &self.http, PATIENCE).await
        };
        self.info.get_or_init(ask).await.as_ref()
    }

    async fn info(&self) -> RelayInfo {
        self.document().await.cloned().unwrap_or_default()
    }
}

/// A relay. Clones share one connection.
#[derive(Clone)]
pub struct Relay {
    shared: Arc<Shared>,
    inbox: mpsc::UnboundedSender<Command>,
}

impl Relay {
    /// Starts the task that will own the connection. Nothing is dialled yet.
    #[must_use]
    pub fn spawn(options: RelayOptions) -> Self {
        let redirects = if options.public_only { Redirects::Refused } else { Redirects::Followed };
        let http = http_client(&options.tls, options.proxy.as_ref(), options.public_only, redirects);
        let pace = pace::Pace::new(options.events_per_second, options.bytes_per_second);
        let shared = Arc::new(Shared {
            options,
            view: watch::channel(Connections::default()).0,
            http,
            info: OnceCell::new(),
            excludes_until: OnceCell::new(),
            next_token: AtomicU64::new(0),
            pace,
        });
        let (inbox, commands) = mpsc::unbounded_channel();
        tokio::spawn(connection::run(shared.clone(), commands));
        Self { shared, inbox }
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &RelayUrl {
        &self.shared.options.url
    }

    /// Whether both are handles of one connection.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }

    /// How its connections fare.
    #[must_use]
    pub fn view(&self) -> watch::Receiver<Connections> {
        self.shared.view.subscribe()
    }

    /// Whether there is a connection.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.view.borrow().connected
    }

    /// The public key it knows us by, where there is a key.
    #[must_use]
    pub fn authenticates_as(&self) -> Option<crate::nostr::PublicKey> {
        self.shared.options.keys.as_ref().map(Keys::public_key)
    }

    /// What it says of itself (NIP-11), if anything.
    pub async fn document(&self) -> Option<RelayInfo> {
        self.shared.document().await.cloned()
    }

    /// What it says of itself, or what is usual.
    pub async fn info(&self) -> RelayInfo {
        self.shared.info().await
    }

    /// One user's way to it: what is asked over it counts on its meter.
    #[must_use]
    pub fn link(&self) -> Link {
        Link::new(self.clone())
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Relay({})", self.url())
    }
}
