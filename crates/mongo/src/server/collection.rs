//! A collection at one cluster: its definition, its size, and the creation of another like it.
//!
//! Definitions are compared and carried as the server lists them, without the fields that belong to
//! one server only (`uuid`, index versions).

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use imago_job::ownership::Ownership;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, code};
use crate::namespace::{Namespace, Selector, is_servers_own, is_servers_own_database};
use crate::server::endpoint::{Endpoint, answer};
use crate::server::timing::OWNED_WRITE_WITHIN;

/// A collection's place.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The cluster.
    pub endpoint: Endpoint,
    /// The name there.
    pub ns: Namespace,
    /// True if writes bypass the collection's validator: the source's documents are copied even if
    /// they predate it.
    pub bypass_validation: bool,
    /// For the destination of a job: documents are written only while the job is certainly this
    /// process's ([`crate::server::timing::OWNED_WRITE_WITHIN`]).
    pub owner: Option<Ownership>,
}

/// The kind of a namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// An ordinary collection.
    Collection,
    /// A view: a stored query.
    View,
    /// A time series collection.
    TimeSeries,
}

/// Everything about a collection but its documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// Its kind.
    pub kind: Kind,
    /// The options it was created with.
    pub options: Document,
    /// Its indexes, `_id` included, without server versions.
    pub indexes: Vec<Document>,
    /// Its shard key, where it is sharded.
    pub shard_key: Option<Document>,
}

/// The extent of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Documents, as the server counts them.
    pub documents: u64,
    /// Their BSON, in bytes.
    pub bytes: u64,
}

impl Definition {
    /// True if strings, and so `_id`s, compare by a collation.
    #[must_use]
    pub fn is_collated(&self) -> bool {
        let locale = self.options.get_document("collation").and_then(|c| c.get_str("locale"));
        locale.is_ok_and(|locale| locale != "simple")
    }

    /// True for a collection of bounded size, whose documents are kept in the order of their
    /// inserts.
    #[must_use]
    pub fn is_capped(&self) -> bool {
        self.options.get_bool("capped").unwrap_or(false)
    }

    /// True if documents are checked when they are written.
    #[must_use]
    pub fn is_validated(&self) -> bool {
        self.options.contains_key("validator")
    }
}

impl Handle {
    /// Refuses to write while it is not certain that the job is still this process's.
    ///
    /// # Errors
    /// [`Error::Passing`]: the next sign of life may make it certain again.
    pub(crate) fn check_owner(&self, doing: &str) -> Result<()> {
        let Some(age) = self.owner.as_ref().map(Ownership::age) else { return Ok(()) };
        if age <= OWNED_WRITE_WITHIN {
            return Ok(());
        }
        let cause = format!("the job was last confirmed to be ours {} ms ago", age.as_millis());
        Err(Error::Passing { doing: format!("{doing} on {}", self.ns), cause })
    }

    /// The collection `ns` of `endpoint`.
    #[must_use]
    pub fn new(endpoint: Endpoint, ns: Namespace) -> Self {
        Self { endpoint, ns, bypass_validation: false, owner: None }
    }

    /// The collection's definition, or nothing if it does not exist.
    ///
    /// # Errors
    /// Fails if the server does not answer or refuses to say.
    pub async fn definition(&self) -> Result<Option<Definition>> {
        let filter = doc! {"name": &self.ns.coll};
        let Some(listed) = listed(&self.endpoint, &self.ns.db, filter).await?.pop() else {
            return Ok(None);
        };
        let indexes =
            if listed.kind == Kind::Collection { self.indexes().await? } else { Vec::new() };
        let shard_key = self.shard_key().await?;
        Ok(Some(Definition { kind: listed.kind, options: listed.options, indexes, shard_key }))
    }

    /// The collection's indexes, without server versions.
    ///
    /// # Errors
    /// Fails if the server does not answer or refuses to say.
    pub async fn indexes(&self) -> Result<Vec<Document>> {
        let db = self.endpoint.client().database(&self.ns.db);
        let command = doc! {"listIndexes": &self.ns.coll, "cursor": {"batchSize": 1000}};
        let doing = || format!("listIndexes of {}", self.ns);
        let listed = async { db.run_cursor_command(command).await?.try_collect().await };
        let listed: mongodb::error::Result<Vec<Document>> = answer(&doing(), listed).await?;
        let mut indexes = match listed {
            Ok(indexes) => indexes,
            Err(error) if code(&error) == Some(26) => return Ok(Vec::new()),
            Err(error) => return Err(Error::server(doing(), error)),
        };
        for index in &mut indexes {
            for server_own in ["v", "ns", "background", "clustered"] {
                index.remove(server_own);
            }
        }
        indexes.sort_by(|a, b| a.get_str("name").ok().cmp(&b.get_str("name").ok()));
        Ok(indexes)
    }

