//! Reaches a relay: straight, or through a proxy.

use std::collections::HashSet;
use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio_socks::tcp::Socks5Stream;
use url::Url;

use crate::nostr::{RelayUrl, is_public};

/// The head of a proxy's answer: longer ones are not answers.
const MAX_HEAD: usize = 8192;

/// A TCP connection to the relay's host and port. A proxy looks the name up itself, as Tor
/// needs; nothing about the relay is asked of the local resolver then.
/// With `public_only`, what is dialled was looked at: the name is not looked up a second time.
///
/// # Errors
/// In words for an operator, when there is no connection.
pub async fn dial(relay: &RelayUrl, proxy: Option<&Url>, public_only: bool) -> Result<TcpStream, String> {
    let (host, port) = relay.host_and_port();
    let stream = match proxy {
        None => {
            let addresses = resolve(&host, port, public_only).await.map_err(|error| error.to_string())?;
            TcpStream::connect(&*addresses).await.map_err(|error| error.to_string())?
        }
        Some(proxy) => {
            let at =
                format!("{}:{}", proxy.host_str().unwrap_or_default(), proxy.port_or_known_default().unwrap_or(1080));
            let through = |error: String| format!("through the proxy {at}: {error}");
            let connected = if proxy.scheme() == "http" {
                connect_http(&at, &host, port).await.map_err(|error| error.to_string())
            } else {
                connect_socks(proxy, &at, &host, port).await.map_err(|error| error.to_string())
            };
            connected.map_err(through)?
        }
    };
    // Frames are small and each is waited for.
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    Ok(stream)
}

/// The addresses of a host. With `public_only`, one that is not of the public internet makes all
/// of them suspect, and is refused with them.
pub(super) async fn resolve(host: &str, port: u16, public_only: bool) -> io::Result<Vec<SocketAddr>> {
    let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
    if let Some(private) = addresses.iter().find(|address| public_only && !is_public(address.ip())) {
        let what = format!("{} is not of the public internet: discovered relays may not be there", private.ip());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, what));
    }
    Ok(addresses)
}

/// Whether both URLs lead to the same listener. Behind the addresses of a `wss://` URL may be a
/// proxy that serves many relays, so of those nothing is said.
pub async fn is_same_listener(a: &RelayUrl, b: &RelayUrl) -> bool {
    let addresses = async |relay: &RelayUrl| {
        let (host, port) = relay.host_and_port();
        let found = resolve(&host, port, false).await.unwrap_or_default();
        found.into_iter().map(|at| SocketAddr::new(at.ip().to_canonical(), at.port())).collect::<HashSet<_>>()
    };
    if !a.as_str().starts_with("ws:") || !b.as_str().starts_with("ws:") {
        return false;
    }
    let (a, b) = (addresses(a).await, addresses(b).await);
    // A name may lead to ::1 as well, where nobody need listen.
    let is_own = |at: &SocketAddr| b.contains(at) || at.ip().is_loopback();
    a.iter().any(|at| b.contains(at)) && a.iter().all(is_own)
}

/// Whether a relay's URL names an address that is not of the public internet.
pub(super) fn is_private(relay: &RelayUrl) -> bool {
    relay.host_and_port().0.parse().is_ok_and(|address| !is_public(address))
}

async fn connect_socks(proxy: &Url, at: &str, host: &str, port: u16) -> Result<TcpStream, tokio_socks::Error> {
    let stream = match (proxy.username(), proxy.password()) {
        ("", _) => Socks5Stream::connect(at, (host, port)).await?,
        (user, password) => {
            Socks5Stream::connect_with_password(at, (host, port), user, password.unwrap_or_default()).await?
        }
    };
    Ok(stream.into_inner())
}

