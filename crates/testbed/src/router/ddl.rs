//! Collections and indexes: create, drop, rename, collMod, indexes, listings, statistics.
//!
//! What the servers coordinate themselves goes to the database's primary shard as the command with
//! which a `mongos` asks for it (`_shardsvr…`), with the database's version; an index is built on
//! every shard that owns chunks, with the collection's version.

use bson::{Bson, Document, doc};
use futures_util::future::join_all;

use super::answer::{Answer, Failure, code, integer};
use super::caller::{Caller, renamed};
use super::catalog::Placement;
use super::core::{Namespace, Repeat, database_of, is_config_database};
use super::targeting::Endpoint;
use super::topology::ReplicaSet;

/// Fields of a client's command that a coordinating command does not take.
const CLIENT_FIELDS: [&str; 4] = ["$readPreference", "$clusterTime", "lsid", "txnNumber"];

impl Caller {
    /// The primary shard of a database and the database's version.
    async fn primary_of(
        &self,
        database: &str,
        create: bool,
    ) -> Result<(std::sync::Arc<ReplicaSet>, Document), Failure> {
        let entry = match self.core.database(database).await? {
            Some(entry) => entry,
            None if create => self.core.create_database(database, None).await?,
            None => {
                let message = format!("database {database} not found");
                return Err(Failure::new(code::NAMESPACE_NOT_FOUND, message));
            }
        };
        let shard = entry.get_str("primary").map_err(Failure::malformed)?;
        let version = entry.get_document("version").map_err(Failure::malformed)?.clone();
        Ok((self.core.shard(shard).await?, version))
    }

    /// Runs a command on a database's primary shard with the database's version, again while that
    /// is stale.
    pub(super) async fn on_database(
        &self,
        database: &str,
        create: bool,
        body: &Document,
        repeat: Repeat,
    ) -> Result<Answer, Failure> {
        let namespace = Namespace { database: database.to_owned(), collection: String::new() };
        let body = body.clone();
        let attempt = async || {
            let (shard, version) = self.primary_of(database, create).await?;
            let mut body = body.clone();
            for field in CLIENT_FIELDS {
                body.remove(field);
            }
            body.insert("databaseVersion", version);
            let user = self.user.as_ref();
            self.core.on_primary(user, &shard, body, None, repeat).await
        };
        let answer = Box::pin(self.while_stale(&namespace, attempt)).await;
        self.core.catalog.forget_database(database);
        answer
    }

    /// A command that the primary shard coordinates under the name `coordinated`.
    async fn coordinated(
        &self,
        body: &Document,
        coordinated: &str,
        create: bool,
    ) -> Result<Answer, Failure> {
        let database = database_of(body).to_owned();
        let mut body = renamed(body, coordinated);
        with_majority(&mut body);
        // The coordinators persist their progress and recognise that they are asked again.
        self.on_database(&database, create, &body, Repeat::Safe).await
    }

    /// create: on the primary shard; sharding is another command.
    pub(super) async fn create(&self, body: &Document) -> Result<Answer, Failure> {
        let namespace = Namespace::of(body)?;
        if namespace.is_on_config() {
            return self.on_config(body.clone(), Repeat::Never).await;
        }
        // A sharded collection of this name exists on shards of which the primary may be none.
        if self.core.collection_entry(&namespace.to_string()).await?.is_some() {
            let message = format!("Collection {namespace} already exists");
            return Err(Failure::new(code::NAMESPACE_EXISTS, message));
        }
        self.on_database(&namespace.database, true, body, Repeat::Never).await
    }

    /// drop.
    pub(super) async fn drop_collection(&self, body: &Document) -> Result<Answer, Failure> {
        let namespace = Namespace::of(body)?;
        if namespace.is_on_config() {
            return self.on_config(body.clone(), Repeat::Never).await;
        }
        match self.coordinated(body, "_shardsvrDropCollection", false).await {
            // As a server answers for what is not there.
            Err(failure) if failure.code() == code::NAMESPACE_NOT_FOUND => {
                Answer::try_from(doc! { "ok": 1.0 })
            }
            answer => answer,
        }
    }

