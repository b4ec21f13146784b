//! A collection at one cluster: its definition, its size, and the creation of a similar one.
//!
//! Definitions are compared and copied as the server lists them, without the fields that belong to one server only
//! (`uuid`, index versions).

use bson::{Bson, Document, doc};
use futures_util::TryStreamExt;
use imago_job::ownership::Ownership;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, code};
use crate::namespace::{Namespace, Selector, is_servers_own, is_servers_own_database};
use crate::server::endpoint::{Endpoint, answer};
use crate::server::timing::OWNED_WRITE_WITHIN;

/// A collection at one cluster, and the conditions for writes to it.
#[derive(Clone, Debug)]
pub struct Handle {
    /// The cluster that has the collection.
    pub endpoint: Endpoint,
    /// Full name of the collection at that cluster.
    pub ns: Namespace,
    /// True if writes bypass the collection's validator: the source's documents are copied even if they are older
    /// than the validator.
    pub bypass_validation: bool,
    /// For the destination of a job: the ownership of that job, since documents are written only while this process
    /// certainly owns the job ([`crate::server::timing::OWNED_WRITE_WITHIN`]). `None` for other collections.
    pub owner: Option<Ownership>,
}

/// The kind of object that a database lists under the full name of a collection.
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

/// The properties of a collection, view or time series, without its documents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// Kind of the object: collection, view or time series.
    pub kind: Kind,
    /// The options of the object, as `listCollections` returns them.
    pub options: Document,
    /// The collection's complete indexes, that of `_id` included, without index versions; empty for other objects.
    pub indexes: Vec<Document>,
    /// The names of the collection's indexes that are being built: they are not usable yet, and a build may fail.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub building: Vec<String>,
    /// The collection's shard key; `None` if the collection is not sharded.
    pub shard_key: Option<Document>,
}

/// The size of a collection, according to the server's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Number of documents in the collection.
    pub documents: u64,
    /// Size of all documents as BSON, uncompressed, in bytes.
    pub bytes: u64,
}

impl Definition {
    /// Returns true if a collation other than the simple one orders the collection's strings, and so its `_id`s.
    #[must_use]
    pub fn is_collated(&self) -> bool {
        let locale = self.options.get_document("collation").and_then(|c| c.get_str("locale"));
        locale.is_ok_and(|locale| locale != "simple")
    }

    /// Returns true for a capped collection: its size is bounded, and its documents are stored in the order of their
    /// inserts.
    #[must_use]
    pub fn is_capped(&self) -> bool {
        self.options.get_bool("capped").unwrap_or(false)
    }

    /// Returns true if the collection has a validator, which checks documents when they are written.
    #[must_use]
    pub fn is_validated(&self) -> bool {
        self.options.contains_key("validator")
    }
}

/// Returns the name of an index, given its definition.
pub(crate) fn name_of(index: &Document) -> &str {
    index.get_str("name").unwrap_or_default()
}

impl Handle {
    /// Refuses the write `doing` while it is uncertain that this process still owns the job of this collection.
    ///
    /// # Errors
    /// Returns [`Error::Transient`]: the next heartbeat may make the ownership certain again.
    pub(crate) fn check_owner(&self, doing: &str) -> Result<()> {
        let Some(age) = self.owner.as_ref().map(Ownership::age) else { return Ok(()) };
        if age <= OWNED_WRITE_WITHIN {
            return Ok(());
        }
        let cause = format!("the job was last confirmed to be ours {} ms ago", age.as_millis());
        Err(Error::Transient { doing: format!("{doing} on {}", self.ns), cause })
    }

    /// Returns a handle of the collection `ns` at `endpoint`, which belongs to no job and whose validator is in
    /// force.
    #[must_use]
    pub fn new(endpoint: Endpoint, ns: Namespace) -> Self {
        Self { endpoint, ns, bypass_validation: false, owner: None }
    }

