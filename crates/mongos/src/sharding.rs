//! Administration of a sharded cluster: sharding, splitting, moving, the balancer, resharding, shards, the write
//! block. Each command is translated to the one that a `mongos` sends to the config server or to the database's
//! primary shard.

use std::sync::Arc;

use bson::{Bson, Document, RawDocumentBuf, doc};

use super::answer::{Answer, Failure, code, integer};
use super::caller::Caller;
use super::caller::copy;
use super::catalog::{Placement, Sharded};
use super::core::{Namespace, Repeat};
use super::ddl::with_majority;
use super::shard_key::Located;

/// Administrative commands that the config server executes under another name: the client's name, the config server's
/// name, the fields that are copied, and whether the command gets a majority write concern.
const CONFIG_COMMANDS: [(&str, &str, &[&str], bool); 14] = [
    ("balancerStart", "_configsvrBalancerStart", &["maxTimeMS"], false),
    ("balancerStop", "_configsvrBalancerStop", &["maxTimeMS"], false),
    ("balancerStatus", "_configsvrBalancerStatus", &["maxTimeMS"], false),
    ("balancerCollectionStatus", "_configsvrBalancerCollectionStatus", &[], false),
    ("addShard", "_configsvrAddShard", &["name", "maxSize"], true),
    ("addshard", "_configsvrAddShard", &["name", "maxSize"], true),
    ("removeShard", "_configsvrRemoveShard", &[], true),
    ("addShardToZone", "_configsvrAddShardToZone", &["zone"], true),
    ("removeShardFromZone", "_configsvrRemoveShardFromZone", &["zone"], true),
    ("updateZoneKeyRange", "_configsvrUpdateZoneKeyRange", &["min", "max", "zone"], true),
    (
        "reshardCollection",
        "_configsvrReshardCollection",
        &["key", "unique", "numInitialChunks", "collation", "zones", "_presetReshardedChunks"],
        true,
    ),
    ("abortReshardCollection", "_configsvrAbortReshardCollection", &[], true),
    ("commitReshardCollection", "_configsvrCommitReshardCollection", &[], true),
    ("setUserWriteBlockMode", "_configsvrSetUserWriteBlockMode", &["global"], true),
];

/// Commands for which the client's user needs the cluster action of the same name. The config server requires only
/// the action of routers, which the testbed's application has, so the router checks the privilege.
const CLUSTER_ACTIONS: [&str; 3] = ["setUserWriteBlockMode", "addShard", "removeShard"];

impl Caller {
    /// Checks that the client's user has the privilege for `action` on the cluster; without login everything is
    /// allowed.
    async fn check_privilege(&self, action: &str) -> Result<(), Failure> {
        if self.user.is_none() {
            return Ok(());
        }
        let status = doc! { "connectionStatus": 1, "showPrivileges": true, "$db": "admin" };
        let status = self.on_config(status, Repeat::Safe).await?.document()?;
        let privileges = status
            .get_document("authInfo")
            .and_then(|info| info.get_array("authenticatedUserPrivileges"))
            .map_err(Failure::malformed)?;
        let allows = |privilege: &Document| {
            let on = privilege.get_document("resource").is_ok_and(|resource| {
                ["cluster", "anyResource"].iter().any(|key| resource.get_bool(key).unwrap_or(false))
            });
            let actions = privilege.get_array("actions").into_iter().flatten();
            on && actions.into_iter().any(|allowed| allowed.as_str() == Some(action))
        };
        if privileges.iter().filter_map(Bson::as_document).any(allows) {
            return Ok(());
        }
        let message = format!("not authorized on admin to execute command {action}");
        Err(Failure::new(code::UNAUTHORIZED, message))
    }

