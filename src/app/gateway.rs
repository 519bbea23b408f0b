//! The gateway of a process: bound at start, and bound to what the config said then.

use anyhow::{Context, Result};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::config::{Config, GatewaySettings, RelaySettings};
use crate::gateway::Gateway;
use crate::metrics::Metrics;

/// A gateway that listens and does not serve yet.
pub struct BoundGateway {
    gateway: Gateway,
    listener: TcpListener,
    settings: GatewaySettings,
    relay: RelaySettings,
}

impl BoundGateway {
    /// Binds what the config asks for; `None` where it asks for none.
    ///
    /// # Errors
    /// When the port is taken, or the relay's `ca_file` cannot be used.
    pub async fn bind(config: &Config, metrics: &Metrics) -> Result<Option<Self>> {
        let Some(settings) = config.gateway.clone() else { return Ok(None) };
        let gateway = Gateway::new(&settings, &config.local, metrics.gateway().clone()).context("the local relay")?;
        let listening = TcpListener::bind(settings.listen).await;
        let listener = listening.with_context(|| format!("gateway.listen {}", settings.listen))?;
        tracing::info!(listen = %settings.listen, relay = %config.local.url, "the gateway listens");
        Ok(Some(Self { gateway, listener, settings, relay: config.local.clone() }))
    }

    /// What it was made from.
    #[must_use]
    pub fn made_from(&self) -> MadeFrom {
        MadeFrom { gateway: Some(self.settings.clone()), relay: Some(self.relay.clone()) }
    }

    /// Serves until `stop`, and lets sessions under way finish.
    pub async fn serve(self, stop: CancellationToken) {
        self.gateway.serve(self.listener, stop).await;
    }
}

/// What a process's gateway was made from, if it has one.
#[derive(Debug, Default)]
pub struct MadeFrom {
    gateway: Option<GatewaySettings>,
    relay: Option<RelaySettings>,
}

impl MadeFrom {
    /// Says so where a new config asks for another gateway than the one there is: its clients are
    /// not thrown out for that.
    pub fn compare(&self, config: &Config) {
        let same_relay = self.relay.as_ref().is_none_or(|relay| {
            (&relay.url, &relay.ca_file, &relay.proxy)
                == (&config.local.url, &config.local.ca_file, &config.local.proxy)
        });
        if self.gateway != config.gateway || !same_relay {
            tracing::warn!("the gateway goes on as it was: what changed for it takes a restart");
        }
    }
}
