//! The last day of the streams: what they had counted, every few minutes. Runs have a history of
//! their own, in the state.

use std::collections::VecDeque;
use std::time::Duration;

use crate::metrics::LiveTotals;
use crate::nostr::Timestamp;

/// How often the counts are noted: one sample is two pixels wide.
pub(super) const EVERY: Duration = Duration::from_secs(300);

const HOUR: u64 = 3600;

/// Hours that the page shows, with the one under way.
pub(super) const HOURS: u64 = 24;

/// The start of the first of these hours.
pub(super) fn first_hour(now: Timestamp) -> Timestamp {
    (now / HOUR + 1).saturating_sub(HOURS) * HOUR
}

/// What streams did in a part of the day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) since: Timestamp,
    pub(super) until: Timestamp,
    pub(super) live: LiveTotals,
}

/// The samples of the last day, the oldest first.
#[derive(Clone, Debug)]
pub(super) struct History {
    /// When it began: nothing is known of the time before.
    pub(super) began: Timestamp,
    pub(super) samples: VecDeque<Sample>,
    /// The end of the last sample, and what was counted by then.
    last: (Timestamp, LiveTotals),
}

impl History {
    pub(super) fn new(now: Timestamp, totals: LiveTotals) -> Self {
        Self { began: now, samples: VecDeque::new(), last: (now, totals) }
    }

    /// Notes what was counted since the last sample, and forgets what is older than a day.
    pub(super) fn sample(&mut self, now: Timestamp, totals: LiveTotals) {
        let (since, before) = std::mem::replace(&mut self.last, (now, totals));
        self.samples.push_back(Sample { since, until: now, live: difference(&totals, &before) });
        let room = usize::try_from(HOURS * HOUR / EVERY.as_secs()).unwrap_or_default();
        let excess = self.samples.len().saturating_sub(room);
        self.samples.drain(..excess);
    }

    /// The same, with what was counted since the last sample.
    pub(super) fn up_to(&self, now: Timestamp, totals: LiveTotals) -> Self {
        let mut history = self.clone();
        history.sample(now, totals);
        history
    }
}

fn difference(now: &LiveTotals, before: &LiveTotals) -> LiveTotals {
    let mut lags = now.lags;
    for (count, before) in lags.iter_mut().zip(before.lags) {
        *count = count.saturating_sub(before);
    }
    LiveTotals { down: now.down.saturating_sub(before.down), up: now.up.saturating_sub(before.up), lags }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_holds_what_is_new_and_a_day_of_them_is_kept() {
        let start = 1_800_000_000;
        let mut history = History::new(start, LiveTotals { down: 7, ..LiveTotals::default() });
        for n in 1..=400 {
            history.sample(start + n * 300, LiveTotals { down: 7 + n * 2, ..LiveTotals::default() });
        }
        assert_eq!(history.samples.len(), 288);
        let now = start + 400 * 300 + 10;
        let shown = history.up_to(now, LiveTotals { down: 810, ..LiveTotals::default() });
        let last = Sample { since: now - 10, until: now, live: LiveTotals { down: 3, ..LiveTotals::default() } };
        assert_eq!(shown.samples.back(), Some(&last));
        assert_eq!(shown.samples[0].live.down, 2);
        assert_eq!((shown.began, shown.samples.len(), history.samples.len()), (start, 288, 288));
    }

    #[test]
    fn the_hour_under_way_is_the_last_of_24() {
        let hour = 1_800_000_000 / 3600 * 3600;
        assert_eq!(first_hour(hour), hour - 23 * 3600);
        assert_eq!(first_hour(hour + 3599), hour - 23 * 3600);
        assert_eq!(first_hour(0), 0);
    }
}
