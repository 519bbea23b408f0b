//! How a relay is reached: address, key, certificates, proxy, patience.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use url::Url;

use crate::nostr::RelayUrl;

use super::file;
use super::finding::{Findings, Path};
use super::secret::AuthSource;

/// One relay, the local one or a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelaySettings {
    /// For people, and in metrics. No two relays have the same.
    pub name: String,
    /// Where it is.
    pub url: RelayUrl,
    /// The key that answers it (NIP-42).
    pub auth: Option<AuthSource>,
    /// A PEM file of authorities to trust besides the system's.
    pub ca_file: Option<PathBuf>,
    /// What the connection goes through.
    pub proxy: Option<Proxy>,
    /// How soon it is tried again.
    pub retry: Retry,
    /// Whether it may be at addresses of the public internet alone: a stranger named it.
    pub public_only: bool,
}

/// How soon a failed relay is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Wait after the first failure, doubled by each further one. Default 5 s.
    pub base: Duration,
    /// The longest wait, never shorter than `base`. Default 1 h.
    pub cap: Duration,
    /// Wait after the relay says that it is asked too often. Default 65 s.
    pub cooldown: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(5),
            cap: Duration::from_secs(3600),
            // Limits are per minute; a few seconds more than one.
            cooldown: Duration::from_secs(65),
        }
    }
}

/// A proxy: `socks5h://` (names are looked up by the proxy, as Tor needs) or `http://`.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy(Url);

impl Proxy {
    /// Its URL, possibly with a password in it.
    #[must_use]
    pub const fn url(&self) -> &Url {
        &self.0
    }
}

/// A text that names no proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected socks5h://host:port or http://host:port")]
pub struct ProxyError;

impl FromStr for Proxy {
    type Err = ProxyError;

    fn from_str(text: &str) -> Result<Self, ProxyError> {
        let url = Url::parse(text).map_err(|_| ProxyError)?;
        let is_proxy = matches!(url.scheme(), "socks5h" | "http")
            && url.host_str().is_some_and(|host| !host.is_empty())
            && url.port_or_known_default().is_some();
        is_proxy.then_some(Self(url)).ok_or(ProxyError)
    }
}

impl fmt::Debug for Proxy {
    /// Without a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.0.scheme(), self.0.host_str().unwrap_or_default())
    }
}

/// What one place of the file says about reaching relays.
#[derive(Clone, Default)]
pub(super) struct RelayOptions {
    auth: Option<AuthSource>,
    ca_file: Option<PathBuf>,
    proxy: Option<Proxy>,
    base: Option<Duration>,
    cap: Option<Duration>,
    cooldown: Option<Duration>,
}

impl RelayOptions {
    /// Reads what is written at one place.
    pub fn read(written: &file::RelayOptions, at: &Path, findings: &mut Findings<'_>) -> Self {
        let retry = written.retry.clone().unwrap_or_default();
        let mut wait = |key: &str, text: Option<String>| findings.duration(&at.key("retry").key(key), &text?);
        let (base, cap, cooldown) =
            (wait("base", retry.base), wait("cap", retry.cap), wait("cooldown", retry.cooldown));
        Self {
            auth: written.auth.as_ref().and_then(|auth| AuthSource::read(auth, &at.key("auth"), findings)),
            ca_file: written.tls.as_ref().and_then(|tls| tls.ca_file.clone()),
            proxy: written.proxy.as_ref().and_then(|proxy| findings.parse(&at.key("proxy"), proxy)),
            base,
            cap,
            cooldown,
        }
    }

    /// These, and for what they leave open the ones below.
    pub fn over(self, below: &Self) -> Self {
        Self {
            auth: self.auth.or_else(|| below.auth.clone()),
            ca_file: self.ca_file.or_else(|| below.ca_file.clone()),
            proxy: self.proxy.or_else(|| below.proxy.clone()),
            base: self.base.or(below.base),
            cap: self.cap.or(below.cap),
            cooldown: self.cooldown.or(below.cooldown),
        }
    }

    /// The settings of the relay that is written at a place.
    pub fn settings(
        self,
        name: Option<String>,
        url: Option<String>,
        at: &Path,
        findings: &mut Findings<'_>,
    ) -> Option<RelaySettings> {
        let usual = Retry::default();
        let retry = Retry {
            base: self.base.unwrap_or(usual.base),
            cap: self.cap.unwrap_or(usual.cap),
            cooldown: self.cooldown.unwrap_or(usual.cooldown),
        };
        if retry.base > retry.cap {
            findings.error(&at.key("retry"), "`base` is longer than `cap`, the longest wait");
        }
        let (url, name) = (url.and_then(|url| findings.parse(&at.key("url"), &url)), name?);
        findings.check_name(&at.key("name"), &name);
        Some(RelaySettings {
            name,
            url: url?,
            auth: self.auth,
            ca_file: self.ca_file,
            proxy: self.proxy,
            retry,
            public_only: false,
        })
    }
}
