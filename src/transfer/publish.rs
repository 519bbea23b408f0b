//! How many events to have under way at the destination, and what its OK means.

use std::time::Duration;

use crate::nostr::{Prefix, Reason};
use crate::outcome::{Outcome, ParkReason};

/// Where a window begins: enough for any relay to be busy, and soon answered by a slow one.
const FIRST: usize = 256;

/// The fewest to which slowness alone takes a window: a round trip that is longer than
/// [`PROMPT`] still carries so many.
const LEAST: usize = 16;

/// What a relay answers within this time may be followed by more. A window then holds what the
/// relay takes in about a second: the larger its groups, the less a fast relay spends on each
/// event, and nobody who stops the process waits long for the last OKs of a slow one.
const PROMPT: Duration = Duration::from_secs(1);

/// The number of EVENTs that may await their OK: halved when the relay asks to slow down, grown
/// by one for each that it takes promptly, less by one for each that it takes late.
#[derive(Debug)]
pub(super) struct Window {
    size: usize,
    most: usize,
    sent: u64,
    /// What was sent before this had been sent before the last halving.
    shrunk_at: u64,
}

impl Window {
    pub(super) fn new(most: usize) -> Self {
        Self { size: most.min(FIRST), most, sent: 0, shrunk_at: 0 }
    }

    pub(super) fn has_room(&self, under_way: usize) -> bool {
        under_way < self.size
    }

    /// Numbers an event that is being sent.
    pub(super) fn sending(&mut self) -> u64 {
        self.sent += 1;
        self.sent
    }

    /// The relay took an event, so long after it was sent.
    pub(super) fn taken(&mut self, waited: Duration) {
        if waited <= PROMPT {
            self.size = (self.size + 1).min(self.most);
        } else if self.size > LEAST {
            self.size -= 1;
        }
    }

    /// Halves, once for all events that were under way together; says whether it did.
    pub(super) fn shrink(&mut self, sent_as: u64) -> bool {
        if sent_as <= self.shrunk_at {
            return false;
        }
        self.size = (self.size / 2).max(1);
        self.shrunk_at = self.sent;
        true
    }
}

/// What to make of an OK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// The relay is to be offered it again, later.
    Again,
    /// Refused by a rule of the relay's that may hold for every event we have.
    Policy(Outcome, ParkReason),
    /// The end of it.
    Settle(Outcome, Option<ParkReason>),
}

/// Reads an OK (PROTOCOL section 1).
pub(super) fn judge(accepted: bool, reason: &Reason, replaceable: bool) -> Judgement {
    use Judgement::{Again, Policy, Settle};
    let prefix = reason.prefix;
    let refused = Outcome::Refused(prefix);
    let park = ParkReason::Refused(prefix);
    match (accepted, prefix) {
        // It has, or once had, the event. If it does not serve it, the next pass says so.
        (true, Prefix::Duplicate) => Settle(Outcome::Duplicate, None),
        // Taken and hidden, or taken and dropped.
        (_, Prefix::Purgatory | Prefix::Mute) => Settle(refused, Some(ParkReason::Hidden(prefix))),
        // Acknowledged; the next pass proves it.
        (true, _) => Settle(Outcome::Stored, None),
        // It has it, and that is what was wanted.
        (false, Prefix::Duplicate) => Settle(Outcome::Duplicate, Some(park)),
        // It will never want this copy.
        (false, Prefix::Replaced | Prefix::Deleted) => Settle(refused, Some(park)),
        // rust-nostr's way to say that it holds a newer version.
        (false, Prefix::Error) if replaceable && reason.text.as_str().eq_ignore_ascii_case("error: unknown") => {
            Settle(Outcome::Refused(Prefix::Replaced), Some(ParkReason::Refused(Prefix::Replaced)))
        }
        // Outside the relay's limits of time today, perhaps not tomorrow.
        (false, Prefix::Invalid) if reason.is_about_time() => Settle(refused, Some(ParkReason::Early)),
        // Never valid.
        (false, Prefix::Invalid) => Settle(refused, Some(park)),
        // The relay's policy.
        (false, Prefix::Blocked | Prefix::Restricted | Prefix::Pow) => Policy(refused, park),
        // Not a failure of the event.
        (false, Prefix::RateLimited) => Again,
        // Transient: a later pass tries again. An AUTH that was refused ends the job elsewhere.
        (false, Prefix::AuthRequired | Prefix::Closed | Prefix::Error | Prefix::Unknown | Prefix::Unsupported) => {
            Settle(Outcome::Failed, None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_what_a_relay_takes_in_about_a_second() {
        for (per_event, least, most) in [(1, 1000, 1024), (10, 90, 101), (500, 16, 16)] {
            let mut window = Window::new(1024);
            for _ in 0..5000 {
                // One after the other: each waits for all that were sent before it.
                window.taken(Duration::from_millis(per_event * window.size as u64));
            }
            assert!((least..=most).contains(&window.size), "{per_event} ms: {}", window.size);
        }
    }

    #[test]
    fn a_window_is_no_larger_than_it_may_be() {
        let mut window = Window::new(10);
        (0..100).for_each(|_| window.taken(Duration::ZERO));
        assert!(window.has_room(9) && !window.has_room(10));
        (0..100).for_each(|_| window.taken(Duration::from_secs(10)));
        assert!(window.has_room(9), "slowness takes it no lower than {LEAST}");
    }
}
