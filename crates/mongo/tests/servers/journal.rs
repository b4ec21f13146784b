//! The journal on real servers: the contract of every journal, and the faults that only a cluster
//! has.

use std::sync::atomic::{AtomicBool, Ordering};

use imago_job::journal::{Journal, JournalError, Request, Update, contract};
use imago_job::record::{Limits, Record};
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::state::journal::MongoJournal;
use imago_testbed::pool::{self, Leased, replica_set, sharded};
use imago_testbed::{Cluster, ClusterSpec};
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc};
use serde_json::{Value, json};

async fn start(spec: ClusterSpec) -> Leased {
    Box::pin(pool::lease(spec)).await.unwrap()
}

async fn journal(uri: &str) -> MongoJournal {
    MongoJournal::new(Box::pin(Endpoint::connect(uri, "destination")).await.unwrap())
}

async fn admin(cluster: &Cluster, command: Document) -> Document {
    let client = Client::with_uri_str(cluster.admin_uri()).await.unwrap();
    client.database("admin").run_command(command).await.unwrap()
}

/// The next such command is carried out, and answered as if no majority had confirmed it.
async fn lose_the_next_answer(cluster: &Cluster, command: &str) {
    let unconfirmed = doc! {
        "configureFailPoint": "failCommand",
        "mode": {"times": 1},
        "data": {
            "failCommands": [command],
            "writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"},
        },
    };
    admin(cluster, unconfirmed).await;
}

/// Asserts that so many answers were lost by now; without them a test would show nothing.
async fn assert_answers_lost(cluster: &Cluster, count: i64) {
    let fired = admin(cluster, doc! {"configureFailPoint": "failCommand", "mode": "off"}).await;
    assert_eq!(fired.get("count").and_then(as_whole), Some(count), "{fired}");
}

fn as_whole(number: &Bson) -> Option<i64> {
    number.as_i64().or_else(|| number.as_i32().map(i64::from))
}

async fn created(journal: &MongoJournal) -> Record {
    let record = Record::new("copy", json!({"$set": {"a.b": 1}}), journal.now_ms().await.unwrap());
    journal.create(&record).await.unwrap();
    record
}

#[tokio::test]
async fn a_replica_set_keeps_the_contract() {
    let cluster = start(replica_set(1)).await;
    contract::check(&journal(&cluster.uri()).await).await;
}

#[tokio::test]
async fn a_sharded_cluster_keeps_the_contract_through_its_router() {
    let cluster = start(sharded(1)).await;
    contract::check(&journal(&cluster.uri()).await).await;
}

#[tokio::test]
async fn of_racing_processes_exactly_one_claims() {
    let cluster = start(replica_set(1)).await;
    let [a, b] = [journal(&cluster.uri()).await, journal(&cluster.uri()).await];
    for round in 0..20 {
        let id = created(&a).await.id;
        let claims = tokio::join!(
            a.claim(&id, "a/1", u64::MAX),
            b.claim(&id, "b/1", u64::MAX),
            a.claim(&id, "a/2", u64::MAX),
            b.claim(&id, "b/2", u64::MAX),
        );
        let claims = [claims.0, claims.1, claims.2, claims.3];
        let granted: Vec<_> = claims.iter().filter_map(|claim| claim.as_ref().ok()).collect();
        assert_eq!(granted.len(), 1, "round {round}: {claims:?}");
        assert_eq!(b.load(&id).await.unwrap(), granted[0].record, "round {round}");
    }
}

#[tokio::test]
async fn a_change_whose_answer_was_lost_is_made_once() {
    let spec = replica_set(1).with_parameter("enableTestCommands", "1");
    let cluster = start(spec).await;
    // The server counts the answers that it was made to lose from its start on.
    cluster.end_with_this_test();
    let journal = journal(&cluster.uri()).await;
    let id = created(&journal).await.id;
    lose_the_next_answer(&cluster, "update").await;
    let claimed = journal.claim(&id, "host/1", u64::MAX).await.unwrap();
    assert_eq!((claimed.epoch, claimed.record.revision), (1, 1));
    assert_answers_lost(&cluster, 1).await;

    lose_the_next_answer(&cluster, "update").await;
    journal.release(&id, claimed.epoch).await.unwrap();
    assert_answers_lost(&cluster, 2).await;
    let kept = journal.load(&id).await.unwrap();
    assert_eq!((kept.owner, kept.revision), (None, 2));
}

