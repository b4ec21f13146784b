//! Servers step down and die.

use bson::doc;
use imago_testbed::pool::sharded;
use imago_testbed::{ClusterSpec, Role};

use crate::process::Process;
use crate::reshard::scene::Scene;

/// Two shards of three members, which can be made to stop at places in their code.
pub async fn of_three() -> Scene {
    let spec = ClusterSpec { members: 3, election_timeout_ms: 2_000, ..sharded(2) };
    Scene::of(spec.with_auth().with_parameter("enableTestCommands", "1")).await
}

/// One shard's primary steps down, another one's and the config server's die and come back.
async fn unseat(scene: &Scene) {
    let (first, second) = (scene.set("s1"), scene.set("s2"));
    scene.cluster.step_down(&first).await.unwrap();
    let primary = scene.cluster.primary(&second).await.unwrap();
    scene.cluster.kill(&primary).unwrap();
    let config = scene.cluster.primary(&scene.set("cfg")).await.unwrap();
    scene.cluster.kill(&config).unwrap();
    scene.cluster.restart(&config).await.unwrap();
    scene.cluster.primary_other_than(&second, &primary).await.unwrap();
    scene.cluster.restart(&primary).await.unwrap();
}

/// Either it was done, or it said why not, and a second try succeeds; what it said.
pub async fn done_in_the_end(scene: &Scene, job: &str, mut first: Process) -> Option<String> {
    let (exit, ended) = first.ended();
    if exit == 0 {
        return None;
    }
    assert!(matches!(exit, 1 | 4 | 5), "{exit} {ended}");
    assert!(ended["error"]["message"].is_string(), "{ended}");
    let mut again = scene.resume(job, &[]);
    let (exit, done) = again.ended();
    if exit != 0 {
        let missing = scene.missing().await;
        let said = [first.errors(), again.errors()].join("\n---\n");
        panic!("first {ended}, then {done}\n{missing}\n{said}");
    }
    Some(ended["error"]["message"].to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "elections of a minute are waited for by make test-long"]
async fn primaries_may_go_while_the_bulk_is_copied() {
    let scene = of_three().await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &["--documents-s", "400"]);
    let job = at_work.phase("execute");
    unseat(&scene).await;
    done_in_the_end(&scene, &job, at_work).await;
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secondary_that_falls_behind_on_a_shard_is_waited_for() {
    let scene = of_three().await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work =
        scene.reshard(&plan, &["--pace", "full", "--documents-s", "300", "--secondary-lag-s", "2"]);
    at_work.phase("execute");
    let lagging = scene.set("s2");
    let primary = scene.cluster.primary(&lagging).await.unwrap();
    let nodes = scene.cluster.nodes();
    let is_it = |set: &str, name: &str| set == lagging && name != primary;
    let node = nodes.iter().find(|node| is_it(&node.set, &node.name)).unwrap();
    // It lives, and applies nothing: one that is frozen counts as down after two seconds here.
    let secondary = scene.direct(node.port).await;
    let stop = |mode: &str| doc! {"configureFailPoint": "rsSyncApplyStop", "mode": mode};
    scene.cluster.undo(Role::Member, stop("off"));
    secondary.run("admin", stop("alwaysOn")).await.unwrap();
    at_work.until("it waits for the secondary", |said| {
        said["blocked_by"].as_str().is_some_and(|cause| cause.contains("behind"))
    });
    secondary.run("admin", stop("off")).await.unwrap();
    let (exit, done) = at_work.ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primaries_may_go_during_the_commit() {
    let scene = of_three().await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &["--max-block-ms", "30000"]);
    let job = at_work.phase("verify");
    scene.is_noted(&job, "is_blocked", &mut at_work).await;
    unseat(&scene).await;
    done_in_the_end(&scene, &job, at_work).await;
    scene.is_reshaped(load, &plan).await;
}
