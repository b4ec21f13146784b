//! Certificates for servers and clients on 127.0.0.1, made by `openssl`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Paths of the certificates with which a test server offers TLS. A client may use the same certificate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Certificates {
    /// Path of a PEM file with a server certificate for 127.0.0.1, followed by its private key.
    pub server: PathBuf,
    /// Path of the PEM file with the certificate of the authority that signed the server certificate.
    pub authority: PathBuf,
}

impl Certificates {
    /// Creates a certificate authority, and a server certificate for 127.0.0.1 signed by that authority, as files in
    /// `folder`. Both are valid for two days.
    ///
    /// # Errors
    /// Returns an error if `openssl` is missing or fails.
    pub fn create(folder: &Path) -> Result<Self> {
        let path = |name: &str| folder.join(name).display().to_string();
        let create = |name: &str, more: &[&str]| {
            let (key, certificate) = (path(&format!("{name}.key")), path(&format!("{name}.crt")));
            let mut openssl = Command::new("openssl");
            openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]);
            openssl.args(["-keyout", &key, "-out", &certificate]).args(more).stderr(Stdio::null());
            let status = openssl.status().map_err(Error::io("run openssl"))?;
            if !status.success() {
                return Err(Error::Spec(format!("openssl ended with {status}")));
            }
            Ok((certificate, key))
        };
        let (authority, authority_key) = create("authority", &["-subj", "/CN=Example Authority"])?;
        let signed = ["-subj", "/CN=db1.example.com", "-CA", &authority, "-CAkey", &authority_key];
        let of_server = [
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ];
        let (certificate, key) = create("server", &[&signed[..], &of_server].concat())?;
        let read = |file| std::fs::read_to_string(file).map_err(Error::io("read a certificate"));
        let both = read(certificate)? + &read(key)?;
        let server = folder.join("server.pem");
        std::fs::write(&server, both).map_err(Error::io("write a certificate"))?;
        Ok(Self { server, authority: authority.into() })
    }
}
