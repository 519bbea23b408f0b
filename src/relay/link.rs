//! A relay as one user has it: what is asked over a link counts on its meter.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;

use super::connection::{Command, Reply};
use super::request::{Delivery, Failure, Meter, Request, Token};
use super::{Relay, RelayError};
use crate::nostr::{EoseHint, Event, EventId, Filter, NegRefusal, Reason};

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

/// The most events to take in answer to a REQ for so many, before the relay counts as flooding.
#[must_use]
pub fn quota(limit: usize) -> usize {
    limit.saturating_mul(2).max(PATIENCE_EVENTS)
}

impl Link {
    pub(super) fn new(relay: Relay) -> Self {
        Self { relay, meter: Arc::default() }
    }

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
        let quota = quota(limit);
        let mut open = self.open(Request::Req { filter, limit, quota });
        loop {
            match open.next().await {
                Delivery::Event(event) => take(Ok(event)),
                Delivery::Invalid(id) => take(Err(id)),
                Delivery::End { received, hint } => return Ok((received, hint)),
                Delivery::Failed(failure) => return Err(self.error(failure)),
                Delivery::Ack { .. } | Delivery::Listening | Delivery::NegMessage(_) | Delivery::NegRefused(_) => {}
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

    /// Hears events as they appear that match any of these.
    #[must_use]
    pub fn listen(&self, filters: Vec<Filter>) -> Stream {
        Stream { open: self.open(Request::Live { filters }), link: self.clone() }
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

    fn send(&self, request: Request, reply: Reply) -> Token {
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

/// Events that may wait for the reader of a stream: the signatures of so many are a tenth of a
/// second's work. A relay that goes on being faster would fill the memory.
const MOST_WAITING: usize = 2000;

/// Events as they appear; dropping it ends it.
pub struct Stream {
    open: Opened,
    link: Link,
}

/// What a stream brings.
#[derive(Debug)]
pub enum Streamed {
    /// From here on nothing is missed.
    Listening,
    /// An event that matches what was asked and whose id is right. Its signature is unchecked.
    Event(Box<Event>),
}

impl Stream {
    /// The next thing. Cancel safe.
    ///
    /// # Errors
    /// When the relay ends the subscription, is lost, or sends more than can be taken. The stream
    /// is over then.
    pub async fn next(&mut self) -> Result<Streamed, RelayError> {
        if self.open.deliveries.len() > MOST_WAITING {
            return Err(self.link.error(Failure::Overrun));
        }
        loop {
            match self.open.next().await {
                Delivery::Event(event) => return Ok(Streamed::Event(Box::new(event))),
                Delivery::Listening => return Ok(Streamed::Listening),
                Delivery::Failed(failure) => return Err(self.link.error(failure)),
                Delivery::Ack { .. }
                | Delivery::End { .. }
                | Delivery::Invalid(_)
                | Delivery::NegMessage(_)
                | Delivery::NegRefused(_) => {}
            }
        }
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
                Delivery::Ack { .. }
                | Delivery::End { .. }
                | Delivery::Event(_)
                | Delivery::Invalid(_)
                | Delivery::Listening => {}
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
    reply: Reply,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::{Fault, RelayOptions, client_config};

    #[tokio::test]
    async fn a_stream_that_is_too_fast_ends() {
        // Nothing is dialled: nothing is asked.
        let url = "ws://127.0.0.1:1".parse().unwrap();
        let link = Relay::spawn(RelayOptions::new(url, client_config(None).unwrap())).link();
        let (reply, deliveries) = mpsc::unbounded_channel();
        let inbox = link.relay.inbox.clone();
        let mut stream = Stream { open: Opened { token: 1, deliveries, inbox }, link };
        let send = |count| (0..count).for_each(|_| reply.send((1, Delivery::Listening)).unwrap());
        send(MOST_WAITING);
        assert!(stream.next().await.is_ok());
        send(2);
        assert_eq!(stream.next().await.unwrap_err().fault, Fault::Overrun);
    }
}
