//! What the scripted relay does differently from a good one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::support::events::Event;

/// All that can be wrong with a relay. The default is a good relay without limits.
#[derive(Clone, Default)]
pub struct Quirks {
    // Reading.
    /// The most events in one answer, said nowhere.
    pub page_cap: Option<usize>,
    /// The limit of a REQ that names none.
    pub default_limit: Option<usize>,
    pub ignores_limit: bool,
    pub ignores_until: bool,
    /// Leaves the second of `until` out, as nostr-relay does.
    pub until_exclusive: bool,
    /// Of events of one second, the highest id first.
    pub ties_reversed: bool,
    /// EOSE says `finish` or `more` (NIP-67).
    pub eose_hints: bool,
    pub never_eose: bool,
    /// An empty CLOSED follows the EOSE, as from rust-nostr for ids.
    pub closes_after_eose: bool,
    /// A NOTICE with this text is all that a REQ gets.
    pub req_notice: Option<String>,
    /// A CLOSED with this text after so many events of an answer.
    pub closed_after: Option<(usize, String)>,
    /// REQs open at once on one connection; the next one is CLOSED.
    pub max_subscriptions: Option<usize>,
    /// Listed by negentropy, and never served.
    pub unserved: BTreeSet<String>,
    /// Served before every answer, whatever was asked.
    pub injected: Vec<Event>,

    // Writing.
    /// Decides about an event before the relay's own rules do.
    pub on_event: Option<OnEvent>,
    /// EVENTs taken on one connection; the rest is `rate-limited:`.
    pub rate_limit: Option<usize>,

    /// What needs authentication.
    pub auth: Auth,

    // Negentropy.
    pub neg: Neg,
    /// The most events of a session; beyond it the answer is the one strfry gives, which does
    /// not say the number.
    pub neg_max_sync: Option<usize>,
    /// Says that number as fourth element of the NEG-ERR.
    pub neg_says_max: bool,
    /// Bytes of an answer, 4096 or more; 0 is no limit.
    pub neg_frame_limit: u64,
    /// Answers in one session; then it is lost.
    pub neg_session_ends_after: Option<usize>,
    /// Sends this in place of an answer.
    pub neg_tamper: Option<Tamper>,

    // All else.
    /// Bytes of a message; a longer one ends the connection.
    pub max_message_length: Option<usize>,
    /// Before every answer to anything.
    pub delay: Duration,
    /// A connection that says something while this is set gets no answer any more but pongs.
    pub mutes: bool,
    /// NOTICEs before every answer to anything.
    pub chatter: Vec<String>,
    pub info: Info,
}

/// Decides about an event.
pub type OnEvent = Arc<dyn Fn(&Event) -> Verdict + Send + Sync>;
/// Turns a negentropy answer into another.
pub type Tamper = Arc<dyn Fn(Vec<u8>) -> Vec<u8> + Send + Sync>;

/// What happens to an event.
pub enum Verdict {
    /// The relay's own rules decide.
    Usual,
    /// OK false with this text.
    Refuse(String),
    /// OK true with this text, and the event is not kept.
    Swallow(String),
    /// Kept as usual, with this text in its OK.
    Say(String),
    /// Kept as usual, and no OK.
    KeepSilently,
    /// Not kept; this frame is sent, whatever it is.
    Raw(String),
    /// Neither kept nor answered.
    Ignore,
    /// The connection ends, without an answer.
    Disconnect,
}

impl Quirks {
    /// With a decision about each event.
    #[must_use]
    pub fn on_event(mut self, decide: impl Fn(&Event) -> Verdict + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(decide));
        self
    }
}

/// What needs authentication (NIP-42). Anybody's will do.
#[derive(Clone, Debug, Default)]
pub struct Auth {
    pub for_req: bool,
    pub for_event: bool,
    pub for_neg: bool,
    /// A new challenge with every refusal, which ends the one before.
    pub rotates: bool,
    /// Refuses every AUTH.
    pub never_satisfied: bool,
    /// Accepts every AUTH, and goes on asking for one.
    pub in_vain: bool,
    /// Refuses NEG-OPEN with CLOSED instead of NEG-ERR.
    pub closes_neg: bool,
}

impl Auth {
    /// For everything.
    pub fn required() -> Self {
        Self { for_req: true, for_event: true, for_neg: true, ..Self::default() }
    }
}

/// The answer to NEG-OPEN.
#[derive(Clone, Debug, Default)]
pub enum Neg {
    /// The right one.
    #[default]
    Answers,
    /// NEG-ERR with this text.
    Err(String),
    /// CLOSED with this text.
    Closed(String),
    /// NOTICE with this text.
    Notice(String),
    Silence,
    Disconnect,
}

/// The answer to HTTP GET on the relay's port.
#[derive(Clone)]
pub enum Info {
    /// A NIP-11 document.
    Document(Value),
    /// Another answer with this status, type and body.
    Other(&'static str, &'static str, String),
    /// The connection ends without one.
    None,
}

impl Default for Info {
    fn default() -> Self {
        Self::Document(json!({"name": "model", "supported_nips": [1, 9, 11, 42, 77]}))
    }
}
