//! One client of a scripted relay.

use std::collections::HashMap;
use std::sync::Arc;

use futures::{SinkExt, StreamExt};
use negentropy::{Id, Negentropy, NegentropyStorageVector};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::quirks::{Neg, Quirks, Verdict};
use super::record::Way;
use super::store::{Added, Filter};
use super::{Event, Shared};

/// The end of a connection, whoever ended it.
struct Gone;

impl From<Error> for Gone {
    fn from(_: Error) -> Self {
        Self
    }
}

type Continue = Result<(), Gone>;

/// One negentropy session.
struct Session {
    responder: Negentropy<'static, NegentropyStorageVector>,
    answers: usize,
}

struct Connection {
    number: usize,
    socket: WebSocketStream<TcpStream>,
    shared: Arc<Shared>,
    subscriptions: HashMap<String, Vec<Filter>>,
    sessions: HashMap<String, Session>,
    challenge: Option<String>,
    challenges: usize,
    authenticated: bool,
    events_taken: usize,
    mute: bool,
}

/// Serves a client until either side ends it.
pub(super) async fn serve(stream: TcpStream, number: usize, shared: Arc<Shared>) {
    let Ok(socket) = tokio_tungstenite::accept_async(stream).await else { return };
    let connection = Connection {
        number,
        socket,
        shared,
        subscriptions: HashMap::new(),
        sessions: HashMap::new(),
        challenge: None,
        challenges: 0,
        authenticated: false,
        events_taken: 0,
        mute: false,
    };
    // How it ended is of no interest.
    let _ = connection.run().await;
}

impl Connection {
    async fn run(mut self) -> Continue {
        let mut live = self.shared.live.subscribe();
        loop {
            tokio::select! {
                message = self.socket.next() => match message.ok_or(Gone)?? {
                    Message::Text(text) => self.handle(&text).await?,
                    Message::Close(_) => return Err(Gone),
                    _ => {}
                },
                event = live.recv() => self.broadcast(event.map_err(|_| Gone)?.as_ref()).await?,
            }
        }
    }

    async fn handle(&mut self, text: &str) -> Continue {
        let message: Value = serde_json::from_str(text).unwrap_or_default();
        let verb = message[0].as_str().unwrap_or_default().to_owned();
        self.shared.record().add(self.number, Way::Received, &verb, text);
        let quirks = self.shared.quirks().clone();
        self.mute |= quirks.mutes;
        if self.mute {
            return Ok(());
        }
        if quirks.max_message_length.is_some_and(|max| text.len() > max) {
            return Err(Gone);
        }
        if verb != "CLOSE" && verb != "NEG-CLOSE" {
            for notice in &quirks.chatter {
                self.send(json!(["NOTICE", notice])).await?;
            }
            tokio::time::sleep(quirks.delay).await;
        }
        let name = message[1].as_str().unwrap_or_default().to_owned();
        match verb.as_str() {
            "REQ" => self.req(&quirks, name, &message.as_array().unwrap()[2..]).await,
            "EVENT" => self.event(&quirks, text).await,
            "AUTH" => self.auth(&quirks, &message[1]).await,
            "NEG-OPEN" => self.neg_open(&quirks, name, &message[2], &message[3]).await,
            "NEG-MSG" => self.neg_msg(&quirks, name, &message[2]).await,
            "CLOSE" => {
                self.subscriptions.remove(&name);
                Ok(())
            }
            "NEG-CLOSE" => {
                self.sessions.remove(&name);
                Ok(())
            }
            _ => self.send(json!(["NOTICE", "error: unknown message"])).await,
        }
    }

    async fn send(&mut self, message: Value) -> Continue {
        let verb = message[0].as_str().unwrap_or_default();
        self.send_text(verb, message.to_string()).await
    }

