//! Whom to trust: the system's certificates and the operator's own. Verification is never off.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

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

/// A client for NIP-11 documents and what else a relay shows. It goes the way that the WebSocket
/// goes, and no other.
#[must_use]
pub fn http_client(
    tls: &Arc<rustls::ClientConfig>,
    proxy: Option<&url::Url>,
    redirects: reqwest::redirect::Policy,
) -> reqwest::Client {
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured((**tls).clone())
        .user_agent(concat!("tieline/", env!("CARGO_PKG_VERSION")))
        .redirect(redirects)
        .no_proxy();
    let proxy = proxy.and_then(|proxy| reqwest::Proxy::all(proxy.as_str()).ok());
    match proxy {
        Some(proxy) => builder.proxy(proxy),
        None => builder,
    }
    .build()
    // The configuration above is one that rustls accepted already.
    .expect("a preconfigured TLS backend is accepted")
}

fn read(path: &Path) -> Result<Vec<CertificateDer<'static>>, rustls::pki_types::pem::Error> {
    CertificateDer::pem_file_iter(path)?.collect()
}