    /// dropDatabase.
    pub(super) async fn drop_database(&self, body: &Document) -> Result<Answer, Failure> {
        let name = database_of(body).to_owned();
        if is_config_database(&name) {
            let message = format!("Cannot drop the database {name}");
            return Err(Failure::new(code::ILLEGAL_OPERATION, message));
        }
        let dropped = match self.coordinated(body, "_shardsvrDropDatabase", false).await {
            Err(failure) if failure.code() == code::NAMESPACE_NOT_FOUND => {
                return Answer::try_from(doc! { "ok": 1.0 });
            }
            answer => answer?,
        };
        dropped.with(&doc! { "dropped": name, "ok": 1.0 })
    }

    /// renameCollection: within one database, sharded or not.
    pub(super) async fn rename(&self, body: &Document) -> Result<Answer, Failure> {
        let from = Namespace::parse(body.get_str("renameCollection").unwrap_or_default())?;
        let to = Namespace::parse(body.get_str("to").unwrap_or_default())?;
        let mut rename = doc! {
            "_shardsvrRenameCollection": &from.collection,
            "to": to.to_string(),
            "dropTarget": body.get_bool("dropTarget").unwrap_or(false),
            "$db": &from.database,
        };
        copy(body, &mut rename, &["comment", "writeConcern"]);
        with_majority(&mut rename);
        if from.database != to.database {
            let target = self.core.database(&to.database).await?;
            let target = target.and_then(|entry| entry.get_str("primary").ok().map(str::to_owned));
            let (source, _) = self.primary_of(&from.database, false).await?;
            match target {
                None => {
                    self.core.create_database(&to.database, Some(&source.id)).await?;
                }
                Some(target) if target != source.id => {
                    let message = "Source and destination collections must be on the same shard";
                    return Err(Failure::new(13137, message));
                }
                Some(_) => {}
            }
        }
        let renamed = self.on_database(&from.database, false, &rename, Repeat::Safe).await;
        self.core.catalog.forget_database(&to.database);
        renamed?.with(&doc! { "ok": 1.0 })
    }

    /// collMod, on all shards at once.
    pub(super) async fn coll_mod(&self, body: &Document) -> Result<Answer, Failure> {
        self.coordinated(body, "_shardsvrCollMod", false).await
    }

    /// dropIndexes, on all shards at once.
    pub(super) async fn drop_indexes(&self, body: &Document) -> Result<Answer, Failure> {
        let namespace = Namespace::of(body)?;
        if namespace.is_on_config() {
            return self.on_config(body.clone(), Repeat::Never).await;
        }
        let mut drop = renamed(body, "_shardsvrDropIndexes");
        drop.insert("dropIndexes", &namespace.collection);
        with_majority(&mut drop);
        self.on_database(&namespace.database, false, &drop, Repeat::Safe).await
    }

    /// createIndexes, on every shard that owns chunks.
    pub(super) async fn create_indexes(&self, body: &Document) -> Result<Answer, Failure> {
        let namespace = Namespace::of(body)?;
        if namespace.is_on_config() {
            return self.on_config(body.clone(), Repeat::Never).await;
        }
        let answers = self.on_owners(&namespace, body, true).await?;
        let least = |key: &str| answers.iter().filter_map(|(_, answer)| answer.number(key)).min();
        let mut raw = Document::new();
        for (shard, answer) in &answers {
            raw.insert(shard.clone(), answer.document()?);
        }
        let mut merged = doc! { "raw": raw };
        for key in ["numIndexesBefore", "numIndexesAfter"] {
            if let Some(count) = least(key) {
                merged.insert(key, i32::try_from(count).unwrap_or(i32::MAX));
            }
        }
        let created = answers.iter().any(|(_, answer)| {
            answer.raw().get_bool("createdCollectionAutomatically").unwrap_or(false)
        });
        merged.insert("createdCollectionAutomatically", created);
        merged.insert("ok", 1.0);
        merge_times(Answer::try_from(merged)?, &answers)
    }

    /// Runs a versioned command on all shards that own chunks, or on the primary shard; the
    /// answers with the shards' seeds. Fails as the first shard that fails.
    async fn on_owners(
        &self,
        namespace: &Namespace,
        body: &Document,
        create: bool,
    ) -> Result<Vec<(String, Answer)>, Failure> {
        let attempt = async || {
            let endpoints = match self.core.placement(namespace, create).await? {
                Placement::Unsharded { shard, database_version } => {
                    vec![Endpoint::unsharded(&shard, &database_version)]
                }
                Placement::Sharded(collection) => {
                    let owners = collection.owners();
                    owners.iter().map(|shard| Endpoint::owner(&collection, shard)).collect()
                }
            };
            let calls = endpoints.iter().map(|endpoint| async move {
                let shard = self.core.shard(&endpoint.shard).await?;
                let run = self.at(endpoint, body.clone(), None, Repeat::Safe, None).await;
                run.map(|answer| (shard.seed.clone(), answer))
            });
            join_all(calls).await.into_iter().collect()
        };
        Box::pin(self.while_stale(namespace, attempt)).await
    }

