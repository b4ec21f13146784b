//! Collections and indexes: create, drop, rename, collMod, indexes, listings, statistics.
//!
//! A command that the servers coordinate themselves goes to the database's primary shard in the form that a
//! `mongos` sends (`_shardsvr…`), with the database's version. An index is built on every shard that owns chunks,
//! with the collection's version.

use bson::{Document, doc};
use futures_util::future::join_all;

use super::answer::{Answer, Failure, code, integer};
use super::caller::{Caller, copy, renamed};
use super::catalog::Placement;
use super::core::{Namespace, Repeat, database_of, is_config_database};
use super::endpoint::Endpoint;
use super::topology::ReplicaSet;

/// Fields of a client's command that are removed before it is sent to a database's primary shard.
const CLIENT_FIELDS: [&str; 4] = ["$readPreference", "$clusterTime", "lsid", "txnNumber"];

impl Caller {
    /// Returns the primary shard and the version of `database`, read from the config server. A missing database is
    /// created if `create` is true.
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

    /// Runs the command `body` on the primary shard of `database`, with the database's version, and repeats it while
    /// that version is stale. A missing database is created if `create` is true.
    pub(super) async fn on_database(
        &self,
        database: &str,
        create: bool,
        body: &Document,
        repeat: Repeat,
    ) -> Result<Answer, Failure> {
        let namespace = Namespace { database: database.to_owned(), collection: String::new() };
        let mut staleness = self.staleness(&namespace);
        let outcome = loop {
            match self.on_database_once(database, create, body, repeat).await {
                Err(failure) if staleness.again(&failure) => staleness.pause().await,
                outcome => break outcome,
            }
        };
        self.core.catalog.forget_database(database);
        outcome
    }

    async fn on_database_once(
        &self,
        database: &str,
        create: bool,
        body: &Document,
        repeat: Repeat,
    ) -> Result<Answer, Failure> {
        let (shard, version) = self.primary_of(database, create).await?;
        let mut body = body.clone();
        for field in CLIENT_FIELDS {
            body.remove(field);
        }
        body.insert("databaseVersion", version);
        self.core.on_primary(self.user.as_ref(), &shard, body, None, repeat).await
    }

    /// Runs the client's command `body` on the database's primary shard, which coordinates it, under the name
    /// `coordinated` and with a majority write concern.
    async fn coordinated(
        &self,
        body: &Document,
        coordinated: &str,
        create: bool,
    ) -> Result<Answer, Failure> {
        let database = database_of(body).to_owned();
        let mut body = renamed(body, coordinated);
        with_majority(&mut body);
        // The coordinators persist their progress and recognise a repeated request.
        self.on_database(&database, create, &body, Repeat::Safe).await
    }

    /// Runs `create` on the database's primary shard; sharding the collection is a separate command.
    pub(super) async fn create(&self, body: &Document) -> Result<Answer, Failure> {
        let namespace = Namespace::of(body)?;
        if namespace.is_on_config() {
            return self.on_config(body.clone(), Repeat::Never).await;
        }
        // A sharded collection of this name may exist only on shards other than the primary.
        if self.core.collection_entry(&namespace.to_string()).await?.is_some() {
            let message = format!("Collection {namespace} already exists");
            return Err(Failure::new(code::NAMESPACE_EXISTS, message));
        }
        self.on_database(&namespace.database, true, body, Repeat::Never).await
    }

    /// Runs `drop` of a collection through the database's primary shard.
    pub(super) async fn drop_collection(&self, body: &Document) -> Result<Answer, Failure> {
        let namespace = Namespace::of(body)?;
        if namespace.is_on_config() {
            return self.on_config(body.clone(), Repeat::Never).await;
        }
        match self.coordinated(body, "_shardsvrDropCollection", false).await {
            // The reply of a server for a collection that does not exist.
            Err(failure) if failure.code() == code::NAMESPACE_NOT_FOUND => {
                Answer::try_from(doc! { "ok": 1.0 })
            }
            answer => answer,
        }
    }

    /// Runs `dropDatabase` through the database's primary shard; `admin` and `config` are refused.
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

    /// Runs `renameCollection`, also for a sharded collection; another database must have the same primary shard.
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

    /// Runs `collMod` through the database's primary shard, which executes it on all shards.
    pub(super) async fn coll_mod(&self, body: &Document) -> Result<Answer, Failure> {
        self.coordinated(body, "_shardsvrCollMod", false).await
    }

