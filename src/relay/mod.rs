//! A relay as others see it: ask for events, publish one, reconcile; one connection for all.
//!
//! The handle holds no socket. Requests go to the task that owns it, under a token; what the
//! relay says comes back in order. A connection is made when there is something to ask, and again
//! after it was lost, never behind the back of whoever waits: what was under way fails first.

mod connection;
mod dial;
mod info;
mod pace;
mod session;
mod tls;

use std::collections::HashSet;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OnceCell, mpsc};

pub use self::info::RelayInfo;
pub use self::session::Meter;
pub use self::tls::{TlsError, client_config};

use self::connection::Command;
use self::session::{Delivery, Failure, Request, Token};
use crate::nostr::{EoseHint, Event, EventId, Filter, Keys, NegRefusal, Reason, RelayUrl};

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
    /// EVENTs per second it is sent.
    pub events_per_second: Option<NonZeroU32>,
    /// Bytes of EVENTs per second it is sent.
    pub bytes_per_second: Option<NonZeroU32>,
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
            events_per_second: None,
            bytes_per_second: None,
            connect_timeout: Duration::from_secs(10),
            answer_timeout: Duration::from_secs(30),
            neg_open_timeout: Duration::from_secs(10),
            cooldown: Duration::from_secs(65),
        }
    }
}

/// What went wrong at a relay, and which.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url}: {fault}")]
pub struct RelayError {
    /// The relay.
    pub url: RelayUrl,
    /// What happened.
    pub fault: Fault,
}

/// What a relay did, or did not do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It wants to know who asks.
    #[error("wants authentication ({0}): give this relay a key with `auth:`, or ask its operator for access")]
    AuthRefused(Reason),
    /// It closed a subscription before its end.
    #[error("closed the subscription: {0}")]
    Closed(Reason),
    /// It sent many times more than was asked for.
    #[error("sent far more events than were asked for")]
    Flood,
    /// The connection ended.
    #[error("the connection was lost: {0}")]
    Lost(String),
    /// It said nothing of use for too long.
    #[error("no progress within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    /// There is no connection to it.
    #[error("cannot be reached: {0}: check its URL, and that it runs")]
    Unreachable(String),
}

impl RelayError {
    /// Whether it takes a person to change it: asking again will not.
    #[must_use]
    pub fn is_refusal(&self) -> bool {
        use crate::nostr::Prefix;
        match &self.fault {
            Fault::AuthRefused(_) => true,
            Fault::Closed(reason) => {
                matches!(reason.prefix, Prefix::Restricted | Prefix::Blocked | Prefix::Unsupported | Prefix::Invalid)
            }
            Fault::Flood | Fault::Lost(_) | Fault::TimedOut(_) | Fault::Unreachable(_) => false,
        }
    }
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::AuthRefused(reason) => Self::AuthRefused(reason),
            Failure::Closed(reason) => Self::Closed(reason),
            Failure::Flood => Self::Flood,
            Failure::Lost(why) => Self::Lost(why),
            Failure::TimedOut(waited) => Self::TimedOut(waited),
            Failure::Unreachable(why) => Self::Unreachable(why),
        }
    }
}

struct Shared {
    options: RelayOptions,
    http: reqwest::Client,
    info: OnceCell<Option<RelayInfo>>,
    /// Whether it takes `until` for the first second that does not match.
    excludes_until: OnceCell<bool>,
    next_token: AtomicU64,
    pace: pace::Pace,
}

