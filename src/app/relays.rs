//! The relays of a process: one connection each, however many jobs use it.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::config::{Config, RelaySettings};
use crate::job_spec::{JobSpec, Limits};
use crate::live::STREAMS;
use crate::nostr::RelayUrl;
use crate::relay::{Relay, RelayOptions, client_config};

/// The relays of a process, one connection each however many jobs use it.
#[derive(Debug, Default)]
pub struct Relays {
    by_url: HashMap<RelayUrl, Relay>,
    /// Those that cannot be used, and why: a key or a certificate file that cannot be read.
    faults: HashMap<RelayUrl, String>,
    /// Subscriptions at once, where not the usual number.
    subscriptions: Option<usize>,
}

impl Relays {
    /// The relays of a config. Nothing is dialled yet. One whose key or certificate file cannot
    /// be read is no reason to leave the others alone: [`Self::fault`] says why it is not there.
    #[must_use]
    pub fn of(config: &Config) -> Self {
        Self::with_subscriptions(config, None)
    }

    /// The same relays over connections of their own, for streams.
    #[must_use]
    pub fn for_streams(config: &Config) -> Self {
        Self::with_subscriptions(config, Some(STREAMS))
    }

    fn with_subscriptions(config: &Config, subscriptions: Option<usize>) -> Self {
        let mut relays = Self { subscriptions, ..Self::default() };
        for (relay, limits) in relays_of(config) {
            let url = relay.url.clone();
            match spawn(relay, &limits, subscriptions) {
                Ok(relay) => _ = relays.by_url.insert(url, relay),
                Err(error) => _ = relays.faults.insert(url, format!("{error:#}")),
            }
        }
        relays
    }

    /// Why a job cannot have its relays.
    #[must_use]
    pub fn fault(&self, spec: &JobSpec) -> Option<&str> {
        let fault = |url| self.faults.get(url).map(String::as_str);
        fault(&spec.local_url).or_else(|| fault(&spec.peer_url))
    }

    /// Why relays cannot be used.
    pub fn faults(&self) -> impl Iterator<Item = &str> {
        self.faults.values().map(String::as_str)
    }

    /// One relay over a connection of its own.
    ///
    /// # Errors
    /// When a key or a certificate file cannot be read.
    pub fn alone(settings: &RelaySettings) -> Result<Relay> {
        spawn(settings, &Limits::default(), None)
    }

    /// Goes over from one config to another: relays whose settings did not change keep their
    /// connections, and those that could not be used are tried again.
    ///
    /// # Errors
    /// When a key or a certificate file cannot be read that is new. Nothing is changed then.
    pub fn update(&mut self, old: &Config, new: &Config) -> Result<()> {
        let settings = |config: &Config| -> HashMap<RelayUrl, (RelaySettings, Limits)> {
            relays_of(config).map(|(relay, limits)| (relay.url.clone(), (relay.clone(), limits.clone()))).collect()
        };
        let (old, new) = (settings(old), settings(new));
        let (mut relays, mut faults) = (HashMap::new(), HashMap::new());
        for (url, (relay, limits)) in &new {
            let same = old.get(url).is_some_and(|(before, pace)| before == relay && same_pace(pace, limits));
            let spawned = match self.by_url.get(url).filter(|_| same) {
                Some(kept) => Ok(kept.clone()),
                None => spawn(relay, limits, self.subscriptions),
            };
            match spawned {
                Ok(relay) => _ = relays.insert(url.clone(), relay),
                // It is not this change that is bad.
                Err(error) if same => _ = faults.insert(url.clone(), format!("{error:#}")),
                Err(error) => return Err(error),
            }
        }
        (self.by_url, self.faults) = (relays, faults);
        Ok(())
    }

    /// Two relays that are known by their URLs alone.
    ///
    /// # Errors
    /// When the system's certificates cannot be used.
    pub fn plain(urls: [&RelayUrl; 2]) -> Result<Self> {
        let tls = client_config(None)?;
        let relay = |url: &RelayUrl| (url.clone(), Relay::spawn(RelayOptions::new(url.clone(), tls.clone())));
        Ok(Self { by_url: urls.into_iter().map(relay).collect(), ..Self::default() })
    }

    /// The relays of a job.
    #[must_use]
    pub fn both(&self, spec: &JobSpec) -> Option<(&Relay, &Relay)> {
        Some((self.by_url.get(&spec.local_url)?, self.by_url.get(&spec.peer_url)?))
    }

    /// One relay.
    #[must_use]
    pub fn get(&self, url: &RelayUrl) -> Option<&Relay> {
        self.by_url.get(url)
    }
}

/// The relays of a config, with the limits of their jobs.
fn relays_of(config: &Config) -> impl Iterator<Item = (&RelaySettings, Limits)> {
    let of_peer = |peer: &RelaySettings| config.jobs.iter().find(|job| job.spec.peer_url == peer.url);
    let peers = config
        .peers
        .iter()
        .map(move |peer| (peer, of_peer(peer).map(|job| job.spec.limits.clone()).unwrap_or_default()));
    // What is pulled goes to the local relay: the strictest pace of its jobs is kept.
    let jobs = || config.jobs.iter().map(|job| &job.spec.limits);
    let local = Limits {
        events_per_second: jobs().filter_map(|limits| limits.events_per_second).min(),
        bytes_per_second: jobs().filter_map(|limits| limits.bytes_per_second).min(),
        ..Limits::default()
    };
    std::iter::once((&config.local, local)).chain(peers)
}

fn same_pace(a: &Limits, b: &Limits) -> bool {
    (a.events_per_second, a.bytes_per_second) == (b.events_per_second, b.bytes_per_second)
}

/// Starts the task that will own the connection to a relay.
fn spawn(settings: &RelaySettings, limits: &Limits, subscriptions: Option<usize>) -> Result<Relay> {
    let keys = settings.auth.as_ref().map(|auth| auth.load()).transpose();
    let keys = keys.with_context(|| format!("the key for {}", settings.name))?;
    let tls: Arc<_> = client_config(settings.ca_file.as_ref())?;
    Ok(Relay::spawn(RelayOptions {
        keys,
        proxy: settings.proxy.as_ref().map(|proxy| proxy.url().clone()),
        public_only: settings.public_only,
        events_per_second: limits.events_per_second,
        bytes_per_second: limits.bytes_per_second,
        cooldown: settings.retry.cooldown,
        subscriptions,
        ..RelayOptions::new(settings.url.clone(), tls)
    }))
}