    async fn send_event(&mut self, name: &str, event: &Event) -> Continue {
        self.send_text("EVENT", format!(r#"["EVENT",{},{}]"#, json!(name), event.json)).await
    }

    async fn send_text(&mut self, verb: &str, text: String) -> Continue {
        // Recorded before it leaves: a client that has an answer finds it in the record.
        self.shared.record().add(self.number, Way::Sent, verb, &text);
        Ok(self.socket.send(Message::text(text)).await?)
    }

    async fn req(&mut self, quirks: &Quirks, name: String, filters: &[Value]) -> Continue {
        if quirks.auth.for_req && !self.authenticated {
            self.challenge(quirks.auth.rotates).await?;
            return self.send(json!(["CLOSED", name, "auth-required: say who you are"])).await;
        }
        if let Some(text) = &quirks.req_notice {
            return self.send(json!(["NOTICE", text])).await;
        }
        let Some(filters) = filters.iter().map(Filter::read).collect::<Option<Vec<_>>>() else {
            return self.send(json!(["CLOSED", name, "invalid: cannot read the filter"])).await;
        };
        let full = quirks.max_subscriptions.is_some_and(|max| self.subscriptions.len() >= max);
        if full && !self.subscriptions.contains_key(&name) {
            return self.send(json!(["CLOSED", name, "rate-limited: too many concurrent REQs"])).await;
        }
        let (page, complete) = self.page(quirks, &filters);
        let page = quirks.injected.iter().chain(&page);
        let closed_after = quirks.closed_after.as_ref();
        for event in page.take(closed_after.map_or(usize::MAX, |(count, _)| *count)) {
            self.send_event(&name, event).await?;
        }
        if let Some((_, text)) = closed_after {
            return self.send(json!(["CLOSED", name, text])).await;
        }
        self.subscriptions.insert(name.clone(), filters);
        if quirks.never_eose {
            return Ok(());
        }
        let eose = match (quirks.eose_hints, complete) {
            (false, _) => json!(["EOSE", name]),
            (true, true) => json!(["EOSE", name, ["finish"]]),
            (true, false) => json!(["EOSE", name, ["more"]]),
        };
        self.send(eose).await?;
        if quirks.closes_after_eose {
            self.subscriptions.remove(&name);
            return self.send(json!(["CLOSED", name, ""])).await;
        }
        Ok(())
    }

    /// The stored events that answer a REQ, and whether they are all that match.
    fn page(&self, quirks: &Quirks, filters: &[Filter]) -> (Vec<Event>, bool) {
        let store = self.shared.store();
        let (mut page, mut complete) = (Vec::new(), true);
        for filter in filters {
            let mut filter = filter.clone();
            if quirks.ignores_until {
                filter.until = None;
            }
            if quirks.until_exclusive {
                filter.until = filter.until.map(|until| until.saturating_sub(1));
            }
            let mut limit = filter.limit.or(quirks.default_limit).unwrap_or(usize::MAX);
            if quirks.ignores_limit {
                limit = usize::MAX;
            }
            limit = limit.min(quirks.page_cap.unwrap_or(usize::MAX));
            let matching = store.query(&filter).filter(|event| !quirks.unserved.contains(&event.id));
            // One more than fits tells whether there is more.
            let enough = if quirks.ties_reversed { usize::MAX } else { limit.saturating_add(1) };
            let mut matching: Vec<&Event> = matching.take(enough).collect();
            if quirks.ties_reversed {
                matching.sort_by(|a, b| b.created_at.cmp(&a.created_at).then_with(|| b.id.cmp(&a.id)));
            }
            complete &= matching.len() <= limit;
            page.extend(matching.into_iter().take(limit).cloned());
        }
        (page, complete)
    }

    async fn broadcast(&mut self, event: &Event) -> Continue {
        if self.mute || self.shared.quirks().unserved.contains(&event.id) {
            return Ok(());
        }
        let hears = |filters: &Vec<Filter>| filters.iter().any(|filter| filter.matches(event));
        let hearing = self.subscriptions.iter().filter(|(_, filters)| hears(filters));
        let names: Vec<_> = hearing.map(|(name, _)| name.clone()).collect();
        for name in names {
            self.send_event(&name, event).await?;
        }
        Ok(())
    }

    async fn event(&mut self, quirks: &Quirks, message: &str) -> Continue {
        // Kept as it came, byte for byte.
        let parts: Result<(&str, &RawValue), _> = serde_json::from_str(message);
        let Some(event) = parts.ok().and_then(|(_, event)| Event::read(event.get())) else {
            return self.send(json!(["OK", "", false, "invalid: not an event"])).await;
        };
        let id = event.id.clone();
        if quirks.auth.for_event && !self.authenticated {
            self.challenge(quirks.auth.rotates).await?;
            return self.send(json!(["OK", id, false, "auth-required: say who you are"])).await;
        }
        self.events_taken += 1;
        if quirks.rate_limit.is_some_and(|limit| self.events_taken > limit) {
            return self.send(json!(["OK", id, false, "rate-limited: slow down"])).await;
        }
        match quirks.on_event.as_ref().map_or(Verdict::Usual, |decide| decide(&event)) {
            Verdict::Usual => {
                let (accepted, text) = self.take(event);
                self.send(json!(["OK", id, accepted, text])).await
            }
            Verdict::Say(text) => {
                let (accepted, _) = self.take(event);
                self.send(json!(["OK", id, accepted, text])).await
            }
            Verdict::KeepSilently => {
                self.take(event);
                Ok(())
            }
            Verdict::Refuse(text) => self.send(json!(["OK", id, false, text])).await,
            Verdict::Swallow(text) => self.send(json!(["OK", id, true, text])).await,
            Verdict::Raw(text) => self.send_text("OK", text).await,
            Verdict::Ignore => Ok(()),
            Verdict::Disconnect => Err(Gone),
        }
    }

    /// What the relay's own rules say.
    fn take(&self, event: Event) -> (bool, &'static str) {
        if !event.is_valid() {
            return (false, "invalid: id or signature is wrong");
        }
        if event.tags.iter().any(|tag| tag[0] == "-") && !self.authenticated {
            return (false, "blocked: event marked as protected");
        }
        let added = self.shared.store().add(&event);
        match added {
            Added::Stored | Added::PassedOn => {
                // This connection listens, so that there is a receiver.
                let _ = self.shared.live.send(Arc::new(event));
                (true, "")
            }
            Added::Duplicate => (true, "duplicate: have this event"),
            Added::Refused(text) => (false, text),
        }
    }

    async fn challenge(&mut self, rotate: bool) -> Continue {
        if self.challenge.is_none() || rotate {
            self.challenges += 1;
            let challenge = format!("challenge {} of connection {}", self.challenges, self.number);
            self.challenge = Some(challenge.clone());
            return self.send(json!(["AUTH", challenge])).await;
        }
        Ok(())
    }

    async fn auth(&mut self, quirks: &Quirks, event: &Value) -> Continue {
        let Some(event) = Event::read(&event.to_string()) else { return Ok(()) };
        let names = |tag, value: Option<&str>| event.tag_values(tag).next() == value;
        let right = event.is_valid()
            && event.kind == 22_242
            && event.tag_values("relay").any(|url| url.trim_end_matches('/') == self.shared.url)
            && names("challenge", self.challenge.as_deref());
        if right && !quirks.auth.never_satisfied {
            self.authenticated = !quirks.auth.in_vain;
            self.send(json!(["OK", event.id, true, ""])).await
        } else {
            self.send(json!(["OK", event.id, false, "restricted: not the answer to the challenge"])).await
        }
    }

    async fn neg_open(&mut self, quirks: &Quirks, name: String, filter: &Value, message: &Value) -> Continue {
        match &quirks.neg {
            Neg::Answers => {}
            Neg::Err(text) => return self.send(json!(["NEG-ERR", name, text])).await,
            Neg::Closed(text) => return self.send(json!(["CLOSED", name, text])).await,
            Neg::Notice(text) => return self.send(json!(["NOTICE", text])).await,
            Neg::Silence => return Ok(()),
            Neg::Disconnect => return Err(Gone),
        }
        if quirks.auth.for_neg && !self.authenticated {
            self.challenge(quirks.auth.rotates).await?;
            let verb = if quirks.auth.closes_neg { "CLOSED" } else { "NEG-ERR" };
            return self.send(json!([verb, name, "auth-required: say who you are"])).await;
        }
        let Some(filter) = Filter::read(filter) else {
            return self.send(json!(["NEG-ERR", name, "error: cannot read the filter"])).await;
        };
        let mut storage = NegentropyStorageVector::new();
        let mut count = 0;
        for event in self.shared.store().query(&filter) {
            let id = hex::decode(&event.id).unwrap();
            storage.insert(event.created_at, Id::from_slice(&id).unwrap()).unwrap();
            count += 1;
        }
        if let Some(max) = quirks.neg_max_sync.filter(|max| count > *max) {
            let text = "blocked: too many query results";
            let refusal =
                if quirks.neg_says_max { json!(["NEG-ERR", name, text, max]) } else { json!(["NEG-ERR", name, text]) };
            return self.send(refusal).await;
        }
        storage.seal().unwrap();
        let responder = Negentropy::owned(storage, quirks.neg_frame_limit).unwrap();
        self.sessions.insert(name.clone(), Session { responder, answers: 0 });
        self.neg_msg(quirks, name, message).await
    }

    async fn neg_msg(&mut self, quirks: &Quirks, name: String, message: &Value) -> Continue {
        let Some(session) = self.sessions.get_mut(&name) else {
            return self.send(json!(["NEG-ERR", name, "closed: unknown session"])).await;
        };
        if quirks.neg_session_ends_after.is_some_and(|answers| session.answers >= answers) {
            self.sessions.remove(&name);
            return self.send(json!(["NEG-ERR", name, "closed: took too long"])).await;
        }
        session.answers += 1;
        let query = hex::decode(message.as_str().unwrap_or_default()).unwrap_or_default();
        let Ok(mut answer) = session.responder.reconcile(&query) else {
            self.sessions.remove(&name);
            return self.send(json!(["NEG-ERR", name, "PROTOCOL-ERROR"])).await;
        };
        if let Some(tamper) = &quirks.neg_tamper {
            answer = tamper(answer);
        }
        self.send(json!(["NEG-MSG", name, hex::encode(answer)])).await
    }
}
