//! A load against real servers, and whether its check tells a sound collection from a damaged one.

use std::sync::Arc;
use std::time::Duration;

use bson::{Document, doc};
use imago_load::Schema;
use imago_load::mongo::{MongoTarget, preload, show_content};
use imago_mongo::namespace::Namespace;
use imago_testbed::pool::{self, Leased};
use imago_testbed::{Cluster, wait};
use imago_workload::check::{Checker, Verdict, Wrong};
use imago_workload::driver::{self, Options, Report, Running};
use imago_workload::history::{Fate, Header, History, IdForm, Model, Op, Recorder};
use imago_workload::mix::Kind;
use imago_workload::review::Reviews;

const DOCUMENTS: u64 = 1500;

fn namespace() -> Namespace {
    Namespace::new("shop", "reviews")
}

fn schema() -> Schema {
    Schema { id_form: IdForm::Text, reviews: Reviews { products: 100, ..Reviews::default() } }
}

fn options() -> Options {
    Options {
        mix: "read=20,update=40,insert=25,delete=15".parse().unwrap(),
        keys: "zipf".parse().unwrap(),
        rate_per_s: 400.0,
        duration: Some(Duration::from_secs(3)),
        op_timeout: Duration::from_secs(5),
        preloaded: DOCUMENTS,
        reviews: schema().reviews,
        reinsert: 0.5,
        ..Options::default()
    }
}

fn recorder() -> Recorder {
    let header = Header {
        imago_history: Header::VERSION,
        preloaded: DOCUMENTS,
        reviews: schema().reviews,
        id_form: schema().id_form,
        model: Model::Documents,
        reads_are_current: false,
        namespace: namespace().to_string(),
        started_unix_ms: 0,
    };
    Recorder::memory(header, 1_000_000)
}

async fn filled(cluster: &Cluster) -> Arc<MongoTarget> {
    let target = MongoTarget::connect(&cluster.uri(), &namespace(), schema()).await.unwrap();
    preload(&target, DOCUMENTS, |_| {}).await.unwrap();
    Arc::new(target)
}

async fn finish(running: Running<MongoTarget>) -> (Report, History) {
    let (report, history) = Box::pin(running.finish()).await.unwrap();
    (report, history.unwrap())
}

async fn check(target: &MongoTarget, history: &History) -> Verdict {
    let mut checker = Checker::new(history.clone());
    show_content(target, &mut checker).await.unwrap();
    checker.finish()
}

