//! Asks both relays whether what is about to be moved was deleted or disowned by its author
//! (NIP-09, NIP-62). A deletion that the destination holds and the source does not is nowhere in
//! the difference of a `pull` job, so it has to be asked for.

use futures::future::{BoxFuture, try_join, try_join_all};
use futures::{FutureExt, TryFutureExt};
use tokio::sync::OnceCell;

use crate::nostr::{Event, EventId, Filter, RelayUrl, TagName, kind};
use crate::relay::{Fault, Link, RelayError};
use crate::transfer::check::Requests;

/// A relay that returns this many may have cut its answer: no relay is known to cap lower.
const LEAST_CAP: usize = 100;

/// What is asked for at once.
const LIMIT: usize = 500;

/// The deletion and vanish requests that two relays hold.
pub(super) struct Guard {
    relays: [Held; 2],
    destination: RelayUrl,
}

/// What one relay holds; most hold none, and are then asked nothing more.
struct Held {
    link: Link,
    deletions: OnceCell<bool>,
    vanishes: OnceCell<bool>,
}

impl Guard {
    pub(super) fn new(source: &Link, destination: &Link) -> Self {
        let held = |link: &Link| Held { link: link.clone(), deletions: OnceCell::new(), vanishes: OnceCell::new() };
        Self { relays: [held(source), held(destination)], destination: destination.relay().url().clone() }
    }

    /// The requests that name these ids.
    pub(super) async fn naming(&self, ids: &[EventId]) -> Result<Requests, RelayError> {
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        let mut requests = Requests::default();
        let asked = self.relays.iter().map(|held| held.deletions_of('e', ids.clone()));
        self.add(&mut requests, try_join_all(asked).await?);
        Ok(requests)
    }

    /// The requests that name the addresses of these events, or that their authors made to be
    /// forgotten.
    pub(super) async fn about(&self, events: &[Event], requests: &mut Requests) -> Result<(), RelayError> {
        let addresses: Vec<String> = events.iter().filter_map(Event::address).collect();
        let asked = self.relays.iter().map(|held| {
            try_join(held.deletions_of('a', addresses.clone()), held.vanishes_of(events)).map_ok(
                |(mut deletions, vanishes)| {
                    deletions.extend(vanishes);
                    deletions
                },
            )
        });
        self.add(requests, try_join_all(asked).await?);
        Ok(())
    }

    fn add(&self, requests: &mut Requests, found: Vec<Vec<Event>>) {
        for event in found.iter().flatten() {
            requests.add(event, &self.destination);
        }
    }
}

impl Held {
    async fn deletions_of(&self, tag: char, values: Vec<String>) -> Result<Vec<Event>, RelayError> {
        let kinds = Filter::of_kind(kind::DELETION);
        let (Some(tag), false) = (TagName::new(tag), values.is_empty()) else { return Ok(Vec::new()) };
        if !*self.deletions.get_or_try_init(|| self.holds_any(&kinds)).await? {
            return Ok(Vec::new());
        }
        self.all(kinds.with_tag(tag, values)).await
    }

    async fn vanishes_of(&self, events: &[Event]) -> Result<Vec<Event>, RelayError> {
        let kinds = Filter::of_kind(kind::VANISH);
        let Some(theirs) = kinds.narrow_authors(events.iter().map(Event::pubkey)) else { return Ok(Vec::new()) };
        if !*self.vanishes.get_or_try_init(|| self.holds_any(&kinds)).await? {
            return Ok(Vec::new());
        }
        self.all(theirs).await
    }

    async fn holds_any(&self, filter: &Filter) -> Result<bool, RelayError> {
        match self.link.list(filter.clone(), 1).await {
            Ok(listing) => Ok(listing.received > 0),
            // It does not say; the narrower question may be answered.
            Err(RelayError { fault: Fault::Closed(_), .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// All that match, however few the relay returns at once.
    fn all(&self, filter: Filter) -> BoxFuture<'_, Result<Vec<Event>, RelayError>> {
        async move {
            let listing = match self.link.list(filter.clone(), LIMIT).await {
                Ok(listing) => listing,
                Err(RelayError { fault: Fault::Closed(reason), url }) => {
                    tracing::debug!(relay = %url, %reason, "does not say what was deleted");
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error),
            };
            match filter.split() {
                Some((low, high)) if listing.received >= LEAST_CAP => {
                    let (mut low, high) = try_join(self.all(low), self.all(high)).await?;
                    low.extend(high);
                    Ok(low)
                }
                _ => Ok(listing.events),
            }
        }
        .boxed()
    }
}