    /// The key by which the collection is sharded, if it is.
    ///
    /// # Errors
    /// Fails if the router does not answer.
    pub async fn shard_key(&self) -> Result<Option<Document>> {
        if !self.endpoint.is_sharded() {
            return Ok(None);
        }
        let doing = "reading config.collections";
        let collections =
            self.endpoint.client().database("config").collection::<Document>("collections");
        let filter = doc! {"_id": self.ns.to_string(), "dropped": {"$ne": true}};
        let found = answer(doing, collections.find_one(filter).into_future()).await?;
        let found = found.map_err(|error| Error::server(doing, error))?;
        Ok(found.and_then(|found| found.get_document("key").ok().cloned()))
    }

    /// Documents and bytes, by the server's own statistics.
    ///
    /// # Errors
    /// Fails if the server does not answer.
    pub async fn size(&self) -> Result<Size> {
        let stats = self.endpoint.run(&self.ns.db, doc! {"collStats": &self.ns.coll}).await?;
        Ok(Size { documents: number(&stats, "count"), bytes: number(&stats, "size") })
    }

    /// True if the collection holds no document.
    ///
    /// # Errors
    /// Fails if the server does not answer.
    pub async fn is_empty(&self) -> Result<bool> {
        let db = self.endpoint.client().database(&self.ns.db);
        let doing = format!("find on {}", self.ns);
        let documents = db.collection::<bson::RawDocumentBuf>(&self.ns.coll);
        let found = documents.find_one(doc! {}).projection(doc! {"_id": 1});
        let found = answer(&doing, found.into_future()).await?;
        let found = found.map_err(|error| Error::server(doing, error))?;
        Ok(found.is_none())
    }

    /// Creates the collection with these options.
    ///
    /// # Errors
    /// Fails if the server refuses.
    pub async fn create(&self, options: &Document) -> Result<()> {
        let mut command = doc! {"create": &self.ns.coll};
        for (name, value) in options {
            // The server lists the clustered index with fields that it does not take back.
            if name == "clusteredIndex" {
                let unique = doc! {"key": {"_id": 1}, "unique": true};
                let mut index = value.as_document().cloned().unwrap_or(unique);
                index.remove("v");
                command.insert(name, index);
            } else {
                command.insert(name, value.clone());
            }
        }
        command.insert("writeConcern", doc! {"w": "majority"});
        self.endpoint.run(&self.ns.db, command).await.map(|_| ())
    }

