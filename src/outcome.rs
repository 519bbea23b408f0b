//! One outcome per id, and the report that adds up.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::job_spec::{Direction, JobSpec, Side};
use crate::nostr::{Event, EventId, Prefix, PublicKey, Timestamp};

/// An event that a relay has newly stored, as far as others are told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Its id.
    pub id: EventId,
    /// Its kind.
    pub kind: u16,
    /// Its author.
    pub pubkey: PublicKey,
    /// Its own address, and those it links to (`a`).
    pub addresses: Vec<String>,
}

/// Addresses told of one event, and the bytes of each: a stranger wrote them.
const MOST_ADDRESSES: usize = 20;
const MOST_ADDRESS: usize = 512;

impl Stored {
    /// What is told of an event.
    #[must_use]
    pub fn of(event: &Event) -> Self {
        let links = event.tag_values("a").map(str::to_owned);
        let addresses = event.address().into_iter().chain(links).filter(|address| address.len() <= MOST_ADDRESS);
        Self {
            id: event.id(),
            kind: event.kind(),
            pubkey: event.pubkey(),
            addresses: addresses.take(MOST_ADDRESSES).collect(),
        }
    }
}

impl Serialize for Stored {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut map = to.serialize_struct("Stored", 4)?;
        map.serialize_field("id", &self.id.to_string())?;
        map.serialize_field("kind", &self.kind)?;
        map.serialize_field("pubkey", &self.pubkey.to_string())?;
        map.serialize_field("addresses", &self.addresses)?;
        map.end()
    }
}

/// Why an event was not offered to the other relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Skip {
    /// A held deletion request of its author names it (NIP-09).
    Deleted,
    /// Its kind is not for keeping (NIP-01), or is an AUTH answer (NIP-42).
    Ephemeral,
    /// An `exclude` filter of the job matches it.
    Excluded,
    /// It has expired, or will within a minute (NIP-40).
    Expired,
    /// Its id or its signature is wrong, or it is not what was asked for.
    Invalid,
    /// Only its author may publish it (NIP-70).
    Protected,
    /// It is larger than the other relay takes.
    TooLarge,
    /// Its author asked to vanish (NIP-62), or it is such a request to another relay.
    Vanish,
}

impl Skip {
    /// All of them, with the words they have in reports and in the state.
    pub const ALL: [(&'static str, Self); 8] = [
        ("deleted", Self::Deleted),
        ("ephemeral", Self::Ephemeral),
        ("excluded", Self::Excluded),
        ("expired", Self::Expired),
        ("invalid", Self::Invalid),
        ("protected", Self::Protected),
        ("too-large", Self::TooLarge),
        ("vanish", Self::Vanish),
    ];

    /// The word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        // Every variant stands in ALL: the test below holds it.
        Self::ALL.iter().find(|(_, skip)| *skip == self).map_or("skipped", |(word, _)| word)
    }
}

/// What became of one id that was found missing on one side. Every id ends in exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The destination acknowledged it.
    Stored,
    /// The destination has it, or once had it.
    Duplicate,
    /// The destination will not take it.
    Refused(Prefix),
    /// It was not offered.
    Skipped(Skip),
    /// The source listed it and does not return it.
    Vanished,
    /// It could not be moved this time; a later pass tries again.
    Failed,
    /// The destination acknowledged it, more than once, and does not serve it.
    NotServed,
    /// The job's direction does not move it.
    NotWanted,
    /// It was known before the run that it cannot be moved for now.
    Parked,
}

/// Why an id is parked: found missing, and known not to be movable for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParkReason {
    /// Refused by the destination.
    Refused(Prefix),
    /// Taken by the destination and hidden (`purgatory:`, `mute:`).
    Hidden(Prefix),
    /// Refused for its time: taken later, perhaps.
    Early,
    /// Not offered.
    Skipped(Skip),
    /// Listed by the source and not returned.
    Vanished,
    /// Acknowledged by the destination, and never served.
    NotServed,
}

