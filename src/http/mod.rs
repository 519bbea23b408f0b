//! What one process tells over HTTP, to machines and to people:
//!
//! - `/metrics`: what is counted, for Prometheus.
//! - `/healthz`: 200 while this process lives. An unreachable peer is no reason to restart it.
//! - `/status`: the object that `tieline status --json` prints.
//! - `/`: the same for people, with plots of the last day, made here and readable without
//!   JavaScript.
//!
//! It is only read, and asks no relay for anything.

mod bounded;
mod history;
mod page;
mod plot;
mod tables;
mod words;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State as Extract;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::get;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::metrics::Metrics;
use crate::nostr::Timestamp;
use crate::state::{State, StatusView};
use bounded::Bounded;
use history::History;
use page::{Page, Remembered};

/// How long answers under way may take when the process is to end.
const DRAIN: Duration = Duration::from_secs(2);

/// What every answer is made from.
#[derive(Clone)]
struct Sources {
    metrics: Arc<Metrics>,
    state: Option<State>,
    history: watch::Receiver<History>,
}

/// Answers on `listener` until `stop`.
///
/// # Errors
/// When the listener cannot be used.
pub async fn serve(
    listener: TcpListener,
    metrics: Arc<Metrics>,
    state: Option<State>,
    stop: CancellationToken,
) -> io::Result<()> {
    let (samples, history) = watch::channel(History::new(clock::now(), metrics.live()));
    let sources = Sources { metrics: metrics.clone(), state, history };
    let serving =
        axum::serve(Bounded::new(listener), routes(sources)).with_graceful_shutdown(stop.clone().cancelled_owned());
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        ended = serving => ended,
        () = sample(&samples, &metrics) => Ok(()),
        () = overdue => Ok(()),
    }
}

/// Notes what streams did, again and again.
async fn sample(samples: &watch::Sender<History>, metrics: &Metrics) {
    let mut tick = interval(history::EVERY);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first one is at once.
    tick.tick().await;
    loop {
        tick.tick().await;
        samples.send_modify(|history| history.sample(clock::now(), metrics.live()));
    }
}

fn routes(sources: Sources) -> Router {
    // `get` answers HEAD too, and everything else with 405.
    Router::new()
        .route("/", get(page))
        .route("/healthz", get(async || "ok"))
        .route("/metrics", get(metrics))
        .route("/status", get(status))
        .route("/style.css", get(async || ([(header::CONTENT_TYPE, "text/css; charset=utf-8")], STYLE)))
        .layer(axum::middleware::map_response(harden))
        .with_state(sources)
}

async fn metrics(Extract(sources): Extract<Sources>) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, OPENMETRICS)], sources.metrics.text())
}

async fn status(Extract(sources): Extract<Sources>) -> Response {
    match sources.status(clock::now()).await {
        Ok(status) => Json(status).into_response(),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, Json(serde_json::json!({ "error": error }))).into_response(),
    }
}

async fn page(Extract(sources): Extract<Sources>) -> impl IntoResponse {
    let now = clock::now();
    let history = sources.history.borrow().up_to(now, sources.metrics.live());
    let relays = sources.metrics.relay_health();
    let page = Page { now, relays, history, remembered: sources.remembered(now).await };
    ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], page.html())
}

impl Sources {
    async fn status(&self, now: Timestamp) -> Result<StatusView, String> {
        let state = self.state.as_ref().ok_or("this process keeps no state")?;
        // The daemon that this is part of says what is configured.
        let status = state.status(None, now).await.map_err(|error| error.to_string())?;
        Ok(status.current().0)
    }

    async fn remembered(&self, now: Timestamp) -> Result<Remembered, String> {
        let status = self.status(now).await?;
        let hours = match &self.state {
            Some(state) => state.moved_per_hour(history::first_hour(now)).await.map_err(|error| error.to_string())?,
            None => Vec::new(),
        };
        Ok(Remembered { status, hours })
    }
}

/// Nothing on the page comes from elsewhere or runs, whatever a relay may have written into it.
async fn harden(mut response: Response) -> Response {
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

const HEADERS: [(HeaderName, &str); 4] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
];

/// What prometheus-client writes; Prometheus reads it by this name alone.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

const STYLE: &str = include_str!("style.css");
