//! A whole cluster: a replica set, or shards with a config server and a router.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bson::doc;
use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};

use crate::auth::{Admin, Credentials, User};
use crate::binary;
use crate::error::{Error, Result};
use crate::front::Front;
use crate::process::ProcessId;
use crate::replica_set::{Purpose, ReplicaSet, Site};
use crate::scratch::Scratch;
use crate::server::Server;
use crate::times;

/// What to build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClusterSpec {
    /// The cluster's name; replica sets and nodes are named after it. Lower-case letters, digits
    /// and `-`, at most 32, beginning with a letter.
    pub name: String,
    /// The number of shards; `None` for a replica set alone.
    pub shards: Option<u32>,
    /// Members of the replica set, or of each shard.
    pub members: u32,
    /// With a key file, an administrator, and an application user who is not root.
    pub auth: bool,
    /// The storage engine's cache of each member, in MiB.
    pub cache_mb: u32,
    /// The oplog's size in MiB, kept within seconds; `None` leaves it to the server.
    pub oplog_mb: Option<u32>,
    /// How long members wait for a silent primary before they elect another, in milliseconds.
    pub election_timeout_ms: u32,
    /// Further server parameters (`--setParameter`) of each member, as name and value.
    pub parameters: Vec<(String, String)>,
    /// The folder below which data and logs are put; the system's temporary folder if `None`.
    pub folder: Option<PathBuf>,
    /// Whether its servers take only the processor time that others on the machine leave.
    pub yields_cpu: bool,
}

impl Default for ClusterSpec {
    fn default() -> Self {
        Self {
            name: "testbed".into(),
            shards: None,
            members: 1,
            auth: false,
            cache_mb: 256,
            oplog_mb: None,
            election_timeout_ms: 3_000,
            parameters: Vec::new(),
            folder: None,
            yields_cpu: false,
        }
    }
}

impl ClusterSpec {
    /// A replica set of `members`.
    #[must_use]
    pub fn replica_set(name: &str, members: u32) -> Self {
        Self { name: name.into(), members, ..Self::default() }
    }

    /// A sharded cluster of `shards`, each a replica set of one member.
    #[must_use]
    pub fn sharded(name: &str, shards: u32) -> Self {
        Self { name: name.into(), shards: Some(shards), ..Self::default() }
    }

    /// The same with authorisation.
    #[must_use]
    pub fn with_auth(self) -> Self {
        Self { auth: true, ..self }
    }

    /// The same with a server parameter set on each member.
    #[must_use]
    pub fn with_parameter(mut self, name: &str, value: &str) -> Self {
        self.parameters.push((name.into(), value.into()));
        self
    }

    /// Whether such a cluster can be built; the error says what to change.
    pub fn check(&self) -> Result<()> {
        let bad = |what: String| Err(Error::Spec(what));
        if !valid_name(&self.name) {
            return Err(Error::BadName { name: self.name.clone() });
        }
        if !(1..=7).contains(&self.members) {
            return bad(format!("{} members: a replica set votes with 1 to 7", self.members));
        }
        if let Some(shards) = self.shards.filter(|shards| !(1..=32).contains(shards)) {
            return bad(format!("{shards} shards: it must be 1 to 32 on one machine"));
        }
        if self.cache_mb < 256 {
            return bad(format!("a cache of {} MB: mongod takes at least 256", self.cache_mb));
        }
        Ok(())
    }
}

/// Whether a cluster may have this name: it becomes a file's, a folder's and a replica set's.
#[must_use]
pub fn valid_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=32).contains(&name.len())
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(plain)
}

/// What a node is in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A member that holds data.
    Member,
    /// A member of the config server's replica set.
    Config,
    /// A router.
    Router,
    /// A server that stands alone.
    Alone,
}

/// One node, as it is now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its name: `SET-INDEX`, or `NAME-router`; `NAME-0` if it stands alone.
    pub name: String,
    /// The replica set that it belongs to; empty for one that belongs to none.
    pub set: String,
    /// What it is for.
    pub role: Role,
    /// The port on 127.0.0.1 that it listens on.
    pub port: u16,
    /// Its process; `None` while it is down.
    pub process: Option<ProcessId>,
    /// Its log file; `None` for the stand-in router, which is a part of the testbed's process.
    pub log: Option<PathBuf>,
}

impl NodeInfo {
    /// A server's, as it is now.
    pub(crate) fn of(server: &Server, set: &str, role: Role) -> Self {
        Self {
            name: server.name().to_owned(),
            set: set.to_owned(),
            role,
            port: server.port(),
            process: server.process(),
            log: Some(server.log()),
        }
    }
}

/// A running cluster; dropping it kills its servers and removes their data.
#[derive(Debug)]
pub struct Cluster {
    // Fields drop in this order: the router, then the servers, then the folder with their data.
    front: Option<Front>,
    sets: Vec<ReplicaSet>,
    credentials: Option<Credentials>,
    spec: ClusterSpec,
    is_config_hurt: AtomicBool,
    scratch: Scratch,
}

