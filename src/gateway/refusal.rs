//! Why a session is refused or ended, as a NEG-ERR says it. Pure.
//!
//! The words are chosen for those who read them as PROTOCOL section 2 does: `too many concurrent`
//! says "again later", `too many events` says "in smaller parts".

use std::time::Duration;

use crate::nostr::{PeerText, Reason, Timestamp};

/// Why a session is refused or ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The filter matches more than is reconciled at once.
    #[error("blocked: too many events match this filter")]
    Events {
        /// The most.
        max: usize,
    },
    /// The filter matches every event, and that is not permitted.
    #[error("blocked: a filter that matches every event is not reconciled here")]
    Unrestricted,
    /// This connection has as many sessions as it may.
    #[error("rate-limited: too many concurrent sessions on this connection, at most {0}")]
    ConnectionSessions(usize),
    /// All connections together have.
    #[error("rate-limited: too many concurrent sessions")]
    Sessions,
    /// Others are listing the relay.
    #[error("rate-limited: too many concurrent listings of the relay")]
    Listings,
    /// The inventories of others leave no room.
    #[error("rate-limited: too many concurrent inventories, their memory is used up")]
    Memory,
    /// Messages come too fast.
    #[error("rate-limited: more than {0} negentropy messages a second")]
    Rate(u32),
    /// The client has said nothing for too long.
    #[error("closed: no message for {} s", .0.as_secs())]
    Idle(Duration),
    /// The session has lasted too long.
    #[error("closed: the session took longer than {} s", .0.as_secs())]
    Total(Duration),
    /// The client does not read what it is sent.
    #[error("closed: the client has not caught up for {} s", .0.as_secs())]
    Slow(Duration),
    /// There is no such session.
    #[error("closed: no session has this id")]
    Unknown,
    /// A message while the answer to the one before is still to come.
    #[error("invalid: a message before the answer to the one before")]
    OutOfTurn,
    /// Not what NIP-77 says.
    #[error("invalid: {0}")]
    Malformed(String),
    /// A filter that cannot be compared.
    #[error("invalid: {0}")]
    Filter(String),
    /// The relay does not serve the filter: its own words.
    #[error("{0}")]
    Relay(Reason),
    /// The relay cannot be listed.
    #[error("error: the relay cannot be listed: {0}")]
    Listing(String),
    /// The listing would be incomplete.
    #[error("blocked: too many events in second {second}: the relay lists only {cap} of them at once")]
    Dense {
        /// The second.
        second: Timestamp,
        /// The most that the relay lists.
        cap: usize,
    },
    /// The relay does not answer.
    #[error("error: no answer from the relay within {} s", .0.as_secs())]
    Silent(Duration),
    /// The relay is gone.
    #[error("closed: the connection to the relay was lost")]
    Lost,
    /// The gateway is ending.
    #[error("closed: the gateway is stopping")]
    Stopping,
    /// A fault of ours.
    #[error("error: {0}")]
    Fault(String),
}

impl Refusal {
    /// Its name among all, for metrics.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Events { .. } => "events",
            Self::Unrestricted => "unrestricted",
            Self::ConnectionSessions(_) => "connection-sessions",
            Self::Sessions => "sessions",
            Self::Listings => "listings",
            Self::Memory => "memory",
            Self::Rate(_) => "rate",
            Self::Idle(_) => "idle",
            Self::Total(_) => "total",
            Self::Slow(_) => "slow",
            Self::Unknown => "unknown-session",
            Self::OutOfTurn => "out-of-turn",
            Self::Malformed(_) => "malformed",
            Self::Filter(_) => "filter",
            Self::Relay(_) => "relay",
            Self::Listing(_) => "listing",
            Self::Dense { .. } => "dense-second",
            Self::Silent(_) => "silent",
            Self::Lost => "lost",
            Self::Stopping => "stopping",
            Self::Fault(_) => "fault",
        }
    }

    /// The NEG-ERR for a session, cut to what fits a log as well.
    #[must_use]
    pub fn frame(&self, id: &str) -> String {
        let text = match self {
            Self::Relay(reason) if reason.text.as_str().is_empty() => "error: the relay closed the listing".to_owned(),
            Self::Relay(reason) => reason.text.as_str().to_owned(),
            other => other.to_string(),
        };
        let text = PeerText::new(&text);
        match self {
            Self::Events { max } => serde_json::json!(["NEG-ERR", id, text.as_str(), max]).to_string(),
            _ => serde_json::json!(["NEG-ERR", id, text.as_str()]).to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nostr::{NegRefusal, RelayMessage};

    fn read(refusal: &Refusal) -> NegRefusal {
        let frame = refusal.frame("n");
        let RelayMessage::NegErr { reason, max, .. } = RelayMessage::parse(&frame).unwrap() else { panic!("{frame}") };
        NegRefusal::from_reason(&reason, max)
    }

    #[test]
    fn they_are_read_as_they_are_meant() {
        assert_eq!(read(&Refusal::Events { max: 7 }), NegRefusal::TooBig { max: Some(7), found: None });
        assert_eq!(read(&Refusal::Dense { second: 5, cap: 9 }), NegRefusal::TooBig { max: None, found: None });
        for busy in
            [Refusal::ConnectionSessions(8), Refusal::Sessions, Refusal::Listings, Refusal::Memory, Refusal::Rate(5)]
        {
            assert!(matches!(read(&busy), NegRefusal::Busy(_)), "{busy}");
        }
        for broken in [
            Refusal::Idle(Duration::from_secs(120)),
            Refusal::Total(Duration::from_secs(1)),
            Refusal::Slow(Duration::from_secs(10)),
            Refusal::Unknown,
            Refusal::OutOfTurn,
            Refusal::Malformed("x".into()),
            Refusal::Listing("x".into()),
            Refusal::Silent(Duration::from_secs(30)),
            Refusal::Lost,
            Refusal::Stopping,
        ] {
            assert!(matches!(read(&broken), NegRefusal::Broken(_)), "{broken}");
        }
        let restricted = Refusal::Relay(Reason::parse("restricted: members only"));
        assert_eq!(read(&restricted), NegRefusal::Restricted(PeerText::new("restricted: members only")));
    }

    #[test]
    fn they_are_bounded_whatever_was_said() {
        let long = "\u{7}\"".repeat(100_000);
        for refusal in [Refusal::Malformed(long.clone()), Refusal::Filter(long.clone()), Refusal::Fault(long)] {
            assert!(refusal.frame("n").len() < 2048);
        }
        assert_eq!(
            Refusal::Relay(Reason::parse("")).frame("n"),
            r#"["NEG-ERR","n","error: the relay closed the listing"]"#
        );
    }
}
