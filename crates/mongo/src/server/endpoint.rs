//! One cluster: connected, recognised, and asked questions through one place.
//!
//! The invariant: only idempotent operations are retried here, and everything that is printed is redacted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bson::{Bson, Document, RawDocumentBuf, Timestamp, doc};
use futures_util::future::join_all;
use mongodb::error::ErrorKind;
use mongodb::options::{
    ClientOptions, ReadPreference, ReadPreferenceOptions, SelectionCriteria, ServerAddress,
};
use mongodb::{Client, ClusterTime};

use crate::error::{Error, Result, code, said};

mod identity;

use identity::identity_of;
pub use identity::is_same_cluster;

/// The kind of cluster that answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A replica set, by its name.
    ReplicaSet(String),
    /// A sharded cluster, behind a router.
    Sharded,
}

/// A connection to a cluster that has answered.
#[derive(Clone, Debug)]
pub struct Endpoint {
    client: Client,
    /// The options of the connection, with the credentials, which their own `Debug` does not show.
    options: Box<ClientOptions>,
    shape: Shape,
    /// Server version, e.g. `[6, 0, 5]`.
    version: [i32; 3],
    role: &'static str,
    redacted: String,
    identity: String,
    /// See [`Endpoint::finds`]; the cluster's, whichever of its servers this one reaches.
    finds: Arc<AtomicU64>,
}

/// Longest wait for the first answer of a cluster, in milliseconds; see [`reach_within`].
static REACHED_WITHIN_MS: AtomicU64 = AtomicU64::new(5_000);

/// Sets this process's longest wait for the first answer of a cluster.
pub fn reach_within(max: Duration) {
    let max_ms = u64::try_from(max.as_millis()).unwrap_or(u64::MAX);
    REACHED_WITHIN_MS.store(max_ms, Ordering::Relaxed);
}

const SELECTION_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause before a cluster is asked again whose member had no set to tell of.
const ASK_AGAIN: Duration = Duration::from_millis(100);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest wait of callers that can also go through the router.
const SHARD_REACHED_WITHIN: Duration = Duration::from_secs(5);

