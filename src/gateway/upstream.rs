//! The relay behind the gateway, reached the way a client asked for it.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, Response};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, handshake};
use tokio_tungstenite::{Connector, MaybeTlsStream, WebSocketStream, client_async_tls_with_config};
use url::Url;

use super::leg;
use crate::config::RelaySettings;
use crate::nostr::{PeerText, RelayUrl};
use crate::relay::{Redirects, Relay, RelayOptions, TlsError, client_config, dial, http_client};

/// How long the relay may take to answer a handshake.
const CONNECT: Duration = Duration::from_secs(10);

/// How long it may take over a page.
const PAGE: Duration = Duration::from_secs(30);

/// The largest message taken from the relay, as everywhere else: events of a megabyte exist.
const MAX_MESSAGE: usize = 6 << 20;

/// The relay behind the gateway.
pub(super) struct Upstream {
    url: RelayUrl,
    tls: Arc<rustls::ClientConfig>,
    proxy: Option<Url>,
    http: reqwest::Client,
    /// For what it says of itself.
    relay: Relay,
}

/// A WebSocket to the relay.
pub(super) type Opened = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Why there is no WebSocket to the relay.
pub(super) enum NotOpened {
    /// It answered the handshake with something else.
    Answered(Box<Response<Option<Vec<u8>>>>),
    /// It cannot be reached.
    Unreachable(String),
}

impl Upstream {
    /// Nothing is dialled yet.
    pub(super) fn new(settings: &RelaySettings) -> Result<Self, TlsError> {
        let tls = client_config(settings.ca_file.as_ref())?;
        let proxy = settings.proxy.as_ref().map(|proxy| proxy.url().clone());
        let options = RelayOptions { proxy: proxy.clone(), ..RelayOptions::new(settings.url.clone(), tls.clone()) };
        Ok(Self {
            url: settings.url.clone(),
            // Where it sends a client is for the client to follow.
            http: http_client(&tls, proxy.as_ref(), false, Redirects::Refused),
            relay: Relay::spawn(options),
            tls,
            proxy,
        })
    }

    /// The most events to ask it for at once.
    pub(super) async fn page_limit(&self) -> usize {
        self.relay.info().await.page_limit()
    }

    /// Opens a WebSocket to the place that a client asked for, with these headers.
    pub(super) async fn open(&self, place: &str, headers: HeaderMap) -> Result<Opened, NotOpened> {
        let unreachable = |why: String| NotOpened::Unreachable(PeerText::new(&why).as_str().to_owned());
        let opening = async {
            let target = target(self.url.as_str(), place);
            let mut request = target.as_str().into_client_request().map_err(|error| unreachable(error.to_string()))?;
            request.headers_mut().extend(headers);
            let stream = dial(&self.url, self.proxy.as_ref(), false).await.map_err(unreachable)?;
            let connector = Connector::Rustls(self.tls.clone());
            match client_async_tls_with_config(request, stream, Some(leg::config(MAX_MESSAGE)), Some(connector)).await {
                Ok((socket, _)) => Ok(socket),
                Err(Error::Http(response)) => Err(NotOpened::Answered(response)),
                Err(error) => Err(unreachable(error.to_string())),
            }
        };
        let late = |_| Err(NotOpened::Unreachable(format!("no connection within {} s", CONNECT.as_secs())));
        tokio::time::timeout(CONNECT, opening).await.unwrap_or_else(late)
    }

    /// Asks for a page over HTTP.
    pub(super) async fn ask(
        &self,
        method: Method,
        place: &str,
        headers: HeaderMap,
    ) -> Result<reqwest::Response, reqwest::Error> {
        let target = target(&self.url.to_http(), place);
        self.http.request(method, target).headers(headers).timeout(PAGE).send().await
    }
}

/// The accept key of a handshake (RFC 6455, section 4.2.2).
pub(super) fn accept_key(key: &HeaderValue) -> String {
    handshake::derive_accept_key(key.as_bytes())
}

/// A place below the relay's own: `/` is the relay itself, and so is what is no path, such as the
/// `*` of OPTIONS. That must not become a part of the host.
fn target(base: &str, place: &str) -> String {
    if place == "/" || !place.starts_with('/') {
        return base.to_owned();
    }
    let (base, _) = base.split_once('?').unwrap_or((base, ""));
    format!("{}{place}", base.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_below_the_relay() {
        for (base, place, expected) in [
            ("ws://h:7777", "/", "ws://h:7777"),
            ("ws://h:7777", "/inbox?a=b", "ws://h:7777/inbox?a=b"),
            ("ws://h:7777", "/?a=b", "ws://h:7777/?a=b"),
            ("ws://h/relay", "/", "ws://h/relay"),
            ("ws://h/relay", "/x", "ws://h/relay/x"),
            ("ws://h/relay?k=v", "/", "ws://h/relay?k=v"),
            ("ws://h", "*", "ws://h"),
            ("ws://h", "@evil.example/", "ws://h"),
            ("ws://h", "//evil.example", "ws://h//evil.example"),
        ] {
            assert_eq!(target(base, place), expected);
        }
    }
}
