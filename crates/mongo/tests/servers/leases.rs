//! Slices on a real server: leased, seen, and gone with their job.

use bson::{Document, RawBson, Timestamp, doc};
use imago_job::id::JobId;
use imago_job::journal::{Journal, Update};
use imago_job::record::Record;
use imago_job::state::State;
use imago_mongo::bson::order::Id;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::state::journal::MongoJournal;
use imago_mongo::state::leases::{Leases, Slice};
use imago_plan::copy::pending_changes::SliceState;
use imago_testbed::pool::{self, Leased, replica_set};

async fn server() -> (Leased, Endpoint) {
    let cluster = Box::pin(pool::lease(replica_set(1))).await.unwrap();
    let endpoint = Box::pin(Endpoint::connect(&cluster.uri(), "destination")).await.unwrap();
    (cluster, endpoint)
}

fn id(n: i32) -> Id {
    Id::from_raw(RawBson::Int32(n).as_raw_bson_ref())
}

fn time(time: u32) -> Timestamp {
    Timestamp { time, increment: 1 }
}

/// The slices of a job of two collections, two slices each.
async fn four(at: &Endpoint, job: &JobId) -> Leases {
    let leases = Leases::new(at.clone(), job.clone(), format!("{job}/1/test"));
    for ns in [0, 1] {
        let slice = |n, min, max| Slice { ns, n, min, max };
        let slices = [slice(0, None, Some(id(5))), slice(1, Some(id(5)), None)];
        leases.create(&slices).await.unwrap();
    }
    leases.set_horizon(time(10)).await.unwrap();
    leases
}

async fn count(at: &Endpoint, coll: &str) -> u64 {
    let all = at.client().database("imago").collection::<Document>(coll);
    all.count_documents(doc! {}).await.unwrap()
}

#[tokio::test]
async fn leftovers_come_with_the_slices_that_were_not_known_to_be_copied() {
    let (_cluster, at) = server().await;
    let leases = four(&at, &JobId::generate()).await;
    let others = four(&at, &JobId::generate()).await;
    for (ns, n) in [(0, 0), (0, 1), (1, 0)] {
        let lease = leases.lease(None, 2).await.unwrap().unwrap();
        assert_eq!((lease.slice.ns, lease.slice.n, lease.attempt), (ns, n, 1));
        let left = [id(100), id(i32::try_from(n).unwrap())];
        let left = if ns == 0 { &left[..] } else { &[] };
        assert!(leases.copied(&lease, 7, 70, left).await.unwrap());
    }
    let known = [vec![true, false], vec![false, false]];
    let mut seen = leases.states_with_leftovers_after(None, &known).await.unwrap();
    seen.sort_by_key(|seen| (seen.ns, seen.n));
    let states: Vec<SliceState> = seen.iter().map(|seen| seen.state).collect();
    let (copied, untouched) = (SliceState::Copied, SliceState::Untouched);
    assert_eq!(states, [copied, copied, copied, untouched]);
    let left: Vec<&[Id]> = seen.iter().map(|seen| &*seen.leftovers).collect();
    assert_eq!(left, [&[][..], &[id(100), id(1)], &[], &[]]);
    let all = leases.states_after(None).await.unwrap();
    assert!(all.iter().all(|seen| seen.leftovers.is_empty()));
    assert_eq!(all.iter().map(|seen| seen.documents).sum::<u64>(), 21);
    let untouched = others.states_after(None).await.unwrap();
    assert!(untouched.iter().all(|seen| seen.state == SliceState::Untouched));
}

#[tokio::test]
async fn the_horizon_never_moves_back() {
    let (_cluster, at) = server().await;
    let job = JobId::generate();
    let leases = four(&at, &job).await;
    leases.set_horizon(time(20)).await.unwrap();
    let thawed = Leases::new(at, job, "an owner of before".into());
    thawed.set_horizon(time(15)).await.unwrap();
    assert_eq!(leases.horizon().await.unwrap(), time(20));
    leases.set_horizon(Timestamp { time: 20, increment: 2 }).await.unwrap();
    assert_eq!(thawed.horizon().await.unwrap(), Timestamp { time: 20, increment: 2 });
}

#[tokio::test]
async fn a_look_at_one_job_passes_by_the_slices_of_others() {
    let (_cluster, at) = server().await;
    let jobs = [JobId::generate(), JobId::generate(), JobId::generate()];
    for job in &jobs {
        four(&at, job).await;
    }
    let find = doc! {
        "find": "slices", "filter": {"job": jobs[1].to_string()}, "sort": {"ns": 1, "n": 1},
    };
    let explained =
        at.run("imago", doc! {"explain": find, "verbosity": "executionStats"}).await.unwrap();
    let stats = explained.get_document("executionStats").unwrap();
    assert_eq!(
        imago_mongo::server::collection::number(stats, "totalDocsExamined"),
        4,
        "{explained}"
    );
    assert!(!explained.to_string().contains("\"SORT\""), "{explained}");
}

#[tokio::test]
async fn slices_go_when_their_job_is_done_or_cancelled_and_only_then() {
    let (_cluster, at) = server().await;
    let journal = MongoJournal::new(at.clone());
    let kept = four(&at, &JobId::generate()).await;
    let running = State::Running { phase: "follow".into() };
    let failed = State::Failed { error: "the disk is full".into() };
    for (last, left) in [(failed, 8), (State::Cancelled, 4), (State::Done, 4)] {
        let record = Record::new("copy", serde_json::json!({}), journal.now_ms().await.unwrap());
        journal.create(&record).await.unwrap();
        let leases = four(&at, &record.id).await;
        let epoch = journal.claim(&record.id, "test", 1).await.unwrap().epoch;
        journal.save(&record.id, epoch, &Update::of(running.clone())).await.unwrap();
        assert_eq!((count(&at, "slices").await, count(&at, "horizons").await), (8, 2));
        journal.save(&record.id, epoch, &Update::of(last.clone())).await.unwrap();
        assert_eq!(count(&at, "slices").await, left, "{last:?}");
        assert_eq!(count(&at, "horizons").await, left / 4, "{last:?}");
        leases.remove().await.unwrap();
    }
    assert_eq!(kept.slices().await.unwrap().len(), 4, "another job's");
}
