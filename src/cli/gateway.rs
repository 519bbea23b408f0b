//! `tieline gateway`: the gateway alone, from its config to its end.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use tokio_util::sync::CancellationToken;

use super::run::{OsSignals, State, bind_http, notify, reread, serve_http, watchdog_interval};
use super::{Globals, OK};
use crate::app::BoundGateway;
use crate::config::find_file;
use crate::metrics::Metrics;

/// The gateway takes everything from its config.
#[derive(Debug, Args)]
pub struct GatewayArgs {}

/// Serves until SIGTERM or SIGINT.
pub async fn run(_: GatewayArgs, globals: &Globals) -> Result<u8> {
    let mut signals = OsSignals::new().context("cannot listen for signals")?;
    let path = find_file(globals.config.clone())?;
    let config = globals.config()?;
    let metrics = Arc::new(Metrics::new());
    let stop = CancellationToken::new();
    let Some(gateway) = BoundGateway::bind(&config, &metrics).await? else {
        bail!("{}: there is no `gateway:` in it", path.display());
    };
    let made_from = gateway.made_from();
    if let Some(listener) = bind_http(&config).await? {
        serve_http(listener, metrics, None, stop.clone());
    }
    let mut serving = tokio::spawn(gateway.serve(stop.clone()));
    notify(&[State::Ready]);
    let mut watchdog = tokio::time::interval(watchdog_interval());
    loop {
        tokio::select! {
            _ = signals.hangup.recv() => {
                notify(&[State::Reloading]);
                if let Some(config) = reread(&path) {
                    made_from.compare(&config);
                }
                notify(&[State::Ready]);
            }
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            ended = &mut serving => {
                ended.context("the gateway ended in a fault")?;
                bail!("the gateway ended by itself: this is a fault of tieline's, please report it");
            }
            _ = watchdog.tick() => notify(&[State::Watchdog]),
        }
    }
    notify(&[State::Stopping]);
    stop.cancel();
    serving.await.context("the gateway ended in a fault")?;
    Ok(OK)
}
