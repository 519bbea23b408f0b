//! What all clients together may use. Each part is given out here and comes back by being
//! dropped, so that nothing has to be remembered.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::inventory::ITEM_BYTES;
use crate::config::GatewayLimits;
use crate::metrics::{Counted, GatewayMetrics};

/// Items by which the memory of an inventory grows: 40 kB, of which half is unused on average.
const BLOCK: usize = 1024;

/// What all clients together may use.
#[derive(Debug)]
pub(super) struct Budget {
    connections: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
    listings: Arc<Semaphore>,
    /// In blocks.
    memory: Arc<Semaphore>,
    /// Queries answered at once: half of the cores are left to those who only pass through.
    answers: Arc<Semaphore>,
    metrics: GatewayMetrics,
}

/// One place among those that there are.
#[derive(Debug)]
pub(super) struct Slot {
    _permit: OwnedSemaphorePermit,
    _counted: Counted,
}

/// Memory for the items of one inventory.
#[derive(Debug)]
pub(super) struct Memory {
    of: Arc<Semaphore>,
    permits: Option<OwnedSemaphorePermit>,
    counted: Counted,
    blocks: usize,
}

impl Budget {
    pub(super) fn new(limits: &GatewayLimits, metrics: GatewayMetrics) -> Self {
        let of = |permits: usize| Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS)));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            connections: of(limits.connections),
            sessions: of(limits.sessions),
            listings: of(limits.listings),
            memory: of(blocks(limits)),
            answers: of((cores / 2).max(1)),
            metrics,
        }
    }

    /// A client's place; `None` where there are as many as may be.
    pub(super) fn connection(&self) -> Option<Slot> {
        let permit = self.connections.clone().try_acquire_owned().ok()?;
        Some(Slot { _permit: permit, _counted: self.metrics.connection() })
    }

    /// A session's place.
    pub(super) fn session(&self) -> Option<Slot> {
        let permit = self.sessions.clone().try_acquire_owned().ok()?;
        Some(Slot { _permit: permit, _counted: self.metrics.session() })
    }

    /// A listing's place, once it is there: first come, first served.
    pub(super) fn listing(&self) -> impl Future<Output = Slot> + Send + use<> {
        let (listings, metrics) = (self.listings.clone(), self.metrics.clone());
        async move {
            match listings.acquire_owned().await {
                Ok(permit) => Slot { _permit: permit, _counted: metrics.listing() },
                // The semaphore is never closed.
                Err(_) => std::future::pending().await,
            }
        }
    }

    /// Leave to answer a query.
    pub(super) fn answers(&self) -> Arc<Semaphore> {
        self.answers.clone()
    }

    /// Memory for an inventory, none so far.
    pub(super) fn memory(&self) -> Memory {
        Memory { of: self.memory.clone(), permits: None, counted: self.metrics.inventory(), blocks: 0 }
    }
}

/// Blocks in all.
fn blocks(limits: &GatewayLimits) -> usize {
    limits.memory_bytes / (BLOCK * ITEM_BYTES)
}

/// The most events that one inventory can hold, within all limits. A block is for the page that
/// is being read, part of which may be known.
pub(super) fn most_events(limits: &GatewayLimits) -> usize {
    limits.events_per_filter.min(blocks(limits).saturating_sub(1) * BLOCK)
}

impl Memory {
    /// Has room for so many items; `false` where others have taken it.
    pub(super) fn hold(&mut self, items: usize) -> bool {
        while self.blocks * BLOCK < items {
            let Ok(permit) = self.of.clone().try_acquire_owned() else { return false };
            match &mut self.permits {
                Some(permits) => permits.merge(permit),
                None => self.permits = Some(permit),
            }
            self.counted.grow(BLOCK * ITEM_BYTES);
            self.blocks += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::GatewayView;

    #[test]
    fn memory_is_given_out_once_and_comes_back() {
        let limits = GatewayLimits { memory_bytes: 3 * BLOCK * ITEM_BYTES, ..GatewayLimits::default() };
        assert_eq!(most_events(&limits), 2 * BLOCK);
        let metrics = GatewayMetrics::default();
        let budget = Budget::new(&limits, metrics.clone());
        let (mut one, mut other) = (budget.memory(), budget.memory());
        assert!(one.hold(BLOCK + 1) && one.hold(1) && other.hold(BLOCK));
        assert!(!other.hold(BLOCK + 1), "one has the rest");
        assert_eq!(metrics.view().inventory_bytes, 3 * 40_960);
        drop(one);
        assert!(other.hold(3 * BLOCK));
        drop(other);
        assert_eq!(metrics.view(), GatewayView::default());
    }
}
