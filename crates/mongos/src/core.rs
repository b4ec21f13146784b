//! The state that all connections of the router share, and the functions that run commands on the servers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bson::raw::RawDocument;
use bson::{Bson, Document, Timestamp, doc};
use tokio::time::sleep;

use super::answer::{Answer, Failure, code};
use super::backend::{Documents, Pool};
use super::catalog::{Catalog, Placement, Sharded};
use super::concerns::Defaults;
use super::cursors::Cursors;
use super::scram::KeyCache;
use super::streams::Streams;
use super::threads::Threads;
use super::topology::{ReplicaSet, Shards};
use super::transactions::Transactions;
use crate::User;

/// Limit of the attempts at one command on a primary, while it was certainly not executed yet or is safe to repeat;
/// also of the attempts to read a collection's catalog consistently.
const ATTEMPTS: usize = 4;
/// Limit of the retries of one command because of stale routing data: as many as a `mongos` makes.
pub(super) const STALE_ROUNDS: u32 = 10;

/// The highest cluster time (`$clusterTime`) seen, as signed by the servers. It is sent to every node, which makes a
/// later write on any node later than everything that any client has seen.
#[derive(Debug, Default)]
pub(super) struct Clock(Mutex<Option<(Timestamp, Document)>>);

impl Clock {
    /// Advances the clock to `gossip`, the value of a `$clusterTime` field, if that is later.
    pub(super) fn advance(&self, gossip: &Document) {
        let Ok(time) = gossip.get_timestamp("clusterTime") else { return };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.as_ref().is_none_or(|(known, _)| *known < time) {
            *known = Some((time, gossip.clone()));
        }
    }

    fn advance_raw(&self, answer: &RawDocument) {
        if let Ok(gossip) = answer.get_document("$clusterTime")
            && let Ok(gossip) = Document::try_from(gossip)
        {
            self.advance(&gossip);
        }
    }

    /// Returns the cluster time and the signed document to send as `$clusterTime`; `None` before a server has
    /// reported one.
    pub(super) fn now(&self) -> Option<(Timestamp, Document)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// States whether a command may be sent again when it is unknown whether it was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// The command may be sent again: it only reads, or the servers recognise a repetition.
    Safe,
    /// The command may be sent again only if it was certainly not executed.
    Never,
}

/// State that all connections of one router share.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) pool: Pool,
    pub(super) config: Arc<ReplicaSet>,
    pub(super) shards: Shards,
    pub(super) catalog: Catalog,
    pub(super) clock: Clock,
    pub(super) cursors: Cursors,
    pub(super) defaults: Defaults,
    pub(super) streams: Streams,
    pub(super) transactions: Transactions,
    pub(super) users: Vec<Arc<User>>,
    pub(super) keys: KeyCache,
    /// User as which the router itself reads the catalog (the administrator); `None` without authorization.
    pub(super) own_user: Option<Arc<User>>,
    pub(super) threads: Threads,
    pub(super) started: Instant,
    next_route: AtomicUsize,
}

impl Core {
    pub(super) fn new(config_seed: &str, users: Vec<User>, threads: Threads) -> Self {
        let users: Vec<_> = users.into_iter().map(Arc::new).collect();
        Self {
            pool: Pool::default(),
            config: Arc::new(ReplicaSet::new("config", config_seed)),
            shards: Shards::default(),
            catalog: Catalog::default(),
            clock: Clock::default(),
            cursors: Cursors::default(),
            defaults: Defaults::default(),
            streams: Streams::default(),
            transactions: Transactions::default(),
            own_user: users.first().cloned(),
            users,
            keys: KeyCache::default(),
            threads,
            started: Instant::now(),
            next_route: AtomicUsize::new(0),
        }
    }

    /// Runs the command `body` on the node at `address` as `user`, exchanges the cluster time with the node, and
    /// returns its reply.
    pub(super) async fn on_node(
        &self,
        user: Option<&Arc<User>>,
        address: &str,
        mut body: Document,
        documents: Documents<'_>,
    ) -> Result<Answer, Failure> {
        if let Some((_, gossip)) = self.clock.now() {
            body.insert("$clusterTime", gossip);
        }
        let answer = self.pool.call(address, user, &body, documents).await?;
        self.clock.advance_raw(answer.raw());
        Ok(answer)
    }