#[tokio::test]
async fn a_new_job_whose_answer_was_lost_is_kept() {
    let spec = replica_set(1).with_parameter("enableTestCommands", "1");
    let cluster = start(spec).await;
    // The server counts the answers that it was made to lose from its start on.
    cluster.end_with_this_test();
    let journal = journal(&cluster.uri()).await;
    lose_the_next_answer(&cluster, "insert").await;
    let record = created(&journal).await;
    assert_answers_lost(&cluster, 1).await;
    assert_eq!(journal.list().await.unwrap(), [record]);
}

/// Changes that the record itself counts, by two processes, across an election.
#[tokio::test]
async fn a_killed_primary_neither_loses_nor_doubles_a_change() {
    const SAVES_AFTER: u64 = 20;
    let cluster = start(replica_set(3)).await;
    let (owner, operator) = (journal(&cluster.uri()).await, journal(&cluster.uri()).await);
    let id = created(&owner).await.id;
    let epoch = owner.claim(&id, "host/1", u64::MAX).await.unwrap().epoch;
    let elected = AtomicBool::new(false);
    let saving = async {
        let (mut saves, mut after) = (0, 0);
        while after < SAVES_AFTER {
            after += u64::from(elected.load(Ordering::SeqCst));
            saves += 1;
            let update = Update { checkpoint: Some(json!(saves)), ..Update::default() };
            owner.save(&id, epoch, &update).await.unwrap();
        }
        saves
    };
    let requesting = async {
        let mut requests = 0;
        while !elected.load(Ordering::SeqCst) {
            requests += 1;
            let limits = Limits { documents_s: Some(requests), ..Limits::default() };
            operator.request(&id, &Request::Limits(limits)).await.unwrap();
        }
        requests
    };
    let killing = async {
        let old = cluster.primary(cluster.name()).await.unwrap();
        cluster.kill(&old).unwrap();
        cluster.primary_other_than(cluster.name(), &old).await.unwrap();
        elected.store(true, Ordering::SeqCst);
    };
    let (saves, requests, ()) = Box::pin(async { tokio::join!(saving, requesting, killing) }).await;
    let kept = operator.load(&id).await.unwrap();
    assert_eq!(kept.revision, 1 + saves + requests, "the claim, the saves, the requests");
    assert_eq!(kept.checkpoint, json!(saves));
    assert_eq!(kept.limits.documents_s, Some(requests));
}

#[tokio::test]
async fn a_missing_privilege_is_named() {
    let cluster = start(replica_set(1).with_auth()).await;
    let reader = doc! {
        "createUser": "reader",
        "pwd": "secret",
        "roles": [{"role": "read", "db": "imago"}],
    };
    admin(&cluster, reader).await;
    let record = created(&journal(&cluster.uri()).await).await;

    let uri = cluster.uri();
    let (_, hosts) = uri.split_once('@').unwrap();
    let meek = journal(&format!("mongodb://reader:secret@{hosts}")).await;
    assert_eq!(meek.load(&record.id).await.unwrap(), record);
    let other = Record::new("copy", Value::Null, 1);
    let refusals = [
        (meek.create(&other).await.unwrap_err(), "insert"),
        (meek.claim(&record.id, "host/1", 0).await.unwrap_err(), "update"),
    ];
    for (refusal, privilege) in refusals {
        let text = refusal.to_string();
        assert!(matches!(refusal, JournalError::Refused { .. }), "{refusal:?}");
        assert!(text.contains(&format!("{privilege:?} on the database \"imago\"")), "{text}");
    }
}

#[tokio::test]
async fn people_find_a_job_by_its_fields() {
    let cluster = start(replica_set(1)).await;
    let record = created(&journal(&cluster.uri()).await).await;
    let client = Client::with_uri_str(cluster.uri()).await.unwrap();
    let jobs = client.database("imago").collection::<Document>("jobs");
    let found = jobs.find_one(doc! {"kind": "copy", "state": "planned"}).await.unwrap().unwrap();
    assert_eq!(found.get_str("_id").unwrap(), record.id.as_str());
    assert_eq!(found.get_i64("revision").unwrap(), 0);
    assert!(found.get_datetime("updated_at").is_ok());
}
