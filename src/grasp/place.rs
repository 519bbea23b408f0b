//! Host and port of a URL, whatever its scheme: what tells one service from another.

use std::fmt;

use url::{Host, Url};

use crate::nostr::{RelayUrl, is_public};

/// Host and port, as `http`, `https`, `ws` and `wss` URLs of one service share them: the port that
/// belongs to the scheme counts as none, and so does the dot that may end a host.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    host: Host,
    port: Option<u16>,
}

impl Place {
    /// Where a URL leads; `None` for a URL without a host.
    #[must_use]
    pub fn of(url: &Url) -> Option<Self> {
        let host = match url.host()?.to_owned() {
            Host::Domain(name) => Host::Domain(name.trim_end_matches('.').to_lowercase()),
            address => address,
        };
        // The parser has dropped the scheme's own port already.
        Some(Self { host, port: url.port() })
    }

    /// Where a relay is.
    #[must_use]
    pub fn of_relay(url: &RelayUrl) -> Option<Self> {
        Self::of(&Url::parse(url.as_str()).ok()?)
    }

    /// The host alone, in lower case and without brackets.
    #[must_use]
    pub fn host(&self) -> String {
        self.host.to_string().trim_matches(['[', ']']).to_owned()
    }

    /// Whether the name alone says that it is no place on the public internet. What other names
    /// lead to shows when they are resolved.
    #[must_use]
    pub fn is_private(&self) -> bool {
        match &self.host {
            Host::Ipv4(address) => !is_public((*address).into()),
            Host::Ipv6(address) => !is_public((*address).into()),
            Host::Domain(name) => {
                let top = name.rsplit('.').next().unwrap_or_default();
                matches!(top, "localhost" | "local" | "internal")
            }
        }
    }

    /// Whether it can be reached through Tor alone.
    #[must_use]
    pub fn is_onion(&self) -> bool {
        matches!(&self.host, Host::Domain(name) if name.rsplit('.').next() == Some("onion"))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.host.fmt(f)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str) -> Place {
        Place::of(&Url::parse(url).unwrap()).unwrap()
    }

    #[test]
    fn one_service_has_one_place() {
        for url in ["wss://git.example", "https://GIT.example/a/b.git", "ws://git.example:80/", "http://git.example./"]
        {
            assert_eq!(place(url), place("wss://git.example"), "{url}");
        }
        for url in ["wss://git.example:8443", "wss://git.example.org", "wss://a.git.example", "wss://igit.example"] {
            assert_ne!(place(url), place("wss://git.example"), "{url}");
        }
        assert_eq!(place("ws://127.0.0.1:7777").to_string(), "127.0.0.1:7777");
        assert_eq!(place("ws://[::1]:7777").host(), "::1");
    }

    #[test]
    fn private_places_are_known_by_name() {
        for url in
            ["ws://10.0.0.1", "ws://[::1]", "ws://localhost", "ws://a.local", "ws://0x7f.1", "ws://[::ffff:10.0.0.1]"]
        {
            assert!(place(url).is_private(), "{url}");
        }
        for url in ["ws://1.1.1.1", "wss://local.example", "wss://localhost.example"] {
            assert!(!place(url).is_private(), "{url}");
        }
        assert!(place("ws://abc.onion").is_onion());
    }
}
