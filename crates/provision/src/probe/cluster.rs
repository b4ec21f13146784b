//! The servers behind a connection string: the router, if there is one, and all members of all shards, each by
//! a connection of its own.

use bson::{Document, doc};
use mongodb::Client;
use mongodb::options::{ClientOptions, ServerAddress};

use super::Error;
use crate::chain::Namespace;

/// The servers of a database.
#[derive(Debug)]
pub(super) struct Cluster {
    /// As the job sees it.
    pub(super) client: Client,
    /// The options of its connection string.
    pub(super) options: ClientOptions,
    pub(super) has_router: bool,
    pub(super) shards: Vec<Shard>,
}

/// A shard, or the one replica set or server.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) name: String,
    pub(super) members: Vec<Member>,
}

/// A database server.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) address: String,
    pub(super) client: Client,
}

impl Member {
    /// Runs a command of the database `admin`.
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
    /// Connects to all servers.
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
            // The seed may not have all members: the first that answers names them.
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

    fn shard(&self, name: String, members: &[String]) -> Result<Shard, Error> {
        let members = members.iter().map(|address| self.member(address));
        Ok(Shard { name, members: members.collect::<Result<_, _>>()? })
    }

    fn member(&self, address: &str) -> Result<Member, Error> {
        let mut options = self.options.clone();
        let host = ServerAddress::parse(address).map_err(Error::ask(address, "a connection"))?;
        options.hosts = vec![host];
        options.repl_set_name = None;
        options.direct_connection = Some(true);
        let client = Client::with_options(options).map_err(Error::ask(address, "a connection"))?;
        Ok(Member { address: address.to_owned(), client })
    }

    /// Runs a command of the database `admin` where the job reads.
    pub(super) async fn ask(
        &self,
        command: Document,
        what: &'static str,
    ) -> Result<Document, Error> {
        let answer = self.client.database("admin").run_command(command).await;
        answer.map_err(Error::ask("the database", what))
    }

    /// The collection's sizes and counts.
    pub(super) async fn statistics(&self, namespace: &Namespace) -> Result<Document, Error> {
        let statistics = self.client.database(&namespace.db);
        let statistics = statistics.run_command(doc! { "collStats": &namespace.coll }).await;
        statistics.map_err(Error::ask("the database", "the collection's size"))
    }

    /// All members of all shards.
    pub(super) fn members(&self) -> impl Iterator<Item = &Member> {
        self.shards.iter().flat_map(|shard| &shard.members)
    }
}

/// A number of a document, of any type; none if it is missing.
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

fn strings(document: &Document, field: &str) -> Vec<String> {
    let values = document.get_array(field).into_iter().flatten();
    values.filter_map(bson::Bson::as_str).map(str::to_owned).collect()
}
