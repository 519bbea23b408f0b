//! What the listings of all clients have learnt of the relay.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::listing::Known;
use crate::reconcile::PageSize;

/// What the listings of all clients have learnt of the relay.
#[derive(Debug, Default)]
pub(super) struct Learnt {
    /// The most events to ask for at once; 0 while nothing is known.
    limit: AtomicUsize,
    largest_page: AtomicUsize,
    excludes_until: OnceLock<bool>,
}

impl Learnt {
    /// All there is to know now.
    pub(super) fn get(&self) -> Known {
        let page =
            PageSize { limit: self.limit.load(Ordering::Relaxed), largest: self.largest_page.load(Ordering::Relaxed) };
        Known { page, excludes_until: self.excludes_until.get().copied() }
    }

    /// What the relay says of itself.
    pub(super) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// What one listing has learnt.
    pub(super) fn learn(&self, known: Known) {
        self.largest_page.fetch_max(known.page.largest, Ordering::Relaxed);
        if let Some(excludes) = known.excludes_until {
            self.excludes_until.get_or_init(|| excludes);
        }
    }
}
