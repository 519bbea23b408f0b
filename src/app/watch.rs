//! An eye on each relay: what its connections do, as health, metrics and log lines.

use std::collections::{HashMap, HashSet};

use tokio::sync::watch;

use super::Relays;
use super::presence::{Change, Presence};
use crate::config::Config;
use crate::health::{Connections, Health, Patience, Status};
use crate::metrics::Metrics;
use crate::nostr::{RelayUrl, Timestamp};

/// The longest wait, in seconds, before the local relay is tried again.
const LOCAL_CAP: u64 = 60;

/// What is known of all relays of a config.
#[derive(Default)]
pub(super) struct Watch(HashMap<RelayUrl, Watched>);

/// What is known of one relay.
struct Watched {
    name: String,
    health: Health,
    patience: Patience,
    view: watch::Receiver<Connections>,
    seen: Connections,
    /// Of its streams.
    presence: Presence,
}

impl Watch {
    /// Goes over to the relays of a config.
    pub(super) fn set(&mut self, config: &Config, relays: &Relays, metrics: &Metrics) {
        let all: HashMap<_, _> =
            std::iter::once(&config.local).chain(&config.peers).map(|relay| (&relay.url, relay)).collect();
        self.0.retain(|url, watched| {
            let stays = all.get(url).is_some_and(|relay| relay.name == watched.name);
            if !stays {
                metrics.forget_relay(&watched.name);
            }
            stays
        });
        for settings in all.into_values() {
            let Some(relay) = relays.get(&settings.url) else { continue };
            let mut patience = Patience {
                base: settings.retry.base.as_secs().max(1),
                cap: settings.retry.cap.as_secs().max(1),
                cooldown: settings.retry.cooldown.as_secs(),
                ..Patience::default()
            };
            if settings.url == config.local.url {
                // Ours to restart, and every job needs it: it is never given up.
                (patience.cap, patience.dead_after) = (patience.cap.min(LOCAL_CAP), u64::MAX);
            }
            let new = || Watched {
                name: settings.name.clone(),
                health: Health::default(),
                patience,
                view: relay.view(),
                seen: Connections::default(),
                presence: Presence::default(),
            };
            let watched = self.0.entry(settings.url.clone()).or_insert_with(new);
            (watched.patience, watched.view) = (patience, relay.view());
        }
    }

    /// Turns what connections did into health, and health into metrics. `live` names those relays
    /// that streams, over connections of their own, are meant to be connected to.
    pub(super) fn look(&mut self, streams: &Relays, live: &HashSet<&RelayUrl>, metrics: &Metrics, now: Timestamp) {
        let (mut connected, mut dead) = (0, 0);
        for (url, relay) in &mut self.0 {
            let view = relay.view.borrow_and_update().clone();
            if view.connections > relay.seen.connections {
                relay.health.connected(now);
            }
            // A relay that was added again by a reload counts from zero.
            for _ in relay.seen.failures..view.failures {
                relay.health.failed(now, fastrand::f64(), &relay.patience);
            }
            if view.connected && view.failures > relay.seen.failures {
                relay.health.connected(now);
            }
            if view.cooldowns > relay.seen.cooldowns {
                relay.health.slowed(now, &relay.patience);
            }
            let status = relay.health.status(now, &relay.patience);
            connected += usize::from(view.connected);
            dead += usize::from(status == Status::Dead);
            metrics.relay(&relay.name, &view, &relay.seen, status, relay.health.failures(now, &relay.patience));
            relay.seen = view;
            match streams.get(url).filter(|_| live.contains(url)) {
                Some(streams) => tell(&relay.name, relay.presence.look(&streams.view().borrow(), now)),
                None => relay.presence = Presence::default(),
            }
        }
        metrics.relays(self.0.len(), connected, dead);
    }

    /// A relay was reached, whatever was thought of it.
    pub(super) fn reached(&mut self, relay: &RelayUrl) {
        if let Some(relay) = self.0.get_mut(relay) {
            relay.health.reached();
        }
    }

    /// Whether there is a connection to each of these relays.
    pub(super) fn are_connected(&self, relays: [&RelayUrl; 2]) -> bool {
        relays.into_iter().all(|url| self.0.get(url).is_some_and(|relay| relay.seen.connected))
    }

    /// Until when nothing is to be asked of one of these relays.
    pub(super) fn wait_until(&self, relays: [&RelayUrl; 2], now: Timestamp) -> Option<Timestamp> {
        let wait = |url| self.0.get(url).and_then(|relay| relay.health.wait_until(now, &relay.patience));
        relays.into_iter().filter_map(wait).max()
    }
}

/// Says what became of the streams of a relay.
fn tell(relay: &str, change: Option<Change>) {
    match change {
        Some(Change::Lost) => tracing::info!(relay, "streams: the connection is lost"),
        Some(Change::Back(losses)) => tracing::info!(relay, losses, "streams: connected again"),
        None => {}
    }
}
