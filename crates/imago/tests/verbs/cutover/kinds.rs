//! Names that change their kind at the source: each of {collection, view, time series} becomes each of them,
//! while a job follows, is paused, and is dead.

use std::time::Duration;

use bson::{DateTime, Document, doc};
use imago_testbed::{Cluster, wait};

use crate::cutover::catalog::{bury, count, follows, insert, options, orders, status};
use crate::cutover::scene::{Scene, administer};

const KINDS: [Kind; 3] = [Kind::Collection, Kind::View, Kind::TimeSeries];
const PHASES: [&str; 3] = ["followed", "paused", "dead"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Collection,
    View,
    TimeSeries,
}

/// A name, its kind before, and the kind that it becomes.
struct Change {
    name: String,
    before: Kind,
    after: Kind,
}

fn changes(phase: &str, may_begin_as: fn(Kind) -> bool) -> Vec<Change> {
    let befores = KINDS.into_iter().filter(|kind| may_begin_as(*kind));
    let all = befores.flat_map(|before| KINDS.map(|after| (before, after)));
    let change = |(before, after)| {
        let name = format!("{phase}_{before:?}_{after:?}").to_lowercase();
        Change { name, before, after }
    };
    all.map(change).collect()
}

fn over(amount: u32) -> Vec<Document> {
    vec![doc! {"$match": {"amount": {"$gt": amount}}}]
}

async fn make(at: &Cluster, name: &str, kind: Kind, n: u32) {
    match kind {
        Kind::Collection => insert(at, name, orders(n..n + 30)).await,
        Kind::View => {
            let view = doc! {"create": name, "viewOn": "reviews", "pipeline": over(n)};
            administer(at, "shop", view).await;
        }
        Kind::TimeSeries => {
            let series = doc! {"create": name, "timeseries": {"timeField": "at"}};
            administer(at, "shop", series).await;
            let measured = doc! {"at": DateTime::from_millis(1_764_000_000_000), "amount": 7};
            administer(at, "shop", doc! {"insert": name, "documents": [measured]}).await;
        }
    }
}

impl Change {
    /// Drops it, and makes the other: collections by inserts, by a rename, or by `$out`.
    async fn happen(&self, at: &Cluster, n: usize) {
        administer(at, "shop", doc! {"drop": &self.name}).await;
        if self.after != Kind::Collection || n.is_multiple_of(3) {
            return make(at, &self.name, self.after, 500).await;
        }
        let staging = format!("{}_import", self.name);
        administer(at, "staging", doc! {"insert": &staging, "documents": orders(500..530)}).await;
        if n % 3 == 1 {
            let to = format!("shop.{}", self.name);
            let rename = doc! {"renameCollection": format!("staging.{staging}"), "to": to};
            administer(at, "admin", rename).await;
        } else {
            let out = doc! {"$out": {"db": "shop", "coll": &self.name}};
            let copy = doc! {"aggregate": &staging, "pipeline": [out], "cursor": {}};
            administer(at, "staging", copy).await;
        }
    }

    /// True if the destination has what the name is at the source now.
    async fn has_arrived(&self, scene: &Scene) -> bool {
        let there = options(&scene.new, &self.name).await;
        match self.after {
            Kind::Collection => {
                there.is_some_and(|options| !options.contains_key("viewOn"))
                    && count(&scene.new, &self.name).await == 30
            }
            Kind::View => there.is_some() && there == options(&scene.old, &self.name).await,
            Kind::TimeSeries => there.is_none(),
        }
    }
}

async fn arrive(scene: &Scene, job: &str, changes: &[Change]) {
    for change in changes {
        wait::until(&format!("{} arrives", change.name), async || change.has_arrived(scene).await)
            .await;
    }
    // A time series stays an obstacle.
    let known = || status(scene, job).to_string();
    wait::until_or_report("nothing else is in the way", known, || {
        let obstacles = &status(scene, job)["progress"]["cutover_obstacles"];
        obstacles.as_array().is_some_and(|all| {
            all.iter().all(|obstacle| obstacle.as_str().unwrap().contains("time series"))
        })
    });
}

