//! How a log connects to its brokers: TLS, authentication and compression.
//!
//! These settings are read from a file of properties, `NAME=VALUE` line by line, with the names that librdkafka gives
//! them: the file that kcat takes with `-F` serves as it is. Passwords are in this file, and not on a command line.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use kafka_protocol::records::Compression;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, RootCertStore};

/// Names of the properties that are understood, as an error lists them; two have a second spelling.
const KNOWN: [&str; 8] = [
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "compression.type",
];
/// Names of properties that such a file often has, and that have no effect here.
const WITHOUT_EFFECT: [&str; 2] = ["bootstrap.servers", "client.id"];

/// TLS, authentication and compression of a log's connections to Kafka. The default has none of them.
#[derive(Clone)]
pub struct ClientConfig {
    /// The TLS configuration; `None` if connections are not encrypted.
    pub(super) tls: Option<Arc<rustls::ClientConfig>>,
    /// The user that authenticates, and the mechanism; `None` without authentication.
    pub(super) sasl: Option<Sasl>,
    /// The compression of appended records.
    pub(super) compression: Compression,
}

/// The user as which the log authenticates to brokers by SASL, and the mechanism.
#[derive(Clone)]
pub(super) struct Sasl {
    pub(super) mechanism: Mechanism,
    pub(super) user: String,
    pub(super) password: String,
}

/// A SASL mechanism by which a user authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mechanism {
    Plain,
    ScramSha256,
    ScramSha512,
}

/// The error of a file of properties for the connection to Kafka.
#[derive(Debug, thiserror::Error)]
pub enum ClientConfigError {
    /// The file of properties, or a certificate or key that it names, cannot be read.
    #[error("cannot read {path}: {why}")]
    File {
        /// Path of the file that cannot be read.
        path: String,
        /// The error of reading the file.
        why: String,
    },
    /// A line of the file is no property, or not one that is understood.
    #[error("line {line}: {why}")]
    Malformed {
        /// Number of the line in the file, from 1.
        line: usize,
        /// Description of the line's fault.
        why: String,
    },
    /// Properties are missing, or contradict each other; the field is a description.
    #[error("{0}")]
    Unfit(String),
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self { tls: None, sasl: None, compression: Compression::None }
    }
}

impl fmt::Debug for ClientConfig {
    /// Formats the configuration with the user's name and without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientConfig")
            .field("tls", &self.tls.is_some())
            .field("user", &self.sasl.as_ref().map(|sasl| &sasl.user))
            .field("mechanism", &self.sasl.as_ref().map(|sasl| sasl.mechanism))
            .field("compression", &self.compression)
            .finish()
    }
}

impl Mechanism {
    /// All mechanisms that are supported.
    const ALL: [Self; 3] = [Self::Plain, Self::ScramSha256, Self::ScramSha512];

    /// Returns the name under which the SASL mechanism is registered.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "PLAIN",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::ScramSha512 => "SCRAM-SHA-512",
        }
    }
}

/// The properties that a file sets; `None` for those that it does not set.
#[derive(Default)]
struct Properties {
    protocol: Option<Protocol>,
    mechanism: Option<Mechanism>,
    user: Option<String>,
    password: Option<String>,
    authority: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    compression: Option<Compression>,
}

/// The value of the property `security.protocol`: whether connections use TLS, and whether they use SASL.
#[derive(Clone, Copy)]
struct Protocol {
    is_encrypted: bool,
    is_authenticated: bool,
}

impl ClientConfig {
    /// Reads a file of connection properties, and the certificates that it names.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, a property is unknown or has an invalid value, or a needed property
    /// is missing.
    pub fn read(file: &Path) -> Result<Self, ClientConfigError> {
        let content = std::fs::read_to_string(file).map_err(|error| unread(file, &error))?;
        content.parse::<Properties>()?.check()
    }
}

impl FromStr for Properties {
    type Err = ClientConfigError;