    /// Runs the command `body` on the primary of `set` as `user`. If the primary is gone or has stepped down, the
    /// command is sent to the new one, up to [`ATTEMPTS`] times and as far as `repeat` permits.
    pub(super) async fn on_primary(
        &self,
        user: Option<&Arc<User>>,
        set: &ReplicaSet,
        body: Document,
        documents: Documents<'_>,
        repeat: Repeat,
    ) -> Result<Answer, Failure> {
        let mut attempt = 1;
        loop {
            let address = set.primary(&self.pool).await?;
            let failure = match self.on_node(user, &address, body.clone(), documents).await {
                Ok(answer) => return Ok(answer),
                Err(failure) if code::is_retryable(failure.code()) => failure,
                Err(failure) => return Err(failure),
            };
            set.forget(&address);
            let untouched = !failure.unanswered
                && (code::is_not_primary(failure.code())
                    || failure.code() == code::HOST_UNREACHABLE);
            if attempt >= ATTEMPTS || (repeat == Repeat::Never && !untouched) {
                return Err(failure);
            }
            attempt += 1;
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Runs the command `body` on the primary of the config server as `user`.
    pub(super) async fn on_config(
        &self,
        user: Option<&Arc<User>>,
        body: Document,
        repeat: Repeat,
    ) -> Result<Answer, Failure> {
        self.on_primary(user, &self.config, body, None, repeat).await
    }

    /// Returns the shard with the id `id`. If the id is unknown, the list of shards is read again first.
    pub(super) async fn shard(&self, id: &str) -> Result<Arc<ReplicaSet>, Failure> {
        if let Some(shard) = self.shards.get(id) {
            return Ok(shard);
        }
        self.reload_shards().await?;
        let unknown = || Failure::new(code::SHARD_NOT_FOUND, format!("Shard {id} not found"));
        self.shards.get(id).ok_or_else(unknown)
    }

    /// Returns all shards of the cluster, ordered by id; an error if there are none.
    pub(super) async fn all_shards(&self) -> Result<Vec<Arc<ReplicaSet>>, Failure> {
        let known = self.shards.all();
        if !known.is_empty() {
            return Ok(known);
        }
        self.reload_shards().await?;
        let known = self.shards.all();
        if known.is_empty() {
            return Err(Failure::new(code::SHARD_NOT_FOUND, "the cluster has no shards yet"));
        }
        Ok(known)
    }

    /// Reads the list of shards from `config.shards` again.
    pub(super) async fn reload_shards(&self) -> Result<(), Failure> {
        let listed = self.read_config("shards", doc! {}, doc! {}).await?;
        self.shards.replace(&listed);
        Ok(())
    }

    /// Returns the shard through whose primary the routed (`cluster…`) commands of connection `connection_number` go.
    pub(super) async fn route(&self, connection_number: usize) -> Result<Arc<ReplicaSet>, Failure> {
        let shards = self.all_shards().await?;
        Ok(Arc::clone(&shards[connection_number % shards.len()]))
    }

    /// Returns the number of a new client connection.
    pub(super) fn next_connection_number(&self) -> usize {
        self.next_route.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns all documents of the collection `config.COLLECTION` that match `filter`, ordered by `sort`.
    pub(super) async fn read_config(
        &self,
        collection: &str,
        filter: Document,
        sort: Document,
    ) -> Result<Vec<Document>, Failure> {
        let mut documents = Vec::new();
        let find = doc! {
            "find": collection, "filter": filter, "sort": sort, "$db": "config",
            "readConcern": { "level": "majority" },
        };
        let user = self.own_user.as_ref();
        let address = self.config.primary(&self.pool).await?;
        let answer = self.on_config(user, find, Repeat::Safe).await?;
        let mut answer = answer.document()?;
        loop {
            let cursor = answer.get_document("cursor").map_err(Failure::malformed)?;
            for batch in ["firstBatch", "nextBatch"] {
                let batch = cursor.get_array(batch).into_iter().flatten();
                documents.extend(batch.filter_map(Bson::as_document).cloned());
            }
            let id = cursor.get_i64("id").unwrap_or(0);
            if id == 0 {
                return Ok(documents);
            }
            let more = doc! { "getMore": id, "collection": collection, "$db": "config" };
            answer = self.on_node(user, &address, more, None).await?.document()?;
        }
    }

    /// Returns the placement of the collection `namespace`, from the cache or the config server. If its database does
    /// not exist, the database is created if `create` is true; else this is an error.
    pub(super) async fn placement(
        &self,
        namespace: &Namespace,
        create: bool,
    ) -> Result<Placement, Failure> {
        let name = namespace.to_string();
        if let Some(known) = self.catalog.get(&name) {
            return Ok(known);
        }
        let database = match self.database(&namespace.database).await? {
            Some(database) => database,
            None if create => self.create_database(&namespace.database, None).await?,
            None => {
                let message = format!("database {} not found", namespace.database);
                return Err(Failure::new(code::NAMESPACE_NOT_FOUND, message));
            }
        };
        let primary = database.get_str("primary").map_err(Failure::malformed)?.to_owned();
        let placement = match self.read_sharded(&name).await? {
            Some(sharded) => Placement::Sharded(Arc::new(sharded)),
            None => Placement::Unsharded {
                shard: primary,
                database_version: database
                    .get_document("version")
                    .map_err(Failure::malformed)?
                    .clone(),
            },
        };
        self.catalog.put(&name, &placement);
        Ok(placement)
    }

    /// Reads the entry and the chunks of the collection `name` (`DATABASE.COLLECTION`) consistently. Returns `None`
    /// if it is not sharded.
    async fn read_sharded(&self, name: &str) -> Result<Option<Sharded>, Failure> {
        for _ in 0..ATTEMPTS {
            let Some(entry) = self.collection_entry(name).await? else { return Ok(None) };
            let by_uuid = doc! { "uuid": entry.get("uuid").cloned() };
            let chunks = self.read_config("chunks", by_uuid, doc! { "min": 1 }).await?;
            // A collection that was resharded or dropped meanwhile has a different entry.
            let still = self.collection_entry(name).await?;
            let same = still.is_some_and(|still| {
                ["uuid", "timestamp", "lastmodEpoch"].map(|key| still.get(key) == entry.get(key))
                    == [true; 3]
            });
            if same && !chunks.is_empty() {
                return Ok(Some(Sharded::new(entry, chunks)));
            }
        }
        let message = format!("the catalog of {name} changes faster than it can be read");
        Err(Failure::new(code::STALE_CONFIG, message))
    }

    /// Reads the entry of the sharded collection `name` (`DATABASE.COLLECTION`) in `config.collections`; `None` if
    /// there is none.
    pub(super) async fn collection_entry(&self, name: &str) -> Result<Option<Document>, Failure> {
        let mut found = self.read_config("collections", doc! { "_id": name }, doc! {}).await?;
        // The target of a resharding is not a collection yet.
        Ok(found.pop().filter(|entry| !entry.get_bool("dropped").unwrap_or(false)))
    }

    /// Reads the entry of the database `name` in `config.databases`; `None` if there is none.
    pub(super) async fn database(&self, name: &str) -> Result<Option<Document>, Failure> {
        Ok(self.read_config("databases", doc! { "_id": name }, doc! {}).await?.pop())
    }

    /// Creates the database `name`, with the shard `primary` or one that the config server chooses as primary shard,
    /// and returns its entry in `config.databases`.
    pub(super) async fn create_database(
        &self,
        name: &str,
        primary: Option<&str>,
    ) -> Result<Document, Failure> {
        let mut create = doc! { "_configsvrCreateDatabase": name };
        if let Some(primary) = primary {
            create.insert("primaryShardId", primary);
        }
        create.insert("writeConcern", doc! { "w": "majority", "wtimeout": 60_000 });
        create.insert("$db", "admin");
        self.on_config(self.own_user.as_ref(), create, Repeat::Safe).await?;
        let created = self.database(name).await?;
        let missing = || Failure::malformed(format!("database {name} is not where it was made"));
        created.ok_or_else(missing)
    }
}

/// Full name of a collection: database and collection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Namespace {
    pub(super) database: String,
    pub(super) collection: String,
}

impl Namespace {
    /// Returns the collection to which a command applies, from the value of the command's first field and its `$db`.
    pub(super) fn of(body: &Document) -> Result<Self, Failure> {
        let collection = body.values().next().and_then(Bson::as_str);
        let collection = collection.filter(|name| !name.is_empty()).ok_or_else(|| {
            let command = body.keys().next().map_or("", String::as_str);
            Failure::new(73, format!("collection name of `{command}` must be a non-empty string"))
        })?;
        Ok(Self { database: database_of(body).to_owned(), collection: collection.to_owned() })
    }

    /// Parses the text `DATABASE.COLLECTION`.
    pub(super) fn parse(full: &str) -> Result<Self, Failure> {
        let parts =
            full.split_once('.').filter(|(left, right)| !left.is_empty() && !right.is_empty());
        let (database, collection) =
            parts.ok_or_else(|| Failure::new(73, format!("{full:?} is not a full name")))?;
        Ok(Self { database: database.to_owned(), collection: collection.to_owned() })
    }

    /// Returns true if the collection belongs to a database on the config server (`admin` or `config`).
    pub(super) fn is_on_config(&self) -> bool {
        is_config_database(&self.database)
    }
}

impl std::fmt::Display for Namespace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.database, self.collection)
    }
}

/// Returns true for the databases on the config server, `admin` and `config`.
pub(super) fn is_config_database(name: &str) -> bool {
    matches!(name, "admin" | "config")
}

/// Returns the database to which the command `body` applies: its `$db`, or `admin` if it has none.
pub(super) fn database_of(body: &Document) -> &str {
    body.get_str("$db").unwrap_or("admin")
}
