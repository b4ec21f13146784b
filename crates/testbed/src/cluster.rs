//! A MongoDB cluster: a replica set, or shards with a config server and a router.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bson::doc;
use futures_util::future::try_join_all;
use imago_mongos::User;

use crate::auth::{Admin, Credentials};
use crate::binary;
use crate::error::Result;
use crate::replica_set::{Purpose, ReplicaSet, ServerContext};
use crate::router_process::RouterProcess;
use crate::scratch::Scratch;
use crate::server::Server;
use crate::times;

pub use crate::spec::{ClusterSpec, NodeInfo, Role, valid_name};

impl NodeInfo {
    /// Returns the present description of `server`, a member of the replica set `set`, in the role `role`.
    pub(crate) fn of(server: &Server, set: &str, role: Role) -> Self {
        Self {
            name: server.name().to_owned(),
            set: set.to_owned(),
            role,
            host: server.socket().ip(),
            port: server.port(),
            process: server.process(),
            log: Some(server.log()),
        }
    }
}

/// A running MongoDB cluster; dropping it kills its servers and removes their data.
#[derive(Debug)]
pub struct Cluster {
    // Fields drop in this order: the router, then the servers, then the folder with their data.
    router: Option<RouterProcess>,
    sets: Vec<ReplicaSet>,
    credentials: Option<Credentials>,
    spec: ClusterSpec,
    has_config_fault: AtomicBool,
    scratch: Scratch,
}

impl Cluster {
    /// Starts a cluster and waits until every replica set acknowledges majority writes.
    #[crate::boxed]
    pub async fn start(spec: ClusterSpec) -> Result<Self> {
        spec.check()?;
        let began = Instant::now();
        let mongod = binary::find_mongod()?;
        let scratch = Scratch::new(&spec.name, spec.folder.as_deref())?;
        let credentials =
            if spec.auth { Some(Credentials::generate(scratch.path())?) } else { None };
        let context = ServerContext {
            mongod: &mongod,
            folder: scratch.path(),
            credentials: credentials.as_ref(),
        };
        let planned = planned_sets(&spec);
        let starts = planned.into_iter().map(|(name, purpose, count)| {
            Box::pin(ReplicaSet::start(name, purpose, count, &spec, &context))
        });
        let sets = try_join_all(starts).await?;
        let mut cluster = Self {
            router: None,
            sets,
            credentials,
            spec,
            has_config_fault: AtomicBool::new(false),
            scratch,
        };
        if cluster.spec.shards.is_some() {
            cluster.add_shards().await?;
            cluster.router = Some(cluster.start_router().await?);
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

    async fn start_router(&self) -> Result<RouterProcess> {
        RouterProcess::start(
            format!("{}-router", self.spec.name),
            binary::find_mongos()?,
            self.config_set().seed(),
            self.credentials.as_ref(),
            self.scratch.path(),
        )
        .await
    }

    /// Returns true if a fault was injected into the config server.
    pub(crate) fn has_config_fault(&self) -> bool {
        self.has_config_fault.load(Ordering::Relaxed)
    }

    /// Records that a fault is injected into a node, or into the primary of a replica set. Only faults of the config
    /// server are remembered.
    pub(crate) fn record_fault(&self, node_or_set: &str) {
        if node_or_set.starts_with(&config_set_name(&self.spec)) {
            self.has_config_fault.store(true, Ordering::Relaxed);
        }
    }

    fn config_set(&self) -> &ReplicaSet {
        let config = self.sets.iter().find(|set| set.purpose == Purpose::Config);
        config.expect("a sharded cluster has a config replica set")
    }

    pub(crate) fn admin(&self) -> Admin<'_> {
        Admin { credentials: self.credentials.as_ref() }
    }

    pub(crate) fn router(&self) -> Option<&RouterProcess> {
        self.router.as_ref()
    }

    pub(crate) fn sets(&self) -> &[ReplicaSet] {
        &self.sets
    }

    /// Returns the name of the cluster.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.spec.name
    }

    /// Returns the specification of the cluster.
    #[must_use]
    pub fn spec(&self) -> &ClusterSpec {
        &self.spec
    }

    /// Returns the connection string of the application, through the router if there is one; with authorization, it
    /// contains the login of a user that is not root.
    #[must_use]
    pub fn uri(&self) -> String {
        self.uri_as(self.credentials.as_ref().map(|credentials| &credentials.app))
    }

    /// Returns the connection string with the administrator's login; without authorization, the same as
    /// [`Self::uri`].
    #[must_use]
    pub fn admin_uri(&self) -> String {
        self.uri_as(self.credentials.as_ref().map(|credentials| &credentials.admin))
    }

    fn uri_as(&self, user: Option<&User>) -> String {
        let set = &self.sets[0];
        match &self.router {
            Some(router) => connection_string(user, &router.address(), None),
            None => connection_string(user, &set.addresses(), Some(&set.name)),
        }
    }

    /// Returns the cluster's users and key file; `None` if the cluster runs without authorization.
    #[must_use]
    pub fn credentials(&self) -> Option<&Credentials> {
        self.credentials.as_ref()
    }

    /// Returns the reason why CPU limits were requested but are unavailable; `None` if they are in force or were not
    /// requested.
    #[must_use]
    pub fn unshared(&self) -> Option<&str> {
        self.sets.iter().find_map(|set| set.unshared.as_deref())
    }

    /// Returns the names of all replica sets: the shards in order, then the config server. Without shards there is
    /// one.
    pub fn set_names(&self) -> impl Iterator<Item = &str> {
        self.sets.iter().map(|set| &*set.name)
    }

    /// Returns the members of the replica set named `set` as `SET/HOST:PORT,…`, the form that servers use among
    /// themselves; `None` if there is no such replica set.
    #[must_use]
    pub fn seed(&self, set: &str) -> Option<String> {
        self.sets.iter().find(|candidate| candidate.name == set).map(ReplicaSet::seed)
    }

    /// Returns name, role, address and process of every node, the router included, running or not.
    #[must_use]
    pub fn nodes(&self) -> Vec<NodeInfo> {
        let members = self.sets.iter().flat_map(|set| {
            set.members.iter().map(move |server| NodeInfo::of(server, &set.name, set.role()))
        });
        members.chain(self.router.as_ref().map(RouterProcess::info)).collect()
    }

    /// Returns the folder of this cluster, which contains the data and logs of its servers.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.scratch.path()
    }
}

fn config_set_name(spec: &ClusterSpec) -> String {
    format!("{}-cfg", spec.name)
}

/// Returns name, purpose and number of members of each replica set that a cluster of this specification has.
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