const MINUTE: u64 = 60;
const DAY: u64 = 24 * 60 * MINUTE;

impl ParkReason {
    /// How long it holds, in seconds: permanent reasons 30 days, policy 7 days, vanished 1 day,
    /// hidden 30 minutes.
    #[must_use]
    pub fn holds_for(self) -> u64 {
        match self {
            Self::Refused(Prefix::Duplicate | Prefix::Replaced | Prefix::Deleted | Prefix::Invalid) => 30 * DAY,
            // It broke the connection: the relay may be mended soon.
            Self::Refused(Prefix::Closed) => DAY,
            Self::Refused(_) | Self::NotServed => 7 * DAY,
            Self::Hidden(_) | Self::Early => 30 * MINUTE,
            // A limit, a key or a rule of ours may change; what the event says will not.
            Self::Skipped(Skip::Protected | Skip::TooLarge | Skip::Excluded) => 7 * DAY,
            Self::Skipped(_) => 30 * DAY,
            Self::Vanished => DAY,
        }
    }

    /// Whether the destination may take the event when it holds more than now: some relays say
    /// `invalid:` of what refers to nothing that they hold.
    #[must_use]
    pub const fn may_change(self) -> bool {
        use Prefix::{Closed, Deleted, Duplicate, Replaced};
        matches!(self, Self::Refused(prefix) if !matches!(prefix, Duplicate | Replaced | Deleted | Closed))
    }

    /// The word it has in reports and in the state, such as `refused:blocked`.
    #[must_use]
    pub fn label(self) -> String {
        match self {
            Self::Refused(prefix) => format!("refused:{}", prefix.as_str()),
            Self::Hidden(prefix) => format!("hidden:{}", prefix.as_str()),
            Self::Early => "early".to_owned(),
            Self::Skipped(skip) => format!("skipped:{}", skip.as_str()),
            Self::Vanished => "vanished".to_owned(),
            Self::NotServed => "not-served".to_owned(),
        }
    }
}

/// Counts of outcomes in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Moved {
    /// Acknowledged by the destination.
    pub stored: u64,
    /// Already there.
    pub duplicate: u64,
    /// Refused, by reason word.
    pub refused: BTreeMap<&'static str, u64>,
    /// Not offered, by reason.
    pub skipped: BTreeMap<&'static str, u64>,
    /// Listed by the source and not returned.
    pub vanished: u64,
    /// Left for a later run.
    pub failed: u64,
    /// Not moved, because the direction says so.
    #[serde(skip)]
    pub not_wanted: u64,
    /// Known before the run not to be movable.
    #[serde(skip)]
    pub parked: u64,
}

impl Moved {
    /// Counts one outcome.
    pub fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Stored => self.stored += 1,
            Outcome::Duplicate => self.duplicate += 1,
            Outcome::Refused(prefix) => *self.refused.entry(prefix.as_str()).or_default() += 1,
            Outcome::Skipped(skip) => *self.skipped.entry(skip.as_str()).or_default() += 1,
            Outcome::Vanished => self.vanished += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::NotServed => *self.refused.entry("not-served").or_default() += 1,
            Outcome::NotWanted => self.not_wanted += 1,
            Outcome::Parked => self.parked += 1,
        }
    }

    /// All of them: the number of ids found.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.stored
            + self.duplicate
            + self.refused.values().sum::<u64>()
            + self.skipped.values().sum::<u64>()
            + self.vanished
            + self.failed
            + self.not_wanted
            + self.parked
    }
}

/// A second that holds more events than a relay lists at once: its set there is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// The relay that could not list it.
    #[serde(rename = "relay", serialize_with = "side_name")]
    pub side: Side,
    /// The second.
    pub second: Timestamp,
    /// The most events the relay returned for it.
    pub cap: usize,
}

