//! The state of a cluster by which the pool decides whether a used cluster equals a new one, and its restoration.

use std::collections::BTreeMap;
use std::time::Duration;

use bson::{Bson, Document, doc};
use mongodb::Client;

use crate::cluster::{Cluster, Role};
use crate::error::{Error, Result};
use crate::replica_set::Purpose;

const BOUND: Duration = Duration::from_secs(30);
/// Databases that servers create for themselves; they are not compared and not dropped.
const OWN_DATABASES: [&str; 3] = ["admin", "config", "local"];
/// Collections of the database `config` that tests change and that are therefore compared.
const METADATA: [&str; 4] = ["tags", "settings", "reshardingOperations", "collections"];

/// State of a cluster that a test may change. A key names a server, replica set or metadata collection and the kind
/// of value, for example `pool-1-0: parameter ttlMonitorEnabled`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClusterSnapshot(BTreeMap<String, Bson>);

impl ClusterSnapshot {
    /// Reads parameters, databases, users, roles, configuration and metadata of a running cluster.
    pub(super) async fn of(cluster: &Cluster) -> Result<Self> {
        let mut found = BTreeMap::new();
        for set in cluster.sets() {
            for server in &set.members {
                let asked = doc! { "getParameter": "*" };
                let parameters = cluster.admin().run(server, asked, BOUND).await?;
                let settings = parameters.into_iter().filter(|(name, _)| is_a_setting(name));
                found.extend(settings.map(|(name, mut value)| {
                    if let Bson::Document(fail_point) = &mut value {
                        // The count of passes grows from the start of the server; only the mode is a setting.
                        fail_point.remove("timesEntered");
                    }
                    (format!("{}: parameter {name}", server.name()), value)
                }));
            }
            let primary = set.wait_primary(|_| true).await?;
            for (what, command) in [
                ("databases", doc! { "listDatabases": 1, "nameOnly": true }),
                ("users", doc! { "usersInfo": 1 }),
                ("roles", doc! { "rolesInfo": 1, "showPrivileges": true }),
                ("config", doc! { "replSetGetConfig": 1 }),
            ] {
                let mut reply = cluster.admin().run(primary, command, BOUND).await?;
                let mut listed = reply.remove(what).unwrap_or(Bson::Null);
                if let Bson::Array(all) = &mut listed {
                    all.retain(|one| !one.as_document().is_some_and(is_an_own_database));
                }
                if let Bson::Document(config) = &mut listed {
                    // These values grow with each election.
                    config.remove("version");
                    config.remove("term");
                }
                found.insert(format!("{}: {what}", set.name), sorted(listed));
            }
        }
        if let Some(config) = cluster.sets().iter().find(|set| set.purpose == Purpose::Config) {
            let primary = config.wait_primary(|_| true).await?;
            for coll in METADATA {
                let kept = cluster.admin().find(primary, "config", coll, BOUND).await?;
                let kept = kept.into_iter().filter(|one| !is_the_servers_own(one));
                found.insert(format!("config.{coll}"), sorted(kept.collect::<Vec<_>>().into()));
            }
            let shards = cluster.admin().find(primary, "config", "shards", BOUND).await?;
            let shard = |mut shard: Document| {
                shard.remove("topologyTime");
                if shard.get_array("tags").is_ok_and(Vec::is_empty) {
                    shard.remove("tags");
                }
                shard
            };
            let shards: Vec<Document> = shards.into_iter().map(shard).collect();
            found.insert("config.shards".into(), sorted(shards.into()));
        }
        Ok(Self(found))
    }

    /// Returns a description of the first difference between the states `self` (before) and `other` (now); `None` if
    /// they are equal.
    fn difference(&self, other: &Self) -> Option<String> {
        let names = self.0.keys().chain(other.0.keys());
        let mut differ = names.filter(|name| self.0.get(*name) != other.0.get(*name));
        differ.next().map(|name| {
            let value = |of: &Self| of.0.get(name).map_or("nothing".into(), Bson::to_string);
            format!("{name} was {} and is {}", value(self), value(other))
        })
    }
}

/// Heals `cluster`, runs the commands `undo` on the servers of their roles, drops its databases, and returns an error
/// if its state then differs from `new`, the state when it was new.
pub(super) async fn restore(
    cluster: &Cluster,
    new: &ClusterSnapshot,
    undo: &[(Role, Document)],
) -> std::result::Result<(), String> {
    match clean(cluster, undo).await {
        Ok(()) => {}
        Err(error) => return Err(error.to_string()),
    }
    let now = ClusterSnapshot::of(cluster).await.map_err(|error| error.to_string())?;
    new.difference(&now).map_or(Ok(()), Err)
}

async fn clean(cluster: &Cluster, undo: &[(Role, Document)]) -> Result<()> {
    cluster.heal().await?;
    for (role, command) in undo {
        let sets = cluster.sets().iter().filter(|set| set.role() == *role);
        for server in sets.flat_map(|set| &set.members) {
            cluster.admin().run(server, command.clone(), BOUND).await?;
        }
    }
    // A write block applies only to users without a privilege; without authorization there are none.
    if cluster.spec().auth {
        for set in cluster.sets() {
            let primary = set.wait_primary(|_| true).await?;
            let is_global = doc! { "setUserWriteBlockMode": 1, "global": false };
            let command = match set.purpose {
                Purpose::Standalone => is_global,
                Purpose::Config => doc! {
                    "_configsvrSetUserWriteBlockMode": 1, "global": false,
                    "writeConcern": { "w": "majority" },
                },
                Purpose::Shard => continue,
            };
            cluster.admin().run(primary, command, BOUND).await?;
        }
    }
    let unanswered = |error: mongodb::error::Error| Error::Unanswered {
        node: cluster.name().to_owned(),
        command: "dropDatabase".into(),
        reason: error.to_string(),
    };
    let client = Client::with_uri_str(cluster.admin_uri()).await.map_err(unanswered)?;
    let dropped = drop_databases(&client).await.map_err(unanswered);
    client.shutdown().immediate(true).await;
    dropped
}

async fn drop_databases(client: &Client) -> mongodb::error::Result<()> {
    for name in client.list_database_names().await? {
        if !OWN_DATABASES.contains(&&*name) {
            client.database(&name).drop().await?;
        }
    }
    Ok(())
}

/// Returns true if the server parameter `name` is a setting rather than a measure of the server's present activity.
fn is_a_setting(name: &str) -> bool {
    !name.starts_with('$')
        && !["ok", "operationTime", "lastCommittedOpTime"].contains(&name)
        && !name.starts_with("wiredTigerConcurrent")
}

fn is_an_own_database(listed: &Document) -> bool {
    listed.get_str("name").is_ok_and(|name| OWN_DATABASES.contains(&name))
}

/// Returns true for the metadata of a `config.system.…` collection, which servers create with the first session, at
/// an undetermined time.
fn is_the_servers_own(kept: &Document) -> bool {
    kept.get_str("_id").is_ok_and(|id| id.starts_with("config.system."))
}

/// Returns an array with its elements sorted, because servers return them in no order; any other value is unchanged.
fn sorted(listed: Bson) -> Bson {
    match listed {
        Bson::Array(mut all) => {
            all.sort_by_key(Bson::to_string);
            Bson::Array(all)
        }
        other => other,
    }
}
