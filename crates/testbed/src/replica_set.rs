//! A MongoDB replica set: its members, its initial configuration, and waiting until its members follow one primary.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bson::{Document, doc};
use futures_util::future::{join_all, try_join_all};

use crate::auth::{self, Admin, Credentials};
use crate::cpu_share::CpuShare;
use crate::error::{Error, Result};
use crate::process::Liveness;
use crate::program::{Mongo, Program};
use crate::server::{Launch, Server};
use crate::spec::{ClusterSpec, Role};
use crate::wire::{self, Hello};

/// Time allowed for a replica set to have a primary that every running member follows.
pub(crate) const SETTLE_BOUND: Duration = Duration::from_secs(120);
const COMMAND_BOUND: Duration = Duration::from_secs(60);
const HELLO_BOUND: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);

/// Purpose of a replica set in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A replica set that is not part of a sharded cluster.
    Standalone,
    /// A shard: it has a part of a sharded cluster's data.
    Shard,
    /// The config server: it has a sharded cluster's metadata.
    Config,
}

/// A MongoDB replica set with its running members.
#[derive(Debug)]
pub(crate) struct ReplicaSet {
    pub(crate) name: String,
    pub(crate) purpose: Purpose,
    pub(crate) members: Vec<Server>,
    /// Reason why CPU limits were requested but are unavailable; `None` if they are in force or were not requested.
    pub(crate) unshared: Option<String>,
}

impl ReplicaSet {
    /// Starts `count` members of the replica set named `set`, initiates it, creates its users if the cluster has any,
    /// and waits until a write has reached every member.
    pub(crate) async fn start(
        set: String,
        purpose: Purpose,
        count: u32,
        spec: &ClusterSpec,
        context: &ServerContext<'_>,
    ) -> Result<Self> {
        let percent = spec.cpu_percent.filter(|_| purpose != Purpose::Config);
        let mut unshared = None;
        let launches: Vec<Launch> = (0..count)
            .map(|index| {
                let name = format!("{set}-{index}");
                let share = CpuShare::if_requested(&name, percent, &mut unshared);
                let program = Program::Mongo(Mongo {
                    path: context.mongod.to_path_buf(),
                    arguments: arguments(&set, purpose, spec, context.credentials),
                    keeps_data: true,
                    yields_cpu: spec.yields_cpu,
                    share,
                });
                Launch { name, program }
            })
            .collect();
        let starts = launches.into_iter().map(|launch| Server::start(launch, context.folder));
        let members = try_join_all(starts).await?;
        let set = Self { name: set, purpose, members, unshared };
        set.initiate(spec).await?;
        let primary = set.wait_settled().await?;
        if let Some(credentials) = context.credentials {
            auth::create_users(primary, credentials, purpose != Purpose::Standalone).await?;
        }
        set.confirm_write(primary, context.credentials).await?;
        Ok(set)
    }

    /// Returns the role that all members of this replica set have in their cluster.
    pub(crate) fn role(&self) -> Role {
        if self.purpose == Purpose::Config { Role::Config } else { Role::Member }
    }

    async fn initiate(&self, spec: &ClusterSpec) -> Result<()> {
        let members: Vec<Document> = (0..)
            .zip(&self.members)
            .map(|(id, server): (i32, _)| doc! { "_id": id, "host": server.address() })
            .collect();
        let mut config = doc! {
            "_id": &self.name,
            "members": members,
            "settings": {
                "heartbeatIntervalMillis": 500,
                "electionTimeoutMillis": i64::from(spec.election_timeout_ms),
            },
        };
        if self.purpose == Purpose::Config {
            config.insert("configsvr", true);
        }
        let command = doc! { "replSetInitiate": config };
        wire::run(self.members[0].port(), "admin", command, COMMAND_BOUND).await?;
        Ok(())
    }

    /// Waits until one member is primary and every other running member is a secondary that follows it; returns the
    /// primary.
    pub(crate) async fn wait_settled(&self) -> Result<&Server> {
        self.wait(&format!("a settled replica set {}", self.name), |states| {
            let primary = sole_primary(states)?;
            let address = self.members[primary].address();
            let settled = states.iter().zip(&self.members).all(|(state, server)| match state {
                Some(hello) => {
                    (hello.primary || hello.secondary)
                        && hello.primary_address.as_ref() == Some(&address)
                }
                // A member that was stopped or killed cannot follow, and its test expects that.
                None => server.liveness() != Liveness::Running,
            });
            settled.then_some(primary)
        })
        .await
    }

    /// Waits until the replica set has exactly one primary and `wanted` accepts it, and returns that primary.
    pub(crate) async fn wait_primary(&self, wanted: impl Fn(&Server) -> bool) -> Result<&Server> {
        self.wait(&format!("a primary of {}", self.name), |states| {
            sole_primary(states).filter(|index| wanted(&self.members[*index]))
        })
        .await
    }