    /// listIndexes: every owner has the same; the first one is asked.
    pub(super) async fn list_indexes(&self, body: &Document) -> Result<Answer, Failure> {
        let namespace = Namespace::of(body)?;
        if namespace.is_on_config() {
            return self.open_on_config(body.clone()).await;
        }
        let attempt = async || {
            let endpoint = match self.core.placement(&namespace, false).await? {
                Placement::Unsharded { shard, database_version } => {
                    Endpoint::unsharded(&shard, &database_version)
                }
                Placement::Sharded(collection) => {
                    let owner = collection.owners().into_iter().next().unwrap_or_default();
                    Endpoint::owner(&collection, &owner)
                }
            };
            let mut body = body.clone();
            endpoint.stamp(&mut body);
            self.open_at(&endpoint.shard, body).await
        };
        Box::pin(self.while_stale(&namespace, attempt)).await
    }

    /// listCollections: the primary shard has all of the database's collections.
    pub(super) async fn list_collections(&self, body: &Document) -> Result<Answer, Failure> {
        let database = database_of(body).to_owned();
        if is_config_database(&database) {
            return self.open_on_config(body.clone()).await;
        }
        let (shard, version) = match self.primary_of(&database, false).await {
            Err(failure) if failure.code() == code::NAMESPACE_NOT_FOUND => {
                let namespace = format!("{database}.$cmd.listCollections");
                return super::read::cursor_answer(0, &namespace, "firstBatch", &[]);
            }
            primary => primary?,
        };
        let mut body = body.clone();
        body.insert("databaseVersion", version);
        self.open_at(&shard.id, body).await
    }

    /// Opens a cursor directly on a shard's primary and remembers where.
    pub(super) async fn open_at(&self, shard: &str, body: Document) -> Result<Answer, Failure> {
        let shard = self.core.shard(shard).await?;
        let user = self.user.as_ref();
        for last in [false, true] {
            let address = shard.primary(&self.core.pool).await?;
            match self.core.on_node(user, &address, body.clone(), None).await {
                Err(failure) if code::is_retryable(failure.code()) && !last => {
                    shard.forget(&address);
                }
                answer => {
                    let answer = answer?;
                    self.remember(&answer, &address, "getMore");
                    return Ok(answer);
                }
            }
        }
        Err(Failure::new(code::NO_PRIMARY, format!("shard {} has no primary", shard.id)))
    }

    /// listDatabases: the shards' sizes added up; `config` and `admin` from the config server.
    pub(super) async fn list_databases(&self, body: &Document) -> Result<Answer, Failure> {
        let mut listed: std::collections::BTreeMap<String, Document> =
            std::collections::BTreeMap::new();
        let names_only = body.get_bool("nameOnly").unwrap_or(false);
        let mut last: Option<Answer> = None;
        let mut sets = self.core.all_shards().await?;
        sets.push(std::sync::Arc::clone(&self.core.config));
        for set in sets {
            let on_config = set.id == "config";
            let user = self.user.as_ref();
            let answer =
                self.core.on_primary(user, &set, body.clone(), None, Repeat::Safe).await?;
            let document = answer.document()?;
            let databases = document.get_array("databases").into_iter().flatten();
            for database in databases.filter_map(Bson::as_document) {
                let name = database.get_str("name").unwrap_or_default();
                // Each node has databases of its own by these names; the cluster's are elsewhere.
                if name == "local" || (is_config_database(name) != on_config) {
                    continue;
                }
                let entry = listed.entry(name.to_owned()).or_insert_with(|| doc! { "name": name });
                if !names_only {
                    let size = integer(entry, "sizeOnDisk").unwrap_or(0)
                        + integer(database, "sizeOnDisk").unwrap_or(0);
                    let empty = entry.get_bool("empty").unwrap_or(true)
                        && database.get_bool("empty").unwrap_or(true);
                    entry.insert("sizeOnDisk", size);
                    entry.insert("empty", empty);
                }
            }
            last = Some(answer);
        }
        let total: i64 =
            listed.values().filter_map(|entry| integer(entry, "sizeOnDisk")).sum();
        let databases: Vec<Document> = listed.into_values().collect();
        let mut merged = doc! { "databases": databases };
        if !names_only {
            merged.insert("totalSize", total);
            merged.insert("totalSizeMb", total / (1024 * 1024));
        }
        merged.insert("ok", 1.0);
        let answer = Answer::try_from(merged)?;
        Ok(match last {
            Some(last) => answer.not_before(&last),
            None => answer,
        })
    }