/// A number for each side, as `{"local": …, "peer": …}`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BySide<T> {
    /// The local relay's.
    pub local: T,
    /// The peer's.
    pub peer: T,
}

impl<T> std::ops::Index<Side> for BySide<T> {
    type Output = T;

    fn index(&self, side: Side) -> &T {
        match side {
            Side::Local => &self.local,
            Side::Peer => &self.peer,
        }
    }
}

impl<T> std::ops::IndexMut<Side> for BySide<T> {
    fn index_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Local => &mut self.local,
            Side::Peer => &mut self.peer,
        }
    }
}

/// How a run of a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// A pass ran to its end and found nothing but parked ids.
    Converged,
    /// Something is still missing and unexplained, or a second was too dense to list.
    Partial,
    /// A relay refuses what the job needs: a person has to act.
    Blocked,
    /// A relay was not reached, or does not keep to the protocol.
    Failed,
    /// The difference was computed and nothing moved, as asked.
    DryRun,
    /// Another run holds the job.
    Locked,
    /// Stopped by a signal.
    Interrupted,
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Converged => "converged",
            Self::Partial => "partial",
            Self::Blocked => "blocked",
            Self::Failed => "failed",
            Self::DryRun => "dry-run",
            Self::Locked => "locked",
            Self::Interrupted => "interrupted",
        })
    }
}

/// What a run of a job did: the object that `tieline sync --json` prints, field by field.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The peer's name.
    pub peer: String,
    /// The filter's name.
    pub filter: String,
    /// The job's direction.
    pub direction: Direction,
    /// How the difference was found; of several ways, the last.
    pub strategy: Option<&'static str>,
    /// How it ended.
    pub outcome: Ending,
    /// Passes run.
    pub passes: u32,
    /// What part of the filter was compared; all of it if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Ids that only the local relay had in the first pass.
    pub local_only: u64,
    /// Ids that only the peer had in the first pass.
    pub peer_only: u64,
    /// From the peer to the local relay.
    pub downloaded: Moved,
    /// From the local relay to the peer.
    pub uploaded: Moved,
    /// Ids found missing that were parked before the run.
    pub parked: u64,
    /// Seconds too dense to list.
    pub gaps: Vec<Gap>,
    /// Negentropy queries answered, by either relay.
    pub negentropy_rounds: u64,
    /// Bytes of WebSocket messages sent to each relay.
    pub bytes_sent: BySide<u64>,
    /// Bytes of WebSocket messages received from each relay.
    pub bytes_received: BySide<u64>,
    /// Event bodies received, to be moved.
    pub bodies_received: u64,
    /// How long it took.
    pub duration_ms: u64,
    /// What went wrong.
    pub error: Option<String>,
    /// On a dry run with `--ids`: what each side has alone.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub ids: Option<Ids>,
}

impl Report {
    /// Of a run that did not begin.
    #[must_use]
    pub fn unstarted(spec: &JobSpec, outcome: Ending, error: String) -> Self {
        Self {
            peer: spec.peer.clone(),
            filter: spec.name.clone(),
            direction: spec.direction,
            strategy: None,
            outcome,
            passes: 0,
            scope: None,
            local_only: 0,
            peer_only: 0,
            downloaded: Moved::default(),
            uploaded: Moved::default(),
            parked: 0,
            gaps: Vec::new(),
            negentropy_rounds: 0,
            bytes_sent: BySide::default(),
            bytes_received: BySide::default(),
            bodies_received: 0,
            duration_ms: 0,
            error: Some(error),
            ids: None,
        }
    }
}

/// The part of a filter that a run compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Scope {
    /// Events made from this second on.
    pub since: Timestamp,
}

/// The difference itself.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Ids {
    /// Ids that only the local relay has.
    pub local_only_ids: Vec<String>,
    /// Ids that only the peer has.
    pub peer_only_ids: Vec<String>,
}

fn side_name<S: Serializer>(side: &Side, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(side.as_str())
}
