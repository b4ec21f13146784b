//! The servers behind a connection string: the router, if there is one, and all members of all shards, each with its
//! own connection.

use bson::{Document, doc};
use mongodb::Client;
use mongodb::options::{ClientOptions, ServerAddress};

use super::Error;
use crate::chain::Namespace;

/// The servers of the probed database, with connections to each.
#[derive(Debug)]
pub(super) struct Cluster {
    /// Client of the whole database, connected with the connection string as a job is.
    pub(super) client: Client,
    /// The driver's options from the connection string.
    pub(super) options: ClientOptions,
    /// True if the connection string leads to a router (mongos).
    pub(super) has_router: bool,
    /// The shards of the cluster; one entry if the database is a replica set or a single server.
    pub(super) shards: Vec<Shard>,
}

/// A shard of the probed cluster, or its only replica set or server.
#[derive(Debug)]
pub(super) struct Shard {
    /// Name of the shard or the replica set; `server` for a single server.
    pub(super) name: String,
    /// The database servers of the shard.
    pub(super) members: Vec<Member>,
}

/// A database server of the probed cluster.
#[derive(Debug)]
pub(super) struct Member {
    /// Address of the server, as `host:port`.
    pub(super) address: String,
    /// Client with a direct connection to this server alone.
    pub(super) client: Client,
}

impl Member {
    /// Runs a command on this server's database `admin` and returns the reply; `what` names the requested value in an
    /// error.
    pub(super) async fn ask(
        &self,
        command: Document,
        what: &'static str,
    ) -> Result<Document, Error> {
        self.client
            .database("admin")
            .run_command(command)
            .await
            .map_err(Error::ask(&self.address, what))
    }
}

impl Cluster {
    /// Finds the shards and their members behind a connection string, and makes a client for each server.
    pub(super) async fn connect(options: &ClientOptions) -> Result<Self, Error> {
        let hosts: Vec<String> = options.hosts.iter().map(ToString::to_string).collect();
        let client = Client::with_options(options.clone())
            .map_err(Error::ask(&hosts.join(","), "a connection"))?;
        let mut cluster =
            Self { client, options: options.clone(), has_router: false, shards: Vec::new() };
        let hello = cluster.ask(doc! { "hello": 1 }, "its role").await?;
        cluster.has_router = hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid");
        if !cluster.has_router {
            let name = hello.get_str("setName").unwrap_or("server").to_owned();
            let members = strings(&hello, "hosts");
            let members = if members.is_empty() { hosts } else { members };
            cluster.shards = vec![cluster.shard(name, &members)?];
            return Ok(cluster);
        }
        let listed = cluster.ask(doc! { "listShards": 1 }, "its shards").await?;
        for shard in listed.get_array("shards").into_iter().flatten() {
            let Some(shard) = shard.as_document() else { continue };
            let name = shard.get_str("_id").unwrap_or_default().to_owned();
            let seed = shard.get_str("host").unwrap_or_default();
            let seed: Vec<String> = seed
                .split_once('/')
                .map_or(seed, |(_, hosts)| hosts)
                .split(',')
                .map(str::to_owned)
                .collect();
            // The seed may lack members: the first member that answers lists all of them.
            let first = cluster.shard(name.clone(), &seed)?;
            let mut members = Err(Error::Unfit(format!("the shard {name} has no members")));
            for member in &first.members {
                members = member.ask(doc! { "hello": 1 }, "its replica set").await;
                if members.is_ok() {
                    break;
                }
            }
            let members = strings(&members?, "hosts");
            let members = if members.is_empty() { seed } else { members };
            cluster.shards.push(cluster.shard(name, &members)?);
        }
        Ok(cluster)
    }

    /// Makes a shard with this name, and a client for each member at these addresses (`host:port`).
    fn shard(&self, name: String, members: &[String]) -> Result<Shard, Error> {
        let members = members.iter().map(|address| self.member(address));
        Ok(Shard { name, members: members.collect::<Result<_, _>>()? })
    }

    /// Makes a member with a direct connection to the server at `address` (`host:port`).
    fn member(&self, address: &str) -> Result<Member, Error> {
        let mut options = self.options.clone();
        let host = ServerAddress::parse(address).map_err(Error::ask(address, "a connection"))?;
        options.hosts = vec![host];
        options.repl_set_name = None;
        options.direct_connection = Some(true);
        let client = Client::with_options(options).map_err(Error::ask(address, "a connection"))?;
        Ok(Member { address: address.to_owned(), client })
    }

    /// Runs a command on the database `admin`, through the connection that the job uses (the router, if there is
    /// one), and returns the reply; `what` names the requested value in an error.
    pub(super) async fn ask(
        &self,
        command: Document,
        what: &'static str,
    ) -> Result<Document, Error> {
        let answer = self.client.database("admin").run_command(command).await;
        answer.map_err(Error::ask("the database", what))
    }

    /// Returns the sizes and counts of a collection (the reply to `collStats`).
    pub(super) async fn statistics(&self, namespace: &Namespace) -> Result<Document, Error> {
        let statistics = self.client.database(&namespace.db);
        let statistics = statistics.run_command(doc! { "collStats": &namespace.coll }).await;
        statistics.map_err(Error::ask("the database", "the collection's size"))
    }

    /// Iterates over all members of all shards.
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.shards.iter().flat_map(|shard| &shard.members)
    }
}

/// Returns the number at `path` in a document, whichever numeric type it has; `None` if the field is missing or not a
/// number.
pub(super) fn number(document: &Document, path: &[&str]) -> Option<f64> {
    let (last, folders) = path.split_last()?;
    let mut document = document;
    for folder in folders {
        document = document.get_document(folder).ok()?;
    }
    match document.get(last)? {
        bson::Bson::Int32(value) => Some(f64::from(*value)),
        bson::Bson::Int64(value) => Some(*value as f64),
        bson::Bson::Double(value) => Some(*value),
        _ => None,
    }
}

/// Returns the strings in an array field of a document; empty if there is no such array.
fn strings(document: &Document, field: &str) -> Vec<String> {
    let values = document.get_array(field).into_iter().flatten();
    values.filter_map(bson::Bson::as_str).map(str::to_owned).collect()
}