impl Endpoint {
    /// Connects to the cluster that `uri` names and finds its shape. `role` is `source` or
    /// `destination`, for messages.
    ///
    /// # Errors
    /// Usage for a connection string that cannot be parsed; precondition for a cluster that does
    /// not answer within 20 s, refuses the credentials, or is a standalone server.
    pub async fn connect(uri: &str, role: &'static str) -> Result<Self> {
        let mut options = ClientOptions::parse(uri).await.map_err(|error| {
            Error::usage(
                format!("the {role}'s connection string cannot be read: {}", said(&error)),
                "write it as mongodb://[user:password@]host:port[,…]/[?options]",
            )
        })?;
        options.app_name.get_or_insert_with(|| "imago".into());
        options.server_selection_timeout.get_or_insert(SELECTION_TIMEOUT);
        options.connect_timeout.get_or_insert(CONNECT_TIMEOUT);
        let redacted = redacted(&options);
        let client = Client::with_options(options.clone())
            .map_err(|error| unanswered(role, &redacted, &error))?;
        let admin = client.database("admin");
        let ask = |command: Document| admin.run_command(command);
        // Of any member: during an election there is no primary to ask.
        let nearest = ReadPreference::Nearest { options: None };
        let nearest = SelectionCriteria::ReadPreference(nearest);
        let within = Duration::from_millis(REACHED_WITHIN_MS.load(Ordering::Relaxed));
        let began = Instant::now();
        let hello = loop {
            let asked = ask(doc! {"hello": 1}).selection_criteria(nearest.clone()).into_future();
            let asked = tokio::time::timeout(within, asked).await;
            let answer = asked.map_err(|_| Error::Unreachable {
                role,
                cluster: redacted.clone(),
                cause: format!("no server answered within {:.1} s", within.as_secs_f64()),
            })?;
            let hello = answer.map_err(|e| unanswered(role, &redacted, &e))?;
            // The driver may ask a member that was taken out of its set at this moment, or that is just starting.
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

    /// The driver's client.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// A client of other servers that know the same user, such as a shard's, which need not exist:
    /// a server that does not answer within `max` is given up.
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

    /// A shard of this cluster, past the router, as the same user; `host` is as `config.shards` has
    /// it. In the role of a destination: it is written to.
    ///
    /// # Errors
    /// Fails if it does not answer within `max`, or does not know the user.
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

    /// One member of this replica set, as the same user, without a replacement when it does not answer
    /// within `max`. `host` is as the set's configuration has it.
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

    /// The replica sets that hold this cluster's documents, by name, past the router; an error for
    /// one that does not answer within 5 s. A replica set is its own only one.
    ///
    /// # Errors
    /// Fails if the router does not list them.
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

    /// The same cluster in the other role.
    #[must_use]
    pub fn in_role(self, role: &'static str) -> Self {
        Self { role, ..self }
    }

    /// Replica set or sharded cluster.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// True if the endpoint is a router.
    #[must_use]
    pub fn is_sharded(&self) -> bool {
        self.shape == Shape::Sharded
    }

    /// Server version: major, minor, patch.
    #[must_use]
    pub fn version(&self) -> [i32; 3] {
        self.version
    }

    /// `source` or `destination`.
    #[must_use]
    pub fn role(&self) -> &'static str {
        self.role
    }

    /// The connection string without user, password and options.
    #[must_use]
    pub fn redacted(&self) -> &str {
        &self.redacted
    }

    /// The identity of a cluster, however it is addressed: see [`is_same_cluster`].
    #[must_use]
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// Finds that this process has sent to the cluster, through the router or past it: a server
    /// counts no more than these of this process, and the rest of its count is others'.
    pub(crate) fn finds(&self) -> u64 {
        self.finds.load(Ordering::SeqCst)
    }

    /// To be called before a find is sent, of those that a job makes many of.
    pub(crate) fn count_find(&self) {
        self.finds.fetch_add(1, Ordering::SeqCst);
    }

    /// Runs one command on the primary (or through the router).
    ///
    /// # Errors
    /// The server's error, with the command's name and database; [`Error::Passing`] if it says
    /// nothing within [`ANSWER_MAX`].
    pub async fn run(&self, db: &str, command: Document) -> Result<Document> {
        let doing = self.doing(db, &command);
        answer(&doing, self.run_at_length(db, command)).await?
    }

    /// Runs a command that may rightly take long, such as an index build.
    ///
    /// # Errors
    /// The server's error, with the command's name and database.
    pub async fn run_at_length(&self, db: &str, command: Document) -> Result<Document> {
        let doing = self.doing(db, &command);
        let db = self.client.database(db);
        db.run_command(command).await.map_err(|error| Error::server(doing, error))
    }

    /// Like [`Endpoint::run`], for a command that is built from raw bytes.
    ///
    /// # Errors
    /// As [`Endpoint::run`].
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

    /// The cluster's time: every write that was acknowledged before the call is at or before it.
    ///
    /// A router alone knows only the operations that passed through it, and there may be others: so
    /// every shard is asked, by a command that any user may run.
    ///
    /// # Errors
    /// Fails if the cluster (with shards: any of them) does not answer, or answers without a time.
    pub async fn cluster_time(&self) -> Result<Timestamp> {
        let ask = match self.shape {
            Shape::ReplicaSet(_) => doc! {"ping": 1},
            Shape::Sharded => doc! {
                "listDatabases": 1, "nameOnly": true, "authorizedDatabases": true,
                "filter": {"name": "admin"},
            },
        };
        let reply = self.run("admin", ask).await?;
        operation_time(&reply).ok_or_else(|| {
            Error::malformed("asking for the time", "no operationTime (is it a replica set?)")
        })
    }

    /// A time that lies between: every write that was acknowledged before the call is at or before
    /// it, and every write that begins after the call is later.
    ///
    /// The second half is not free on a sharded cluster. Shards have clocks of their own, which
    /// meet when a client carries the time of one to another; until then a shard may still give
    /// out times that another one has passed. Asking all of them again carries it.
    ///
    /// # Errors
    /// As [`Endpoint::cluster_time`].
    pub async fn fence(&self) -> Result<Timestamp> {
        let time = self.cluster_time().await?;
        if self.is_sharded() {
            self.cluster_time().await?;
        }
        Ok(time)
    }
}

impl Endpoint {
    /// Has every shard write a note into its oplog: nothing of any collection, but a sign of the
    /// time. A cluster's change stream is only as far as its quietest shard, and one without writes
    /// lets only every tenth second pass. False if this user lacks the action `appendOplogNote`.
    ///
    /// # Errors
    /// Fails if a shard does not answer.
    pub async fn heartbeat(&self) -> Result<bool> {
        if !self.is_sharded() {
            return Ok(true);
        }
        // A stream shows changes that a majority has, and the journal is written every 100 ms
        // unless a write waits for it.
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

    /// Tells this server the time of its cluster, as another one gave it in `reply`: a server refuses
    /// to read after a time that it has not heard of.
    ///
    /// # Errors
    /// Fails if it does not answer, or `reply` has no time.
    pub async fn hear(&self, reply: &Document) -> Result<()> {
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

    /// Lead of this machine's clock over the cluster's, in ms, give or take a round trip; negative
    /// if it is behind.
    ///
    /// # Errors
    /// Fails if the cluster does not answer, or does not tell the time of day.
    pub async fn clock_ahead_ms(&self) -> Result<i64> {
        let reply = self.run("admin", doc! {"hello": 1}).await?;
        let there = reply.get_datetime("localTime");
        let there = there.map_err(|error| Error::malformed("hello", error))?;
        Ok(bson::DateTime::now().timestamp_millis() - there.timestamp_millis())
    }
}

/// Longest wait for an answer that a server gives at once. A server that is stopped, or cut off
/// without a sign, is noticed by nothing else.
pub const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Waits for a server's answer, but not for ever.
///
/// # Errors
/// [`Error::Passing`] when there is none within [`ANSWER_MAX`].
pub async fn answer<T>(doing: &str, work: impl Future<Output = T>) -> Result<T> {
    answer_within(ANSWER_MAX, doing, work).await
}

/// As [`answer`], for a request about which a server may rightly be silent for another time.
///
/// # Errors
/// [`Error::Passing`] when there is no answer within `max`.
pub async fn answer_within<T>(
    max: Duration,
    doing: &str,
    work: impl Future<Output = T>,
) -> Result<T> {
    tokio::time::timeout(max, Box::pin(work)).await.map_err(|_| Error::Passing {
        doing: doing.to_owned(),
        cause: format!("no answer within {} s", max.as_secs()),
    })
}

/// The `operationTime` of a reply.
#[must_use]
pub fn operation_time(reply: &Document) -> Option<Timestamp> {
    reply.get_timestamp("operationTime").ok()
}

/// Reads go to a secondary where there is one.
#[must_use]
pub fn prefer_secondary() -> SelectionCriteria {
    SelectionCriteria::ReadPreference(ReadPreference::SecondaryPreferred {
        options: Some(ReadPreferenceOptions::default()),
    })
}

/// Reads go to the primary.
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
    let cause = said(error);
    let refused = matches!(error.kind.as_ref(), ErrorKind::Authentication { .. })
        || matches!(crate::error::code(error), Some(18 | 11 | 13))
        || cause.contains("Authentication failed");
    if refused {
        Error::Credentials { role, cluster, cause }
    } else {
        Error::Unreachable { role, cluster, cause }
    }
}