    /// Drops the collection or view; one that is gone already is no error.
    ///
    /// # Errors
    /// Fails if the server refuses.
    pub async fn drop(&self) -> Result<()> {
        self.check_owner("drop")?;
        let command = doc! {"drop": &self.ns.coll, "writeConcern": {"w": "majority"}};
        match self.endpoint.run(&self.ns.db, command).await {
            // NamespaceNotFound
            Err(Error::Server { cause, .. }) if code(&cause) == Some(26) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Builds indexes and waits until they are usable on a majority.
    ///
    /// # Errors
    /// Fails if the server refuses or a unique index finds duplicates.
    pub async fn create_indexes(&self, indexes: &[Document]) -> Result<()> {
        if indexes.is_empty() {
            return Ok(());
        }
        self.check_owner("createIndexes")?;
        let indexes: Vec<Bson> =
            indexes.iter().cloned().map(collated).map(Bson::Document).collect();
        let mut command = doc! {"createIndexes": &self.ns.coll, "indexes": indexes};
        if !self.endpoint.is_sharded() {
            command.insert("commitQuorum", "majority");
        }
        self.endpoint.run_at_length(&self.ns.db, command).await.map(|_| ())
    }

    /// Drops an index by its name; one that is gone already is no error.
    ///
    /// # Errors
    /// Fails if the server refuses.
    pub async fn drop_index(&self, name: &str) -> Result<()> {
        self.check_owner("dropIndexes")?;
        let command = doc! {"dropIndexes": &self.ns.coll, "index": name};
        match self.endpoint.run(&self.ns.db, command).await {
            Err(Error::Server { cause, .. }) if code(&cause) == Some(27) => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

/// An index as it is to be created: without a collation it would get the collection's, while one that a
/// server lists without has the simple one.
fn collated(mut index: Document) -> Document {
    if !index.contains_key("collation") {
        index.insert("collation", doc! {"locale": "simple"});
    }
    index
}

/// A name that a database holds.
#[derive(Clone, Debug)]
pub struct Listed {
    /// The collection or view.
    pub ns: Namespace,
    /// Its kind.
    pub kind: Kind,
    /// The options it was created with.
    pub options: Document,
}

/// Every collection and view of the cluster that belongs to an application.
///
/// # Errors
/// Fails if the server does not answer or refuses to say.
pub async fn list_all(endpoint: &Endpoint) -> Result<Vec<Listed>> {
    let mut all = list_with_system(endpoint).await?;
    all.retain(|listed| !is_servers_own(&listed.ns));
    Ok(all)
}

/// The same with the `system` collections of applications' databases.
async fn list_with_system(endpoint: &Endpoint) -> Result<Vec<Listed>> {
    let names = endpoint.client().list_database_names().into_future();
    let names = answer("listDatabases", names).await?;
    let names = names.map_err(|error| Error::server("listDatabases", error))?;
    let mut all = Vec::new();
    for db in names {
        if !is_servers_own_database(&db) {
            all.extend(listed(endpoint, &db, doc! {}).await?);
        }
    }
    all.sort_by(|a, b| a.ns.cmp(&b.ns));
    Ok(all)
}

/// The collection of a database's stored functions.
pub const FUNCTIONS: &str = "system.js";

/// A collection that a pattern matches and Imago leaves out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its name.
    pub ns: Namespace,
    /// Why.
    pub why: String,
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is left out: {}", self.ns, self.why)
    }
}

/// Collections that a pattern matches by name, and that are left out all the same: time series, and
/// the `system` collections of applications' databases. The internal collections of views and time
/// series do not count.
///
/// # Errors
/// Fails if the server does not answer or refuses.
pub async fn left_out_by(endpoint: &Endpoint, selector: &Selector) -> Result<Vec<LeftOut>> {
    let mut left_out = Vec::new();
    for listed in list_with_system(endpoint).await? {
        let Listed { ns, kind, .. } = listed;
        let is_internal = ns.coll == "system.views" || ns.coll.starts_with("system.buckets.");
        if is_internal || !selector.covers(&ns) {
            continue;
        }
        let why = if kind == Kind::TimeSeries {
            "a time series cannot be followed by its changes; move it with mongodump and mongorestore"
        } else if ns.coll == FUNCTIONS {
            "stored functions are copied where they are named: add --ns DATABASE.system.js"
        } else if ns.coll.starts_with("system.") {
            "it belongs to the server"
        } else {
            continue;
        };
        left_out.push(LeftOut { ns, why: why.to_owned() });
    }
    Ok(left_out)
}

async fn listed(endpoint: &Endpoint, db: &str, filter: Document) -> Result<Vec<Listed>> {
    let doing = || format!("listCollections of {db}");
    let command = doc! {"listCollections": 1, "filter": filter, "cursor": {"batchSize": 10_000}};
    let database = endpoint.client().database(db);
    let listed = async { database.run_cursor_command(command).await?.try_collect().await };
    let listed: mongodb::error::Result<Vec<Document>> = answer(&doing(), listed).await?;
    let raw = listed.map_err(|error| Error::server(doing(), error))?;
    let parsed = raw.into_iter().map(|entry| {
        let name = entry.get_str("name").map_err(|e| Error::malformed(doing(), e))?;
        let kind = match entry.get_str("type") {
            Ok("view") => Kind::View,
            Ok("timeseries") => Kind::TimeSeries,
            _ => Kind::Collection,
        };
        let options = entry.get_document("options").cloned().unwrap_or_default();
        Ok(Listed { ns: Namespace::new(db, name), kind, options })
    });
    parsed.collect()
}

/// A count that a server may give as any of its number types.
#[must_use]
pub fn number(document: &Document, field: &str) -> u64 {
    match document.get(field) {
        Some(Bson::Int32(n)) => u64::try_from(*n).unwrap_or(0),
        Some(Bson::Int64(n)) => u64::try_from(*n).unwrap_or(0),
        // Statistics come as doubles once they are sums over shards: whole and far below 2^53.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Some(Bson::Double(n)) => *n as u64,
        _ => 0,
    }
}