    /// collStats and dataSize: the owners' numbers added up, each owner's beside them.
    pub(super) async fn coll_stats(&self, body: &Document) -> Result<Answer, Failure> {
        let namespace = Namespace::of(body)?;
        if namespace.is_on_config() {
            return self.on_config(body.clone(), Repeat::Safe).await;
        }
        let sharded = matches!(
            self.core.placement(&namespace, false).await?,
            Placement::Sharded(_)
        );
        let answers = self.on_owners(&namespace, body, false).await?;
        let mut merged = doc! { "sharded": sharded, "ns": namespace.to_string() };
        add_up(&mut merged, &answers)?;
        if let (Some(size), Some(count)) = (integer(&merged, "size"), integer(&merged, "count")) {
            merged.insert("avgObjSize", if count > 0 { size / count } else { 0 });
        }
        let mut shards = Document::new();
        for (seed, answer) in &answers {
            let id = seed.split_once('/').map_or(&**seed, |(set, _)| set);
            shards.insert(id, answer.document()?);
        }
        merged.insert("shards", shards);
        merged.insert("ok", 1.0);
        merge_times(Answer::try_from(merged)?, &answers)
    }

    /// dbStats: all shards' numbers added up.
    pub(super) async fn db_stats(&self, body: &Document) -> Result<Answer, Failure> {
        let mut answers = Vec::new();
        for shard in self.core.all_shards().await? {
            let user = self.user.as_ref();
            let run = self.core.on_primary(user, &shard, body.clone(), None, Repeat::Safe).await?;
            answers.push((shard.seed.clone(), run));
        }
        let mut merged = doc! { "db": database_of(body) };
        add_up(&mut merged, &answers)?;
        merged.insert("ok", 1.0);
        merge_times(Answer::try_from(merged)?, &answers)
    }
}

/// Adds the answers' sizes and counts into `merged`.
fn add_up(merged: &mut Document, answers: &[(String, Answer)]) -> Result<(), Failure> {
    const SUMS: [&str; 12] = [
        "count",
        "size",
        "storageSize",
        "totalIndexSize",
        "totalSize",
        "freeStorageSize",
        "numOrphanDocs",
        "collections",
        "views",
        "objects",
        "dataSize",
        "indexSize",
    ];
    for (_, answer) in answers {
        let document = answer.document()?;
        for key in SUMS {
            if let Some(value) = integer(&document, key) {
                merged.insert(key, integer(merged, key).unwrap_or(0) + value);
            }
        }
        for key in ["nindexes", "capped", "indexes", "scaleFactor", "timeseries"] {
            if let Some(value) = document.get(key) {
                merged.insert(key, value.clone());
            }
        }
        if let Ok(sizes) = document.get_document("indexSizes") {
            let mut sums = merged.get_document("indexSizes").cloned().unwrap_or_default();
            for key in sizes.keys() {
                let sum = integer(&sums, key).unwrap_or(0) + integer(sizes, key).unwrap_or(0);
                sums.insert(key, sum);
            }
            merged.insert("indexSizes", sums);
        }
    }
    Ok(())
}

fn merge_times(answer: Answer, others: &[(String, Answer)]) -> Result<Answer, Failure> {
    Ok(others.iter().fold(answer, |merged, (_, other)| merged.not_before(other)))
}

/// What changes the catalog must be durable on a majority before it is told.
pub(super) fn with_majority(body: &mut Document) {
    let wtimeout = body
        .get_document("writeConcern")
        .ok()
        .and_then(|concern| integer(concern, "wtimeout"))
        .unwrap_or(60_000);
    body.insert("writeConcern", doc! { "w": "majority", "wtimeout": wtimeout });
}

/// Copies the fields that are there.
pub(super) fn copy(from: &Document, to: &mut Document, fields: &[&str]) {
    for field in fields {
        if let Some(value) = from.get(field) {
            to.insert(*field, value.clone());
        }
    }
}
