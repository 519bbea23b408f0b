//! What a job is, wherever it came from: one peer, one filter, one direction.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::nostr::{Filter, RelayUrl, Timestamp};

/// One of the two relays of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The relay this process runs beside.
    Local,
    /// The remote one.
    Peer,
}

impl Side {
    /// Both, the local relay first.
    pub const BOTH: [Self; 2] = [Self::Local, Self::Peer];

    /// The one opposite.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Local => Self::Peer,
            Self::Peer => Self::Local,
        }
    }

    /// `local` or `peer`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Peer => "peer",
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which way events move. Applied after the difference is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the peer to the local relay.
    Pull,
    /// From the local relay to the peer.
    Push,
    /// Both ways.
    Both,
}

impl Direction {
    /// Whether an event that only `holder` has is to be moved to the other side.
    #[must_use]
    pub const fn moves_from(self, holder: Side) -> bool {
        matches!((self, holder), (Self::Both, _) | (Self::Pull, Side::Peer) | (Self::Push, Side::Local))
    }

    /// `pull`, `push` or `both`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
            Self::Both => "both",
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How the difference is to be found.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, schemars::JsonSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum StrategyChoice {
    /// By what each side really answers.
    #[default]
    Auto,
    /// Negentropy on both sides; neither is listed.
    Mediated,
    /// One side is listed, the other answers negentropy.
    Inventory,
    /// Both sides are listed.
    Paged,
}

/// What a job may use. Every number has the default that the config file documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Passes before a job that still finds something is partial.
    pub passes: u32,
    /// Ids listed and held at once.
    pub inventory_events: usize,
    /// Ids that one side may have while the other lists nothing at all, before a job that
    /// would fill the other stops and asks.
    pub empty_guard: u64,
    /// REQs for event bodies under way at the source.
    pub fetches_in_flight: usize,
    /// EVENTs that await their OK at the destination.
    pub publishes_in_flight: usize,
    /// Bytes of events between fetch and publish.
    pub spool_bytes: usize,
    /// Parked ids kept in the state, per destination.
    pub parked_ids: u64,
    /// EVENTs per second to a destination.
    pub events_per_second: Option<NonZeroU32>,
    /// Bytes of EVENTs per second to a destination.
    pub bytes_per_second: Option<NonZeroU32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            passes: 4,
            // 40 bytes each: 4 MB. A larger window is listed piece by piece, which costs the
            // NIP-77 side one exchange a piece and the listed side nothing.
            inventory_events: 100_000,
            empty_guard: 10_000,
            fetches_in_flight: 4,
            // What strfry needs to write in groups: a copy is a third faster than with 256. A slow
            // relay never gets so many (`transfer::publish::Window`).
            publishes_in_flight: 1024,
            // Ten times what 500 events of the usual 400 bytes are: large events take the rest. When
            // the destination is the slower one it is always full.
            spool_bytes: 2 << 20,
            parked_ids: 1_000_000,
            events_per_second: None,
            bytes_per_second: None,
        }
    }
}

/// Which jobs do not offer an event again that the destination refused, where it might take it at
/// another time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Refusals {
    /// None does.
    #[default]
    HoldForAll,
    /// Those of this name: they find the same events at other relays, and others find them when
    /// the destination holds what they refer to.
    HoldFor(&'static str),
    /// The one that was refused.
    HoldForOne,
}

/// The times of a filter that were written relative to the present, in seconds before it. The
/// filter itself holds what they came to when it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelativeTime {
    /// Of `since`; `None` when it is missing or fixed.
    pub since: Option<u64>,
    /// Of `until`; `None` when it is missing or fixed.
    pub until: Option<u64>,
}

impl RelativeTime {
    /// A filter with these of its times counted from `now`; `None` when no second is left between
    /// them.
    #[must_use]
    pub fn of(self, filter: &Filter, now: Timestamp) -> Option<Filter> {
        // The rest was a filter before: only its two times can be out of order now.
        Filter::from_value(&self.write(filter, |ago| now.saturating_sub(ago).into())).ok()
    }

    fn write(self, filter: &Filter, time: impl Fn(u64) -> Value) -> Value {
        let mut filter = filter.to_value(None);
        for (key, ago) in [("since", self.since), ("until", self.until)] {
            if let Some(ago) = ago {
                filter[key] = time(ago);
            }
        }
        filter
    }
}