    fn from_str(content: &str) -> Result<Self, ClientConfigError> {
        let mut read = Self::default();
        for (index, line) in content.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let wrong = |why| ClientConfigError::Malformed { line: index + 1, why };
            let property = line.split_once('=');
            let (name, value) = property.ok_or_else(|| wrong("it is no NAME=VALUE".into()))?;
            read.set(name.trim(), value.trim()).map_err(wrong)?;
        }
        Ok(read)
    }
}

impl Properties {
    /// Sets the property `name` to a value, or returns the reason why that is impossible.
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let not_one_of =
            |of: &[&str]| format!("{name} is {value:?}, and has to be one of {}", of.join(", "));
        match name {
            "security.protocol" => {
                let (is_encrypted, is_authenticated) = match value.to_ascii_lowercase().as_str() {
                    "plaintext" => (false, false),
                    "ssl" => (true, false),
                    "sasl_plaintext" => (false, true),
                    "sasl_ssl" => (true, true),
                    _ => {
                        return Err(not_one_of(&[
                            "plaintext",
                            "ssl",
                            "sasl_plaintext",
                            "sasl_ssl",
                        ]));
                    }
                };
                self.protocol = Some(Protocol { is_encrypted, is_authenticated });
            }
            "sasl.mechanism" | "sasl.mechanisms" => {
                let found =
                    Mechanism::ALL.into_iter().find(|it| it.name().eq_ignore_ascii_case(value));
                let names = Mechanism::ALL.map(Mechanism::name);
                self.mechanism = Some(found.ok_or_else(|| not_one_of(&names))?);
            }
            "sasl.username" => self.user = Some(value.to_owned()),
            "sasl.password" => self.password = Some(value.to_owned()),
            "ssl.ca.location" => self.authority = Some(value.into()),
            "ssl.certificate.location" => self.certificate = Some(value.into()),
            "ssl.key.location" => self.key = Some(value.into()),
            "compression.type" | "compression.codec" => {
                self.compression = Some(match value.to_ascii_lowercase().as_str() {
                    "none" => Compression::None,
                    "gzip" => Compression::Gzip,
                    "lz4" => Compression::Lz4,
                    _ => return Err(not_one_of(&["none", "gzip", "lz4"])),
                });
            }
            name if WITHOUT_EFFECT.contains(&name) => {
                tracing::warn!("{name} has no effect here: --log names the brokers");
            }
            _ => return Err(format!("{name} is not understood; known are {}", KNOWN.join(", "))),
        }
        Ok(())
    }

    /// Checks that the properties do not contradict each other, and reads the certificates.
    fn check(self) -> Result<ClientConfig, ClientConfigError> {
        let unfit = |why: &str| Err(ClientConfigError::Unfit(why.into()));
        let protocol =
            self.protocol.unwrap_or(Protocol { is_encrypted: false, is_authenticated: false });
        let has_user = self.user.is_some() || self.password.is_some() || self.mechanism.is_some();
        if has_user && !protocol.is_authenticated {
            return unfit(
                "sasl.… has an effect only with security.protocol=sasl_ssl or sasl_plaintext",
            );
        }
        let has_files =
            self.authority.is_some() || self.certificate.is_some() || self.key.is_some();
        if has_files && !protocol.is_encrypted {
            return unfit("ssl.… has an effect only with security.protocol=ssl or sasl_ssl");
        }
        let sasl = match (protocol.is_authenticated, self.mechanism, self.user, self.password) {
            (false, ..) => None,
            (true, Some(mechanism), Some(user), Some(password)) => {
                Some(Sasl { mechanism, user, password })
            }
            _ => {
                return unfit(
                    "authentication needs sasl.mechanism, sasl.username and sasl.password",
                );
            }
        };
        let own = match (&self.certificate, &self.key) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate.as_path(), key.as_path())),
            _ => return unfit("ssl.certificate.location and ssl.key.location are set together"),
        };
        let tls = match protocol.is_encrypted {
            true => Some(Arc::new(tls(self.authority.as_deref(), own)?)),
            false => None,
        };
        Ok(ClientConfig { tls, sasl, compression: self.compression.unwrap_or(Compression::None) })
    }
}

