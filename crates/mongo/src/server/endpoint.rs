//! A connection to one cluster, which determines the cluster's shape, version and identity, and runs commands on it.
//!
//! Invariant: only idempotent operations are retried here, and all printed text is redacted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bson::{Bson, Document, RawDocumentBuf, doc};
use futures_util::future::join_all;
use mongodb::error::ErrorKind;
use mongodb::options::{
    ClientOptions, ReadPreference, ReadPreferenceOptions, SelectionCriteria, ServerAddress,
};
use mongodb::{Client, ClusterTime};

use crate::error::{Error, Result, code, redacted_message};

mod answers;
mod connection_string;
mod identity;
mod time;

use identity::identity_of;
pub use identity::is_same_cluster;
pub use time::operation_time;

/// The kind of a cluster: replica set or sharded cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A replica set with this name.
    ReplicaSet(String),
    /// A sharded cluster, reached through a router.
    Sharded,
}

/// A connection to one cluster, or to a shard or member of it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Endpoint {
    client: Client,
    /// The options of the connection, with the credentials, which `Debug` of the options does not print.
    options: Box<ClientOptions>,
    shape: Shape,
    /// Server version: major, minor, patch, for example `[6, 0, 5]`.
    version: [i32; 3],
    role: &'static str,
    redacted: String,
    identity: String,
    /// The counter of [`Endpoint::finds`], which the endpoints of a cluster, its shards and its members share.
    finds: Arc<AtomicU64>,
}

/// Longest wait for the first reply of a cluster, in milliseconds; set by [`reach_within`].
static REACHED_WITHIN_MS: AtomicU64 = AtomicU64::new(5_000);

/// Sets this process's longest wait for the first reply of a cluster in [`Endpoint::connect`].
pub fn reach_within(max: Duration) {
    let max_ms = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
    REACHED_WITHIN_MS.store(max_ms, Ordering::Relaxed);
}

const SELECTION_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause before the next attempt if a member of the cluster reports that it has no replica set yet.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for a shard's reply by callers that can also use the router.
const SHARD_REACHED_WITHIN: Duration = Duration::from_secs(5);

impl Endpoint {
    /// Connects to the cluster at `uri` and determines its shape. `role`, for messages: `source` or `destination`.
    ///
    /// # Errors
    /// Usage for a connection string that cannot be parsed; precondition for a cluster that does not reply in time
    /// (see [`reach_within`]; 5 s by default), refuses the credentials, or is a standalone server.
    #[crate::boxed]
    pub async fn connect(uri: &str, role: &'static str) -> Result<Self> {
        let mut options = connection_string::read(uri, role).await?;
        options.app_name.get_or_insert_with(|| "imago".into());
        options.server_selection_timeout.get_or_insert(SELECTION_TIMEOUT);
        options.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
        let redacted = redacted(&options);
        let client = Client::with_options(options.clone())
            .map_err(|error| unanswered(role, &redacted, &error))?;
        let admin = client.database("admin");
        let ask = |command: Document| admin.run_command(command);
        // Any member may reply: during an election there is no primary.
        let nearest = ReadPreference::Nearest { options: None };
        let nearest = SelectionCriteria::ReadPreference(nearest);
        let within = Duration::from_millis(REACHED_WITHIN_MS.load(Ordering::Relaxed));
        let began = Instant::now();
        let hello = loop {
            let asked = ask(doc! {"hello": 1}).selection_criteria(nearest.clone()).into_future();
            let hello = match tokio::time::timeout(within, asked).await {
                Ok(Ok(hello)) => hello,
                Ok(Err(error)) if !matches!(*error.kind, ErrorKind::ServerSelection { .. }) => {
                    return Err(unanswered(role, &redacted, &error));
                }
                Ok(Err(_)) | Err(_) => {
                    let answers::Diagnosis { cause, help } =
                        Box::pin(answers::diagnose(&options, within)).await;
                    return Err(Error::Unreachable { role, cluster: redacted, cause, help });
                }
            };
            // The driver may have selected a member that was just removed from its set, or that is just starting.
            let has_no_set = hello.get_bool("isreplicaset").unwrap_or(false);
            if !has_no_set || began.elapsed() > within {
                break hello;
            }
            tokio::time::sleep(ASK_AGAIN).await;
        };
        let shape = shape_of(&hello).ok_or_else(|| {
            Error::precondition(
                format!("the {role} {redacted} is a standalone server, which keeps no oplog"),
                "restart it with --replSet and run rs.initiate(), even with a single member",
            )
        })?;
        let build =
            ask(doc! {"buildInfo": 1}).await.map_err(|e| unanswered(role, &redacted, &e))?;
        let version = version_of(&build);
        let identity = identity_of(&client, &shape, &hello).await;
        let options = Box::new(options);
        let finds = Arc::default();
        Ok(Self { client, options, shape, version, role, redacted, identity, finds })
    }

