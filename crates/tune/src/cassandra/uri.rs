//! Connection strings: `cassandra://name:password@host:port,host:port`.
//!
//! Cassandra has no standard form of its own; this is that of its drivers' JDBC and SQLAlchemy layers.

use std::fmt;
use std::str::FromStr;

use super::error::Error;

/// The port of `native_transport_port` unless it is named.
const PORT: u16 = 9042;
const SCHEME: &str = "cassandra://";

/// Some nodes of a cluster, and who asks.
#[derive(Clone, PartialEq, Eq)]
pub struct Uri {
    /// As `host:port`, one at least.
    pub nodes: Vec<String>,
    /// Name and password.
    pub user: Option<(String, String)>,
}

impl Uri {
    /// True if the text is a connection string of this kind, though perhaps a wrong one.
    #[must_use]
    pub fn is_one(text: &str) -> bool {
        text.starts_with(SCHEME)
    }
}

impl FromStr for Uri {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::Usage(format!("the connection string {why}; write {SCHEME}host:port,host:port"))
        };
        let rest = text.strip_prefix(SCHEME);
        let rest = rest.ok_or_else(|| wrong(&format!("does not begin with {SCHEME}")))?;
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
                // An IPv6 address without a port ends in its bracket.
                Some((name, port)) if !host.ends_with(']') => (name, port.parse()),
                _ => (host, Ok(PORT)),
            };
            if name.is_empty() || name.contains(['/', '?', ' ']) {
                return Err(wrong(&format!("has \"{host}\" where a host should be")));
            }
            let port = port.map_err(|_| wrong(&format!("has no port in \"{host}\"")))?;
            nodes.push(format!("{name}:{port}"));
        }
        Ok(Self { nodes, user })
    }
}

/// Text in which `%40` stands for an @, as in other connection strings.
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

/// Without the password.
impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SCHEME)?;
        if let Some((name, _)) = &self.user {
            write!(f, "{name}:***@")?;
        }
        f.write_str(&self.nodes.join(","))
    }
}

impl fmt::Debug for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Uri, String> {
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
