//! The negentropy sessions of one client (NIP-77). Pure: messages and the time come in, and what
//! is to be done about them goes out.
//!
//! A session is listed, then answers one query at a time from what was listed. Whatever is wrong
//! with one ends in its NEG-ERR, and in nothing else.

use std::collections::{HashMap, VecDeque};
use std::time::Instant;

use super::inventory::{Hold, Inventory, Item, Work, Worked};
use super::message::{NegMessage, Unreadable, Wanted};
use super::refusal::Refusal;
use crate::config::GatewayLimits;

/// What to do.
pub enum Action {
    /// Send the client this frame.
    Send(String),
    /// The same, because a session was refused or has ended.
    Refuse {
        /// The NEG-ERR, or a NOTICE where no session could be named.
        frame: String,
        /// Why, in a word of a closed set.
        reason: &'static str,
    },
    /// List what this session compares; the outcome is owed to [`Responder::listed`].
    List {
        /// Its key.
        session: u64,
        /// What to list.
        wanted: Wanted,
    },
    /// A listing that is no longer needed.
    Forget {
        /// The session's key.
        session: u64,
    },
    /// A query to be answered; what came of it is owed to [`Responder::worked`].
    Work(Work),
}

/// All sessions of one client.
pub struct Responder {
    limits: GatewayLimits,
    sessions: HashMap<String, Session>,
    /// Sessions ever opened: one that takes another's id is not the other.
    opened: u64,
    rate: Rate,
    actions: VecDeque<Action>,
    stopping: bool,
}

struct Session {
    key: u64,
    /// Its place among those of all clients.
    _slot: Hold,
    opened: Instant,
    stage: Stage,
}

enum Stage {
    /// Until it is listed, the first query waits.
    Listing { query: Vec<u8> },
    /// A query is being answered.
    Answering,
    /// It is the client's turn.
    Waiting { inventory: Inventory, since: Instant },
}

impl Responder {
    /// No session yet.
    #[must_use]
    pub fn new(limits: GatewayLimits, now: Instant) -> Self {
        Self {
            rate: Rate::new(limits.messages_per_second, now),
            limits,
            sessions: HashMap::new(),
            opened: 0,
            actions: VecDeque::new(),
            stopping: false,
        }
    }

    /// Takes a client's negentropy message. `slot` is asked for a place among the sessions of all
    /// clients.
    pub fn receive(
        &mut self,
        message: Result<NegMessage, Unreadable>,
        slot: impl FnOnce() -> Option<Hold>,
        now: Instant,
    ) {
        match message {
            Ok(NegMessage::Open { id, wanted, query }) => {
                // A session with this id has ended, whatever becomes of the new one.
                self.end(&id);
                if let Err(refusal) = self.open(&id, wanted, query, slot, now) {
                    self.refuse(&id, &refusal);
                }
            }
            Ok(NegMessage::Message { id, query }) => {
                if let Err(refusal) = self.query(&id, query, now) {
                    self.refuse(&id, &refusal);
                }
            }
            Ok(NegMessage::Close { id }) => self.end(&id),
            Err(Unreadable { id: Some(id), refusal }) => self.refuse(&id, &refusal),
            Err(Unreadable { id: None, refusal }) => {
                let frame = serde_json::json!(["NOTICE", refusal.to_string()]).to_string();
                self.actions.push_back(Action::Refuse { frame, reason: refusal.label() });
            }
        }
    }

    /// A session's events are listed, with the memory they take; or they cannot be.
    pub fn listed(&mut self, session: u64, result: Result<(Vec<Vec<Item>>, Hold), Refusal>) {
        let Some((id, found)) = self.sessions.iter_mut().find(|(_, open)| open.key == session) else { return };
        let Stage::Listing { query } = &mut found.stage else { return };
        match result {
            Ok((pages, memory)) => {
                let work = Work::first(session, pages, memory, std::mem::take(query), self.limits.frame_bytes);
                found.stage = Stage::Answering;
                self.actions.push_back(Action::Work(work));
            }
            Err(refusal) => {
                let id = id.clone();
                // Nothing is left to be forgotten: the listing has ended.
                self.sessions.remove(&id);
                self.refuse(&id, &refusal);
            }
        }
    }