impl Shared {
    /// NIP-11 is asked for once, and not waited for long: it is advice.
    async fn document(&self) -> Option<&RelayInfo> {
        const PATIENCE: Duration = Duration::from_secs(3);
        self.info.get_or_init(|| info::ask(&self.options.url, &self.http, PATIENCE)).await.as_ref()
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
        let http = tls::http_client(&options.tls, options.proxy.as_ref());
        let pace = pace::Pace::new(options.events_per_second, options.bytes_per_second);
        let shared = Arc::new(Shared {
            options,
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
        Link { relay: self.clone(), meter: Arc::default() }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Relay({})", self.url())
    }
}

/// A relay as one user has it.
#[derive(Clone, Debug)]
pub struct Link {
    relay: Relay,
    meter: Arc<Meter>,
}

/// All that came for one REQ, up to its EOSE.
#[derive(Debug, Default)]
pub struct Listing {
    /// Events that match what was asked and whose ids are right. Signatures are unchecked.
    pub events: Vec<Event>,
    /// Ids under which something else came than the event they name.
    pub invalid: Vec<EventId>,
    /// All events that came.
    pub received: usize,
    /// Whether there is more.
    pub hint: Option<EoseHint>,
}

/// A relay that ignores `limit` is listened to for this many events, then it floods.
const PATIENCE_EVENTS: usize = 20_000;

impl Link {
    /// The relay.
    #[must_use]
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Bytes that went over this link.
    #[must_use]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Asks for the stored events of a filter, `limit` at the most, and hands each to `take`.
    /// Returns how many came in all, and whether there is more.
    ///
    /// # Errors
    /// When the relay does not answer to the end.
    pub async fn stored(
        &self,
        filter: Filter,
        limit: usize,
        mut take: impl FnMut(Result<Event, EventId>),
    ) -> Result<(usize, Option<EoseHint>), RelayError> {
        let quota = limit.saturating_mul(2).max(PATIENCE_EVENTS);
        let mut open = self.open(Request::Req { filter, limit, quota });
        loop {
            match open.next().await {
                Delivery::Event(event) => take(Ok(event)),
                Delivery::Invalid(id) => take(Err(id)),
                Delivery::End { received, hint } => return Ok((received, hint)),
                Delivery::Failed(failure) => return Err(self.error(failure)),
                Delivery::Ack { .. } | Delivery::NegMessage(_) | Delivery::NegRefused(_) => {}
            }
        }
    }

    /// The same, collected.
    ///
    /// # Errors
    /// When the relay does not answer to the end.
    pub async fn list(&self, filter: Filter, limit: usize) -> Result<Listing, RelayError> {
        let mut listing = Listing::default();
        let (received, hint) = self
            .stored(filter, limit, |event| match event {
                Ok(event) => listing.events.push(event),
                Err(id) => listing.invalid.push(id),
            })
            .await?;
        Ok(Listing { received, hint, ..listing })
    }

    /// The events with these ids, each once.
    ///
    /// # Errors
    /// When the relay does not answer to the end.
    pub async fn fetch(&self, ids: &[EventId]) -> Result<Listing, RelayError> {
        let mut listing = self.list(Filter::of_ids(ids.iter().copied()), ids.len()).await?;
        let mut seen = HashSet::with_capacity(ids.len());
        listing.events.retain(|event| seen.insert(event.id()));
        Ok(listing)
    }

    /// The filter as this relay has to be asked it. NIP-01 includes the second `until`;
    /// nostr-relay does not, and would lose the last second of every page and window. What comes
    /// from the second after is the caller's to pass over.
    ///
    /// # Errors
    /// When the relay does not answer to the end.
    pub async fn as_asked(&self, filter: Filter) -> Result<Filter, RelayError> {
        let Some(until) = filter.until() else { return Ok(filter) };
        let cell = &self.relay.shared.excludes_until;
        let excludes = match cell.get() {
            Some(known) => *known,
            None => match self.excludes_until(&filter).await? {
                Some(found) => *cell.get_or_init(|| async { found }).await,
                // It holds nothing that could be lost.
                None => false,
            },
        };
        Ok(if excludes { filter.with_until(until.checked_add(1)) } else { filter })
    }

    /// Asks for one event it holds with `until` at that event's second; `None` where it holds
    /// none.
    async fn excludes_until(&self, filter: &Filter) -> Result<Option<bool>, RelayError> {
        let newest = self.list(filter.with_until(None), 1).await?;
        let Some(event) = newest.events.first() else { return Ok(None) };
        let named = |until| Filter::of_ids([event.id()]).with_until(Some(until));
        if !self.list(named(event.created_at()), 1).await?.events.is_empty() {
            return Ok(Some(false));
        }
        let later = self.list(named(event.created_at().saturating_add(1)), 1).await?;
        if !later.events.is_empty() {
            tracing::debug!(relay = %self.relay.url(), "takes `until` as exclusive");
        }
        Ok(Some(!later.events.is_empty()))
    }

    /// Opens a negentropy session with its first query.
    #[must_use]
    pub fn reconcile(&self, filter: Filter, message: Vec<u8>) -> NegSession {
        NegSession { open: self.open(Request::NegOpen { filter, message }), link: self.clone() }
    }

    /// A way to publish many events and to hear of each.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        let (reply, acks) = mpsc::unbounded_channel();
        Publisher { link: self.clone(), reply, acks }
    }

    fn open(&self, request: Request) -> Opened {
        let (reply, deliveries) = mpsc::unbounded_channel();
        let token = self.send(request, reply);
        Opened { token, deliveries, inbox: self.relay.inbox.clone() }
    }

    fn send(&self, request: Request, reply: connection::Reply) -> Token {
        let token = self.relay.shared.next_token.fetch_add(1, Ordering::Relaxed);
        // If the task is gone the reply is dropped with the command, which its receiver sees.
        let _ = self.relay.inbox.send(Command::Request { token, request, meter: self.meter.clone(), reply });
        token
    }

    fn error(&self, failure: Failure) -> RelayError {
        RelayError { url: self.relay.url().clone(), fault: failure.into() }
    }
}

/// A request under way; dropping it ends it.
struct Opened {
    token: Token,
    deliveries: mpsc::UnboundedReceiver<(Token, Delivery)>,
    inbox: mpsc::UnboundedSender<Command>,
}

impl Opened {
    /// Cancel safe.
    async fn next(&mut self) -> Delivery {
        match self.deliveries.recv().await {
            Some((_, delivery)) => delivery,
            None => Delivery::Failed(Failure::Lost("the connection's task has ended".to_owned())),
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        let _ = self.inbox.send(Command::Close { token: self.token });
    }
}

/// A negentropy session (NIP-77); dropping it closes it.
pub struct NegSession {
    open: Opened,
    link: Link,
}

impl NegSession {
    /// The answer to the query under way, or how the session ended.
    ///
    /// # Errors
    /// When the connection fails, or the relay wants authentication.
    pub async fn answer(&mut self) -> Result<Result<Vec<u8>, NegRefusal>, RelayError> {
        loop {
            match self.open.next().await {
                Delivery::NegMessage(message) => return Ok(Ok(message)),
                Delivery::NegRefused(refusal) => return Ok(Err(refusal)),
                Delivery::Failed(failure) => return Err(self.link.error(failure)),
                Delivery::Event(_) | Delivery::Invalid(_) | Delivery::End { .. } | Delivery::Ack { .. } => {}
            }
        }
    }

