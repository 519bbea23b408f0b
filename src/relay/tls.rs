//! Whom to trust: the system's certificates and the operator's own. Verification is never off.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use super::dial;

/// A file of certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {what}: expected PEM certificates", path = .path.display())]
pub struct TlsError {
    path: PathBuf,
    what: String,
}

/// One configuration for WebSockets and HTTP: the system's roots, and those in `ca_file`.
///
/// # Errors
/// When the certificates in `ca_file` cannot be read.
pub fn client_config(ca_file: Option<&PathBuf>) -> Result<Arc<rustls::ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    // A machine without certificates can still speak ws://; wss:// then fails with a message of
    // its own.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        let wrong = |what: String| TlsError { path: path.clone(), what };
        let own = read(path).map_err(|error| wrong(error.to_string()))?;
        if own.is_empty() {
            return Err(wrong("no certificate in it".to_owned()));
        }
        for certificate in own {
            roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        // The provider named above supports both versions that rustls has.
        .expect("ring speaks TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// Where an answer that names another address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redirects {
    /// There.
    Followed,
    /// Nowhere: it is an answer like another.
    Refused,
}

/// A client for HTTP, such as for NIP-11 documents. It goes the way that the WebSocket goes, and
/// no other: where that is held to public addresses, so are the names that it looks up.
#[must_use]
pub fn http_client(
    tls: &Arc<rustls::ClientConfig>,
    proxy: Option<&url::Url>,
    public_only: bool,
    redirects: Redirects,
) -> reqwest::Client {
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured((**tls).clone())
        .user_agent(concat!("tieline/", env!("CARGO_PKG_VERSION")))
        .redirect(match redirects {
            Redirects::Followed => reqwest::redirect::Policy::default(),
            Redirects::Refused => reqwest::redirect::Policy::none(),
        })
        .no_proxy();
    let builder = if public_only && proxy.is_none() { builder.dns_resolver(Arc::new(PublicOnly)) } else { builder };
    let proxy = proxy.and_then(|proxy| reqwest::Proxy::all(proxy.as_str()).ok());
    match proxy {
        Some(proxy) => builder.proxy(proxy),
        None => builder,
    }
    .build()
    // The configuration above is one that rustls accepted already.
    .expect("a preconfigured TLS backend is accepted")
}

/// Looks names up, and knows no addresses but public ones.
struct PublicOnly;

impl reqwest::dns::Resolve for PublicOnly {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        Box::pin(async move {
            // The client puts the port in.
            let found = dial::resolve(name.as_str(), 0, true).await?;
            Ok(Box::new(found.into_iter()) as reqwest::dns::Addrs)
        })
    }
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, rustls::pki_types::pem::Error> {
    CertificateDer::pem_file_iter(path)?.collect()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_name_is_no_way_around_public_addresses() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        let tls = client_config(None).unwrap();
        http_client(&tls, None, true, Redirects::Refused).get(&url).send().await.unwrap_err();
        let accepted = tokio::time::timeout(std::time::Duration::from_millis(100), listener.accept());
        assert!(accepted.await.is_err(), "nothing was dialled");
        let sent = tokio::spawn(http_client(&tls, None, false, Redirects::Followed).get(&url).send());
        listener.accept().await.unwrap();
        sent.abort();
    }
}
