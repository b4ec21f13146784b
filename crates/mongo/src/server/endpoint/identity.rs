//! The identity of a cluster, which depends neither on its address nor on its members.
//!
//! A sharded cluster has an id that any user may read: `sharded/ID`. A replica set has one too, in its configuration,
//! which not every user may read: `NAME/HOST,HOST#ID`, or `NAME/HOST,HOST` without the id. Two runs of a job may have
//! different users, and members may be added or removed between them. So ids are compared if both are known, and
//! names and members only if they are not.

use bson::{Bson, Document, doc};
use mongodb::Client;

use super::{Shape, answer};

/// Returns the identity of the cluster of `client`, which a job's record stores so that the job is not resumed with
/// another cluster by mistake. `hello` is the cluster's reply to that command.
pub(super) async fn identity_of(client: &Client, shape: &Shape, hello: &Document) -> String {
    match shape {
        Shape::Sharded => {
            let id = cluster_id(client).await;
            id.map_or_else(|| "sharded".to_owned(), |id| format!("sharded/{id}"))
        }
        Shape::ReplicaSet(name) => {
            let mut hosts: Vec<&str> = hello
                .get_array("hosts")
                .map(|hosts| hosts.iter().filter_map(Bson::as_str).collect())
                .unwrap_or_default();
            hosts.sort_unstable();
            let id = replica_set_id(client).await.map(|id| format!("#{id}"));
            format!("{name}/{}{}", hosts.join(","), id.unwrap_or_default())
        }
    }
}

async fn cluster_id(client: &Client) -> Option<String> {
    let version = client.database("config").collection::<Document>("version");
    let found = answer("reading config.version", version.find_one(doc! {}).into_future()).await;
    let version = found.ok()?.ok()??;
    version.get_object_id("clusterId").ok().map(|id| id.to_string())
}

/// Reads the id of the replica set from its configuration; returns `None` if it cannot be read.
async fn replica_set_id(client: &Client) -> Option<String> {
    let admin = client.database("admin");
    let asked = admin.run_command(doc! {"replSetGetConfig": 1}).into_future();
    let reply = answer("replSetGetConfig", asked).await.ok()?.ok()?;
    let settings = reply.get_document("config").ok()?.get_document("settings").ok()?;
    settings.get_object_id("replicaSetId").ok().map(|id| id.to_string())
}

/// Returns true if two identities, perhaps read at different times by different users, belong to the same cluster.
#[must_use]
pub fn is_same_cluster(one: &str, other: &str) -> bool {
    let (Some(left), Some(right)) = (ReplicaSet::of(one), ReplicaSet::of(other)) else {
        return one == other;
    };
    match (left.id, right.id) {
        (Some(left), Some(right)) => left == right,
        _ => one == other || (left.name == right.name && left.shares_a_host(&right)),
    }
}

/// The parts of a replica set's identity. For a sharded cluster, `name` is `sharded` and `hosts` is the cluster's id.
struct ReplicaSet<'a> {
    name: &'a str,
    hosts: &'a str,
    id: Option<&'a str>,
}

impl<'a> ReplicaSet<'a> {
    fn of(identity: &'a str) -> Option<Self> {
        let (name, rest) = identity.rsplit_once('/')?;
        let (hosts, id) =
            rest.split_once('#').map_or((rest, None), |(hosts, id)| (hosts, Some(id)));
        Some(Self { name, hosts, id })
    }

    fn shares_a_host(&self, other: &Self) -> bool {
        let mut hosts = self.hosts.split(',').filter(|host| !host.is_empty());
        hosts.any(|host| other.hosts.split(',').any(|of_other| of_other == host))
    }
}

#[cfg(test)]
mod tests {
    use super::is_same_cluster;

    /// In both directions.
    fn same(one: &str, other: &str) -> bool {
        let same = is_same_cluster(one, other);
        assert_eq!(is_same_cluster(other, one), same, "{one} {other}");
        same
    }

    #[test]
    fn two_ids_decide_and_members_do_not() {
        assert!(same("rs/a:1,b:1#64aa", "rs/a:1,b:1#64aa"));
        assert!(same("rs/a:1,b:1#64aa", "rs/c:1,d:1#64aa"));
        assert!(!same("rs/a:1,b:1#64aa", "rs/a:1,b:1#64bb"));
    }

    #[test]
    fn where_an_id_is_unknown_the_name_and_a_member_decide() {
        assert!(same("rs/a:1,b:1", "rs/a:1,b:1"));
        assert!(same("rs/a:1,b:1", "rs/b:1,c:1"), "what older releases kept has no id");
        assert!(same("rs/a:1,b:1", "rs/b:1,c:1#64aa"));
        assert!(!same("rs/a:1,b:1", "rs/c:1,d:1#64aa"));
        assert!(!same("rs/a:1", "rs/a:11"));
        assert!(!same("rs/a:1", "other/a:1#64aa"));
        assert!(!same("rs/", "rs/#64aa"), "no member is none in common");
        assert!(same("rs/", "rs/"));
    }

    #[test]
    fn a_sharded_cluster_is_known_by_its_id_alone() {
        assert!(same("sharded/64aa", "sharded/64aa"));
        assert!(!same("sharded/64aa", "sharded/64bb"));
        assert!(same("sharded", "sharded"));
        assert!(!same("sharded", "sharded/64aa"));
        assert!(!same("sharded/64aa", "rs/a:1#64aa"));
    }
}