    /// Polls the states of all members until `decide` returns the index of one, and returns that member. `what`
    /// describes the awaited condition.
    async fn wait(
        &self,
        what: &str,
        decide: impl Fn(&[Option<Hello>]) -> Option<usize>,
    ) -> Result<&Server> {
        let started = Instant::now();
        loop {
            let states = self.states().await;
            if let Some(index) = decide(&states) {
                return Ok(&self.members[index]);
            }
            if started.elapsed() > SETTLE_BOUND {
                return Err(Error::TimedOut {
                    what: what.to_owned(),
                    bound_s: SETTLE_BOUND.as_secs(),
                    last: self.describe(&states),
                });
            }
            tokio::time::sleep(POLL).await;
        }
    }

    /// Asks every member for its state (`hello`), in the order of the members; `None` for a member that does not
    /// reply.
    pub(crate) async fn states(&self) -> Vec<Option<Hello>> {
        let asked = self.members.iter().map(|server| async {
            // A stopped or killed process cannot reply, so no time is spent on it.
            match server.liveness() {
                Liveness::Running => wire::hello(server.port(), HELLO_BOUND).await.ok(),
                Liveness::Stopped | Liveness::Gone => None,
            }
        });
        join_all(asked).await
    }

    fn describe(&self, states: &[Option<Hello>]) -> String {
        let told = self.members.iter().zip(states).map(|(server, state)| {
            let state = state.as_ref().map_or("silent", Hello::state_name);
            format!("{} {state}", server.name())
        });
        told.collect::<Vec<_>>().join(", ")
    }

    /// Writes a note to the oplog of `primary`, and waits until every member has it, and with it all earlier writes.
    pub(crate) async fn confirm_write(
        &self,
        primary: &Server,
        credentials: Option<&Credentials>,
    ) -> Result<()> {
        let members = i32::try_from(self.members.len()).expect("at most seven members");
        // A note in the oplog is a write that creates no collection.
        let command = doc! {
            "appendOplogNote": 1,
            "data": { "imago": "testbed ready" },
            "writeConcern": { "w": members, "wtimeout": 50_000 },
        };
        Admin { credentials }.run(primary, command, COMMAND_BOUND).await?;
        Ok(())
    }

    /// Returns the members as `SET/HOST:PORT,HOST:PORT`, the form that servers use among themselves.
    pub(crate) fn seed(&self) -> String {
        format!("{}/{}", self.name, self.addresses())
    }

    /// Returns the addresses of the members as `HOST:PORT,HOST:PORT`.
    pub(crate) fn addresses(&self) -> String {
        self.members.iter().map(Server::address).collect::<Vec<_>>().join(",")
    }
}

fn sole_primary(states: &[Option<Hello>]) -> Option<usize> {
    let is_primary = |state: &Option<Hello>| state.as_ref().is_some_and(|hello| hello.primary);
    let mut primaries = (0..states.len()).filter(|index| is_primary(&states[*index]));
    // Two primaries are possible for a moment after a stop: the old one does not know of the new one yet.
    primaries.next().filter(|_| primaries.next().is_none())
}

/// Program, folder and users that all servers of one cluster share.
#[derive(Debug)]
pub(crate) struct ServerContext<'a> {
    pub(crate) mongod: &'a Path,
    pub(crate) folder: &'a Path,
    pub(crate) credentials: Option<&'a Credentials>,
}

fn arguments(
    set: &str,
    purpose: Purpose,
    spec: &ClusterSpec,
    credentials: Option<&Credentials>,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = vec!["--replSet".into(), set.into()];
    match purpose {
        Purpose::Standalone => {}
        Purpose::Shard => arguments.push("--shardsvr".into()),
        Purpose::Config => arguments.push("--configsvr".into()),
    }
    let cache_gb = format!("{:.3}", f64::from(spec.cache_mb) / 1024.0);
    arguments.extend(["--wiredTigerCacheSizeGB".into(), cache_gb.into()]);
    if let Some(oplog_mb) = spec.oplog_mb {
        arguments.extend(["--oplogSize".into(), oplog_mb.to_string().into()]);
        // The oplog is truncated only up to the last checkpoint, and by default there is one per minute.
        arguments.extend(["--syncdelay".into(), "1".into()]);
    }
    if let Some(credentials) = credentials {
        arguments.extend(["--keyFile".into(), PathBuf::from(&credentials.key_file).into()]);
    }
    if let Some(tls) = &spec.tls {
        arguments.extend(["--tlsMode".into(), "preferTLS".into()]);
        arguments.extend(["--tlsCertificateKeyFile".into(), tls.server.clone().into()]);
        arguments.extend(["--tlsCAFile".into(), tls.authority.clone().into()]);
        arguments.push("--tlsAllowConnectionsWithoutCertificates".into());
    }
    let mut parameters: Vec<(&str, &str)> = vec![("diagnosticDataCollectionEnabled", "false")];
    if purpose == Purpose::Config {
        // By default resharding takes at least five minutes, even for an empty collection.
        parameters.push(("reshardingMinimumOperationDurationMillis", "0"));
    }
    // A server rejects a parameter that is given twice.
    parameters.retain(|(name, _)| !spec.parameters.iter().any(|(other, _)| other == name));
    parameters.extend(spec.parameters.iter().map(|(name, value)| (&**name, &**value)));
    for (name, value) in parameters {
        arguments.extend(["--setParameter".into(), format!("{name}={value}").into()]);
    }
    arguments
}
