//! Nothing goes wrong.

use std::time::Duration;

use crate::reshard::scene::Scene;
use crate::reshard::writer::Writer;

/// Duration of a write into a shadow on servers that are full.
const SLOW: Duration = Duration::from_millis(1_800);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collection_gets_a_new_key_under_load_and_nothing_is_lost() {
    let scene = Scene::start(3).await;
    let load = scene.load().await;
    let writer = Writer::start(&scene.cluster.uri()).await;
    let plan = scene.usual_plan().await;
    let (exit, done) = scene.reshard(&plan, &["--documents-s", "1500"]).ended();
    assert_eq!(exit, 0, "{done}");
    assert!(done["write_block_ms"].as_u64() >= done["drain_ms"].as_u64(), "{done}");
    assert!(done["verified"].as_u64() > Some(2_400), "{done}");
    scene.load_goes_on(50).await;
    assert!(writer.nothing_lost().await > 50);
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_that_is_only_behind_is_not_taken_for_a_wrong_one() {
    let scene = Scene::stoppable().await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &["--max-block-ms", "20000"]);
    let job = at_work.phase("verify");
    // A document that is written often is never seen equal then, at two looks one after the other.
    let shadow = format!("shop.imago.shadow.{job}");
    scene.slow_writes_to(&shadow, Duration::from_millis(700)).await;
    at_work.phase("commit");
    scene.slow_writes_to(&shadow, Duration::ZERO).await;
    let (exit, done) = at_work.ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a shadow is kept far behind for a minute by make test-long"]
async fn a_shadow_that_keeps_up_though_never_close_takes_the_name() {
    let scene = Scene::stoppable().await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &["--max-block-ms", "20000"]);
    let job = at_work.phase("index");
    // As on full servers: applying changes takes seconds, and meanwhile as much is written again.
    scene.slow_writes_to(&format!("shop.imago.shadow.{job}"), SLOW).await;
    let (exit, done) = at_work.ended();
    assert_eq!(exit, 0, "{done}");
    let said = at_work.said();
    let lags = said.iter().filter(|said| said["event"] == "progress" && said["phase"] == "commit");
    let lags: Vec<u64> = lags.filter_map(|said| said["lag_ms"].as_u64()).collect();
    println!("behind before the block, in ms: {lags:?}");
    assert!(lags.last().is_some_and(|&lag| lag > 3_000), "it came close: {lags:?}");
    scene.is_reshaped(load, &plan).await;
}
