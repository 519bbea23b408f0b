//! One TCP connection of a client's, from its first request on: a WebSocket handshake, which the
//! relay has to accept before it is answered, or plain HTTP.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{self, HeaderMap, HeaderValue};
use axum::http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::sync::CancellationToken;

use super::connection::Connection;
use super::leg::{self, Leg};
use super::upstream::{NotOpened, Opened, accept_key};
use super::{Shared, forwarded, page};

/// How long a request's head may take, and the next one after it.
const HEAD: Duration = Duration::from_secs(10);

/// How long plain HTTP may last. A client that is cut off between two requests connects again.
const LIFE: Duration = Duration::from_secs(120);

/// Bytes of a request's head: the least that hyper takes is 8 kB.
const HEAD_BYTES: usize = 16 << 10;

/// A handshake that the relay has accepted.
struct Accepted {
    upgrade: OnUpgrade,
    relay: Opened,
}

/// Serves one TCP connection to its end.
pub(super) async fn serve(shared: Arc<Shared>, stream: TcpStream, from: SocketAddr, stop: CancellationToken) {
    // Frames are small and each is waited for. It fails where the client has gone.
    let _ = stream.set_nodelay(true);
    let (sender, mut accepted) = mpsc::channel(1);
    let service = service_fn(|request| {
        let (shared, sender) = (shared.clone(), sender.clone());
        async move { Ok::<_, Infallible>(answer(&shared, request, from.ip(), &sender).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    tokio::select! {
        // How plain HTTP ended is the client's business.
        _ = tokio::time::timeout(LIFE, serving) => {}
        () = stop.cancelled() => return,
    }
    let Ok(Accepted { upgrade, relay }) = accepted.try_recv() else { return };
    let Ok(upgraded) = upgrade.await else { return };
    let config = leg::config(shared.limits.message_bytes);
    let client = WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(config)).await;
    Connection::new(Leg::new(client), Leg::new(relay), shared).run(stop).await;
}

async fn answer(
    shared: &Shared,
    mut request: Request<Incoming>,
    from: IpAddr,
    accepted: &mpsc::Sender<Accepted>,
) -> Response<Body> {
    if !wants_websocket(&request) {
        return page::pass(shared, &request, from).await;
    }
    let Some(key) = request.headers().get(header::SEC_WEBSOCKET_KEY).map(accept_key) else {
        return plain(StatusCode::BAD_REQUEST, "a WebSocket handshake without a key");
    };
    if request.headers().get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
        let mut response = plain(StatusCode::UPGRADE_REQUIRED, "expected version 13 of WebSockets");
        response.headers_mut().insert(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13"));
        return response;
    }
    let headers = forwarded::headers(request.headers(), from, &shared.trusted);
    let (opened, ()) = tokio::join!(shared.upstream.open(place(&request), headers), shared.learn_limit());
    match opened {
        Ok(relay) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
            let headers = response.headers_mut();
            headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
            headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            headers.extend(HeaderValue::try_from(key).ok().map(|key| (header::SEC_WEBSOCKET_ACCEPT, key)));
            let upgrade = hyper::upgrade::on(&mut request);
            // There is room for the one handshake that a connection can have.
            let _ = accepted.try_send(Accepted { upgrade, relay });
            response
        }
        Err(NotOpened::Answered(answer)) => {
            let (head, body) = answer.into_parts();
            let mut response = Response::new(Body::from(body.unwrap_or_default()));
            *response.status_mut() = head.status;
            *response.headers_mut() = forwarded::end_to_end(&head.headers);
            response
        }
        Err(NotOpened::Unreachable(why)) => {
            tracing::warn!(%why, "the gateway cannot reach the local relay");
            plain(StatusCode::BAD_GATEWAY, "the relay cannot be reached")
        }
    }
}

/// Path and query of a request.
pub(super) fn place(request: &Request<Incoming>) -> &str {
    request.uri().path_and_query().map_or("/", |place| place.as_str())
}

/// An answer of the gateway's own.
pub(super) fn plain(status: StatusCode, text: &'static str) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

fn wants_websocket(request: &Request<Incoming>) -> bool {
    let names = |name, word: &str| has_word(request.headers(), name, word);
    request.method() == Method::GET && names(header::UPGRADE, "websocket") && names(header::CONNECTION, "upgrade")
}

/// Whether a header that lists words has this one, in any case.
fn has_word(headers: &HeaderMap, name: header::HeaderName, word: &str) -> bool {
    let values = headers.get_all(name);
    let mut words = values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    words.any(|other| other.trim().eq_ignore_ascii_case(word))
}
