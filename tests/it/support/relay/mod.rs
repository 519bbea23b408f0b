//! A relay of any sort, under one interface.

mod process;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, TcpListener};

use nostr_relay_builder::builder::{RateLimit, RelayBuilder};
use nostr_relay_builder::local::LocalRelay;
use nostr_relay_builder::prelude::{MemoryDatabase, MemoryDatabaseOptions};
use serde_json::Value;

use super::client;
use super::events::Event;
use super::model::{ModelRelay, Quirks};
use process::Process;

/// A relay on loopback, empty when it starts, gone when it is dropped.
pub enum TestRelay {
    /// `nostr-relay-builder`, in this process; speaks NIP-77.
    InProcess(Box<LocalRelay>, String),
    /// The scripted one.
    Model(ModelRelay),
    /// `nostr-relay` or strfry, as a process of its own.
    Process(Process),
}

impl TestRelay {
    /// `nostr-relay-builder` with NIP-77 and without a rate limit.
    pub async fn in_process() -> Self {
        Self::in_process_with(|builder| builder).await
    }

    /// The same, configured further: NIP-42, policies, limits.
    pub async fn in_process_with(configure: impl FnOnce(RelayBuilder) -> RelayBuilder) -> Self {
        let rate_limit = RateLimit { max_reqs: 10_000, notes_per_minute: 100_000_000 };
        let database = MemoryDatabase::with_opts(MemoryDatabaseOptions { events: true, max_events: None });
        let builder = RelayBuilder::default().port(free_port()).database(database).rate_limit(rate_limit);
        let relay = LocalRelay::new(configure(builder));
        relay.run().await.unwrap();
        let url = relay.url().await.to_string();
        Self::InProcess(Box::new(relay), url)
    }

    /// `nostr-relay` from PyPI with SQLite: no NIP-77. `tests/install-relays.sh` installs it.
    pub async fn nostr_relay() -> Self {
        Self::Process(Process::nostr_relay().await)
    }

    /// strfry, when `TIELINE_TEST_STRFRY` says where it is.
    pub async fn strfry() -> Option<Self> {
        Some(Self::Process(Process::strfry(&std::env::var_os("TIELINE_TEST_STRFRY")?).await))
    }

    /// The scripted relay without quirks.
    pub async fn model() -> Self {
        Self::Model(ModelRelay::start(Quirks::default()).await)
    }

    /// One of each: for tests that hold whatever the relay is.
    pub async fn each() -> Vec<Self> {
        let mut relays = vec![Self::in_process().await, Self::nostr_relay().await, Self::model().await];
        relays.extend(Self::strfry().await);
        relays
    }

    /// What to call it when a test fails.
    pub fn name(&self) -> &str {
        match self {
            Self::InProcess(..) => "nostr-relay-builder",
            Self::Model(_) => "model",
            Self::Process(process) => process.name(),
        }
    }

    pub fn url(&self) -> &str {
        match self {
            Self::InProcess(_, url) => url,
            Self::Model(relay) => relay.url(),
            Self::Process(process) => process.url(),
        }
    }

    /// Publishes events; every one has to be taken.
    pub async fn fill(&self, events: &[Event]) {
        match self {
            Self::Model(relay) => relay.fill(events),
            _ => client::fill(self.url(), events).await,
        }
    }

    /// The ids of all events that match.
    pub async fn ids(&self, filter: &Value) -> BTreeSet<String> {
        match self {
            Self::Model(relay) => relay.ids(filter),
            _ => client::ids(self.url(), filter).await,
        }
    }

    /// Stops it; its connections end.
    pub fn stop(self) {
        match self {
            Self::InProcess(relay, _) => relay.shutdown(),
            // Dropping them stops them.
            Self::Model(_) | Self::Process(_) => {}
        }
    }
}

/// A port that nobody listens on. The kernel hands them out in turn, so that two tests that ask
/// at the same time get different ones.
pub fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}
