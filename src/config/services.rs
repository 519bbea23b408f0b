//! The parts of the daemon beside its jobs: HTTP, discovery, notices.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use url::Url;

use crate::nostr::RelayUrl;

use super::file;
use super::finding::{Findings, Path};
use super::secret::{self, AuthSource, SecretError};

/// Metrics, health, status and a page for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// Default 127.0.0.1:9747.
    pub listen: SocketAddr,
}

/// Discovery of relays that hold our git repositories (GRASP-02).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraspSettings {
    /// Our own GRASP service, as announcements name it.
    pub service: RelayUrl,
    /// Relays to look at first, and always.
    pub bootstrap: Vec<RelayUrl>,
    /// Discovered relays at once. Default 100.
    pub max_relays: usize,
    /// From the first of what the local relay accepts to acting upon it. Default 5 s.
    pub batch_window: Duration,
    /// Whether discovered relays may be at private, loopback and link-local addresses.
    pub allow_private: bool,
    /// Hosts that may be discovered, in lower case and without brackets; `None` for any.
    pub allow: Option<Vec<String>>,
    /// Hosts that are never discovered, in lower case and without brackets.
    pub deny: Vec<String>,
    /// The key that answers discovered relays (NIP-42).
    pub auth: Option<AuthSource>,
}

/// Where to post what was newly stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotifySettings {
    /// An `http` or `https` URL.
    pub url: Url,
    /// A file that holds a bearer token, and that its owner alone can read.
    pub token_file: Option<PathBuf>,
}

impl HttpSettings {
    pub(super) fn read(written: &file::Http, at: &Path, findings: &mut Findings<'_>) -> Option<Self> {
        let listen = listen(written.listen.as_deref().unwrap_or("127.0.0.1:9747"), at, findings)?;
        Some(Self { listen })
    }
}

impl GraspSettings {
    pub(super) fn read(written: &file::Grasp, at: &Path, findings: &mut Findings<'_>) -> Option<Self> {
        let service = written.service.as_ref().and_then(|url| findings.parse(&at.key("service"), url));
        let at_bootstrap = at.key("bootstrap");
        let urls = written.bootstrap.iter().flatten().enumerate();
        let bootstrap = urls.filter_map(|(index, url)| findings.parse(&at_bootstrap.index(index), url)).collect();
        let allow = written.allow.as_ref().map(|list| hosts(list, &at.key("allow"), findings));
        let deny = hosts(written.deny.as_deref().unwrap_or_default(), &at.key("deny"), findings);
        let auth = written.auth.as_ref().and_then(|auth| AuthSource::read(auth, &at.key("auth"), findings));
        let batch_window = written.batch_window.as_ref();
        let batch_window = batch_window.and_then(|span| findings.duration(&at.key("batch_window"), span));
        Some(Self {
            service: service?,
            bootstrap,
            max_relays: written.max_relays.map_or(100, Into::into),
            batch_window: batch_window.unwrap_or(Duration::from_secs(5)),
            allow_private: written.allow_private.unwrap_or_default(),
            allow,
            deny,
            auth,
        })
    }
}

impl NotifySettings {
    /// Reads the token, if there is to be one.
    ///
    /// # Errors
    /// When there is none, or when others can read its file.
    pub fn token(&self) -> Result<Option<String>, SecretError> {
        self.token_file.as_deref().map(secret::read_token).transpose()
    }

    pub(super) fn read(written: &file::Notify, at: &Path, findings: &mut Findings<'_>) -> Option<Self> {
        let at = at.key("url");
        let url: Url = findings.parse(&at, written.url.as_ref()?)?;
        if !matches!(url.scheme(), "http" | "https") {
            findings.error(&at, "expected an http:// or https:// URL");
        }
        Some(Self { url, token_file: written.token_file.clone() })
    }
}

pub(super) fn listen(text: &str, at: &Path, findings: &mut Findings<'_>) -> Option<SocketAddr> {
    let wrong = |_| findings.error(&at.key("listen"), "expected an address and a port, such as 127.0.0.1:9747");
    text.parse().map_err(wrong).ok()
}

fn hosts(written: &[String], at: &Path, findings: &mut Findings<'_>) -> Vec<String> {
    let mut hosts = Vec::new();
    for (index, host) in written.iter().enumerate() {
        // An IPv6 address has brackets in a URL, and need not have them here.
        let parsed = url::Host::parse(host).or_else(|_| url::Host::parse(&format!("[{host}]")));
        match parsed {
            Ok(host) => hosts.push(host.to_string().trim_matches(['[', ']']).trim_end_matches('.').to_owned()),
            Err(_) => findings.error(&at.index(index), "expected the name or the address of a host"),
        }
    }
    hosts
}
