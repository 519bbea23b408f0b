//! The relays of a process: one connection each, however many jobs use it.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::config::{Config, RelaySettings};
use crate::job_spec::{JobSpec, Limits};
use crate::nostr::RelayUrl;
use crate::relay::{Relay, RelayOptions, client_config};

/// Subscriptions on a connection that is for streams alone, where the relay sets no lower limit:
/// strfry allows 200 and khatru any number; 70 is what GRASP relays are known to bear.
pub(super) const STREAMS: usize = 70;

/// The relays of a process, one connection each however many jobs use it.
#[derive(Debug, Default)]
pub struct Relays {
    by_url: HashMap<RelayUrl, Relay>,
    /// Subscriptions at once, where not the usual number.
    subscriptions: Option<usize>,
}

impl Relays {
    /// The relays of a config. Nothing is dialled yet.
    ///
    /// # Errors
    /// When a key or a certificate file cannot be read.
    pub fn of(config: &Config) -> Result<Self> {
        Self::with_subscriptions(config, None)
    }

    /// The same relays over connections of their own, for streams.
    ///
    /// # Errors
    /// When a key or a certificate file cannot be read.
    pub fn for_streams(config: &Config) -> Result<Self> {
        Self::with_subscriptions(config, Some(STREAMS))
    }

    fn with_subscriptions(config: &Config, subscriptions: Option<usize>) -> Result<Self> {
        let spawned =
            relays_of(config).map(|(relay, limits)| Ok((relay.url.clone(), spawn(relay, &limits, subscriptions)?)));
        Ok(Self { by_url: spawned.collect::<Result<_>>()?, subscriptions })
    }

    /// One relay over a connection of its own.
    ///
    /// # Errors
    /// When a key or a certificate file cannot be read.
    pub fn alone(settings: &RelaySettings) -> Result<Relay> {
        spawn(settings, &Limits::default(), None)
    }

    /// Goes over from one config to another: relays whose settings did not change keep their
    /// connections.
    ///
    /// # Errors
    /// When a key or a certificate file cannot be read. Nothing is changed then.
    pub fn update(&mut self, old: &Config, new: &Config) -> Result<()> {
        let settings = |config: &Config| -> HashMap<RelayUrl, (RelaySettings, Limits)> {
            relays_of(config).map(|(relay, limits)| (relay.url.clone(), (relay.clone(), limits.clone()))).collect()
        };
        let (old, new) = (settings(old), settings(new));
        let mut relays = HashMap::new();
        for (url, (relay, limits)) in &new {
            let same = old.get(url).is_some_and(|(before, pace)| before == relay && same_pace(pace, limits));
            let relay = match self.by_url.get(url).filter(|_| same) {
                Some(kept) => kept.clone(),
                None => spawn(relay, limits, self.subscriptions)?,
            };
            relays.insert(url.clone(), relay);
        }
        self.by_url = relays;
        Ok(())
    }

    /// Two relays that are known by their URLs alone.
    ///
    /// # Errors
    /// When the system's certificates cannot be used.
    pub fn plain(urls: [&RelayUrl; 2]) -> Result<Self> {
        let tls = client_config(None)?;
        let relay = |url: &RelayUrl| (url.clone(), Relay::spawn(RelayOptions::new(url.clone(), tls.clone())));
        Ok(Self { by_url: urls.into_iter().map(relay).collect(), subscriptions: None })
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