    /// A query was answered. Where its session has gone meanwhile, what it held is let go here.
    pub fn worked(&mut self, worked: Worked, now: Instant) {
        let Some((id, found)) = self.sessions.iter_mut().find(|(_, open)| open.key == worked.session) else { return };
        let id = id.clone();
        match worked.result {
            Ok((answer, inventory)) => {
                found.stage = Stage::Waiting { inventory, since: now };
                let frame = format!(r#"["NEG-MSG",{},"{}"]"#, serde_json::json!(id), hex::encode(answer));
                self.actions.push_back(Action::Send(frame));
            }
            Err(refusal) => self.refuse(&id, &refusal),
        }
    }

    /// Ends what has taken too long.
    pub fn tick(&mut self, now: Instant) {
        let late: Vec<_> =
            self.sessions.iter().filter_map(|(id, open)| Some((id.clone(), self.late(open, now)?))).collect();
        for (id, refusal) in late {
            self.refuse(&id, &refusal);
        }
    }

    /// When to tick next.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let of = |open: &Session| {
            let total = open.opened + self.limits.total;
            match open.stage {
                Stage::Waiting { since, .. } => total.min(since + self.limits.idle),
                Stage::Listing { .. } | Stage::Answering => total,
            }
        };
        self.sessions.values().map(of).min()
    }

    /// All sessions end, for this reason. With [`Refusal::Stopping`], no new ones are taken.
    pub fn end_all(&mut self, refusal: &Refusal) {
        self.stop_if(refusal);
        let ids: Vec<_> = self.sessions.keys().cloned().collect();
        for id in ids {
            self.refuse(&id, refusal);
        }
    }

    /// No new sessions; those that are open may go on.
    pub const fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether no session is open.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sessions.is_empty()
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn open(
        &mut self,
        id: &str,
        wanted: Wanted,
        query: Vec<u8>,
        slot: impl FnOnce() -> Option<Hold>,
        now: Instant,
    ) -> Result<(), Refusal> {
        if self.stopping {
            return Err(Refusal::Stopping);
        }
        self.rate.take(now)?;
        // A limit leaves a bounded part of everything.
        if wanted.filter.is_unrestricted() && wanted.limited.is_none() && !self.limits.allow_unrestricted {
            return Err(Refusal::Unrestricted);
        }
        let most = self.limits.sessions_per_connection;
        if self.sessions.len() >= most {
            return Err(Refusal::ConnectionSessions(most));
        }
        let slot = slot().ok_or(Refusal::Sessions)?;
        self.opened += 1;
        let key = self.opened;
        let session = Session { key, _slot: slot, opened: now, stage: Stage::Listing { query } };
        self.sessions.insert(id.to_owned(), session);
        self.actions.push_back(Action::List { session: key, wanted });
        Ok(())
    }

    fn query(&mut self, id: &str, query: Vec<u8>, now: Instant) -> Result<(), Refusal> {
        self.rate.take(now)?;
        let session = self.sessions.get_mut(id).ok_or(Refusal::Unknown)?;
        match std::mem::replace(&mut session.stage, Stage::Answering) {
            Stage::Waiting { inventory, .. } => {
                let work = Work::next(session.key, inventory, query, self.limits.frame_bytes);
                self.actions.push_back(Action::Work(work));
                Ok(())
            }
            before => {
                session.stage = before;
                Err(Refusal::OutOfTurn)
            }
        }
    }

    /// Says why a session has ended, or was not opened.
    fn refuse(&mut self, id: &str, refusal: &Refusal) {
        self.end(id);
        self.actions.push_back(Action::Refuse { frame: refusal.frame(id), reason: refusal.label() });
    }

    fn end(&mut self, id: &str) {
        if let Some(Session { key, stage: Stage::Listing { .. }, .. }) = self.sessions.remove(id) {
            self.actions.push_back(Action::Forget { session: key });
        }
    }

    fn late(&self, session: &Session, now: Instant) -> Option<Refusal> {
        let lasted = |since: Instant| now.saturating_duration_since(since);
        match session.stage {
            _ if lasted(session.opened) >= self.limits.total => Some(Refusal::Total(self.limits.total)),
            Stage::Waiting { since, .. } if lasted(since) >= self.limits.idle => Some(Refusal::Idle(self.limits.idle)),
            _ => None,
        }
    }

    fn stop_if(&mut self, refusal: &Refusal) {
        self.stopping |= matches!(refusal, Refusal::Stopping | Refusal::Lost);
    }
}

/// Messages that may come: a second's worth at once, and as many again every second.
struct Rate {
    per_second: u32,
    left: f64,
    at: Instant,
}

impl Rate {
    fn new(per_second: u32, now: Instant) -> Self {
        Self { per_second, left: f64::from(per_second), at: now }
    }

    fn take(&mut self, now: Instant) -> Result<(), Refusal> {
        let most = f64::from(self.per_second);
        let gained = now.saturating_duration_since(self.at).as_secs_f64() * most;
        (self.left, self.at) = ((self.left + gained).min(most), now);
        if self.left < 1.0 {
            return Err(Refusal::Rate(self.per_second));
        }
        self.left -= 1.0;
        Ok(())
    }
}

#[cfg(test)]
#[path = "responder_tests.rs"]
mod tests;
