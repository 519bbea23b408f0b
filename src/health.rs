//! How one relay is doing, and when it may be tried again: a pure function of recorded times and
//! the present (PROTOCOL section 6).

use crate::nostr::Timestamp;

/// The numbers, all in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Wait after the first failure, doubled by each further one.
    pub base: u64,
    /// The longest wait.
    pub cap: u64,
    /// How long a connection must have held before a success forgets earlier failures.
    pub stable: u64,
    /// Continuous failure after which a relay counts as dead.
    pub dead_after: u64,
    /// Wait between two tries at a dead relay.
    pub dead_retry: u64,
    /// Wait after the relay asked to slow down.
    pub cooldown: u64,
}

impl Default for Patience {
    fn default() -> Self {
        let day = 24 * 3600;
        Self { base: 5, cap: 3600, stable: 300, dead_after: day, dead_retry: day, cooldown: 65 }
    }
}

/// How a relay is doing. The number is its value in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// Connected, or idle without a failure.
    Healthy = 1,
    /// The last try failed.
    Disconnected = 2,
    /// Connected again, for too short a time to be trusted.
    Degraded = 3,
    /// It asked to slow down.
    RateLimited = 4,
    /// It has failed for a day.
    Dead = 5,
}

impl Status {
    /// The word.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Disconnected => "disconnected",
            Self::Degraded => "degraded",
            Self::RateLimited => "rate-limited",
            Self::Dead => "dead",
        }
    }
}

/// What has become of a relay's connections so far. Counts only grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// Whether there is a connection.
    pub connected: bool,
    /// Connections made.
    pub connections: u64,
    /// Tries to connect that failed, and connections that were lost.
    pub failures: u64,
    /// How often the relay asked to slow down.
    pub cooldowns: u64,
    /// Why it was last not reached, or lost.
    pub last_error: Option<String>,
}

/// What was recorded of one relay.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Failures since the relay was last stable.
    failures: u32,
    /// The first of them.
    failing_since: Option<Timestamp>,
    /// Since when it is connected.
    connected_since: Option<Timestamp>,
    /// Not before this is it tried again.
    retry_at: Option<Timestamp>,
    cooling_until: Option<Timestamp>,
}

impl Health {
    /// It was reached.
    pub fn connected(&mut self, now: Timestamp) {
        self.connected_since.get_or_insert(now);
        self.retry_at = None;
    }

    /// Somebody else reached it: it need not be waited for.
    pub fn reached(&mut self) {
        self.retry_at = None;
    }

    /// It could not be reached, or the connection was lost. `luck` is from 0 to 1: full jitter
    /// keeps those that were cut off together from coming back together.
    pub fn failed(&mut self, now: Timestamp, luck: f64, patience: &Patience) {
        if self.is_stable(now, patience) {
            self.failures = 0;
            self.failing_since = None;
        }
        self.connected_since = None;
        self.failures = self.failures.saturating_add(1);
        self.failing_since.get_or_insert(now);
        let wait = if self.is_dead(now, patience) {
            patience.dead_retry
        } else {
            // 2^20 times the base is past any cap.
            let most = patience.base.saturating_mul(1 << (self.failures - 1).min(20)).min(patience.cap);
            scale(most, luck)
        };
        self.retry_at = Some(now.saturating_add(wait.max(1)));
    }

    /// It asked to slow down.
    pub fn slowed(&mut self, now: Timestamp, patience: &Patience) {
        self.cooling_until = Some(now.saturating_add(patience.cooldown));
    }

    /// How it is doing.
    #[must_use]
    pub fn status(&self, now: Timestamp, patience: &Patience) -> Status {
        if self.cooling_until.is_some_and(|until| until > now) {
            Status::RateLimited
        } else if self.connected_since.is_none() && self.is_dead(now, patience) {
            Status::Dead
        } else if self.connected_since.is_none() && self.failures > 0 {
            Status::Disconnected
        } else if self.failures > 0 && !self.is_stable(now, patience) {
            Status::Degraded
        } else {
            Status::Healthy
        }
    }

    /// Failures since it was last stable.
    #[must_use]
    pub fn failures(&self, now: Timestamp, patience: &Patience) -> u32 {
        if self.is_stable(now, patience) { 0 } else { self.failures }
    }

    /// Until when nothing is to be asked of it; `None` when it may be asked now.
    #[must_use]
    pub fn wait_until(&self, now: Timestamp, patience: &Patience) -> Option<Timestamp> {
        // A clock that was set back must not turn a wait of seconds into one of years.
        let bounded = |at: Timestamp, most: u64| Some(at).filter(|at| *at > now).map(|at| at.min(now + most));
        let retry = self.retry_at.and_then(|at| bounded(at, patience.dead_retry.max(patience.cap)));
        let cooling = self.cooling_until.and_then(|at| bounded(at, patience.cooldown));
        retry.max(cooling)
    }