async fn replica_set() -> Leased {
    Box::pin(pool::lease(pool::replica_set(1))).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_load_leaves_behind_is_what_was_acknowledged() {
    let cluster = replica_set().await;
    let target = filled(&cluster).await;
    let running = driver::start(options(), Arc::clone(&target), recorder()).unwrap();
    let (report, history) = finish(running).await;
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert!(report.kinds.iter().all(|kind| kind.tally.ok > 0), "{:?}", report.kinds);
    let verdict = check(&target, &history).await;
    assert!(verdict.holds(), "{verdict:?}");
    assert!(verdict.keys_written > 100 && verdict.documents > 0);
}

/// A preloaded document as it was loaded.
fn as_loaded(key: u64) -> Document {
    bson::deserialize_from_slice(schema().document(key, key, 0).as_bytes()).unwrap()
}

fn writes(history: &History, key: u64) -> Vec<Op> {
    history.ops.iter().filter(|op| op.key == key && op.kind.writes()).copied().collect()
}

/// A preloaded key to which nothing but one update was done.
fn updated_once(history: &History, other_than: &str) -> u64 {
    let fits = |key: &u64| {
        let writes = writes(history, *key);
        writes.len() == 1
            && (writes[0].kind, writes[0].fate) == (Kind::Update, Fate::Acked)
            && IdForm::Text.name(*key) != other_than
    };
    (0..DOCUMENTS).find(fits).expect("some document was updated once")
}

/// A preloaded key whose last write is an acknowledged delete.
fn deleted_last(history: &History) -> u64 {
    let fits = |key: &u64| {
        let writes = writes(history, *key);
        let mut deletes = writes.iter().filter(|op| op.kind == Kind::Delete);
        deletes.any(|delete| {
            delete.fate == Fate::Acked
                && writes.iter().all(|op| op.end_ns < delete.start_ns || op.seq == delete.seq)
        })
    };
    (0..DOCUMENTS).find(fits).expect("some document was deleted last")
}

/// A document of the collection that the filter picks.
async fn some(target: &MongoTarget, filter: Document) -> Document {
    let documents = target.collection().clone_with_type::<Document>();
    documents.find_one(filter).sort(doc! { "_id": -1 }).await.unwrap().expect("such a document")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_kind_of_damage_is_named_by_its_key() {
    let cluster = replica_set().await;
    let target = filled(&cluster).await;
    let running = driver::start(options(), Arc::clone(&target), recorder()).unwrap();
    let (_, history) = finish(running).await;
    let documents = target.collection().clone_with_type::<Document>();
    let mut expected = Vec::new();
    let mut damage = |wrong: Wrong, id: &str| expected.push((id.to_owned(), wrong));

    let untouched = some(&target, doc! { "n": 0, "seq": { "$lt": DOCUMENTS as i64 } }).await;
    let lost = untouched.get_str("_id").unwrap();
    documents.delete_one(doc! { "_id": lost }).await.unwrap();
    damage(Wrong::Lost, lost);

    let twice = some(&target, doc! { "n": 1 }).await;
    let twice = twice.get_str("_id").unwrap();
    documents.update_one(doc! { "_id": twice }, doc! { "$inc": { "n": 1_i64 } }).await.unwrap();
    damage(Wrong::Duplicated, twice);

    let reverted = updated_once(&history, twice);
    let original = as_loaded(reverted);
    let reverted = IdForm::Text.name(reverted);
    documents.replace_one(doc! { "_id": &reverted }, original).await.unwrap();
    damage(Wrong::Stale, &reverted);

    let back = deleted_last(&history);
    documents.insert_one(as_loaded(back)).await.unwrap();
    let back = IdForm::Text.name(back);
    damage(Wrong::Resurrected, &back);

    let changed = some(&target, doc! { "n": 0, "_id": { "$nin": [lost, &reverted, &back] } }).await;
    let changed = changed.get_str("_id").unwrap();
    documents.update_one(doc! { "_id": changed }, doc! { "$set": { "text": "x" } }).await.unwrap();
    damage(Wrong::Unknown, changed);

    documents.insert_one(doc! { "_id": "stranger" }).await.unwrap();
    damage(Wrong::Unknown, "String(\"stranger\")");

    let verdict = check(&target, &history).await;
    let mut named: Vec<_> = verdict.named.iter().map(|a| (a.id.clone(), a.wrong)).collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    expected.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(named, expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_a_killed_server() {
    let cluster = replica_set().await;
    let target = filled(&cluster).await;
    let running = driver::start(options(), Arc::clone(&target), recorder()).unwrap();
    let control = running.control();
    wait::until("writes are acknowledged", async || control.snapshot().writes.ok >= 200).await;
    let node = cluster.nodes().remove(0).name;
    cluster.kill(&node).unwrap();
    cluster.restart(&node).await.unwrap();
    let (_, history) = finish(running).await;
    let verdict = check(&target, &history).await;
    assert!(verdict.holds(), "{verdict:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_a_validator_refuses_counts_as_not_applied() {
    let cluster = replica_set().await;
    let target = filled(&cluster).await;
    let refuse = doc! { "collMod": "reviews", "validator": { "$expr": false } };
    target.collection().client().database("shop").run_command(refuse).await.unwrap();
    let options = Options {
        mix: "update=1,insert=1".parse().unwrap(),
        duration: Some(Duration::from_millis(500)),
        ..options()
    };
    let running = driver::start(options, Arc::clone(&target), recorder()).unwrap();
    let (report, history) = finish(running).await;
    assert!(report.writes.tally.failed > 0);
    let fates: Vec<_> = history.ops.iter().map(|op| op.fate).collect();
    assert!(fates.iter().all(|fate| *fate == Fate::Refused), "{:?}", report.failures);
    assert!(check(&target, &history).await.holds());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_that_holds_something_is_not_filled() {
    let cluster = replica_set().await;
    let target = filled(&cluster).await;
    let refused = preload(&target, 10, |_| {}).await.unwrap_err();
    assert_eq!(refused.class(), imago_mongo::error::Class::Precondition);
    assert_eq!(target.collection().count_documents(doc! {}).await.unwrap(), DOCUMENTS);
}
