//! A source whose clock is an hour late: nothing of a job may depend on the difference.

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::wait;
use serde_json::Value;

use super::scene::NS;
use crate::clock::OtherClock;
use crate::standing::Standing;

const HOUR_MS: i64 = 3_600_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "four servers with clocks of their own are started by make test-long"]
async fn a_source_an_hour_late_is_copied_left_and_returned_to_without_a_loss() {
    let folder = tempfile::tempdir().unwrap();
    let Some(clock) = OtherClock::build(folder.path()) else { return };
    clock.set("-3600");
    let up = ["mongodb", "--members", "3", "--auth"];
    let old = Standing::start_with("late", &up, &clock.variables("--dbpath"));
    let new = Standing::start("right", &["mongodb", "--auth"]);
    let path = |name: &str| old.path(name).to_str().unwrap().to_owned();
    let between = ["--from", &*old.admin_uri, "--to", &*new.admin_uri];

    let (history, socket) = (path("history"), path("load.sock"));
    let load =
        ["load", "--uri", &*old.uri, "--ns", NS, "--documents", "2000", "--size-bytes", "500"];
    let more =
        ["--rate", "80", "--mix", "read=20,update=45,insert=25,delete=10", "--op-timeout", "20s"];
    let record = ["--until-stopped", "--record", &*history, "--control", &*socket, "--no-timeline"];
    let mut load = old.start_process(&[&load[..], &more, &record].concat(), "load");
    load.until("the load runs", |said| said["started"].as_u64() > Some(100));

    // Sessions of two hours, which end in half an hour by the source's clock, and ended half an hour ago by the right one.
    let source = Endpoint::connect(&old.admin_uri, "source").await.unwrap();
    let destination = Endpoint::connect(&new.admin_uri, "destination").await.unwrap();
    let seen =
        bson::DateTime::from_millis(bson::DateTime::now().timestamp_millis() - HOUR_MS * 5 / 2);
    let sessions: Vec<Document> =
        (0..40).map(|user| doc! {"_id": format!("session-{user:04}"), "lastSeen": seen}).collect();
    source.run("shop", doc! {"insert": "sessions", "documents": sessions}).await.unwrap();
    let index = doc! {"key": {"lastSeen": 1}, "name": "lastSeen_1", "expireAfterSeconds": 7_200};
    source.run("shop", doc! {"createIndexes": "sessions", "indexes": [index]}).await.unwrap();

    let copy = [&["copy", "--ns", "shop.*"], &between[..]].concat();
    let mut copy = old.start_process(&copy, "copy");
    copy.until("clocks are compared", |said| {
        let message = said["message"].as_str().unwrap_or_default();
        let ahead = message.split("the destination's clock is ").nth(1);
        let ahead_s = ahead.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        ahead_s.is_some_and(|seconds| (3_590..3_610).contains(&seconds))
    });
    let job = copy.phase("follow");
    let status = ["job", "status", &*job, "--to", &*new.admin_uri];
    let mut progress = Value::Null;
    wait::until_blocking("the job is ready to be cut over", || {
        progress = old.json(&status)["progress"].take();
        progress["cutover_ready"] == true
    });
    assert!(progress["lag_ms"].as_u64() < Some(30_000), "{progress}");
    let verified = old.json(&[&["verify", "--ns", "shop.*"], &between[..]].concat());
    assert_eq!(verified["clean"], true, "{verified}");
    let count = destination.run("shop", doc! {"count": "sessions"}).await.unwrap();
    assert_eq!(
        count.get_i32("n").unwrap(),
        40,
        "nothing expires by the destination's clock while the job follows"
    );

    let program = env!("CARGO_BIN_EXE_imago");
    let switch_to =
        |uri: &str| format!("'{program}' load switch --control '{socket}' --uri '{uri}'");
    let hook = switch_to(&new.uri);
    let forward = [&["cutover", &*job, "--reverse", "--on-cutover", &*hook], &between[..]].concat();
    let mut forward = old.start_process(&forward, "forward");
    wait::until_blocking("clients are on the new cluster", || {
        assert!(forward.is_running(), "it ended: {} {}", forward.printed(), forward.errors());
        forward.printed().contains("reverse_job")
    });
    assert_eq!(copy.ended().0, 0, "{}", copy.errors());
    let before = acknowledged(&old, &socket);
    wait::until_blocking("clients write there", || acknowledged(&old, &socket) > before + 200);
    let hook = switch_to(&old.uri);
    let back = [&["cutover", &*job, "--rollback", "--on-cutover", &*hook], &between[..]].concat();
    let back = old.json(&back);
    let (exit, there) = forward.ended();
    assert_eq!((exit, &there["reverse_job"]), (0, &back["job"]), "{}", forward.errors());
    let before = acknowledged(&old, &socket);
    wait::until_blocking("clients write again", || acknowledged(&old, &socket) > before + 100);

    old.json(&["load", "stop", "--control", &socket]);
    assert_eq!(load.ended().0, 0, "{}", load.errors());
    let verdict = old.json(&["load", "check", "--uri", &old.uri, "--history", &history]);
    assert!(verdict["writes_acknowledged"].as_u64() > Some(300), "{verdict}");
    for fault in ["lost", "resurrected", "stale", "stale_reads", "unknown"] {
        assert_eq!(verdict[fault], 0, "{verdict}");
    }
}

/// Writes of the load that were acknowledged.
fn acknowledged(standing: &Standing, socket: &str) -> u64 {
    let status = standing.json(&["load", "status", "--control", socket]);
    status["writes"]["ok"].as_u64().unwrap()
}
