//! Reaches a relay: straight, or through a proxy.

use std::io;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_socks::tcp::Socks5Stream;
use url::Url;

use crate::nostr::RelayUrl;

/// The head of a proxy's answer: longer ones are not answers.
const MAX_HEAD: usize = 8192;

/// A TCP connection to the relay's host and port. A proxy looks the name up itself, as Tor
/// needs; nothing about the relay is asked of the local resolver then.
///
/// # Errors
/// In words for an operator, when there is no connection.
pub async fn dial(relay: &RelayUrl, proxy: Option<&Url>) -> Result<TcpStream, String> {
    let (host, port) = relay.host_and_port();
    let stream = match proxy {
        None => TcpStream::connect((host.as_str(), port)).await.map_err(|error| error.to_string())?,
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
        let mut stream = dial(&relay, Some(&proxy)).await.unwrap();
        let mut hello = [0; 5];
        stream.read_exact(&mut hello).await.unwrap();
        assert_eq!((&hello, heard.await.unwrap().as_slice()), (b"hello", ASKED.as_bytes()));

        let (proxy, _) = scripted(vec![(ASKED.len(), b"HTTP/1.1 403 Forbidden\r\n\r\n")]).await;
        let error = dial(&relay, Some(&proxy)).await.unwrap_err();
        assert!(error.contains("through the proxy 127.0.0.1:") && error.contains("403"), "{error}");
    }

    #[tokio::test]
    async fn a_socks_proxy_is_asked_by_name() {
        let relay: RelayUrl = "ws://relay.onion:7777".parse().unwrap();
        let (mut proxy, heard) =
            scripted(vec![(3, &[5, 0]), (4 + 1 + 11 + 2, &[5, 0, 0, 1, 127, 0, 0, 1, 0, 80])]).await;
        proxy = proxy.as_str().replacen("http", "socks5h", 1).parse().unwrap();
        dial(&relay, Some(&proxy)).await.unwrap();
        let heard = heard.await.unwrap();
        assert!(heard.windows(11).any(|name| name == b"relay.onion"), "{heard:?}");
    }
}
