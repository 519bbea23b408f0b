//! A span of a filter's time, and its parts.

use super::message::Bound;
use crate::nostr::{Filter, Timestamp};

/// Events dated later than this after the present are out of scope: a date that a hostile event
/// chose must not reach a relay as a bound, because some crash on it.
const FUTURE: u64 = 24 * 60 * 60;

/// The most parts a window is split into at once: a stated size may be anything.
const MAX_PARTS: u64 = 16;

/// A span of a filter's time. An end that the filter leaves open stays open in what is asked,
/// though nothing beyond the scope is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Window {
    filter: Filter,
    /// The first second.
    low: Timestamp,
    /// The last second.
    high: Timestamp,
}

impl Window {
    /// All of a filter's time that is in scope; `None` when nothing is.
    pub fn whole(filter: Filter, now: Timestamp) -> Option<Self> {
        let low = filter.since().unwrap_or(0);
        let top = now.saturating_add(FUTURE).min(u64::MAX - 2);
        let high = filter.until().map_or(top, |until| until.min(top));
        (low <= high).then_some(Self { filter, low, high })
    }

    /// The last second in scope.
    pub const fn high(&self) -> Timestamp {
        self.high
    }

    /// The first second in scope.
    pub const fn low(&self) -> Timestamp {
        self.low
    }

    /// What to ask a relay.
    pub const fn filter(&self) -> &Filter {
        &self.filter
    }

    /// Its place in a range list.
    pub const fn domain(&self) -> (Bound, Bound) {
        // `high` is at most 2^64 - 3, so that this is neither infinity nor beyond.
        (Bound::at(self.low), Bound::at(self.high + 1))
    }

    /// The part of it from `low` to `high`, both inclusive and within it. An end of it that is
    /// open stays open.
    pub fn part(&self, low: Timestamp, high: Timestamp) -> Self {
        let since = (low > self.low).then_some(low);
        let until = (high < self.high).then_some(high);
        let (low, high) = (low.max(self.low), high.min(self.high));
        // Within the window there is a second left, so that narrowing cannot come to nothing.
        let filter = self.filter.narrow_time(since, until).unwrap_or_else(|| self.filter.clone());
        Self { filter, low, high }
    }

    /// Its parts, oldest first, after a refusal that found `found` events where at most `max`
    /// are taken: halves where nothing was said. `None` when it is one second.
    pub fn split(&self, found: Option<u64>, max: Option<u64>) -> Option<Vec<Self>> {
        let parts = match (found, max) {
            (Some(found), Some(max)) if max > 0 => found.div_ceil(max).clamp(2, MAX_PARTS),
            _ => 2,
        };
        let seconds = self.high - self.low + 1;
        if seconds == 1 {
            return None;
        }
        let parts = parts.min(seconds);
        // As u128, because seconds * parts may be too much for 64 bits.
        let start = |part: u64| self.low + (u128::from(seconds) * u128::from(part) / u128::from(parts)) as u64;
        Some((0..parts).map(|part| self.part(start(part), start(part + 1) - 1)).collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn window(filter: &str, now: u64) -> Option<Window> {
        Window::whole(filter.parse().unwrap(), now)
    }

    #[test]
    fn the_scope_ends_a_day_ahead() {
        let day = 86_400;
        let whole = window("{}", 1000).unwrap();
        assert_eq!(whole.domain(), (Bound::at(0), Bound::at(1001 + day)));
        assert_eq!(window(r#"{"until":90000}"#, 1000).unwrap().high(), 1000 + day);
        assert_eq!(window(r#"{"since":5,"until":9}"#, 1000).unwrap().domain(), (Bound::at(5), Bound::at(10)));
        assert_eq!(window(r#"{"since":90000}"#, 1000), None);
    }

    #[test]
    fn open_ends_stay_open() {
        let parts = window("{}", 1000).unwrap().split(Some(25), Some(10)).unwrap();
        let asked: Vec<_> = parts.iter().map(|part| part.filter().to_string()).collect();
        assert_eq!(asked, [r#"{"until":29132}"#, r#"{"since":29133,"until":58266}"#, r#"{"since":58267}"#]);
    }

    proptest! {
        #[test]
        fn parts_tile_the_window(
            low in 0..1000_u64,
            len in 0..1000_u64,
            found in proptest::option::of(any::<u64>()),
            max in proptest::option::of(0..50_u64),
        ) {
            let whole = window(&format!("{{\"since\":{low},\"until\":{}}}", low + len), 5000).unwrap();
            match whole.split(found, max) {
                None => prop_assert_eq!(len, 0),
                Some(parts) => {
                    prop_assert!((2..=16).contains(&parts.len()));
                    prop_assert_eq!(parts[0].low, low);
                    prop_assert_eq!(parts[parts.len() - 1].high, low + len);
                    prop_assert!(parts.iter().all(|part| part.low <= part.high));
                    prop_assert!(parts.is_sorted_by(|a, b| a.high + 1 == b.low));
                }
            }
        }
    }
}
