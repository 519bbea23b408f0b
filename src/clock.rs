//! The clocks, read here and nowhere else: whoever needs the time is given it, and tests choose it.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::nostr::Timestamp;

/// Seconds since the Unix epoch, as events and the state have them. A clock set before 1970 reads 0.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
pub fn now() -> Timestamp {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A moment to measure from. It stands still where tokio's clock is paused.
#[must_use]
pub fn instant() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// From half of a pause to all of it, by chance: those that failed together are not to try again
/// together.
#[must_use]
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_paused_clock_rules_instants() {
        let start = instant();
        tokio::time::advance(Duration::from_secs(3600)).await;
        assert_eq!(instant() - start, Duration::from_secs(3600));
    }

    #[test]
    fn a_jittered_pause_is_half_to_all_of_it() {
        let pause = Duration::from_secs(60);
        assert!((0..1000).map(|_| jittered(pause)).all(|jittered| (pause / 2..=pause).contains(&jittered)));
    }

    #[test]
    fn the_time_is_later_than_this_line() {
        assert!(now() > 1_700_000_000);
    }
}
