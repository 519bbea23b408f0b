//! The URL of a relay, in one form however it was written.

use std::fmt;
use std::str::FromStr;

/// A text that names no relay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Not a URL at all.
    #[error("not a URL: {0}")]
    Malformed(String),
    /// Another scheme than a WebSocket's.
    #[error("expected a ws:// or wss:// URL, found scheme {0:?}")]
    Scheme(String),
    /// A URL without a host, or with a user name in it.
    #[error("expected ws://host[:port][/path] without a user name")]
    Host,
}

/// A `ws://` or `wss://` URL: scheme and host in lower case, no default port, no trailing slash,
/// no fragment. Two spellings of one relay compare equal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayUrl(String);

impl RelayUrl {
    /// The normal form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The `http(s)` URL of the same place, where NIP-11 documents are found.
    #[must_use]
    pub fn to_http(&self) -> String {
        self.0.replacen("ws", "http", 1)
    }

    /// Where to dial: a name or an address without brackets, and a port.
    #[must_use]
    pub fn host_and_port(&self) -> (String, u16) {
        // A normal form parses, and `ws` and `wss` have default ports.
        let url = url::Url::parse(&self.0).ok();
        let host = url.as_ref().and_then(url::Url::host_str).unwrap_or_default();
        let port = url.as_ref().and_then(url::Url::port_or_known_default).unwrap_or_default();
        (host.trim_matches(['[', ']']).to_owned(), port)
    }
}

impl FromStr for RelayUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        let mut url = url::Url::parse(text.trim()).map_err(|error| UrlError::Malformed(error.to_string()))?;
        if !matches!(url.scheme(), "ws" | "wss") {
            return Err(UrlError::Scheme(url.scheme().to_owned()));
        }
        if url.host_str().is_none_or(str::is_empty) || !url.username().is_empty() || url.password().is_some() {
            return Err(UrlError::Host);
        }
        url.set_fragment(None);
        let text = url.as_str();
        // With a query, a slash before it belongs to the path.
        let text = if url.query().is_none() { text.trim_end_matches('/') } else { text };
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for RelayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RelayUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(text: &str) -> String {
        text.parse::<RelayUrl>().unwrap().to_string()
    }

    #[test]
    fn spellings_of_one_relay_are_equal() {
        for text in
            ["wss://Relay.Example", "wss://relay.example/", "WSS://relay.example:443", " wss://relay.example/# "]
        {
            assert_eq!(normal(text), "wss://relay.example", "{text}");
        }
        assert_eq!(normal("ws://h:7777/inbox/"), "ws://h:7777/inbox");
        assert_eq!("ws://h:7777".parse::<RelayUrl>().unwrap().to_http(), "http://h:7777");
        assert_eq!("wss://h/x".parse::<RelayUrl>().unwrap().to_http(), "https://h/x");
    }

    #[test]
    fn what_is_no_relay_is_refused() {
        assert_eq!("http://h".parse::<RelayUrl>(), Err(UrlError::Scheme("http".into())));
        assert_eq!("wss://me:pw@h".parse::<RelayUrl>(), Err(UrlError::Host));
        assert!(matches!("relay.example".parse::<RelayUrl>(), Err(UrlError::Malformed(_))));
    }
}