    fn is_stable(&self, now: Timestamp, patience: &Patience) -> bool {
        self.connected_since.is_some_and(|since| now.saturating_sub(since) >= patience.stable)
    }

    fn is_dead(&self, now: Timestamp, patience: &Patience) -> bool {
        self.failing_since.is_some_and(|since| now.saturating_sub(since) >= patience.dead_after)
    }
}

/// A part of a number of seconds.
fn scale(seconds: u64, part: f64) -> u64 {
    // Hours in seconds are far below 2^52, and the part is not negative.
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let scaled = (seconds as f64 * part.clamp(0.0, 1.0)).round() as u64;
    scaled
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Patience =
        Patience { base: 5, cap: 3600, stable: 300, dead_after: 86_400, dead_retry: 86_400, cooldown: 65 };
    const START: Timestamp = 1_700_000_000;

    #[test]
    fn the_wait_doubles_up_to_its_cap() {
        let mut health = Health::default();
        let mut waits = Vec::new();
        let mut now = START;
        for _ in 0..12 {
            health.failed(now, 1.0, &PATIENCE);
            let until = health.wait_until(now, &PATIENCE).unwrap();
            waits.push(until - now);
            now = until;
        }
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560, 3600, 3600]);
        assert_eq!(health.status(now, &PATIENCE), Status::Disconnected);
    }

    #[test]
    fn a_success_counts_when_it_has_lasted() {
        let mut health = Health::default();
        for _ in 0..3 {
            health.failed(START, 1.0, &PATIENCE);
        }
        health.connected(START + 30);
        assert_eq!(health.status(START + 60, &PATIENCE), Status::Degraded);
        assert_eq!(health.wait_until(START + 60, &PATIENCE), None);
        health.failed(START + 60, 1.0, &PATIENCE);
        assert_eq!(health.wait_until(START + 60, &PATIENCE), Some(START + 60 + 40), "the fourth, not the first");
        health.connected(START + 100);
        assert_eq!(health.status(START + 400, &PATIENCE), Status::Healthy);
        assert_eq!(health.failures(START + 400, &PATIENCE), 0);
        health.failed(START + 400, 1.0, &PATIENCE);
        assert_eq!(health.wait_until(START + 400, &PATIENCE), Some(START + 405));
    }

    #[test]
    fn a_day_of_failure_is_death_with_one_try_a_day() {
        let mut health = Health::default();
        let mut now = START;
        let mut tries = 0;
        while now < START + 4 * 86_400 {
            health.failed(now, 1.0, &PATIENCE);
            tries += 1;
            now = health.wait_until(now, &PATIENCE).unwrap();
        }
        assert_eq!(health.status(now, &PATIENCE), Status::Dead);
        assert!((30..50).contains(&tries), "{tries}");
        health.connected(now);
        assert_eq!(health.status(now, &PATIENCE), Status::Degraded);
    }

    #[test]
    fn what_a_stream_reaches_is_not_waited_for() {
        let mut health = Health::default();
        for _ in 0..10 {
            health.failed(START, 1.0, &PATIENCE);
        }
        health.reached();
        assert_eq!(health.wait_until(START, &PATIENCE), None);
        assert_eq!(health.failures(START, &PATIENCE), 10, "it has yet to prove stable");
    }

    #[test]
    fn a_cooldown_is_a_deadline() {
        let mut health = Health::default();
        health.connected(START);
        health.slowed(START + 10, &PATIENCE);
        assert_eq!(health.status(START + 20, &PATIENCE), Status::RateLimited);
        assert_eq!(health.wait_until(START + 20, &PATIENCE), Some(START + 75));
        assert_eq!(health.status(START + 75, &PATIENCE), Status::Healthy);
        assert_eq!(health.wait_until(START + 75, &PATIENCE), None);
    }

    proptest! {
        /// Whatever happens, and whatever the clock does, a relay is tried again within a day.
        #[test]
        fn no_relay_is_given_up(steps in prop::collection::vec((0_u8..3, -100_000_i64..100_000, 0.0..1.0_f64), 1..60)) {
            let mut health = Health::default();
            let mut now = START;
            for (what, passed, luck) in steps {
                now = now.saturating_add_signed(passed);
                match what {
                    0 => health.connected(now),
                    1 => health.failed(now, luck, &PATIENCE),
                    _ => health.slowed(now, &PATIENCE),
                }
                let wait = health.wait_until(now, &PATIENCE).map_or(0, |until| until - now);
                prop_assert!(wait <= 86_400);
                prop_assert!(what != 1 || wait >= 1, "never at once after a failure");
            }
        }
    }
}
