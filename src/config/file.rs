//! The config file as it is written. What it means is worked out in the files beside this one.
//!
//! These structs are the only description of the file's shape: the JSON Schema for editors and
//! the check for unknown keys and wrong types both come from them. Everything that may be wrong
//! is optional here, so that one mistake does not hide the next.

use std::borrow::Cow;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::job_spec::{Direction, StrategyChoice};

/// Keys that people try, and why they are not there.
pub(super) const REFUSED_KEYS: [(&str, &str); 5] = [
    ("limit", "`limit` cannot be used: a comparison covers all matching events"),
    ("search", "`search` cannot be used: a comparison needs a filter that every relay reads alike"),
    ("secret_key", KEY_IN_FILE),
    ("private_key", KEY_IN_FILE),
    ("nsec", KEY_IN_FILE),
];

/// What is said of a secret key in the file, never repeating it.
pub(super) const KEY_IN_FILE: &str = "a secret key has no place in this file: \
    name its place with `secret_key_file`, `secret_key_env` or `secret_key_credential`";

/// Whether a bech32 secret key is in a text.
pub(super) fn holds_secret(text: &str) -> bool {
    let text = text.to_ascii_lowercase();
    text.contains("nsec1") || text.contains("ncryptsec1")
}

/// The keys of single-letter tags in a filter, as a regular expression for editors.
const TAG_KEYS: &str = "^#[A-Za-z]$";

/// Whether a key of a filter asks for a single-letter tag.
pub(super) fn is_tag_key(key: &str) -> bool {
    matches!(key.as_bytes(), [b'#', letter] if letter.is_ascii_alphabetic())
}

/// Tieline's config file: a local relay, its peers, and what is kept in step with each.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "peers.yaml")]
pub(super) struct File {
    /// The relay that this process runs beside.
    #[schemars(required)]
    pub local: Option<Local>,
    /// The relays to be kept in step with it.
    pub peers: Option<Vec<Peer>>,
    /// Anything a peer may set, for all peers that do not set it themselves.
    pub defaults: Option<Defaults>,
    /// Directory of the state file. Default: what the system provides for a service.
    pub state_dir: Option<PathBuf>,
    /// Metrics, health, status and a page for people. Off unless given.
    pub http: Option<Http>,
    /// Discovery of relays that hold our git repositories (GRASP-02). Off unless given.
    pub grasp: Option<Grasp>,
    /// A NIP-77 responder in front of a local relay that has none. Off unless given.
    pub gateway: Option<Gateway>,
    /// Where to post what was newly stored. Off unless given.
    pub notify: Option<Notify>,
}

/// The relay that this process runs beside.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Local {
    /// Its name in status and metrics. Default: local.
    pub name: Option<String>,
    /// Its `ws://` or `wss://` URL.
    #[schemars(required)]
    pub url: Option<String>,
    #[serde(flatten)]
    pub relay: RelayOptions,
}

/// A relay to be kept in step with the local one.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Peer {
    /// Its name on the command line, in status and in metrics.
    #[schemars(required)]
    pub name: Option<String>,
    /// Its `ws://` or `wss://` URL.
    #[schemars(required)]
    pub url: Option<String>,
    /// What is kept in step: each filter is a job of its own.
    pub filters: Option<Vec<FilterEntry>>,
    #[serde(flatten)]
    pub relay: RelayOptions,
    #[serde(flatten)]
    pub job: JobOptions,
}

/// Anything a peer may set, for all peers that do not set it themselves.
#[derive(Default, Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct Defaults {
    /// Filters of the peers that have none of their own.
    pub filters: Option<Vec<FilterEntry>>,
    #[serde(flatten)]
    pub relay: RelayOptions,
    #[serde(flatten)]
    pub job: JobOptions,
}

/// A NIP-01 filter, or options around one (which then stands under `filter`).
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub(super) struct FilterEntry {
    /// Its name on the command line, in status and in metrics. Default: filter-1, filter-2, ….
    pub name: Option<String>,
    /// The filter, when it does not stand here itself.
    pub filter: Option<FilterText>,
    #[serde(flatten)]
    pub job: JobOptions,
    /// The keys of a filter that stands here itself.
    #[serde(flatten)]
    pub inline: FilterText,
}

