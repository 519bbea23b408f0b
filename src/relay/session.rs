//! What is under way on one connection: subscriptions, negentropy sessions, events awaiting
//! their OK, and how long each may take. Pure.
//!
//! Requests go in under a token of the caller's; what the relay says to them comes out under
//! the same token. Frames go out in the order in which they may be sent: a relay that asks us
//! to slow down is sent nothing new until its cooldown is over, and a request waits for a free
//! subscription.

use std::collections::{HashMap, VecDeque};
use std::slice;
use std::sync::Arc;
use std::time::Instant;

use super::auth::{Auth, Verdict};
use super::request::{Delivery, Failure, Meter, Request, SessionLimits, Token};
use crate::nostr::{EoseHint, Event, EventError, EventId, NegRefusal, PeerText, Prefix, Reason, RelayMessage};

/// How many times its wait a request may go unanswered, beyond that wait, while others are
/// answered: at 64 kbit/s, two minutes are a megabyte that was sent before it.
const PASSED_OVER: u32 = 3;

/// How often a REQ is sent again when the relay says `rate-limited:`.
const MAX_RATE_RETRIES: u8 = 3;

#[derive(Debug)]
struct Open {
    request: Request,
    name: String,
    meter: Arc<Meter>,
    /// `None` while it waits to be sent, and while a session has no query under way.
    deadline: Option<Instant>,
    sent: bool,
    received: usize,
    /// Whether a session's first answer has come.
    answered: bool,
    auth_tried: bool,
    rate_retries: u8,
}

/// The state of one connection.
#[derive(Debug)]
pub struct Session {
    limits: SessionLimits,
    open: HashMap<Token, Open>,
    names: HashMap<String, Token>,
    /// Several jobs may publish one event; the relay answers each in turn.
    publishes: HashMap<EventId, VecDeque<Token>>,
    last_ok: Option<Instant>,
    /// The latest deadline of an event that was answered: it was sent after all with earlier ones.
    reached: Option<Instant>,
    /// When anything last came that was asked for.
    last_answer: Option<Instant>,
    /// Requests that are not sent yet.
    waiting: VecDeque<Token>,
    subscriptions: usize,
    frames: VecDeque<String>,
    deliveries: VecDeque<(Token, Delivery)>,
    auth: Auth,
    cooling_until: Option<Instant>,
    notices: VecDeque<PeerText>,
    /// How often the relay asked to slow down.
    cooldowns: u64,
    next_name: u64,
    unanswered: bool,
}

impl Session {
    /// A connection on which nothing was said yet.
    #[must_use]
    pub fn new(limits: SessionLimits) -> Self {
        Self {
            auth: Auth::new(limits.answer),
            limits,
            open: HashMap::new(),
            names: HashMap::new(),
            publishes: HashMap::new(),
            last_ok: None,
            reached: None,
            last_answer: None,
            waiting: VecDeque::new(),
            subscriptions: 0,
            frames: VecDeque::new(),
            deliveries: VecDeque::new(),
            cooling_until: None,
            notices: VecDeque::new(),
            cooldowns: 0,
            next_name: 0,
            unanswered: false,
        }
    }