impl Cluster {
    /// Builds a cluster and waits until it takes majority writes everywhere.
    pub async fn start(spec: ClusterSpec) -> Result<Self> {
        spec.check()?;
        let began = Instant::now();
        let mongod = binary::find_mongod()?;
        let scratch = Scratch::new(&spec.name, spec.folder.as_deref())?;
        let credentials =
            if spec.auth { Some(Credentials::generate(scratch.path())?) } else { None };
        let site =
            Site { mongod: &mongod, folder: scratch.path(), credentials: credentials.as_ref() };
        let planned = planned_sets(&spec);
        let starts = planned.into_iter().map(|(name, purpose, count)| {
            Box::pin(ReplicaSet::start(name, purpose, count, &spec, &site))
        });
        let sets = try_join_all(starts).await?;
        let mut cluster = Self {
            front: None,
            sets,
            credentials,
            spec,
            is_config_hurt: AtomicBool::new(false),
            scratch,
        };
        if cluster.spec.shards.is_some() {
            Box::pin(cluster.add_shards()).await?;
            cluster.front = Some(Box::pin(cluster.start_front()).await?);
        }
        times::note("start", &times::kind(&cluster.spec), began);
        Ok(cluster)
    }

    async fn add_shards(&self) -> Result<()> {
        let config = self.config_set().wait_primary(|_| true).await?;
        for shard in self.sets.iter().filter(|set| set.purpose == Purpose::Shard) {
            let command = doc! {
                "_configsvrAddShard": shard.seed(),
                "name": &shard.name,
                "writeConcern": { "w": "majority", "wtimeout": 60_000 },
            };
            self.admin().run(config, command, Duration::from_secs(90)).await?;
        }
        Ok(())
    }

    async fn start_front(&self) -> Result<Front> {
        Front::start(
            format!("{}-router", self.spec.name),
            binary::find_mongos()?,
            self.config_set().seed(),
            self.credentials.as_ref(),
            self.scratch.path(),
        )
        .await
    }

    /// Whether the config server was ever killed, stopped or made to step down.
    pub(crate) fn is_config_hurt(&self) -> bool {
        self.is_config_hurt.load(Ordering::Relaxed)
    }

    /// Takes note of what is done to a node, or to a replica set's primary.
    pub(crate) fn hurts(&self, node_or_set: &str) {
        if node_or_set.starts_with(&config_set_name(&self.spec)) {
            self.is_config_hurt.store(true, Ordering::Relaxed);
        }
    }

    fn config_set(&self) -> &ReplicaSet {
        let config = self.sets.iter().find(|set| set.purpose == Purpose::Config);
        config.expect("a sharded cluster has a config replica set")
    }

    pub(crate) fn admin(&self) -> Admin<'_> {
        Admin { credentials: self.credentials.as_ref() }
    }

    pub(crate) fn front(&self) -> Option<&Front> {
        self.front.as_ref()
    }

    pub(crate) fn sets(&self) -> &[ReplicaSet] {
        &self.sets
    }

    /// The cluster's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// What it was built from.
    #[must_use]
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    /// The connection string of the application: with authorisation, of a user who is not root.
    #[must_use]
    pub fn uri(&self) -> String {
        self.uri_as(self.credentials.as_ref().map(|credentials| &credentials.app))
    }

    /// The connection string of the administrator; without authorisation, the same as [`Self::uri`].
    #[must_use]
    pub fn admin_uri(&self) -> String {
        self.uri_as(self.credentials.as_ref().map(|credentials| &credentials.admin))
    }

    fn uri_as(&self, user: Option<&User>) -> String {
        let set = &self.sets[0];
        match &self.front {
            Some(front) => connection_string(user, &front.address(), None),
            None => connection_string(user, &set.addresses(), Some(&set.name)),
        }
    }

    /// Who may do what; `None` without authorisation.
    #[must_use]
    pub fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// The names of the replica sets: the shards in order, then the config server's.
    pub fn set_names(&self) -> impl Iterator<Item = &str> {
        self.sets.iter().map(|set| &*set.name)
    }

    /// The members of a replica set as `SET/HOST:PORT,…`, as the servers name it to each other.
    #[must_use]
    pub fn seed(&self, set: &str) -> Option<String> {
        self.sets.iter().find(|candidate| candidate.name == set).map(ReplicaSet::seed)
    }

    /// All nodes as they are now.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeInfo> {
        let members = self.sets.iter().flat_map(|set| {
            set.members.iter().map(move |server| NodeInfo::of(server, &set.name, set.role()))
        });
        members.chain(self.front.as_ref().map(Front::info)).collect()
    }

    /// The folder with data and logs.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }
}

fn config_set_name(spec: &ClusterSpec) -> String {
    format!("{}-cfg", spec.name)
}

/// The replica sets of a cluster: name, purpose, number of members.
fn planned_sets(spec: &ClusterSpec) -> Vec<(String, Purpose, u32)> {
    let Some(shards) = spec.shards else {
        return vec![(spec.name.clone(), Purpose::Standalone, spec.members)];
    };
    let shard = |number| (format!("{}-s{number}", spec.name), Purpose::Shard, spec.members);
    let config = (config_set_name(spec), Purpose::Config, 1);
    (1..=shards).map(shard).chain([config]).collect()
}

fn connection_string(user: Option<&User>, addresses: &str, set: Option<&str>) -> String {
    let login = user.map(|user| format!("{}:{}@", user.name, user.password)).unwrap_or_default();
    let mut options = Vec::new();
    options.extend(set.map(|set| format!("replicaSet={set}")));
    options.extend(user.map(|_| "authSource=admin".to_owned()));
    let options = options.join("&");
    let question = if options.is_empty() { "" } else { "?" };
    format!("mongodb://{login}{addresses}/{question}{options}")
}