    /// Returns the driver's client of this connection.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns a client of other servers with the same user, such as a shard's: `hosts`, of the replica set `set`
    /// (empty if unknown). They need not exist: an operation fails if no server replies within `max`.
    pub(crate) fn sibling(
        &self,
        hosts: Vec<ServerAddress>,
        set: &str,
        max: Duration,
    ) -> mongodb::error::Result<Client> {
        let mut options = (*self.options).clone();
        options.hosts = hosts;
        options.repl_set_name = (!set.is_empty()).then(|| set.to_owned());
        options.load_balanced = None;
        options.direct_connection = None;
        options.srv_max_hosts = None;
        options.server_selection_timeout = Some(max);
        options.connect_timeout = Some(max);
        Client::with_options(options)
    }

    /// Connects to a shard of this cluster, past the router, as the same user. `host` is written as in
    /// `config.shards`. The connection's role is `destination`, since the shard is written to.
    ///
    /// # Errors
    /// Fails if the shard does not reply within `max`, or does not accept the user.
    #[crate::boxed]
    pub async fn shard(&self, host: &str, max: Duration) -> Result<Self> {
        let (set, members) = host.split_once('/').unwrap_or(("", host));
        let failed =
            |error: mongodb::error::Error| Error::server(format!("reaching {host}"), error);
        let hosts = members.split(',').map(ServerAddress::parse);
        let hosts = hosts.collect::<Result<Vec<_>, _>>().map_err(failed)?;
        let client = self.sibling(hosts, set, max).map_err(failed)?;
        let shard = Self {
            client,
            options: self.options.clone(),
            shape: Shape::ReplicaSet(set.to_owned()),
            version: self.version,
            role: "destination",
            redacted: host.to_owned(),
            identity: host.to_owned(),
            finds: Arc::clone(&self.finds),
        };
        shard.run("admin", doc! {"ping": 1}).await?;
        Ok(shard)
    }

    /// Returns a connection to the member `host` of this replica set (written as in the set's configuration), as the
    /// same user. An operation fails if the member does not reply within `max`: no other member replaces it.
    ///
    /// # Errors
    /// Fails if `host` is no address.
    pub fn member(&self, host: &str, max: Duration) -> Result<Self> {
        let failed =
            |error: mongodb::error::Error| Error::server(format!("reaching {host}"), error);
        let Shape::ReplicaSet(set) = &self.shape else { unreachable!("a router has no members") };
        let mut options = (*self.options).clone();
        options.hosts = vec![ServerAddress::parse(host).map_err(failed)?];
        options.repl_set_name = Some(set.clone());
        options.direct_connection = Some(true);
        options.load_balanced = None;
        options.srv_max_hosts = None;
        options.server_selection_timeout = Some(max);
        options.connect_timeout = Some(max);
        let client = Client::with_options(options).map_err(failed)?;
        let redacted = host.to_owned();
        Ok(Self { client, redacted, ..self.clone() })
    }

    /// Returns the replica sets that hold this cluster's documents, by name, past the router, with an error for each
    /// set that does not reply within 5 s. For a replica set, returns the set itself.
    ///
    /// # Errors
    /// Fails if the router does not list the shards.
    #[crate::boxed]
    pub async fn shards(&self) -> Result<Vec<(String, Result<Self>)>> {
        if let Shape::ReplicaSet(name) = &self.shape {
            return Ok(vec![(name.clone(), Ok(self.clone()))]);
        }
        let listed = self.run("admin", doc! {"listShards": 1}).await?;
        let entries = listed.get_array("shards").into_iter().flatten();
        let entries = entries
            .filter_map(Bson::as_document)
            .filter_map(|entry| Some((entry.get_str("_id").ok()?, entry.get_str("host").ok()?)));
        let reached = entries.map(|(name, host)| async move {
            (name.to_owned(), self.shard(host, SHARD_REACHED_WITHIN).await)
        });
        Ok(join_all(reached).await)
    }