    /// Reads the collection's definition; returns `None` if the collection does not exist.
    ///
    /// # Errors
    /// Fails if the server does not reply or refuses.
    #[crate::boxed]
    pub async fn definition(&self) -> Result<Option<Definition>> {
        let filter = doc! {"name": &self.ns.coll};
        let Some(listed) = listed(&self.endpoint, &self.ns.db, filter).await?.pop() else {
            return Ok(None);
        };
        let (indexes, building) = match listed.kind {
            Kind::Collection => self.listed_indexes().await?,
            _ => Default::default(),
        };
        let shard_key = self.shard_key().await?;
        let (kind, options) = (listed.kind, listed.options);
        Ok(Some(Definition { kind, options, indexes, building, shard_key }))
    }

    /// Reads the collection's complete indexes, sorted by name, without index versions.
    ///
    /// # Errors
    /// Fails if the server does not reply or refuses.
    #[crate::boxed]
    pub async fn indexes(&self) -> Result<Vec<Document>> {
        Ok(self.listed_indexes().await?.0)
    }

    /// Reads the collection's complete indexes, sorted by name, and the names of the indexes that are being built.
    ///
    /// # Errors
    /// Fails if the server does not reply or refuses.
    pub(crate) async fn listed_indexes(&self) -> Result<(Vec<Document>, Vec<String>)> {
        let db = self.endpoint.client().database(&self.ns.db);
        let command = doc! {
            "listIndexes": &self.ns.coll, "cursor": {"batchSize": 1000}, "includeBuildUUIDs": true,
        };
        let doing = || format!("listIndexes of {}", self.ns);
        let listed = async { db.run_cursor_command(command).await?.try_collect().await };
        let listed: mongodb::error::Result<Vec<Document>> = answer(&doing(), listed).await?;
        let mut indexes = match listed {
            Ok(indexes) => indexes,
            Err(error) if code(&error) == Some(26) => return Ok(Default::default()),
            Err(error) => return Err(Error::server(doing(), error)),
        };
        let mut building = Vec::new();
        indexes.retain(|index| match index.get_document("spec") {
            Ok(spec) if index.contains_key("buildUUID") => {
                building.extend(spec.get_str("name").map(str::to_owned));
                false
            }
            _ => true,
        });
        for index in &mut indexes {
            for server_own in ["v", "ns", "background", "clustered"] {
                index.remove(server_own);
            }
        }
        indexes.sort_by(|a, b| a.get_str("name").ok().cmp(&b.get_str("name").ok()));
        Ok((indexes, building))
    }

    /// Reads the collection's shard key; returns `None` if the collection is not sharded.
    ///
    /// # Errors
    /// Fails if the router does not reply.
    #[crate::boxed]
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

    /// Reads the number and the size of the collection's documents from the server's statistics.
    ///
    /// # Errors
    /// Fails if the server does not reply.
    #[crate::boxed]
    pub async fn size(&self) -> Result<Size> {
        let stats = self.endpoint.run(&self.ns.db, doc! {"collStats": &self.ns.coll}).await?;
        Ok(Size { documents: number(&stats, "count"), bytes: number(&stats, "size") })
    }

    /// Returns true if the collection has no document.
    ///
    /// # Errors
    /// Fails if the server does not reply.
    #[crate::boxed]
    pub async fn is_empty(&self) -> Result<bool> {
        let db = self.endpoint.client().database(&self.ns.db);
        let doing = format!("find on {}", self.ns);
        let documents = db.collection::<bson::RawDocumentBuf>(&self.ns.coll);
        let found = documents.find_one(doc! {}).projection(doc! {"_id": 1});
        let found = answer(&doing, found.into_future()).await?;
        let found = found.map_err(|error| Error::server(doing, error))?;
        Ok(found.is_none())
    }