async fn every_change(may_begin_as: fn(Kind) -> bool, is_pattern: bool) {
    let scene = Scene::start().await;
    insert(&scene.old, "reviews", orders(0..200)).await;
    let all = PHASES.map(|phase| changes(phase, may_begin_as));
    for change in all.iter().flatten() {
        make(&scene.old, &change.name, change.before, 0).await;
    }
    let named: Vec<String> =
        all.iter().flatten().map(|change| format!("shop.{}", change.name)).collect();
    let mut words = vec!["--ns", "shop.reviews"];
    if is_pattern {
        words = vec!["--ns", "shop.*"];
    } else {
        words.extend(named.iter().flat_map(|name| ["--ns", name]));
    }
    let (mut copy, job) = follows(&scene, &words);
    let to = scene.new.admin_uri();
    let happen = async |changes: &[Change]| {
        for (n, change) in changes.iter().enumerate() {
            change.happen(&scene.old, n).await;
        }
    };
    happen(&all[0]).await;
    arrive(&scene, &job, &all[0]).await;

    assert_eq!(scene.run(scene.imago(&["job", "pause", &job, "--to", &to])).0, 0);
    happen(&all[1]).await;
    // The job looks at the catalog in a pause, too.
    wait::lasts(Duration::from_secs(3)).await;
    assert!(copy.is_running(), "{}", copy.errors());
    assert_eq!(scene.run(scene.between(&["job", "resume", &job])).0, 0);
    arrive(&scene, &job, &all[1]).await;

    copy.kill();
    happen(&all[2]).await;
    bury(&scene.new, &job).await;
    let mut copy = scene.spawn(scene.between(&["job", "resume", &job]), "resume");
    arrive(&scene, &job, &all[2]).await;
    assert!(copy.is_running(), "{}", copy.errors());

    let cutover = scene.cutover(&job, &[]);
    let (exit, refused) = scene.run(cutover);
    assert_eq!(exit, 4, "time series are not left behind in silence: {refused}");
    let (exit, done) = scene.run(scene.cutover(&job, &["--ignore-new", "--lift-block"]));
    assert_eq!(exit, 0, "{done}");
    assert_eq!(copy.ended().0, 0, "{}", copy.errors());
    for change in all.iter().flatten() {
        assert!(change.has_arrived(&scene).await, "{}", change.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_pattern_matches_is_copied_as_what_it_is_now() {
    every_change(|_| true, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_named_is_copied_as_what_it_is_now() {
    // A time series cannot be named.
    every_change(|kind| kind != Kind::TimeSeries, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_patterns_only_collection_may_be_dropped_and_made_again() {
    let scene = Scene::start().await;
    insert(&scene.old, "orders", orders(0..50)).await;
    let (mut copy, job) = follows(&scene, &["--ns", "shop.*"]);
    administer(&scene.old, "shop", doc! {"dropDatabase": 1}).await;
    wait::until_blocking("the job says that nothing is left", || {
        assert!(copy.is_running(), "{}", copy.errors());
        let obstacles = status(&scene, &job)["progress"]["cutover_obstacles"].to_string();
        obstacles.contains("none of the job's collections")
    });
    assert_eq!(count(&scene.new, "orders").await, 50, "it may have been an accident");
    let (exit, refused) = scene.run(scene.cutover(&job, &[]));
    assert_eq!(exit, 4, "{refused}");
    assert!(copy.is_running(), "{}", copy.errors());
    insert(&scene.old, "orders", orders(100..130)).await;
    wait::until("it joins", async || {
        assert!(copy.is_running(), "{}", copy.errors());
        count(&scene.new, "orders").await == 30
    })
    .await;
    wait::until_blocking("it may be cut over", || {
        status(&scene, &job)["progress"]["cutover_ready"] == true
    });
    let (exit, done) = scene.run(scene.cutover(&job, &["--lift-block"]));
    assert_eq!(exit, 0, "{done}");
    assert_eq!(count(&scene.new, "orders").await, 30, "what was dropped does not come back");
}