    /// Whether a REQ, which every relay answers, has got no answer in time.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered
    }

    /// Whether nothing is under way.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.open.is_empty()
    }

    /// Takes a request.
    pub fn request(&mut self, token: Token, request: Request, meter: Arc<Meter>, now: Instant) {
        self.next_name += 1;
        // Distinct letters keep a CLOSED that carries a NEG id apart from one for a REQ.
        let letter = if matches!(request, Request::NegOpen { .. }) { 'n' } else { 'r' };
        let name = format!("{letter}{}", self.next_name);
        if let Request::Publish { id, .. } = &request {
            self.publishes.entry(*id).or_default().push_back(token);
        } else {
            self.names.insert(name.clone(), token);
        }
        let open = Open {
            request,
            name,
            meter,
            deadline: None,
            sent: false,
            received: 0,
            answered: false,
            auth_tried: false,
            rate_retries: 0,
        };
        self.open.insert(token, open);
        self.waiting.push_back(token);
        self.send_waiting(now);
    }

    /// The next query of a session.
    pub fn neg_message(&mut self, token: Token, message: Vec<u8>, now: Instant) {
        let Some(open) = self.open.get_mut(&token) else {
            // The session ended while the query was on its way here: its end was delivered.
            return;
        };
        let frame = format!(r#"["NEG-MSG","{}","{}"]"#, open.name, hex::encode(&message));
        if let Request::NegOpen { message: last, .. } = &mut open.request {
            // Kept, because it can open a session of its own after an AUTH.
            *last = message;
        }
        open.deadline = Some(now + self.limits.answer);
        open.meter.add_sent(frame.len());
        self.frames.push_back(frame);
    }

    /// Ends a request or a session: nothing more is delivered for it.
    pub fn close(&mut self, token: Token, now: Instant) {
        self.end(token, now);
        self.deliveries.retain(|(other, _)| *other != token);
    }

    /// Takes one frame of the relay's.
    pub fn receive(&mut self, frame: &str, now: Instant) {
        let message = match RelayMessage::parse(frame) {
            Ok(message) => message,
            Err(error) => {
                tracing::debug!(%error, "passed over a frame");
                return;
            }
        };
        match message {
            RelayMessage::Event { sub, event } => self.event(&sub, event, frame.len(), now),
            RelayMessage::Eose { sub, hint } => self.eose(&sub, hint, frame.len(), now),
            RelayMessage::Closed { sub, reason } => self.closed(&sub, reason, None, now),
            RelayMessage::NegErr { sub, reason, max } => self.closed(&sub, reason, max, now),
            RelayMessage::NegMsg { sub, message } => self.neg_answer(&sub, message, frame.len(), now),
            RelayMessage::Ok { id, accepted, reason } => self.ok(id, accepted, reason, frame.len(), now),
            RelayMessage::Notice(text) => self.notice(text, now),
            RelayMessage::Auth(challenge) => self.auth.challenged(challenge),
        }
    }

    /// Tells the time: requests whose deadline has passed fail, a cooldown may end.
    pub fn tick(&mut self, now: Instant) {
        let late: Vec<Token> =
            self.open.iter().filter(|(_, open)| self.is_late(open, now)).map(|(token, _)| *token).collect();
        for token in late {
            // Collected from the same map just above, and nothing removes two at once.
            let Some(open) = self.open.get(&token) else { continue };
            let delivery = match open.request {
                // It never says so, and listens all the same.
                Request::Live { .. } => {
                    self.listening(token);
                    continue;
                }
                Request::NegOpen { .. } if !open.answered => Delivery::NegRefused(NegRefusal::Silent),
                Request::NegOpen { .. } => {
                    Delivery::NegRefused(NegRefusal::Broken(PeerText::new("no answer to NEG-MSG in time")))
                }
                Request::Publish { .. } => Delivery::Failed(Failure::TimedOut(self.limits.answer)),
                Request::Req { .. } => {
                    self.unanswered = true;
                    Delivery::Failed(Failure::TimedOut(self.limits.answer))
                }
            };
            self.finish(token, delivery, now);
        }
        if let Some(verdict) = self.auth.tick(now) {
            self.authenticated(verdict, now);
        }
        if self.cooling_until.is_some_and(|until| until <= now) {
            self.cooling_until = None;
        }
        self.send_waiting(now);
    }

    /// Whether the answer to a request is not to be expected any more. Questions and answers queue
    /// behind one another, on a slow line for minutes: while others are answered it is not late
    /// yet, for so long as a relay may pass one over and answer the rest.
    fn is_late(&self, open: &Open, now: Instant) -> bool {
        let is_due = |deadline: Instant| deadline <= now;
        let wait = match open.request {
            Request::NegOpen { .. } if !open.answered => self.limits.neg_open,
            _ => self.limits.answer,
        };
        let silent = |last: Option<Instant>| last.is_none_or(|last| is_due(last + wait));
        let passed_over = |deadline: Instant| deadline + wait * PASSED_OVER;
        // Each event waits for all that were sent before it: an OK for one is progress for all, but
        // for those that were sent long before it.
        let may_queue = matches!(open.request, Request::Publish { .. })
            && !silent(self.last_ok)
            && open.deadline.zip(self.reached).is_none_or(|(own, reached)| reached < passed_over(own));
        open.deadline.is_some_and(is_due)
            && !may_queue
            && (silent(self.last_answer) || open.deadline.is_some_and(|deadline| is_due(passed_over(deadline))))
    }

    /// The connection ended: everything under way failed for that reason.
    pub fn lost(&mut self, why: &str) {
        for (token, _) in self.open.drain() {
            self.deliveries.push_back((token, Delivery::Failed(Failure::Lost(why.to_owned()))));
        }
    }

    /// The next frame to send.
    pub fn poll_frame(&mut self) -> Option<String> {
        self.frames.pop_front()
    }

    /// The next thing the relay said, and to whom.
    pub fn poll_delivery(&mut self) -> Option<(Token, Delivery)> {
        self.deliveries.pop_front()
    }

    /// Words for people, to be logged.
    pub fn poll_notice(&mut self) -> Option<PeerText> {
        self.notices.pop_front()
    }

    /// How often the relay asked to slow down, so far.
    #[must_use]
    pub fn cooldowns(&self) -> u64 {
        self.cooldowns
    }

    /// The challenge to sign now, if somebody waits for it; answer with [`Self::authenticate`].
    #[must_use]
    pub fn challenge(&self) -> Option<&str> {
        self.auth.to_sign()
    }

    /// Sends a signed answer to the challenge (NIP-42).
    pub fn authenticate(&mut self, id: EventId, event: &str, now: Instant) {
        self.frames.push_back(format!(r#"["AUTH",{event}]"#));
        self.auth.sent(id, now);
    }

    fn event(&mut self, sub: &str, raw: &str, bytes: usize, now: Instant) {
        let deadline = now + self.limits.answer;
        let Some((token, open)) = self.named(sub) else { return };
        open.meter.add_received(bytes);
        open.received += 1;
        let filters = match &open.request {
            Request::Req { quota, .. } if open.received > *quota => {
                return self.finish(token, Delivery::Failed(Failure::Flood), now);
            }
            Request::Req { filter, .. } => slice::from_ref(filter),
            Request::Live { filters } => filters,
            Request::NegOpen { .. } | Request::Publish { .. } => return,
        };
        let delivery = match Event::parse(raw) {
            Ok(event) if filters.iter().any(|filter| filter.matches(&event)) => Some(Delivery::Event(event)),
            Ok(_) => None,
            Err(EventError::WrongId(id)) => Some(Delivery::Invalid(id)),
            Err(EventError::Malformed { id, .. }) => id.map(Delivery::Invalid),
        };
        // Only what was asked for is progress.
        if let Some(delivery) = delivery {
            if matches!(open.request, Request::Req { .. }) {
                open.deadline = Some(deadline);
                self.last_answer = Some(now);
            }
            self.deliveries.push_back((token, delivery));
        }
    }

    fn eose(&mut self, sub: &str, hint: Option<EoseHint>, bytes: usize, now: Instant) {
        let Some((token, open)) = self.named(sub) else { return };
        open.meter.add_received(bytes);
        let (received, is_live) = (open.received, matches!(open.request, Request::Live { .. }));
        self.last_answer = Some(now);
        if is_live {
            return self.listening(token);
        }
        self.finish(token, Delivery::End { received, hint }, now);
    }

    fn listening(&mut self, token: Token) {
        if let Some(open) = self.open.get_mut(&token)
            && open.deadline.take().is_some()
        {
            self.deliveries.push_back((token, Delivery::Listening));
        }
    }

    /// CLOSED and NEG-ERR alike.
    fn closed(&mut self, sub: &str, reason: Reason, max: Option<u64>, now: Instant) {
        let cooling = self.cooling(now);
        let Some((token, open)) = self.named(sub) else { return };
        let is_neg = matches!(open.request, Request::NegOpen { .. });
        // A pause makes no room for a stream: whoever opened it has to open fewer.
        let is_one_too_many = matches!(open.request, Request::Live { .. }) && reason.is_about_subscriptions();
        match reason.prefix {
            Prefix::AuthRequired if !open.auth_tried => self.want_auth(token, &reason, now),
            Prefix::AuthRequired => self.finish(token, Delivery::Failed(Failure::AuthRefused(reason)), now),
            Prefix::RateLimited if open.rate_retries < MAX_RATE_RETRIES && !is_neg && !is_one_too_many => {
                open.rate_retries += 1;
                self.cool(cooling);
                self.wait_again(token);
            }
            _ if is_neg => {
                let refusal = NegRefusal::from_reason(&reason, max);
                self.finish(token, Delivery::NegRefused(refusal), now);
            }
            _ => self.finish(token, Delivery::Failed(Failure::Closed(reason)), now),
        }
    }

    fn neg_answer(&mut self, sub: &str, message: Vec<u8>, bytes: usize, now: Instant) {
        let Some((token, open)) = self.named(sub) else { return };
        open.meter.add_received(bytes);
        open.answered = true;
        open.deadline = None;
        self.last_answer = Some(now);
        self.deliveries.push_back((token, Delivery::NegMessage(message)));
    }

    fn ok(&mut self, id: Option<EventId>, accepted: bool, reason: Reason, bytes: usize, now: Instant) {
        if self.auth.is_ours(id) {
            if let Some(verdict) = self.auth.answered(accepted, reason, now) {
                self.authenticated(verdict, now);
            }
            return;
        }
        // An OK without an id can be meant for one event only if one alone is under way.
        let tokens = match id {
            Some(id) => self.publishes.get(&id),
            None if self.publishes.len() == 1 => self.publishes.values().next(),
            None => None,
        };
        let Some(&token) = tokens.and_then(VecDeque::front) else { return };
        (self.last_ok, self.last_answer) = (Some(now), Some(now));
        let cooling = self.cooling(now);
        let Some(open) = self.open.get_mut(&token) else { return };
        open.meter.add_received(bytes);
        self.reached = self.reached.max(open.deadline);
        match reason.prefix {
            Prefix::AuthRequired if !accepted && !open.auth_tried => self.want_auth(token, &reason, now),
            Prefix::AuthRequired if !accepted => {
                self.finish(token, Delivery::Failed(Failure::AuthRefused(reason)), now);
            }
            prefix => {
                if prefix == Prefix::RateLimited && !accepted {
                    self.cool(cooling);
                }
                self.finish(token, Delivery::Ack { accepted, reason }, now);
            }
        }
    }

    fn notice(&mut self, text: PeerText, now: Instant) {
        let refusal = NegRefusal::from_notice(&text);
        let unanswered: Vec<Token> = self
            .open
            .iter()
            .filter(|(_, open)| matches!(open.request, Request::NegOpen { .. }) && open.sent && !open.answered)
            .map(|(token, _)| *token)
            .collect();
        if let Some(refusal) = refusal.filter(|_| !unanswered.is_empty()) {
            for token in unanswered {
                self.finish(token, Delivery::NegRefused(refusal.clone()), now);
            }
        } else if asks_to_slow_down(text.as_str()) {
            self.cool(self.cooling(now));
            // What was not answered may have been dropped: it is sent again after the cooldown.
            let dropped: Vec<Token> = self
                .open
                .iter()
                .filter(|(_, open)| {
                    matches!(open.request, Request::Req { .. })
                        && open.sent
                        && open.received == 0
                        && open.rate_retries < MAX_RATE_RETRIES
                })
                .map(|(token, _)| *token)
                .collect();
            for token in dropped {
                if let Some(open) = self.open.get_mut(&token) {
                    open.rate_retries += 1;
                }
                self.wait_again(token);
            }
        }
        self.notices.push_back(text);
    }

    fn cool(&mut self, until: Instant) {
        self.cooldowns += 1;
        self.cooling_until = Some(until);
    }

    fn cooling(&self, now: Instant) -> Instant {
        now + self.limits.cooldown
    }

    fn named(&mut self, name: &str) -> Option<(Token, &mut Open)> {
        let token = *self.names.get(name)?;
        self.open.get_mut(&token).map(|open| (token, open))
    }

    fn want_auth(&mut self, token: Token, reason: &Reason, now: Instant) {
        if !self.limits.can_sign {
            return self.finish(token, Delivery::Failed(Failure::AuthRefused(reason.clone())), now);
        }
        if let Some(open) = self.open.get_mut(&token) {
            open.auth_tried = true;
            open.deadline = None;
        }
        self.auth.want(token, now);
    }

    fn authenticated(&mut self, verdict: Verdict, now: Instant) {
        match verdict {
            Verdict::Known(tokens) => {
                tokens.into_iter().for_each(|token| self.wait_again(token));
                self.send_waiting(now);
            }
            Verdict::Refused(tokens, reason) => {
                for token in tokens {
                    self.finish(token, Delivery::Failed(Failure::AuthRefused(reason.clone())), now);
                }
            }
        }
    }

    /// Puts a request that was sent back into the queue.
    fn wait_again(&mut self, token: Token) {
        let Some(open) = self.open.get_mut(&token) else { return };
        if open.sent && matches!(open.request, Request::Req { .. } | Request::Live { .. }) {
            self.subscriptions -= 1;
        }
        open.sent = false;
        open.deadline = None;
        open.received = 0;
        self.waiting.push_back(token);
    }

    fn send_waiting(&mut self, now: Instant) {
        if self.cooling_until.is_some_and(|until| until > now) {
            return;
        }
        let mut kept = VecDeque::new();
        while let Some(token) = self.waiting.pop_front() {
            let Some(open) = self.open.get_mut(&token) else { continue };
            let name = &open.name;
            let (frame, wait) = match &open.request {
                Request::Req { .. } | Request::Live { .. } if self.subscriptions >= self.limits.max_subscriptions => {
                    kept.push_back(token);
                    continue;
                }
                Request::Req { filter, limit, .. } => {
                    self.subscriptions += 1;
                    (format!(r#"["REQ","{name}",{}]"#, filter.to_value(Some(*limit))), self.limits.answer)
                }
                Request::Live { filters } => {
                    self.subscriptions += 1;
                    let filters: String =
                        filters.iter().map(|filter| format!(",{}", filter.to_value(Some(1)))).collect();
                    (format!(r#"["REQ","{name}"{filters}]"#), self.limits.answer)
                }
                Request::NegOpen { filter, message } => {
                    (format!(r#"["NEG-OPEN","{name}",{filter},"{}"]"#, hex::encode(message)), self.limits.neg_open)
                }
                Request::Publish { raw, .. } => (format!(r#"["EVENT",{raw}]"#), self.limits.answer),
            };
            open.sent = true;
            open.deadline = Some(now + wait);
            open.meter.add_sent(frame.len());
            self.frames.push_back(frame);
        }
        self.waiting = kept;
    }

    fn finish(&mut self, token: Token, delivery: Delivery, now: Instant) {
        // A relay that answered has forgotten the request by itself; CLOSE is for the others.
        self.end(token, now);
        self.deliveries.push_back((token, delivery));
    }

    fn end(&mut self, token: Token, now: Instant) {
        let Some(open) = self.open.remove(&token) else { return };
        self.names.remove(&open.name);
        let frame = match &open.request {
            Request::Req { .. } | Request::Live { .. } if open.sent => {
                self.subscriptions -= 1;
                Some(format!(r#"["CLOSE","{}"]"#, open.name))
            }
            Request::NegOpen { .. } if open.sent => Some(format!(r#"["NEG-CLOSE","{}"]"#, open.name)),
            Request::Publish { id, .. } => {
                if let Some(tokens) = self.publishes.get_mut(id) {
                    tokens.retain(|other| *other != token);
                    if tokens.is_empty() {
                        self.publishes.remove(id);
                    }
                }
                None
            }
            _ => None,
        };
        if let Some(frame) = frame {
            open.meter.add_sent(frame.len());
            self.frames.push_back(frame);
        }
        self.send_waiting(now);
    }
}

/// Whether a NOTICE asks for a pause (PROTOCOL section 6).
fn asks_to_slow_down(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    (text.contains("rate") && text.contains("limit"))
        || ["too many", "slow down", "throttl"].iter().any(|word| text.contains(word))
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