    /// Runs `dropIndexes` through the database's primary shard, which executes it on all shards.
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

    /// Runs `createIndexes` on every shard that owns chunks of the collection.
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

    /// Runs the command `body` on all shards that own chunks of `namespace`, or on the primary shard of an unsharded
    /// collection, with the collection's version. Returns the replies with the shards' seeds (`SET/HOST:PORT,…`), or
    /// the error of the first shard that fails.
    pub(super) async fn on_owners(
        &self,
        namespace: &Namespace,
        body: &Document,
        create: bool,
    ) -> Result<Vec<(String, Answer)>, Failure> {
        let mut staleness = self.staleness(namespace);
        loop {
            match self.on_owners_once(namespace, body, create).await {
                Err(failure) if staleness.again(&failure) => staleness.pause().await,
                outcome => return outcome,
            }
        }
    }

    async fn on_owners_once(
        &self,
        namespace: &Namespace,
        body: &Document,
        create: bool,
    ) -> Result<Vec<(String, Answer)>, Failure> {
        let endpoints = match self.core.placement(namespace, create).await? {
            Placement::Unsharded { shard, database_version } => {
                vec![Endpoint::unsharded(&shard, &database_version)]
            }
            Placement::Sharded(collection) => {
                let owners = collection.owners();
                owners.iter().map(|shard| Endpoint::owner(&collection, shard)).collect()
            }
        };
        let mut calls = Vec::new();
        for endpoint in &endpoints {
            calls.push(self.at(endpoint, body.clone(), None, Repeat::Safe, None));
        }
        let mut answers = Vec::new();
        for (endpoint, answer) in endpoints.iter().zip(join_all(calls).await) {
            answers.push((self.core.shard(&endpoint.shard).await?.seed.clone(), answer?));
        }
        Ok(answers)
    }

    /// Runs `listIndexes` on the first shard that owns chunks: all owners have the same indexes.
    pub(super) async fn list_indexes(&self, body: &Document) -> Result<Answer, Failure> {
        let namespace = Namespace::of(body)?;
        if namespace.is_on_config() {
            return self.open_on_config(body.clone()).await;
        }
        let mut staleness = self.staleness(&namespace);
        loop {
            match self.list_indexes_once(&namespace, body).await {
                Err(failure) if staleness.again(&failure) => staleness.pause().await,
                outcome => return outcome,
            }
        }
    }

    async fn list_indexes_once(
        &self,
        namespace: &Namespace,
        body: &Document,
    ) -> Result<Answer, Failure> {
        let endpoint = match self.core.placement(namespace, false).await? {
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
    }

    /// Runs `listCollections` on the database's primary shard, which has all of the database's collections.
    pub(super) async fn list_collections(&self, body: &Document) -> Result<Answer, Failure> {
        let database = database_of(body).to_owned();
        if is_config_database(&database) {
            return self.open_on_config(body.clone()).await;
        }
        let (shard, version) = match self.primary_of(&database, false).await {
            Err(failure) if failure.code() == code::NAMESPACE_NOT_FOUND => {
                let namespace = format!("{database}.$cmd.listCollections");
                return super::answer::cursor_answer(0, &namespace, "firstBatch", &[]);
            }
            primary => primary?,
        };
        let mut body = body.clone();
        body.insert("databaseVersion", version);
        self.open_at(&shard.id, body).await
    }

    /// Runs the command `body`, which opens a cursor, on the primary of the shard `shard`, and records the cursor's
    /// location.
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
}

/// Returns `answer`, each of its two times replaced by the latest of itself and `others`.
pub(super) fn merge_times(answer: Answer, others: &[(String, Answer)]) -> Result<Answer, Failure> {
    Ok(others.iter().fold(answer, |merged, (_, other)| merged.not_before(other)))
}

/// Replaces the write concern of `body` by `majority` with the given or a default time-out: changes of the catalog
/// must be durable on a majority before they are reported.
pub(super) fn with_majority(body: &mut Document) {
    let wtimeout = body
        .get_document("writeConcern")
        .ok()
        .and_then(|concern| integer(concern, "wtimeout"))
        .unwrap_or(60_000);
    body.insert("writeConcern", doc! { "w": "majority", "wtimeout": wtimeout });
}