/// How a relay is reached.
#[derive(Default, Deserialize, JsonSchema)]
pub(super) struct RelayOptions {
    /// The key that answers the relay when it asks who we are (NIP-42). Default: none.
    pub auth: Option<Auth>,
    /// How soon a failed relay is tried again.
    pub retry: Option<Retry>,
    /// Certificates.
    pub tls: Option<Tls>,
    /// `socks5h://host:port` (Tor) or `http://host:port`. Default: none.
    pub proxy: Option<String>,
}

/// How a filter's job is done. What a filter says goes before what its peer says, and that
/// before the defaults.
#[derive(Default, Deserialize, JsonSchema)]
pub(super) struct JobOptions {
    /// Default: true.
    pub enabled: Option<bool>,
    /// `pull` (peer to local), `push` (local to peer) or `both`. Required in one of the places.
    pub direction: Option<Direction>,
    /// Seconds between the starts of two runs. Default: 300.
    pub interval_seconds: Option<NonZeroU64>,
    /// When it runs, where `interval_seconds` does not say enough.
    pub schedule: Option<Schedule>,
    /// Also pass events on as they appear. Default: false.
    pub live: Option<bool>,
    /// How the difference is found. Default: auto.
    pub strategy: Option<StrategyChoice>,
    /// What a job may use.
    pub limits: Option<Limits>,
    /// Events that are never moved. Those of the filter, the peer and the defaults all count.
    pub exclude: Option<Vec<FilterText>>,
    /// Permits a filter that matches every event. Default: false.
    pub allow_unrestricted: Option<bool>,
}

/// A NIP-01 filter as text; `npub`, `note`, `nevent` and `naddr` stand for hex, and times may be
/// relative (`-30d`) or RFC 3339.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub(super) struct FilterText(pub Map<String, Value>);

impl JsonSchema for FilterText {
    fn schema_name() -> Cow<'static, str> {
        "Filter".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let texts = |what: &str| json_schema!({"description": what, "type": "array", "items": {"type": "string"}, "minItems": 1});
        let time = |what: &str| json_schema!({"description": what, "type": ["integer", "string"], "minimum": 0});
        json_schema!({
            "description": "A NIP-01 filter.",
            "type": "object",
            "properties": {
                "ids": texts("Event ids: hex, note1… or nevent1…."),
                "authors": texts("Public keys: hex, npub1… or nprofile1…."),
                "kinds": {
                    "description": "Kind numbers.",
                    "type": "array",
                    "items": {"type": "integer", "minimum": 0, "maximum": 65535},
                    "minItems": 1,
                },
                "since": time("Not before: seconds since 1970, RFC 3339, or relative such as -30d."),
                "until": time("Not after: seconds since 1970, RFC 3339, or relative such as -1h."),
            },
            "patternProperties": {TAG_KEYS: texts("Values of a tag.")},
            "additionalProperties": false,
        })
    }
}

/// Where a secret key is found: exactly one of these.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Auth {
    /// A file that holds the key (hex or nsec), readable by its owner alone.
    pub secret_key_file: Option<PathBuf>,
    /// The name of an environment variable that holds the key.
    pub secret_key_env: Option<String>,
    /// The name of a systemd credential (a file in `$CREDENTIALS_DIRECTORY`).
    pub secret_key_credential: Option<String>,
}

/// How soon a failed relay is tried again.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Retry {
    /// Wait after the first failure, doubled by each further one. Default: 5s.
    pub base: Option<String>,
    /// The longest wait. Default: 1h.
    pub cap: Option<String>,
    /// Wait after a relay says that it is asked too often. Default: 65s.
    pub cooldown: Option<String>,
}

/// Certificates.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Tls {
    /// A PEM file of authorities to trust besides the system's. Default: none.
    pub ca_file: Option<PathBuf>,
}

/// When a job runs: the word `manual`, or a mapping.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum Schedule {
    Word(ScheduleWord),
    Parts(ScheduleParts),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum ScheduleWord {
    /// Only when asked for on the command line.
    Manual,
}

/// At most one of `every`, `cron` and `manual`.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ScheduleParts {
    /// Time between the starts of two runs, such as `5m`. Default: 5m.
    pub every: Option<String>,
    /// A cron expression of five fields, in UTC.
    pub cron: Option<String>,
    /// Only when asked for on the command line. The word alone says yes. Default: false.
    #[serde(default, deserialize_with = "yes_if_bare")]
    #[schemars(with = "Option<bool>")]
    pub manual: bool,
    /// How far before the last complete run a side without negentropy is listed. Default: 1d.
    pub overlap: Option<String>,
}

