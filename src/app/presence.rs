//! Whether the streams of a relay are connected, in as few log lines as a flapping relay leaves
//! worth reading.

use crate::health::Connections;
use crate::nostr::Timestamp;

/// Lines in a minute of one relay: it was lost and came back, twice. What changes more often is
/// said when the minute is over, as it is then.
const LINES: u32 = 4;
const MINUTE: u64 = 60;

/// What there is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It is not connected any more.
    Lost,
    /// It is connected again, after so many losses.
    Back(u64),
}

/// What was said of one relay.
#[derive(Debug, Default)]
pub(super) struct Presence {
    /// The last line, and the losses counted then; none before the first connection.
    said: Option<(bool, u64)>,
    minute: Timestamp,
    lines: u32,
}

impl Presence {
    /// Takes a look.
    pub(super) fn look(&mut self, view: &Connections, now: Timestamp) -> Option<Change> {
        let Some((connected, losses)) = self.said else {
            self.said = view.connected.then_some((true, view.failures));
            return None;
        };
        let lost = view.failures.saturating_sub(losses);
        let change = match (connected, view.connected) {
            (true, false) => Change::Lost,
            (false, true) => Change::Back(lost + 1),
            // Between two looks.
            (true, true) if lost > 0 => Change::Back(lost),
            _ => return None,
        };
        // A clock that was set back begins another minute as well.
        if now.abs_diff(self.minute) >= MINUTE {
            (self.minute, self.lines) = (now, 0);
        }
        if self.lines >= LINES {
            return None;
        }
        self.lines += 1;
        self.said = Some((view.connected, view.failures));
        Some(change)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(connected: bool, failures: u64) -> Connections {
        Connections { connected, failures, ..Connections::default() }
    }

    #[test]
    fn each_change_is_said_once() {
        let mut presence = Presence::default();
        let mut look = |connected, failures, now| presence.look(&view(connected, failures), now);
        assert_eq!(look(false, 3, 100), None, "it was never there");
        assert_eq!(look(true, 3, 101), None, "and now it is, as it should be");
        assert_eq!((look(true, 3, 102), look(true, 3, 103)), (None, None));
        assert_eq!((look(false, 4, 104), look(false, 9, 105)), (Some(Change::Lost), None));
        assert_eq!((look(true, 9, 106), look(true, 9, 107)), (Some(Change::Back(6)), None));
        assert_eq!(look(true, 10, 108), Some(Change::Back(1)), "lost and back between two looks");
    }

    #[test]
    fn a_flapping_relay_is_named_a_few_times_a_minute() {
        let mut presence = Presence::default();
        presence.look(&view(true, 0), 0);
        let mut lines = 0;
        for second in 1..=600 {
            let (connected, failures) = (second % 3 == 0, second / 3);
            lines += u32::from(presence.look(&view(connected, failures), second).is_some());
        }
        assert!((36..=44).contains(&lines), "{lines}");
        // Whatever was not said is true in the end.
        assert!(presence.look(&view(true, 200), 700).is_some() || presence.said.is_some_and(|(now, _)| now));
        assert_eq!(presence.look(&view(true, 200), 800), None);
    }
}