    /// Returns this connection with another role in messages: `source` or `destination`.
    #[must_use]
    pub fn in_role(self, role: &'static str) -> Self {
        Self { role, ..self }
    }

    /// Returns the kind of the cluster: replica set or sharded cluster.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Returns true if the connection leads to a router of a sharded cluster.
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        self.shape == Shape::Sharded
    }

    /// Returns the version of the cluster's server: major, minor, patch.
    #[must_use]
    pub fn version(&self) -> [i32; 3] {
        self.version
    }

    /// Returns the role of the cluster in messages: `source` or `destination`.
    #[must_use]
    pub fn role(&self) -> &'static str {
        self.role
    }

    /// Returns the connection string of the cluster without user, password and options.
    #[must_use]
    pub fn redacted(&self) -> &str {
        &self.redacted
    }

    /// Returns the identity of the cluster, which does not depend on its address: see [`is_same_cluster`].
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Returns the number of counted finds that this process has sent to the cluster, through the router or past it.
    /// A server's own count includes those that reached that server; the rest of its count is other clients'.
    pub(crate) fn finds(&self) -> u64 {
        self.finds.load(Ordering::SeqCst)
    }

    /// Adds one to [`Endpoint::finds`]. Called before each find of those that a job sends in large numbers.
    pub(crate) fn count_find(&self) {
        self.finds.fetch_add(1, Ordering::SeqCst);
    }

    /// Runs `command` in the database `db`, on the primary (or through the router), and returns the reply.
    ///
    /// # Errors
    /// Returns the server's error, with the command's name and database; [`Error::Transient`] if there is no reply
    /// within [`ANSWER_MAX`].
    #[crate::boxed]
    pub async fn run(&self, db: &str, command: Document) -> Result<Document> {
        let doing = self.doing(db, &command);
        answer(&doing, self.run_at_length(db, command)).await?
    }

    /// Runs a command that may take long, such as an index build: the wait for the reply is not limited.
    ///
    /// # Errors
    /// Returns the server's error, with the command's name and database.
    #[crate::boxed]
    pub async fn run_at_length(&self, db: &str, command: Document) -> Result<Document> {
        let doing = self.doing(db, &command);
        let db = self.client.database(db);
        db.run_command(command).await.map_err(|error| Error::server(doing, error))
    }

    /// Runs the command `name`, which is given as raw bytes, as [`Endpoint::run`] does.
    ///
    /// # Errors
    /// Fails as [`Endpoint::run`] does.
    #[crate::boxed]
    pub async fn run_raw(&self, db: &str, name: &str, command: RawDocumentBuf) -> Result<Document> {
        let doing = format!("{name} on the {} {db}", self.role);
        let db = self.client.database(db);
        let reply = answer(&doing, db.run_raw_command(command).into_future()).await?;
        reply.map_err(|error| Error::server(doing, error))
    }

    fn doing(&self, db: &str, command: &Document) -> String {
        let name = command.keys().next().map_or("a command", String::as_str);
        format!("{name} on the {} {db}", self.role)
    }
}