    /// Sends the next query.
    pub fn query(&mut self, message: Vec<u8>) {
        let _ = self.link.relay.inbox.send(Command::NegMessage { token: self.open.token, message });
    }
}

/// Publishes events; the answers come in any order.
pub struct Publisher {
    link: Link,
    reply: connection::Reply,
    acks: mpsc::UnboundedReceiver<(Token, Delivery)>,
}

/// What a relay said of one published event.
#[derive(Debug)]
pub struct Ack {
    /// As [`Publisher::send`] returned it.
    pub token: u64,
    /// Whether it was taken and why, or what went wrong.
    pub answer: Result<(bool, Reason), RelayError>,
}

impl Publisher {
    /// Sends an event, as soon as the relay's pace allows, and returns the name under which its
    /// answer will come.
    pub async fn send(&self, id: EventId, raw: Box<str>) -> u64 {
        self.link.relay.shared.pace.wait(raw.len()).await;
        self.link.send(Request::Publish { id, raw }, self.reply.clone())
    }

    /// The next answer. Cancel safe; never ready while nothing is under way.
    pub async fn next(&mut self) -> Ack {
        loop {
            // Never None: a sender is held here.
            let Some((token, delivery)) = self.acks.recv().await else { return std::future::pending().await };
            match delivery {
                Delivery::Ack { accepted, reason } => return Ack { token, answer: Ok((accepted, reason)) },
                Delivery::Failed(failure) => return Ack { token, answer: Err(self.link.error(failure)) },
                _ => {}
            }
        }
    }
}
