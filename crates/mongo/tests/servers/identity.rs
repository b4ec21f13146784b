//! A replica set stays the same one while its members change.

use bson::{Bson, Document, doc};
use imago_mongo::copy::preflight::{self, Plan, Request};
use imago_mongo::error::Class;
use imago_mongo::server::endpoint::{Endpoint, is_same_cluster};
use imago_testbed::Cluster;
use imago_testbed::pool::{self, replica_set};
use imago_testbed::wait;

async fn connect(uri: &str, role: &'static str) -> Endpoint {
    Box::pin(Endpoint::connect(uri, role)).await.unwrap()
}

/// A user with the rights to read and write, and no others.
async fn add_plain_user(cluster: &Cluster) {
    let admin = connect(&cluster.admin_uri(), "source").await;
    let user = doc! {"createUser": "plain", "pwd": "plain", "roles": ["readWriteAnyDatabase"]};
    admin.run("admin", user).await.unwrap();
}

/// The cluster as that user sees it.
async fn plain(cluster: &Cluster) -> Endpoint {
    let uri = cluster.uri();
    let (_, place) = uri.split_once('@').unwrap();
    connect(&format!("mongodb://plain:plain@{place}"), "source").await
}

/// Takes a secondary out of the replica set.
async fn remove_a_member(cluster: &Cluster) {
    let admin = connect(&cluster.admin_uri(), "source").await;
    let reply = admin.run("admin", doc! {"replSetGetConfig": 1}).await.unwrap();
    let mut config = reply.get_document("config").unwrap().clone();
    let primary = cluster.primary(cluster.name()).await.unwrap();
    let port = cluster.nodes().iter().find(|node| node.name == primary).unwrap().port;
    let is_primary = |member: &Document| {
        member.get_str("host").is_ok_and(|host| host.ends_with(&format!(":{port}")))
    };
    let members = config.get_array_mut("members").unwrap();
    let gone = members.iter().position(|member| !is_primary(member.as_document().unwrap()));
    members.remove(gone.unwrap());
    let version = config.get("version").and_then(Bson::as_i32).unwrap();
    config.insert("version", version + 1);
    admin.run("admin", doc! {"replSetReconfig": config}).await.unwrap();
}

async fn resumes(plan: &Plan, source: &Endpoint, destination: &Endpoint) -> bool {
    match Box::pin(preflight::pairs(plan, source, destination)).await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.class(), Class::Precondition, "{error}");
            assert!(error.to_string().contains("was planned with"), "{error}");
            false
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_resumed_after_members_were_replaced_and_on_no_other_cluster() {
    let specs = [replica_set(3).with_auth(), replica_set(1)];
    let [set, other] = Box::pin(pool::lease_all(specs)).await.unwrap();
    set.end_with_this_test();
    let (source, destination) =
        (connect(&set.admin_uri(), "source").await, connect(&other.uri(), "destination").await);
    source.run("shop", doc! {"insert": "docs", "documents": [{"_id": 1}]}).await.unwrap();
    let request = Request {
        selectors: vec!["shop.docs".parse().unwrap()],
        filter: None,
        into_existing: false,
        no_new: false,
        shard_key: None,
    };
    let plan = Box::pin(preflight::plan(&source, &destination, &request)).await.unwrap();
    add_plain_user(&set).await;
    let as_plain = plain(&set).await;
    let before = source.identity().to_owned();
    assert!(before.contains('#') && !as_plain.identity().contains('#'), "{before}");
    // The identity as a user without the right to read the id, or an older release, kept it.
    let of_plain = Plan { source_identity: as_plain.identity().to_owned(), ..plan.clone() };

    remove_a_member(&set).await;
    // A member that has not heard of it yet still names the old ones.
    let (mut source, mut as_plain) = (source, as_plain);
    wait::until("the members are others", async || {
        (source, as_plain) = (connect(&set.admin_uri(), "source").await, plain(&set).await);
        source.identity() != before && as_plain.identity() != of_plain.source_identity
    })
    .await;
    for (plan, source) in
        [(&plan, &source), (&plan, &as_plain), (&of_plain, &source), (&of_plain, &as_plain)]
    {
        assert!(resumes(plan, source, &destination).await, "{}", source.identity());
    }
    // Every member was replaced.
    let (_, id) = before.rsplit_once('#').unwrap();
    let moved = Plan { source_identity: format!("members/new:1#{id}"), ..plan.clone() };
    assert!(resumes(&moved, &source, &destination).await);
    assert!(!resumes(&moved, &as_plain, &destination).await, "nothing is in common that is known");
    let wrong = connect(&other.uri(), "source").await;
    assert!(!resumes(&plan, &wrong, &destination).await);
    assert!(!is_same_cluster(source.identity(), destination.identity()));
}
