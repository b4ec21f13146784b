//! Encrypted connections, with the certificate of the server.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Why connections cannot be encrypted.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// There is no certificate, or no key, in a file.
    #[error("there is no {what} in {path}: {why}")]
    File {
        /// The missing item: a certificate or a private key.
        what: &'static str,
        /// The path of the file.
        path: String,
        /// Why it is not there.
        why: String,
    },
    /// The two do not fit, or are of a kind that is not supported.
    #[error("this certificate and this key cannot be used: {0}")]
    Unfit(String),
}

/// A certificate with its chain and its key, which all connections are made with.
#[derive(Clone)]
pub struct Tls(pub(in crate::engine) TlsAcceptor);

impl Tls {
    /// Reads both, in PEM.
    ///
    /// # Errors
    /// Fails if a file lacks the certificate or the key, or the two do not fit.
    pub fn read(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let missing = |what, path: &Path, why: String| {
            let path = path.display().to_string();
            TlsError::File { what, path, why }
        };
        let no_certificate = |why| missing("certificate", certificate, why);
        let chain = CertificateDer::pem_file_iter(certificate)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| no_certificate(error.to_string()))?;
        if chain.is_empty() {
            return Err(no_certificate("it has no such section".into()));
        }
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| missing("private key", key, error.to_string()))?;
        let unfit = |error: tokio_rustls::rustls::Error| TlsError::Unfit(error.to_string());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(unfit)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(unfit)?;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }
}