    /// Runs the command `body` on the config server if it is one of [`CONFIG_COMMANDS`]; returns `None` if it is not.
    pub(super) async fn administrate(&self, body: &Document) -> Option<Result<Answer, Failure>> {
        let (name, value) = body.iter().next()?;
        let (_, renamed, fields, majority) =
            CONFIG_COMMANDS.iter().find(|(client, ..)| client == name)?;
        if body.get_str("$db").is_ok_and(|database| database != "admin") {
            let message = format!("{name} may only be run against the admin database.");
            return Some(Err(Failure::new(code::UNAUTHORIZED, message)));
        }
        if CLUSTER_ACTIONS.contains(&&**name)
            && let Err(failure) = self.check_privilege(name).await
        {
            return Some(Err(failure));
        }
        let mut command = doc! { *renamed: value.clone() };
        copy(body, &mut command, fields);
        copy(body, &mut command, &["comment"]);
        if *majority {
            copy(body, &mut command, &["writeConcern"]);
            with_majority(&mut command);
        }
        command.insert("$db", "admin");
        let outcome = self.on_config(command, Repeat::Safe).await;
        if let Some(namespace) = value.as_str() {
            self.core.catalog.forget(namespace);
        }
        if matches!(&**name, "addShard" | "addshard" | "removeShard")
            && let Err(failure) = self.core.reload_shards().await
        {
            return Some(Err(failure));
        }
        Some(outcome)
    }

    /// Runs `listShards` by reading `config.shards`.
    pub(super) async fn list_shards(&self) -> Result<Answer, Failure> {
        // The command runs as the client's user, so that the servers check its privileges.
        self.on_config(doc! { "find": "shards", "$db": "config" }, Repeat::Safe)
            .await?
            .document()
            .and_then(|answer| {
                let cursor = answer.get_document("cursor").map_err(Failure::malformed)?;
                let shards = cursor.get_array("firstBatch").map_err(Failure::malformed)?;
                Answer::try_from(doc! { "shards": shards, "ok": 1.0 })
            })
    }

    /// Runs `enableSharding`, which since 6.0 only creates the database.
    pub(super) async fn enable_sharding(&self, body: &Document) -> Result<Answer, Failure> {
        let name = body.get_str("enableSharding").map_err(Failure::malformed)?;
        let mut create = doc! { "_configsvrCreateDatabase": name };
        if let Ok(primary) = body.get_str("primaryShard") {
            create.insert("primaryShardId", primary);
        }
        create.insert("$db", "admin");
        with_majority(&mut create);
        let created = self.on_config(create, Repeat::Safe).await?;
        created.with(&doc! { "ok": 1.0 })
    }

    /// Runs `shardCollection` through the database's primary shard.
    pub(super) async fn shard_collection(&self, body: &Document) -> Result<Answer, Failure> {
        let name = body.get_str("shardCollection").map_err(Failure::malformed)?;
        let namespace = Namespace::parse(name)?;
        let key = body.get_document("key").map_err(Failure::malformed)?;
        let mut create = doc! {
            "_shardsvrCreateCollection": &namespace.collection,
            "shardKey": key,
            "unique": body.get_bool("unique").unwrap_or(false),
        };
        copy(
            body,
            &mut create,
            &["numInitialChunks", "presplitHashedZones", "collation", "timeseries", "writeConcern"],
        );
        if let Some(chunks) = integer(&create, "numInitialChunks") {
            create.insert("numInitialChunks", chunks);
        }
        create.insert("$db", &namespace.database);
        with_majority(&mut create);
        let created = self.on_database(&namespace.database, true, &create, Repeat::Safe).await?;
        created.with(&doc! { "collectionsharded": name, "ok": 1.0 })
    }

    /// Returns the routing table of the sharded collection `name` (`DATABASE.COLLECTION`), read again from the config
    /// server.
    async fn sharded(&self, name: &str) -> Result<Arc<Sharded>, Failure> {
        let namespace = Namespace::parse(name)?;
        self.core.catalog.forget(name);
        match self.core.placement(&namespace, false).await? {
            Placement::Sharded(collection) => Ok(collection),
            Placement::Unsharded { .. } => {
                let message = format!("Collection {name} is not sharded.");
                Err(Failure::new(code::NAMESPACE_NOT_SHARDED, message))
            }
        }
    }