impl Endpoint {
    /// Writes a no-op entry into the oplog of every shard, which advances the shard's cluster time; does nothing for
    /// a replica set. A cluster's change stream is only as far as its idlest shard, and a shard without writes
    /// advances only every ten seconds. Returns false if this user lacks the action `appendOplogNote`.
    ///
    /// # Errors
    /// Fails if a shard does not reply.
    #[crate::boxed]
    pub async fn heartbeat(&self) -> Result<bool> {
        if !self.is_sharded() {
            return Ok(true);
        }
        // A stream returns changes that a majority has, and the journal is written only every 100 ms unless a write
        // waits for it.
        let note = doc! {
            "appendOplogNote": 1, "data": {"imago": "the time passes here too"},
            "writeConcern": {"w": "majority"},
        };
        match self.run("admin", note).await {
            Ok(_) => Ok(true),
            // Unauthorized, CommandNotFound
            Err(Error::Server { cause, .. }) if matches!(code(&cause), Some(13 | 59)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Advances this server's cluster time to the one in another server's `reply`: a server refuses to read after a
    /// time that it has not received.
    ///
    /// # Errors
    /// Fails if the server does not reply, or `reply` has no time.
    #[crate::boxed]
    pub async fn advance_cluster_time(&self, reply: &Document) -> Result<()> {
        let doing = "telling a shard the time";
        let time = reply.get_document("$clusterTime").map_err(|e| Error::malformed(doing, e))?;
        let time = bson::deserialize_from_document::<ClusterTime>(time.clone())
            .map_err(|e| Error::malformed(doing, e))?;
        let tell = async {
            let mut session = self.client.start_session().await?;
            session.advance_cluster_time(&time);
            let admin = self.client.database("admin");
            admin.run_command(doc! {"ping": 1}).session(&mut session).await
        };
        answer(doing, tell).await?.map(|_| ()).map_err(|error| Error::server(doing, error))
    }

    /// Returns true if the endpoint has the last acknowledged writes: it is a router, or a replica set with its
    /// primary. A single other member lags, and by any time if it is a delayed one.
    ///
    /// # Errors
    /// Fails if the cluster does not reply.
    pub async fn has_last_writes(&self) -> Result<bool> {
        let reply = self.run("admin", doc! {"hello": 1}).await?;
        Ok(self.is_sharded() || reply.get_bool("isWritablePrimary").unwrap_or(true))
    }
}

/// Longest wait for a reply that a server sends at once: only it detects a suspended server or a cut connection.
pub const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Awaits the request `work` for at most [`ANSWER_MAX`], and returns its result. `doing` names it in the error.
///
/// # Errors
/// Returns [`Error::Transient`] if there is no reply within [`ANSWER_MAX`].
pub async fn answer<T>(doing: &str, work: impl Future<Output = T>) -> Result<T> {
    answer_within(ANSWER_MAX, doing, work).await
}

/// Awaits the request `work` as [`answer`] does, but for at most `max`.
///
/// # Errors
/// Returns [`Error::Transient`] if there is no reply within `max`.
pub async fn answer_within<T>(
    max: Duration,
    doing: &str,
    work: impl Future<Output = T>,
) -> Result<T> {
    tokio::time::timeout(max, Box::pin(work)).await.map_err(|_| Error::Transient {
        doing: doing.to_owned(),
        cause: format!("no answer within {} s", max.as_secs()),
    })
}

/// Returns the criteria by which reads use a secondary if there is one, else the primary.
#[must_use]
pub fn prefer_secondary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::SecondaryPreferred {
        options: Some(ReadPreferenceOptions::default()),
    })
}

/// Returns the criteria by which reads use the primary only.
#[must_use]
pub fn primary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::Primary)
}

fn shape_of(hello: &Document) -> Option<Shape> {
    if hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid") {
        return Some(Shape::Sharded);
    }
    hello.get_str("setName").ok().map(|name| Shape::ReplicaSet(name.to_owned()))
}

fn version_of(build: &Document) -> [i32; 3] {
    let part = |index: usize| {
        let parts = build.get_array("versionArray").ok();
        parts.and_then(|parts| parts.get(index)).and_then(bson::Bson::as_i32).unwrap_or(0)
    };
    [part(0), part(1), part(2)]
}

fn redacted(options: &ClientOptions) -> String {
    let hosts: Vec<String> = options.hosts.iter().map(ServerAddress::to_string).collect();
    let user = if options.credential.is_some() { "***@" } else { "" };
    format!("mongodb://{user}{}", hosts.join(","))
}

fn unanswered(role: &'static str, cluster: &str, error: &mongodb::error::Error) -> Error {
    let cluster = cluster.to_owned();
    let cause = redacted_message(error);
    let refused = matches!(error.kind.as_ref(), ErrorKind::Authentication { .. })
        || matches!(crate::error::code(error), Some(18 | 11 | 13))
        || cause.contains("Authentication failed");
    if refused {
        Error::Credentials { role, cluster, cause }
    } else {
        let help = "check the host, the port, the replica set's name and the network path".into();
        Error::Unreachable { role, cluster, cause, help }
    }
}
