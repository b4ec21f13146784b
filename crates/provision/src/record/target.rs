//! The database behind the proxy, and the URI that directs a driver to the proxy alone.
//!
//! For a router, no discovery is needed: the proxy connects to the first router in the URI that accepts connections.
//! For a replica set, the job gets a direct connection to the current primary: all of its reads go there, even those
//! that prefer secondaries, and an election makes the recording useless.

use std::time::Duration;

use bson::doc;
use mongodb::Client;
use mongodb::options::{ClientOptions, ServerAddress, Tls};

use super::Error;

/// Maximum time to find a server of the database.
const FIND_MAX: Duration = Duration::from_secs(10);
/// URI options that are removed from the job's URI, because they would lead a driver past the proxy. For a replica
/// set, `directConnection=true` is added.
const LEFT_OUT: [&str; 3] = ["replicaset=", "directconnection=", "loadbalanced="];

/// The database whose reads are recorded, and its URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Addresses of the database that the proxy connects to, as `host:port`.
    addresses: Vec<String>,
    /// The parts of the database's connection string.
    uri: Parts,
    /// True if the addresses are those of routers (mongos); false for a replica set or a single server.
    is_router: bool,
}

/// The parts of a URI: `mongodb://[login@]hosts[/database][?options]`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parts {
    login: Option<String>,
    hosts: String,
    database: String,
    options: Vec<String>,
}

impl Parts {
    /// Splits a connection string (`mongodb://…`) into its parts.
    fn of(uri: &str) -> Result<Self, Error> {
        if uri.starts_with("mongodb+srv://") {
            return Err(Error::Unsupported {
                what: "mongodb+srv://",
                remedy: "it means TLS; give mongodb:// with the hosts of a server without TLS",
            });
        }
        let Some(rest) = uri.strip_prefix("mongodb://") else {
            return Err(Error::Uri("it does not begin with mongodb://".into()));
        };
        let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
        let (rest, database) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match rest.rsplit_once('@') {
            Some((login, hosts)) => (Some(login.to_owned()), hosts),
            None => (None, rest),
        };
        let options: Vec<String> =
            options.split('&').filter(|option| !option.is_empty()).map(str::to_owned).collect();
        Ok(Self { login, hosts: hosts.into(), database: database.into(), options })
    }

    /// Returns the connection string with `hosts` as its hosts and with the additional options `more`, without the
    /// options in [`LEFT_OUT`].
    fn with(&self, hosts: &str, more: &[&str]) -> String {
        let login = self.login.as_ref().map(|login| format!("{login}@")).unwrap_or_default();
        let kept = self.options.iter().map(String::as_str).filter(|option| {
            let option = option.to_ascii_lowercase();
            !LEFT_OUT.iter().any(|left_out| option.starts_with(left_out))
        });
        let options: Vec<&str> = kept.chain(more.iter().copied()).collect();
        let mark = if options.is_empty() { "" } else { "?" };
        format!("mongodb://{login}{hosts}/{}{mark}{}", self.database, options.join("&"))
    }
}

impl Target {
    /// Finds the servers to record at the connection string `uri`: the routers in it, or the primary of its replica
    /// set.
    ///
    /// # Errors
    /// [`Error::Uri`], [`Error::Unsupported`] (TLS), [`Error::Unreachable`].
    #[crate::boxed]
    pub async fn find(uri: &str) -> Result<Self, Error> {
        let parts = Parts::of(uri)?;
        let mut options =
            ClientOptions::parse(uri).await.map_err(|error| Error::Uri(error.to_string()))?;
        if matches!(options.tls, Some(Tls::Enabled(_))) {
            return Err(Error::Unsupported {
                what: "a server with TLS",
                remedy: "run the proxy's side on a server or router without TLS",
            });
        }
        let hosts: Vec<String> = options.hosts.iter().map(ServerAddress::to_string).collect();
        options.server_selection_timeout.get_or_insert(FIND_MAX);
        let unreachable = |source| Error::Unreachable { addresses: hosts.join(","), source };
        let client =
            Client::with_options(options).map_err(|error| Error::Uri(error.to_string()))?;
        let hello = client.database("admin").run_command(doc! { "hello": 1 }).await;
        let hello = hello.map_err(unreachable)?;
        client.shutdown().await;
        let is_router = hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid");
        let addresses = match hello.get_str("me") {
            Ok(me) if !is_router => vec![me.to_owned()],
            _ => hosts,
        };
        Ok(Self { addresses, uri: parts, is_router })
    }

    /// Returns the addresses (`host:port`) that the proxy connects to; it uses the first that accepts connections.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Returns the URI for the job: that of the database, with 127.0.0.1 and the proxy's port `port` as the only
    /// host.
    #[must_use]
    pub fn uri_at(&self, port: u16) -> String {
        let more: &[&str] = if self.is_router { &[] } else { &["directConnection=true"] };
        self.uri.with(&format!("127.0.0.1:{port}"), more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(uri: &str, is_router: bool) -> String {
        let target = Target { addresses: Vec::new(), uri: Parts::of(uri).unwrap(), is_router };
        target.uri_at(4000)
    }

    #[test]
    fn the_jobs_uri_keeps_user_database_and_options() {
        let uri = "mongodb://app:p%40ss@one:27017,two:27018/shop?authSource=admin&w=majority";
        let expected = "mongodb://app:p%40ss@127.0.0.1:4000/shop?authSource=admin&w=majority";
        assert_eq!(at(uri, true), expected);
        assert_eq!(at("mongodb://one", true), "mongodb://127.0.0.1:4000/");
    }

    #[test]
    fn the_members_of_a_replica_set_are_not_looked_for() {
        let uri = "mongodb://one,two/?replicaSet=orders&retryReads=false";
        let expected = "mongodb://127.0.0.1:4000/?retryReads=false&directConnection=true";
        assert_eq!(at(uri, false), expected);
    }

    #[tokio::test]
    async fn tls_is_refused_before_anything_is_asked() {
        for uri in ["mongodb+srv://cluster.example.net", "mongodb://127.0.0.1:1/?tls=true"] {
            let refused = Target::find(uri).await.unwrap_err();
            assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        }
        assert!(matches!(Target::find("redis://127.0.0.1").await, Err(Error::Uri(_))));
    }
}