    /// Creates the collection with these options, which have the form that `listCollections` returns.
    ///
    /// # Errors
    /// Fails if the server refuses.
    #[crate::boxed]
    pub async fn create(&self, options: &Document) -> Result<()> {
        let mut command = doc! {"create": &self.ns.coll};
        for (name, value) in options {
            // The server lists the clustered index with fields that it does not accept.
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

    /// Drops the collection or view. A missing one is no error.
    ///
    /// # Errors
    /// Fails if the server refuses, or if it is uncertain that this process owns the job.
    #[crate::boxed]
    pub async fn drop(&self) -> Result<()> {
        self.check_owner("drop")?;
        let command = doc! {"drop": &self.ns.coll, "writeConcern": {"w": "majority"}};
        match self.endpoint.run(&self.ns.db, command).await {
            // NamespaceNotFound
            Err(Error::Server { cause, .. }) if code(&cause) == Some(26) => Ok(()),
            other => other.map(|_| ()),
        }
    }

    /// Builds indexes of the collection and waits until a majority can use them.
    ///
    /// # Errors
    /// Fails if the server refuses, if a unique index finds duplicates, or if it is uncertain that this process owns
    /// the job.
    #[crate::boxed]
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

    /// Drops the index with this name. A missing index is no error.
    ///
    /// # Errors
    /// Fails if the server refuses, or if it is uncertain that this process owns the job.
    #[crate::boxed]
    pub async fn drop_index(&self, name: &str) -> Result<()> {
        self.check_owner("dropIndexes")?;
        let command = doc! {"dropIndexes": &self.ns.coll, "index": name};
        match self.endpoint.run(&self.ns.db, command).await {
            Err(Error::Server { cause, .. }) if code(&cause) == Some(27) => Ok(()),
            other => other.map(|_| ()),
        }
    }
}

/// Returns `index` with an explicit collation, as it is to be created. Without one the new index would get the
/// collection's collation, while an index that a server lists without a collation has the simple one.
fn collated(mut index: Document) -> Document {
    if !index.contains_key("collation") {
        index.insert("collation", doc! {"locale": "simple"});
    }
    index
}

/// A collection, view or time series that a database lists.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Full name of the object.
    pub ns: Namespace,
    /// Kind of the object: collection, view or time series.
    pub kind: Kind,
    /// The options of the object, as `listCollections` returns them.
    pub options: Document,
}

/// Lists every collection and view of the cluster that belongs to an application, sorted by full name.
///
/// # Errors
/// Fails if the server does not reply or refuses.
#[crate::boxed]
pub async fn list_all(endpoint: &Endpoint) -> Result<Vec<Listed>> {
    let mut all = list_with_system(endpoint).await?;
    all.retain(|listed| !is_servers_own(&listed.ns));
    Ok(all)
}

/// Lists every collection and view of applications' databases, including `system` collections, sorted by full name.
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

/// The name of the collection that holds a database's stored JavaScript functions.
pub const FUNCTIONS: &str = "system.js";

/// A collection that the selector of a job matches and that the job does not copy.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LeftOut {
    /// Full name of the collection.
    pub ns: Namespace,
    /// The reason why the collection is left out, in words.
    pub why: String,
}

impl std::fmt::Display for LeftOut {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is left out: {}", self.ns, self.why)
    }
}

/// Returns the collections whose names `selector` matches and that a job leaves out all the same: time series, and
/// the `system` collections of applications' databases. The internal collections of views and time series are not
/// returned.
///
/// # Errors
/// Fails if the server does not reply or refuses.
#[crate::boxed]
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

/// Returns the count in the field `field` of a server's reply, which may be of any of the server's number types; 0 if
/// it is absent or negative.
#[must_use]
pub fn number(document: &Document, field: &str) -> u64 {
    match document.get(field) {
        Some(Bson::Int32(n)) => u64::try_from(*n).unwrap_or(0),
        Some(Bson::Int64(n)) => u64::try_from(*n).unwrap_or(0),
        // Statistics that are sums over shards are doubles: whole, and far below 2^53.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        Some(Bson::Double(n)) => *n as u64,
        _ => 0,
    }
}
