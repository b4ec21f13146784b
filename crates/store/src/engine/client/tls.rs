//! Encrypted connections of clients (TLS), which use the server's certificate.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The error of a server certificate or private key that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file contains no certificate, or no private key.
    #[error("there is no {what} in {path}: {why}")]
    File {
        /// The missing item: `certificate` or `private key`.
        what: &'static str,
        /// The path of the file that lacks the item.
        path: String,
        /// The error of reading the certificate or the key from the file.
        why: String,
    },
    /// The certificate and the key do not match, or their kind is not supported.
    #[error("this certificate and this key cannot be used: {0}")]
    Unfit(String),
}

/// The certificate chain and private key of the server, which all encrypted connections use.
#[derive(Clone)]
pub struct Tls(pub(in crate::engine) TlsAcceptor);

impl Tls {
    /// Reads the server's certificate chain and private key from PEM files.
    ///
    /// # Errors
    /// Returns an error if a file lacks the certificate or the key, or the two do not match.
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