/// `{manual}` is a mapping whose key has no value.
fn yes_if_bare<'de, D: Deserializer<'de>>(value: D) -> Result<bool, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or(true))
}

/// What a job may use.
#[derive(Clone, Copy, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Limits {
    /// Passes before a job that still finds something is partial. Default: 4.
    pub passes: Option<NonZeroU32>,
    /// Ids listed and held at once (40 bytes each). Default: 100000.
    pub inventory_events: Option<NonZeroUsize>,
    /// Ids that one side may have while the other lists none, before the job stops and asks.
    /// Default: 10000.
    pub empty_guard: Option<u64>,
    /// REQs for event bodies under way at the source. Default: 4.
    pub fetches_in_flight: Option<NonZeroUsize>,
    /// EVENTs that await their OK at the destination. Default: 1024.
    pub publishes_in_flight: Option<NonZeroUsize>,
    /// Bytes of events held between source and destination. Default: 2097152.
    pub spool_bytes: Option<NonZeroUsize>,
    /// Refused or vanished ids remembered. Default: 1000000.
    pub parked_ids: Option<u64>,
    /// EVENTs per second to a destination. Default: no limit.
    pub events_per_second: Option<NonZeroU32>,
    /// Bytes of EVENTs per second to a destination. Default: no limit.
    pub bytes_per_second: Option<NonZeroU32>,
}

/// Metrics, health, status and a page for people.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Http {
    /// Address and port. Default: 127.0.0.1:9747.
    pub listen: Option<String>,
}

/// Discovery of relays that hold our git repositories (GRASP-02).
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Grasp {
    /// Our own GRASP service, as announcements name it.
    #[schemars(required)]
    pub service: Option<String>,
    /// Relays to look at first, and always. Default: none.
    pub bootstrap: Option<Vec<String>>,
    /// Discovered relays at once. Default: 100.
    pub max_relays: Option<NonZeroUsize>,
    /// What the local relay accepts is acted upon so long after the first of it. Default: 5s.
    pub batch_window: Option<String>,
    /// Permits discovered relays at private, loopback and link-local addresses. Default: false.
    pub allow_private: Option<bool>,
    /// Hosts that may be discovered. Default: any.
    pub allow: Option<Vec<String>>,
    /// Hosts that are never discovered. Default: none.
    pub deny: Option<Vec<String>>,
    /// The key that answers discovered relays (NIP-42). Default: none.
    pub auth: Option<Auth>,
}

/// A NIP-77 responder in front of a local relay that has none.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Gateway {
    /// Address and port. Default: 127.0.0.1:7780.
    pub listen: Option<String>,
    /// Addresses, or networks such as 10.0.0.0/8, of proxies whose word on who asks is passed on.
    /// Default: none.
    pub trusted_proxies: Option<Vec<String>>,
    /// What clients may use.
    pub limits: Option<GatewayLimits>,
}

/// What the gateway's clients may use.
#[derive(Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GatewayLimits {
    /// Clients at once. Default: 1000.
    pub connections: Option<NonZeroUsize>,
    /// Bytes of one message from a client. Default: 2500000.
    pub message_bytes: Option<NonZeroUsize>,
    /// Permits a filter that matches every event. Default: false.
    pub allow_unrestricted: Option<bool>,
    /// Matching events per filter. Default: 1000000.
    pub events_per_filter: Option<NonZeroUsize>,
    /// Negentropy sessions of one connection. Default: 8.
    pub sessions_per_connection: Option<NonZeroUsize>,
    /// Negentropy sessions in all. Default: 64.
    pub sessions: Option<NonZeroUsize>,
    /// Listings of the local relay under way. Default: 4.
    pub listings: Option<NonZeroUsize>,
    /// Bytes of one answer, before hex. Default: 500000.
    pub frame_bytes: Option<NonZeroUsize>,
    /// Bytes of all inventories. Default: 268435456.
    pub memory_bytes: Option<NonZeroUsize>,
    /// Negentropy messages per second of one connection. Default: 100.
    pub messages_per_second: Option<NonZeroU32>,
    /// A session without a message ends. Default: 2m.
    pub idle: Option<String>,
    /// A session ends. Default: 30m.
    pub total: Option<String>,
}

/// Where to post what was newly stored: ids, kinds and addresses, never content.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Notify {
    /// An `http://` or `https://` URL.
    #[schemars(required)]
    pub url: Option<String>,
    /// A file that holds a bearer token for that URL, readable by its owner alone. Default: none.
    pub token_file: Option<PathBuf>,
}
