//! Connection strings: `cassandra://name:password@host:port,host:port`.
//!
//! Cassandra has no standard format; this is the one of its JDBC and SQLAlchemy drivers. For Redis it is the common
//! format, extended to several hosts.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use super::Database;
use super::error::Error;

/// Parsed connection string: addresses of some nodes of a cluster, and credentials.
pub struct Uri<D> {
    /// Addresses of the nodes as `host:port`, at least one.
    pub nodes: Vec<String>,
    /// Name and password with which clients connect; None connects without credentials.
    pub user: Option<(String, String)>,
    of: PhantomData<fn() -> D>,
}

impl<D> Clone for Uri<D> {
    fn clone(&self) -> Self {
        Self { nodes: self.nodes.clone(), user: self.user.clone(), of: PhantomData }
    }
}

impl<D: Database> Uri<D> {
    /// Returns the connection string of the node at `node` (`host:port`), with the same credentials.
    #[must_use]
    pub fn at(&self, node: String) -> Self {
        Self { nodes: vec![node], ..self.clone() }
    }

    /// Returns true if the text has the prefix of this database's connection strings; the rest may still be invalid.
    #[must_use]
    pub fn is_one(text: &str) -> bool {
        text.starts_with(D::SCHEME)
    }
}

impl<D: Database> FromStr for Uri<D> {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let scheme = D::SCHEME;
        let wrong = |why: &str| {
            Error::Usage(format!("the connection string {why}; write {scheme}host:port,host:port"))
        };
        let rest = text.strip_prefix(scheme);
        let rest = rest.ok_or_else(|| wrong(&format!("does not begin with {scheme}")))?;
        let rest = rest.strip_suffix(D::PATH).unwrap_or(rest);
        let (user, hosts) = match rest.rsplit_once('@') {
            Some((user, hosts)) => {
                let (name, password) = user.split_once(':').unwrap_or((user, ""));
                (Some((unescaped(name), unescaped(password))), hosts)
            }
            None => (None, rest),
        };
        let mut nodes = Vec::new();
        for host in hosts.trim_end_matches('/').split(',') {
            let (name, port) = match host.rsplit_once(':') {
                // An IPv6 address without a port ends with a bracket.
                Some((name, port)) if !host.ends_with(']') => (name, port.parse()),
                _ => (host, Ok(D::PORT)),
            };
            if name.is_empty() || name.contains(['/', '?', ' ']) {
                return Err(wrong(&format!("has \"{host}\" where a host should be")));
            }
            let port = port.map_err(|_| wrong(&format!("has no port in \"{host}\"")))?;
            nodes.push(format!("{name}:{port}"));
        }
        Ok(Self { nodes, user, of: PhantomData })
    }
}

/// Decodes the percent-encoded characters of a name or password: `%40` is an @.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        match (first, code) {
            (b'%', Some(code)) => {
                bytes.push(code);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Formats the connection string with the user's name, but without the password.
impl<D: Database> fmt::Display for Uri<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(D::SCHEME)?;
        if let Some((name, _)) = &self.user {
            write!(f, "{name}:***@")?;
        }
        f.write_str(&self.nodes.join(","))
    }
}

impl<D: Database> fmt::Debug for Uri<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::cassandra::Cassandra;
    use crate::redis::Redis;

    fn parse(text: &str) -> Result<Uri<Cassandra>, String> {
        text.parse().map_err(|error: Error| error.to_string())
    }

    #[test]
    fn nodes_ports_and_passwords_are_told() {
        let uri = parse("cassandra://shop:p%40ss%3Aword@10.0.0.1:9043,cas-2.example.net").unwrap();
        assert_eq!(uri.nodes, ["10.0.0.1:9043", "cas-2.example.net:9042"]);
        assert_eq!(uri.user, Some(("shop".into(), "p@ss:word".into())));
        assert_eq!(uri.to_string(), "cassandra://shop:***@10.0.0.1:9043,cas-2.example.net:9042");
        let uri = parse("cassandra://[::1]:9042,[fe80::2]/").unwrap();
        assert_eq!(uri.nodes, ["[::1]:9042", "[fe80::2]:9042"]);
        assert!(uri.user.is_none());
    }

    #[test]
    fn each_database_has_its_scheme_and_port() {
        let uri: Uri<Redis> = "redis://:secret@10.0.0.1,10.0.0.2:7000/0".parse().unwrap();
        assert_eq!(uri.nodes, ["10.0.0.1:6379", "10.0.0.2:7000"]);
        assert_eq!(uri.user, Some((String::new(), "secret".into())));
        assert_eq!(uri.to_string(), "redis://:***@10.0.0.1:6379,10.0.0.2:7000");
        for text in ["cassandra://10.0.0.1", "redis://10.0.0.1/3"] {
            assert!(text.parse::<Uri<Redis>>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_connection_string_is_said() {
        for (text, named) in [
            ("mongodb://10.0.0.1", "does not begin with cassandra://"),
            ("cassandra://", "where a host should be"),
            ("cassandra://10.0.0.1,", "where a host should be"),
            ("cassandra://10.0.0.1:ninety", "no port in"),
            ("cassandra://10.0.0.1:99999", "no port in"),
            ("cassandra://10.0.0.1/shop?ssl=true", "where a host should be"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