/// Returns a TLS configuration that trusts the certificate authorities in the file `authority`, or the public ones if
/// it is `None`, and presents the client's own certificate and key from the two files `own`, if they are given.
fn tls(
    authority: Option<&Path>,
    own: Option<(&Path, &Path)>,
) -> Result<rustls::ClientConfig, ClientConfigError> {
    let unfit = |error: rustls::Error| ClientConfigError::Unfit(error.to_string());
    let mut roots = RootCertStore::empty();
    match authority {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(unfit)?;
            }
        }
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
    }
    let builder = rustls::ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(unfit)?
        .with_root_certificates(roots);
    match own {
        Some((chain, key_file)) => {
            let key = PrivateKeyDer::from_pem_file(key_file);
            let key = key.map_err(|error| unread(key_file, &error))?;
            builder.with_client_auth_cert(certificates(chain)?, key).map_err(unfit)
        }
        None => Ok(builder.with_no_client_auth()),
    }
}

/// Returns the certificates in a PEM file, which must have one at least.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, ClientConfigError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let found = read.map_err(|error| unread(file, &error))?;
    if found.is_empty() {
        return Err(unread(file, &"it has no certificate in PEM format"));
    }
    Ok(found)
}

fn unread(file: &Path, why: &dyn fmt::Display) -> ClientConfigError {
    ClientConfigError::File { path: file.display().to_string(), why: why.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &str) -> Result<ClientConfig, ClientConfigError> {
        content.parse::<Properties>()?.check()
    }

    #[test]
    fn properties_are_read_and_a_password_is_never_shown() {
        let config = read(
            "# of kcat\n\nbootstrap.servers=broker1.example.com:9093\nsecurity.protocol = SASL_PLAINTEXT\n\
             sasl.mechanisms=scram-sha-512\nsasl.username=imago\nsasl.password=p=a s#s\ncompression.codec=lz4\n",
        );
        let config = config.unwrap();
        let sasl = config.sasl.clone().unwrap();
        assert_eq!(sasl.mechanism, Mechanism::ScramSha512);
        assert_eq!((sasl.user.as_str(), sasl.password.as_str()), ("imago", "p=a s#s"));
        assert_eq!((config.compression, config.tls.is_none()), (Compression::Lz4, true));
        let shown = format!("{config:?}");
        assert!(shown.contains("imago") && !shown.contains("p=a"), "{shown}");
        assert!(
            read("security.protocol=ssl").unwrap().tls.is_some(),
            "public authorities are trusted"
        );
        assert!(read("").unwrap().tls.is_none());
    }

    #[test]
    fn a_file_that_does_not_fit_is_refused_with_the_line_or_the_property() {
        let refused = [
            (
                "security.protocol=tls",
                "line 1: security.protocol is \"tls\", and has to be one of plaintext, ssl",
            ),
            (
                "\nssl.ca.locatoin=/ca.pem",
                "line 2: ssl.ca.locatoin is not understood; known are security.protocol",
            ),
            ("sasl.password", "line 1: it is no NAME=VALUE"),
            ("sasl.mechanism=GSSAPI", "has to be one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
            ("compression.type=zstd", "has to be one of none, gzip, lz4"),
            ("sasl.username=imago", "only with security.protocol=sasl_ssl"),
            ("security.protocol=sasl_ssl\nsasl.username=imago", "needs sasl.mechanism"),
            ("ssl.ca.location=/ca.pem", "only with security.protocol=ssl"),
            ("security.protocol=ssl\nssl.key.location=/key.pem", "are set together"),
            ("security.protocol=ssl\nssl.ca.location=/not/there.pem", "cannot read /not/there.pem"),
        ];
        for (content, why) in refused {
            let refused = read(content).unwrap_err().to_string();
            assert!(refused.contains(why), "{content}: {refused}");
        }
    }
}
