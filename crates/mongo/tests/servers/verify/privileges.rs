//! Verification by a user without special rights.

use bson::doc;
use imago_mongo::namespace::Namespace;
use imago_mongo::server::collection::Handle;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::verify::{Mode, Spec};
use imago_testbed::Role;
use imago_testbed::pool::{self, replica_set};

use crate::verify::world::{Sides, collection, listed, quick};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_right_to_read_the_oplog_a_change_stream_names_the_last_operations() {
    let cluster = Box::pin(pool::lease(replica_set(1).with_auth())).await.unwrap();
    cluster.undo(Role::Member, doc! {"dropUser": "plain"});
    let admin = Endpoint::connect(&cluster.admin_uri(), "source").await.unwrap();
    let user = doc! {"createUser": "plain", "pwd": "plain", "roles": ["readWriteAnyDatabase"]};
    admin.run("admin", user).await.unwrap();
    let uri = cluster.uri();
    let (_, place) = uri.split_once('@').unwrap();
    let uri = format!("mongodb://plain:plain@{place}");
    let side = async |role, db: &str| {
        let endpoint = Endpoint::connect(&uri, role).await.unwrap();
        Handle::new(endpoint, Namespace::new(db, "docs"))
    };
    let sides = Sides {
        source: side("source", "from").await,
        destination: side("destination", "to").await,
    };
    sides.fill((0..20).map(|n| doc! {"_id": n, "v": 0})).await;
    let source = collection(&sides.source);
    source.update_one(doc! {"_id": 3}, doc! {"$inc": {"v": 1}}).await.unwrap();
    source.delete_one(doc! {"_id": 4}).await.unwrap();
    collection(&sides.destination).delete_one(doc! {"_id": 10}).await.unwrap();
    let report = Box::pin(sides.verify(&Spec { mode: Mode::LastOps(2), ..quick() })).await;
    assert_eq!(
        listed(&report.differences),
        [r#"different {"$numberInt":"3"}"#, r#"extra {"$numberInt":"4"}"#]
    );
    let last_ops = report.last_ops.unwrap();
    assert_eq!((last_ops.read_from.as_str(), last_ops.found), ("change stream", 2));
    // Fewer than were asked for: all that the log holds are found.
    let report = Box::pin(sides.verify(&Spec { mode: Mode::LastOps(900), ..quick() })).await;
    assert_eq!(report.last_ops.as_ref().unwrap().found, 22);
    assert_eq!(report.document_differences(), 3);
}