/// A job: the unit of scheduling, status and failure.
#[derive(Clone, Debug)]
pub struct JobSpec {
    /// The peer's name, for people.
    pub peer: String,
    /// The filter's name, for people.
    pub name: String,
    /// The local relay.
    pub local_url: RelayUrl,
    /// The remote relay.
    pub peer_url: RelayUrl,
    /// What is kept in step.
    pub filter: Filter,
    /// Which times of the filter move with the present.
    pub relative: RelativeTime,
    /// Which way.
    pub direction: Direction,
    /// How the difference is found.
    pub strategy: StrategyChoice,
    /// Events that are never moved.
    pub exclude: Vec<Filter>,
    /// What it may use.
    pub limits: Limits,
}

/// A hash of what defines a job: the same in every process that runs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobKey([u8; 16]);

impl JobKey {
    /// From its bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// Not the key of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 32 hex digits")]
pub struct JobKeyError;

impl FromStr for JobKey {
    type Err = JobKeyError;

    fn from_str(text: &str) -> Result<Self, JobKeyError> {
        let mut bytes = [0; 16];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| JobKeyError)?;
        Ok(Self(bytes))
    }
}

impl JobSpec {
    /// Its key. Names, limits and the strategy may change without its being another job, and a
    /// relative time counts as it was written: the key is the same at every start.
    #[must_use]
    pub fn key(&self) -> JobKey {
        let mut hash = Sha256::new();
        let mut part = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        part(self.local_url.as_str());
        part(self.peer_url.as_str());
        part(&self.relative.write(&self.filter, |ago| format!("-{ago}s").into()).to_string());
        part(self.direction.as_str());
        for exclude in &self.exclude {
            part(&exclude.to_string());
        }
        let digest: [u8; 32] = hash.finalize().into();
        let mut key = [0; 16];
        key.copy_from_slice(&digest[..16]);
        JobKey(key)
    }

    /// The filter with its relative times counted from `now`; `None` when no second is left
    /// between them.
    #[must_use]
    pub fn filter_at(&self, now: Timestamp) -> Option<Filter> {
        self.relative.of(&self.filter, now)
    }

    /// The URL of a side.
    #[must_use]
    pub const fn url(&self, side: Side) -> &RelayUrl {
        match side {
            Side::Local => &self.local_url,
            Side::Peer => &self.peer_url,
        }
    }
}

impl fmt::Display for JobKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for JobSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({})", self.peer, self.name, self.direction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(filter: &str, relative: RelativeTime) -> JobSpec {
        JobSpec {
            peer: "p".into(),
            name: "f".into(),
            local_url: "ws://127.0.0.1:7777".parse().unwrap(),
            peer_url: "wss://h".parse().unwrap(),
            filter: filter.parse().unwrap(),
            relative,
            direction: Direction::Pull,
            strategy: StrategyChoice::Auto,
            exclude: Vec::new(),
            limits: Limits::default(),
        }
    }

    #[test]
    fn a_relative_time_is_in_the_key_as_written() {
        let relative = RelativeTime { since: Some(50), until: None };
        let (today, tomorrow) = (job(r#"{"since":50}"#, relative), job(r#"{"since":60}"#, relative));
        assert_eq!(today.key(), tomorrow.key());
        assert_ne!(today.key(), job(r#"{"since":50}"#, RelativeTime::default()).key());
        assert_ne!(today.key(), job(r#"{"since":50}"#, RelativeTime { since: Some(40), until: None }).key());
    }

    #[test]
    fn a_key_is_read_as_it_is_written() {
        let key = job(r#"{"kinds":[1]}"#, RelativeTime::default()).key();
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!("abc".parse::<JobKey>(), Err(JobKeyError));
    }

    #[test]
    fn relative_times_move_with_the_present() {
        let both = job(r#"{"since":50,"until":90}"#, RelativeTime { since: Some(50), until: Some(10) });
        assert_eq!(both.filter_at(200).unwrap().to_string(), r#"{"since":150,"until":190}"#);
        let one = job(r#"{"since":50,"until":90}"#, RelativeTime { since: Some(50), until: None });
        assert_eq!(one.filter_at(140).unwrap().to_string(), r#"{"since":90,"until":90}"#);
        assert_eq!(one.filter_at(141), None);
    }
}
