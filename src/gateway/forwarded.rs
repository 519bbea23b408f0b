//! Which headers of a client's request reach the relay, and what they say of who asks. Pure.

use std::net::IpAddr;

use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};

use crate::config::Network;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// Headers that are about one connection (RFC 9110, section 7.6.1; RFC 6455). No relay knows a
/// subprotocol, and one that is asked for and not agreed on would end the handshake on our side.
const OF_A_CONNECTION: [&str; 15] = [
    "connection",
    "content-length",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "sec-websocket-accept",
    "sec-websocket-extensions",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
    "te",
    "trailer",
    "transfer-encoding",
];

/// Headers by which proxies say who asks, and relays believe it.
const OF_A_PROXY: [&str; 8] = [
    "cf-connecting-ip",
    "forwarded",
    "true-client-ip",
    "x-client-ip",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
];

/// The headers to pass on.
#[must_use]
pub fn headers(of: &HeaderMap, from: IpAddr, trusted: &[Network]) -> HeaderMap {
    let from = from.to_canonical();
    let is_trusted = trusted.iter().any(|network| network.contains(from));
    let mut passed = end_to_end(of);
    if !is_trusted {
        for name in OF_A_PROXY {
            passed.remove(name);
        }
    }
    // As one header: some relays read the first alone.
    let before = passed.get_all(FORWARDED_FOR).iter().filter_map(|value| value.to_str().ok());
    let chain = before.chain([from.to_string().as_str()]).collect::<Vec<_>>().join(", ");
    if let Ok(chain) = HeaderValue::try_from(chain) {
        passed.insert(FORWARDED_FOR, chain);
    }
    if let (false, Some(host)) = (passed.contains_key(FORWARDED_HOST), of.get(header::HOST)) {
        passed.insert(FORWARDED_HOST, host.clone());
    }
    passed
}

/// The headers that are not about one connection.
#[must_use]
pub fn end_to_end(of: &HeaderMap) -> HeaderMap {
    let mut passed = of.clone();
    let named = of.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    for name in named.flat_map(|names| names.split(',')) {
        passed.remove(name.trim());
    }
    for name in OF_A_CONNECTION {
        passed.remove(name);
    }
    passed.remove(header::UPGRADE);
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        headers.iter().map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn only_a_trusted_proxy_is_believed() {
        let mut asked = map(&[("host", "relay.example"), ("x-real-ip", "6.6.6.6"), ("user-agent", "a")]);
        asked.append(FORWARDED_FOR, HeaderValue::from_static("6.6.6.6"));
        asked.append(FORWARDED_FOR, HeaderValue::from_static("7.7.7.7, 8.8.8.8"));
        let from = "::ffff:10.1.2.3".parse().unwrap();
        let expected = [("user-agent", "a"), ("x-forwarded-for", "10.1.2.3"), ("x-forwarded-host", "relay.example")];
        assert_eq!(headers(&asked, from, &[]), map(&expected));
        let expected = [
            ("user-agent", "a"),
            ("x-forwarded-for", "6.6.6.6, 7.7.7.7, 8.8.8.8, 10.1.2.3"),
            ("x-forwarded-host", "relay.example"),
            ("x-real-ip", "6.6.6.6"),
        ];
        assert_eq!(headers(&asked, from, &["10.0.0.0/8".parse().unwrap()]), map(&expected));
    }

    #[test]
    fn what_is_about_one_connection_stays_there() {
        let asked = map(&[
            ("connection", "Upgrade, x-hop"),
            ("upgrade", "websocket"),
            ("x-hop", "1"),
            ("sec-websocket-key", "k"),
            ("sec-websocket-extensions", "permessage-deflate"),
            ("sec-websocket-protocol", "nostr"),
            ("origin", "https://client.example"),
        ]);
        assert_eq!(end_to_end(&asked), map(&[("origin", "https://client.example")]));
    }
}