/// HTTP CONNECT (RFC 9110, section 9.3.6).
async fn connect_http(at: &str, host: &str, port: u16) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(at).await?;
    let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    stream.write_all(format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n").as_bytes()).await?;
    let mut head = Vec::new();
    // Byte by byte: what follows the head belongs to the relay.
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() > MAX_HEAD {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its answer is no HTTP"));
        }
        head.push(stream.read_u8().await?);
    }
    let status = String::from_utf8_lossy(&head);
    let status = status.split(' ').nth(1).unwrap_or_default();
    if status == "200" {
        Ok(stream)
    } else {
        Err(io::Error::new(io::ErrorKind::ConnectionRefused, format!("it answered HTTP {status:?} to CONNECT")))
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// A proxy that answers each connection with a script of (bytes to read, bytes to write).
    async fn scripted(script: Vec<(usize, &'static [u8])>) -> (Url, tokio::task::JoinHandle<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        let task = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut heard = Vec::new();
            for (read, write) in script {
                let mut bytes = vec![0; read];
                stream.read_exact(&mut bytes).await.unwrap();
                heard.extend(bytes);
                stream.write_all(write).await.unwrap();
            }
            heard
        });
        (url, task)
    }

    #[tokio::test]
    async fn an_http_proxy_is_asked_by_name() {
        const ASKED: &str = "CONNECT relay.onion:80 HTTP/1.1\r\nHost: relay.onion:80\r\n\r\n";
        let relay: RelayUrl = "ws://relay.onion".parse().unwrap();
        let (proxy, heard) = scripted(vec![(ASKED.len(), b"HTTP/1.1 200 OK\r\nx: y\r\n\r\nhello")]).await;
        let mut stream = dial(&relay, Some(&proxy), false).await.unwrap();
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!((&hello, heard.await.unwrap().as_slice()), (b"hello", ASKED.as_bytes()));

        let (proxy, _) = scripted(vec![(ASKED.len(), b"HTTP/1.1 403 Forbidden\r\n\r\n")]).await;
        let error = dial(&relay, Some(&proxy), false).await.unwrap_err();
        assert!(error.contains("through the proxy 127.0.0.1:") && error.contains("403"), "{error}");
    }

    #[tokio::test]
    async fn one_listener_has_many_names() {
        let same = async |a: &str, b: &str| is_same_listener(&a.parse().unwrap(), &b.parse().unwrap()).await;
        let local = "ws://127.0.0.1:7777";
        for own in ["ws://localhost:7777", "ws://127.0.0.1:7777/path", "ws://[::ffff:127.0.0.1]:7777"] {
            assert!(same(own, local).await, "{own}");
        }
        for other in [
            "ws://localhost:7778",
            "ws://127.0.0.2:7777",
            "ws://192.0.2.1:7777",
            // Many relays may stand behind one address.
            "wss://localhost:7777",
            "ws://nowhere.invalid:7777",
        ] {
            assert!(!same(other, local).await, "{other}");
        }
        assert!(!same("wss://localhost", "wss://127.0.0.1").await);
    }

    #[tokio::test]
    async fn a_private_address_is_not_dialled_whatever_its_name() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for host in ["localhost", "127.0.0.1", "[::1]", "[::ffff:127.0.0.1]"] {
            let relay: RelayUrl = format!("ws://{host}:{port}").parse().unwrap();
            let error = dial(&relay, None, true).await.unwrap_err();
            assert!(error.contains("is not of the public internet"), "{host}: {error}");
        }
        let relay: RelayUrl = format!("ws://localhost:{port}").parse().unwrap();
        dial(&relay, None, false).await.unwrap();
    }

    #[tokio::test]
    async fn a_socks_proxy_is_asked_by_name() {
        let relay: RelayUrl = "ws://relay.onion:7777".parse().unwrap();
        let (mut proxy, heard) =
            scripted(vec![(3, &[5, 0]), (4 + 1 + 11 + 2, &[5, 0, 0, 1, 127, 0, 0, 1, 0, 80])]).await;
        proxy = proxy.as_str().replacen("http", "socks5h", 1).parse().unwrap();
        dial(&relay, Some(&proxy), false).await.unwrap();
        let heard = heard.await.unwrap();
        assert!(heard.windows(11).any(|name| name == b"relay.onion"), "{heard:?}");
    }
}
