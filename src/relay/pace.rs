//! How fast a relay may be sent events, where its operator or ours has set a limit.

use std::num::NonZeroU32;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

/// Limits on what is published to one relay, by all jobs together.
pub(super) struct Pace {
    events: Option<DefaultDirectRateLimiter>,
    bytes: Option<(DefaultDirectRateLimiter, NonZeroU32)>,
}

impl Pace {
    pub(super) fn new(events: Option<NonZeroU32>, bytes: Option<NonZeroU32>) -> Self {
        let limiter = |rate| RateLimiter::direct(Quota::per_second(rate));
        Self { events: events.map(limiter), bytes: bytes.map(|rate| (limiter(rate), rate)) }
    }

    /// Waits until an event of this size may be sent.
    pub(super) async fn wait(&self, bytes: usize) {
        if let Some(events) = &self.events {
            events.until_ready().await;
        }
        if let Some((limiter, rate)) = &self.bytes {
            // An event larger than a second's worth waits for a full second.
            let cells = u32::try_from(bytes).unwrap_or(u32::MAX).clamp(1, rate.get());
            if let Some(cells) = NonZeroU32::new(cells) {
                // Cannot fail: no more cells than the quota's burst.
                let _ = limiter.until_n_ready(cells).await;
            }
        }
    }
}
