//! Who we are to a relay (NIP-42): its challenge, our answer, and the requests that wait for it.
//! Pure.

use std::time::{Duration, Instant};

use super::request::Token;
use crate::nostr::{EventId, Reason};

/// How often a challenge that took the place of the one just answered is answered in its turn.
const MAX_NEW_CHALLENGES: u8 = 3;

/// The authentication of one connection.
#[derive(Debug)]
pub(super) struct Auth {
    /// How long the relay has for each step.
    patience: Duration,
    challenge: Option<String>,
    stage: Stage,
    new_challenges: u8,
    waiting: Vec<Token>,
}

#[derive(Debug)]
enum Stage {
    Idle,
    /// Somebody waits for it; the challenge or the signature is still to come.
    Wanted {
        deadline: Instant,
    },
    /// Answered; the relay's OK is awaited.
    Sent {
        id: EventId,
        challenge: Option<String>,
        deadline: Instant,
    },
}

/// What became of it, for those that waited.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// These may be asked again.
    Known(Vec<Token>),
    /// These will not be answered.
    Refused(Vec<Token>, Reason),
}

impl Auth {
    pub(super) fn new(patience: Duration) -> Self {
        Self { patience, challenge: None, stage: Stage::Idle, new_challenges: 0, waiting: Vec::new() }
    }

    /// The relay's challenge, which ends the one before.
    pub(super) fn challenged(&mut self, challenge: String) {
        self.challenge = Some(challenge);
    }

    /// A request waits until the relay knows who asks.
    pub(super) fn want(&mut self, token: Token, now: Instant) {
        self.waiting.push(token);
        if matches!(self.stage, Stage::Idle) {
            self.stage = Stage::Wanted { deadline: now + self.patience };
        }
    }

    /// The challenge to sign now, if there is one and somebody waits.
    pub(super) fn to_sign(&self) -> Option<&str> {
        match self.stage {
            Stage::Wanted { .. } => self.challenge.as_deref(),
            Stage::Idle | Stage::Sent { .. } => None,
        }
    }

    /// The answer, under this id, is on its way.
    pub(super) fn sent(&mut self, id: EventId, now: Instant) {
        self.stage = Stage::Sent { id, challenge: self.challenge.clone(), deadline: now + self.patience };
    }

    /// Whether an OK under this id would be for our answer.
    pub(super) fn is_ours(&self, id: Option<EventId>) -> bool {
        matches!(&self.stage, Stage::Sent { id: ours, .. } if id == Some(*ours))
    }

    /// The relay's OK to our answer; `None` when there is a new challenge to answer.
    pub(super) fn answered(&mut self, accepted: bool, reason: Reason, now: Instant) -> Option<Verdict> {
        let Stage::Sent { challenge, .. } = &self.stage else { return None };
        if accepted {
            return Some(Verdict::Known(self.end()));
        }
        // Some relays make a new challenge with every refusal, which ends the one before.
        if *challenge != self.challenge && self.new_challenges < MAX_NEW_CHALLENGES {
            self.new_challenges += 1;
            self.stage = Stage::Wanted { deadline: now + self.patience };
            return None;
        }
        Some(Verdict::Refused(self.end(), reason))
    }

    /// Tells the time.
    pub(super) fn tick(&mut self, now: Instant) -> Option<Verdict> {
        match self.stage {
            Stage::Wanted { deadline } | Stage::Sent { deadline, .. } if deadline <= now => {
                Some(Verdict::Refused(self.end(), Reason::parse("auth-required: no answer to AUTH in time")))
            }
            _ => None,
        }
    }

    fn end(&mut self) -> Vec<Token> {
        (self.stage, self.new_challenges) = (Stage::Idle, 0);
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn id(n: u8) -> EventId {
        EventId::new([n; 32])
    }

    #[test]
    fn a_challenge_is_answered_when_somebody_waits() {
        let now = crate::clock::instant();
        let mut auth = Auth::new(PATIENCE);
        auth.challenged("a".into());
        assert_eq!(auth.to_sign(), None, "nobody waits");
        auth.want(1, now);
        auth.want(2, now);
        assert_eq!(auth.to_sign(), Some("a"));
        auth.sent(id(1), now);
        assert_eq!(auth.to_sign(), None);
        assert!(auth.is_ours(Some(id(1))) && !auth.is_ours(Some(id(2))) && !auth.is_ours(None));
        assert_eq!(auth.answered(true, Reason::parse(""), now), Some(Verdict::Known(vec![1, 2])));
        assert_eq!(auth.tick(now + PATIENCE), None);
    }

    #[test]
    fn a_new_challenge_is_answered_a_few_times() {
        let now = crate::clock::instant();
        let mut auth = Auth::new(PATIENCE);
        auth.want(1, now);
        for n in 0..=MAX_NEW_CHALLENGES {
            auth.challenged(n.to_string());
            assert_eq!(auth.to_sign(), Some(n.to_string().as_str()));
            auth.sent(id(n), now);
            auth.challenged(format!("after {n}"));
            let verdict = auth.answered(false, Reason::parse("auth-required: again"), now);
            assert_eq!(verdict.is_some(), n == MAX_NEW_CHALLENGES, "{n}");
        }
    }

    #[test]
    fn nothing_waits_for_ever() {
        let now = crate::clock::instant();
        let mut auth = Auth::new(PATIENCE);
        auth.want(1, now);
        assert_eq!(auth.tick(now + PATIENCE - Duration::from_secs(1)), None);
        let Some(Verdict::Refused(tokens, _)) = auth.tick(now + PATIENCE) else { panic!("it waits") };
        assert_eq!(tokens, [1]);
    }
}