    /// Runs `split`, at a position (`middle`) or in the middle of a chunk (`find`, `bounds`).
    pub(super) async fn split(&self, body: &Document) -> Result<Answer, Failure> {
        let name = body.get_str("split").map_err(Failure::malformed)?;
        let collection = self.sharded(name).await?;
        let (entry, point) = if let Ok(middle) = body.get_document("middle") {
            (self.entry_at(name, &collection, middle, false).await?, middle.clone())
        } else if let Ok(query) = body.get_document("find") {
            let entry = self.entry_at(name, &collection, query, true).await?;
            let middle = self.middle_of(name, &collection, &entry).await?;
            (entry, middle)
        } else if let Ok([Bson::Document(min), _]) = body.get_array("bounds").map(|b| &**b) {
            let entry = self.entry_from(name, &collection, min)?;
            let middle = self.middle_of(name, &collection, &entry).await?;
            (entry, middle)
        } else {
            let message = "split needs one of middle, find, bounds";
            return Err(Failure::new(code::INVALID_OPTIONS, message));
        };
        let mut split = doc! {
            "_configsvrCommitChunkSplit": name,
            "collEpoch": collection.entry.get("lastmodEpoch").cloned(),
            "collTimestamp": collection.entry.get("timestamp").cloned(),
            "splitPoints": [point],
            "fromChunkManager": true,
        };
        copy(&entry, &mut split, &["min", "max", "shard"]);
        split.insert("$db", "admin");
        with_majority(&mut split);
        let outcome = self.on_config(split, Repeat::Never).await;
        self.core.catalog.forget(name);
        outcome?.with(&doc! { "ok": 1.0 })
    }

    /// Returns the entry in `config.chunks` of the chunk of the collection `name` that contains `place`. If `hash` is
    /// true, `place` is a document whose values are hashed for a hashed key, else a position in the form of a chunk's
    /// bound.
    async fn entry_at(
        &self,
        name: &str,
        collection: &Sharded,
        place: &Document,
        hash: bool,
    ) -> Result<Document, Failure> {
        let located = if hash {
            let raw = RawDocumentBuf::try_from(place).map_err(Failure::malformed)?;
            collection.key.of_document(&raw)?
        } else {
            Located::At(collection.key.bound(place))
        };
        let chunk = match &located {
            Located::At(place) => collection.chunk_at(place),
            _ => None,
        };
        let undecided = || {
            let message = format!("cannot tell which chunk of {name} holds {place}");
            Failure::new(code::INVALID_OPTIONS, message)
        };
        Ok(chunk.ok_or_else(undecided)?.entry.clone())
    }

    fn entry_from(
        &self,
        name: &str,
        collection: &Sharded,
        min: &Document,
    ) -> Result<Document, Failure> {
        let none = || {
            let message = format!("no chunk of {name} begins at {min}");
            Failure::new(code::INVALID_OPTIONS, message)
        };
        Ok(collection.chunk_from(min).ok_or_else(none)?.entry.clone())
    }

    /// Returns the shard key of the median document of the chunk `entry`, which the owning shard determines.
    async fn middle_of(
        &self,
        name: &str,
        collection: &Sharded,
        entry: &Document,
    ) -> Result<Document, Failure> {
        let shard = self.core.shard(entry.get_str("shard").unwrap_or_default()).await?;
        let mut median = doc! {
            "splitVector": name,
            "keyPattern": collection.entry.get("key").cloned(),
            "force": true,
        };
        copy(entry, &mut median, &["min", "max"]);
        median.insert("$db", "admin");
        let user = self.user.as_ref();
        let answer = self.core.on_primary(user, &shard, median, None, Repeat::Safe).await?;
        let answer = answer.document()?;
        let key = answer.get_array("splitKeys").ok().and_then(|keys| keys.first().cloned());
        match key {
            Some(Bson::Document(key)) => Ok(key),
            _ => Err(Failure::new(
                23,
                "cannot find a key in the middle of the chunk: it has too few documents",
            )),
        }
    }

