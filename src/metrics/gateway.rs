//! What the gateway is counted by: what is open now, and what was refused.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

/// What the gateway is counted by. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct GatewayMetrics {
    connections: Gauge,
    sessions: Gauge,
    listings: Gauge,
    inventory_bytes: Gauge,
    listed: Counter,
    refusals: Family<ReasonLabel, Counter>,
}

/// What a gateway holds at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GatewayView {
    /// Clients.
    pub connections: i64,
    /// Negentropy sessions.
    pub sessions: i64,
    /// Listings of the relay under way.
    pub listings: i64,
    /// Bytes of all inventories.
    pub inventory_bytes: i64,
}

/// Something that is counted until it is dropped.
#[derive(Debug)]
pub struct Counted {
    gauge: Gauge,
    amount: i64,
}

impl Counted {
    fn one(gauge: &Gauge) -> Self {
        let mut counted = Self { gauge: gauge.clone(), amount: 0 };
        counted.grow(1);
        counted
    }

    /// Counts for this much more.
    pub fn grow(&mut self, more: usize) {
        let more = i64::try_from(more).unwrap_or(i64::MAX);
        self.gauge.inc_by(more);
        self.amount = self.amount.saturating_add(more);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.gauge.dec_by(self.amount);
    }
}

impl GatewayMetrics {
    pub(super) fn register(&self, to: &mut Registry) {
        to.register("gateway_connections", "Clients of the gateway", self.connections.clone());
        to.register("gateway_sessions", "Negentropy sessions open at the gateway", self.sessions.clone());
        to.register("gateway_listings", "Listings of the local relay under way", self.listings.clone());
        to.register(
            "gateway_inventory_bytes",
            "Bytes held by the inventories of all sessions",
            self.inventory_bytes.clone(),
        );
        to.register("gateway_listed_events", "Events listed for inventories", self.listed.clone());
        to.register("gateway_neg_errors", "Sessions refused or ended, by reason", self.refusals.clone());
    }

    /// A client, while it is held.
    #[must_use]
    pub fn connection(&self) -> Counted {
        Counted::one(&self.connections)
    }

    /// A session, while it is held.
    #[must_use]
    pub fn session(&self) -> Counted {
        Counted::one(&self.sessions)
    }

    /// A listing, while it is held.
    #[must_use]
    pub fn listing(&self) -> Counted {
        Counted::one(&self.listings)
    }

    /// The bytes of an inventory, none so far.
    #[must_use]
    pub fn inventory(&self) -> Counted {
        Counted { gauge: self.inventory_bytes.clone(), amount: 0 }
    }

    /// Events were listed.
    pub fn listed(&self, events: usize) {
        self.listed.inc_by(events as u64);
    }

    /// A session was refused or ended; `reason` is of a closed set.
    pub fn refused(&self, reason: &'static str) {
        self.refusals.get_or_create(&ReasonLabel { reason }).inc();
    }

    /// What is open now.
    #[must_use]
    pub fn view(&self) -> GatewayView {
        GatewayView {
            connections: self.connections.get(),
            sessions: self.sessions.get(),
            listings: self.listings.get(),
            inventory_bytes: self.inventory_bytes.get(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_counted_no_longer() {
        let metrics = GatewayMetrics::default();
        let (session, mut inventory) = (metrics.session(), metrics.inventory());
        inventory.grow(400);
        inventory.grow(40);
        assert_eq!(metrics.view(), GatewayView { sessions: 1, inventory_bytes: 440, ..GatewayView::default() });
        drop((session, inventory));
        assert_eq!(metrics.view(), GatewayView::default());
    }
}
