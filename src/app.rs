//! Puts the parts together: from settings to relays and jobs that can run.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context, Result};

use crate::config::{Config, RelaySettings};
use crate::job_spec::{JobSpec, Limits};
use crate::nostr::RelayUrl;
use crate::relay::{Relay, RelayOptions, client_config};

/// The relays of a process, one connection each however many jobs use it.
#[derive(Debug, Default)]
pub struct Relays(HashMap<RelayUrl, Relay>);

impl Relays {
    /// The relays of a config. Nothing is dialled yet.
    ///
    /// # Errors
    /// When a key or a certificate file cannot be read.
    pub fn of(config: &Config) -> Result<Self> {
        let mut relays = Self::default();
        relays.add(&config.local, &Limits::default())?;
        for peer in &config.peers {
            let limits = config.jobs.iter().find(|job| job.spec.peer_url == peer.url).map(|job| &job.spec.limits);
            relays.add(peer, limits.unwrap_or(&Limits::default()))?;
        }
        Ok(relays)
    }

    /// Two relays that are known by their URLs alone.
    ///
    /// # Errors
    /// When the system's certificates cannot be used.
    pub fn plain(urls: [&RelayUrl; 2]) -> Result<Self> {
        let tls = client_config(None)?;
        let relay = |url: &RelayUrl| (url.clone(), Relay::spawn(RelayOptions::new(url.clone(), tls.clone())));
        Ok(Self(urls.into_iter().map(relay).collect()))
    }

    /// The relays of a job.
    #[must_use]
    pub fn both(&self, spec: &JobSpec) -> Option<(&Relay, &Relay)> {
        Some((self.0.get(&spec.local_url)?, self.0.get(&spec.peer_url)?))
    }

    /// One relay.
    #[must_use]
    pub fn get(&self, url: &RelayUrl) -> Option<&Relay> {
        self.0.get(url)
    }

    fn add(&mut self, settings: &RelaySettings, limits: &Limits) -> Result<()> {
        self.0.insert(settings.url.clone(), spawn(settings, limits)?);
        Ok(())
    }
}

/// Starts the task that will own the connection to a relay.
fn spawn(settings: &RelaySettings, limits: &Limits) -> Result<Relay> {
    let keys = settings.auth.as_ref().map(|auth| auth.load()).transpose();
    let keys = keys.with_context(|| format!("the key for {}", settings.name))?;
    let tls: Arc<_> = client_config(settings.ca_file.as_ref())?;
    Ok(Relay::spawn(RelayOptions {
        keys,
        proxy: settings.proxy.as_ref().map(|proxy| proxy.url().clone()),
        events_per_second: limits.events_per_second,
        bytes_per_second: limits.bytes_per_second,
        cooldown: settings.retry.cooldown,
        ..RelayOptions::new(settings.url.clone(), tls)
    }))
}