    /// Runs `moveChunk` and `moveRange`; the chunk is given by `find`, `bounds`, or `min` and `max`.
    pub(super) async fn move_range(&self, body: &Document) -> Result<Answer, Failure> {
        let name = body.values().next().and_then(Bson::as_str).unwrap_or_default();
        let collection = self.sharded(name).await?;
        let to = body.get_str("to").or_else(|_| body.get_str("toShard"));
        let to = to.map_err(|_| {
            Failure::new(code::INVALID_OPTIONS, "moving a chunk needs the shard it moves to")
        })?;
        let mut moving = doc! { "_configsvrMoveRange": name, "toShard": to };
        if let Ok(query) = body.get_document("find") {
            let entry = self.entry_at(name, &collection, query, true).await?;
            copy(&entry, &mut moving, &["min", "max"]);
        } else if let Ok([Bson::Document(min), Bson::Document(max)]) =
            body.get_array("bounds").map(|bounds| &**bounds)
        {
            moving.extend([("min".into(), min.clone().into()), ("max".into(), max.clone().into())]);
        } else {
            copy(body, &mut moving, &["min", "max"]);
        }
        let wait = body.get_bool("waitForDelete").or_else(|_| body.get_bool("_waitForDelete"));
        moving.insert("waitForDelete", wait.unwrap_or(false));
        copy(body, &mut moving, &["secondaryThrottle", "forceJumbo", "writeConcern"]);
        if moving.get_bool("forceJumbo").is_ok() {
            let force = moving.get_bool("forceJumbo").unwrap_or(false);
            moving.insert("forceJumbo", i32::from(force));
        }
        moving.insert("$db", "admin");
        with_majority(&mut moving);
        let outcome = self.on_config(moving, Repeat::Safe).await;
        self.core.catalog.forget(name);
        outcome?.with(&doc! { "ok": 1.0 })
    }

    /// Runs `mergeChunks` on the chunks of one shard between two bounds.
    pub(super) async fn merge_chunks(&self, body: &Document) -> Result<Answer, Failure> {
        let name = body.get_str("mergeChunks").map_err(Failure::malformed)?;
        let collection = self.sharded(name).await?;
        let bounds = body.get_array("bounds").map_err(Failure::malformed)?;
        let [Bson::Document(min), Bson::Document(max)] = &**bounds else {
            return Err(Failure::new(code::INVALID_OPTIONS, "mergeChunks needs two bounds"));
        };
        let entry = self.entry_from(name, &collection, min)?;
        let range = doc! { "min": min, "max": max };
        let mut merge = doc! {
            "_configsvrCommitChunksMerge": name,
            "shard": entry.get("shard").cloned(),
            "collUUID": { "uuid": collection.entry.get("uuid").cloned() },
            "chunkRange": range,
            "$db": "admin",
        };
        with_majority(&mut merge);
        let outcome = self.on_config(merge, Repeat::Never).await;
        self.core.catalog.forget(name);
        outcome?.with(&doc! { "ok": 1.0 })
    }

    /// Runs `flushRouterConfig` for one collection, one database or everything; the router then reads the catalog
    /// again.
    pub(super) fn flush(&self, body: &Document) -> Result<Answer, Failure> {
        match body.values().next().and_then(Bson::as_str) {
            Some(name) if name.contains('.') => self.core.catalog.forget(name),
            Some(name) => self.core.catalog.forget_database(name),
            None => self.core.catalog.clear(),
        }
        Answer::try_from(doc! { "flushed": true, "ok": 1.0 })
    }

    /// Runs the command `body` on the primaries of all shards and of the config server, one after the other, until
    /// one fails. Returns the last reply.
    pub(super) async fn run_on_all_shards(&self, body: &Document) -> Result<Answer, Failure> {
        let mut sets = self.core.all_shards().await?;
        sets.push(Arc::clone(&self.core.config));
        let mut last = None;
        for set in sets {
            let user = self.user.as_ref();
            let run = self.core.on_primary(user, &set, body.clone(), None, Repeat::Safe).await?;
            last = Some(run);
        }
        last.ok_or_else(|| Failure::malformed("a cluster without nodes"))
    }
}
