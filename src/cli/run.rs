//! `tieline run`: the daemon, from its config to its end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::{Globals, OK, open_state, read_config, warn};
use crate::app::{BoundGateway, Daemon, MadeFrom, Signals};
use crate::clock;
use crate::config::{Config, find_file};
use crate::http;
use crate::metrics::Metrics;

/// The daemon says every second that it goes on; a write to a state that other processes hold can
/// keep it for ten seconds, and a few of them may come together.
const MOST_SILENT: Duration = Duration::from_secs(45);

/// The daemon takes everything from its config.
#[derive(Debug, Args)]
pub struct RunArgs {}

/// Runs until SIGTERM or SIGINT, and re-reads the config on SIGHUP.
pub async fn run(_: RunArgs, globals: &Globals) -> Result<u8> {
    // First of all: one that comes while the rest starts must not be lost.
    let mut signals = OsSignals::new().context("cannot listen for signals")?;
    let path = find_file(globals.config.clone())?;
    let config = globals.config()?;
    let state_dir = globals.state_dir(config.state_dir.as_ref())?;
    let state = open_state(&state_dir).await?;
    let metrics = Arc::new(Metrics::new());
    let (reloads, reload) = mpsc::channel(1);
    let stop = CancellationToken::new();
    let jobs = config.jobs.len();
    // Bound before anything runs, so that a port that is taken is said at once.
    let listener = bind_http(&config).await?;
    let gateway = BoundGateway::bind(&config, &metrics).await?;
    let made_from = gateway.as_ref().map_or_else(MadeFrom::default, BoundGateway::made_from);
    if let Some(listener) = listener {
        serve_http(listener, metrics.clone(), state.clone(), stop.clone());
    }
    let gateway = gateway.map(|gateway| tokio::spawn(gateway.serve(stop.clone())));
    let daemon = Daemon::build(config, state, state_dir, metrics)?;
    let (beat, mut beats) = watch::channel(());
    let running = tokio::spawn(daemon.run(Signals { reload, stop: stop.clone(), beat }));
    tracing::info!(config = %path.display(), jobs, version = env!("CARGO_PKG_VERSION"), "running");
    notify(&[State::Ready]);
    let mut watchdog = tokio::time::interval(watchdog_interval());
    let mut beaten = clock::instant();
    loop {
        tokio::select! {
            _ = signals.hangup.recv() => {
                notify(&[State::Reloading]);
                if let Some(config) = reread(&path) {
                    made_from.compare(&config);
                    // The daemon takes one at a time; it is gone only when it has ended.
                    let _ = reloads.send(config).await;
                }
                notify(&[State::Ready]);
            }
            _ = signals.terminate.recv() => break,
            _ = signals.interrupt.recv() => break,
            _ = watchdog.tick() => {
                if running.is_finished() || gateway.as_ref().is_some_and(JoinHandle::is_finished) {
                    bail!("the daemon ended by itself: this is a fault of tieline's, please report it");
                }
                if beats.has_changed().unwrap_or(false) {
                    beats.mark_unchanged();
                    beaten = clock::instant();
                }
                let silent = clock::instant() - beaten;
                if silent < MOST_SILENT {
                    notify(&[State::Watchdog]);
                } else {
                    tracing::error!(seconds = silent.as_secs(), "the daemon hangs: the service manager is not told that it is well");
                }
            }
        }
    }
    notify(&[State::Stopping]);
    stop.cancel();
    running.await.context("the daemon ended in a fault")?;
    if let Some(gateway) = gateway {
        gateway.await.context("the gateway ended in a fault")?;
    }
    Ok(OK)
}

/// The port for HTTP, where the config asks for it.
pub(super) async fn bind_http(config: &Config) -> Result<Option<TcpListener>> {
    let Some(http) = &config.http else { return Ok(None) };
    let listener = TcpListener::bind(http.listen).await;
    listener.with_context(|| format!("http.listen {}", http.listen)).map(Some)
}

/// Answers on it until `stop`.
pub(super) fn serve_http(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    state: Option<crate::state::State>,
    stop: CancellationToken,
) {
    let serving = http::serve(listener, metrics, state, stop);
    tokio::spawn(async move {
        if let Err(error) = serving.await {
            tracing::error!(%error, "HTTP has ended");
        }
    });
}

/// The config as it is now; `None` when it is bad, which the log says.
pub(super) fn reread(path: &Path) -> Option<Config> {
    match read_config(path) {
        Ok((config, warnings)) => {
            warn(&warnings);
            Some(config)
        }
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "the new config is bad: the old one stays in force");
            None
        }
    }
}

pub(super) struct OsSignals {
    pub(super) hangup: Signal,
    pub(super) terminate: Signal,
    pub(super) interrupt: Signal,
}

impl OsSignals {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self {
            hangup: signal(SignalKind::hangup())?,
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }
}

/// What a service manager is told.
#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    Ready,
    Reloading,
    Stopping,
    Watchdog,
}

#[cfg(target_os = "linux")]
pub(super) fn notify(states: &[State]) {
    use sd_notify::NotifyState;
    let mut told = Vec::new();
    for state in states {
        match state {
            State::Ready => told.push(NotifyState::Ready),
            State::Stopping => told.push(NotifyState::Stopping),
            State::Watchdog => told.push(NotifyState::Watchdog),
            State::Reloading => {
                told.push(NotifyState::Reloading);
                told.extend(NotifyState::monotonic_usec_now().ok());
            }
        }
    }
    // Without a service manager there is nobody to tell.
    let _ = sd_notify::notify(&told);
}

#[cfg(not(target_os = "linux"))]
pub(super) fn notify(_: &[State]) {}

/// Half of what the service manager waits for, as sd_watchdog_enabled(3) advises.
pub(super) fn watchdog_interval() -> Duration {
    #[cfg(target_os = "linux")]
    if let Some(most) = sd_notify::watchdog_enabled() {
        return most / 2;
    }
    Duration::from_secs(10)
}
