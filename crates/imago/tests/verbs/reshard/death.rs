//! The process dies, in each phase, and another one goes on.

use bson::doc;

use crate::reshard::scene::Scene;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_killed_in_any_phase_is_followed_by_one_that_goes_on() {
    let scene = Scene::start(2).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &[]);
    for phase in ["prepare", "execute", "index", "recover", "verify", "commit"] {
        let job = at_work.phase(phase);
        if phase == "execute" {
            at_work.freeze();
            let shadow = format!("imago.shadow.{job}");
            let serving = scene.serving(&shadow, &doc! {"userID": 1}).await;
            assert!(serving.is_empty(), "built for every document anew: {serving:?}");
        }
        at_work.kill();
        scene.bury(&job).await;
        at_work = scene.resume(&job, &[]);
    }
    let (exit, done) = at_work.ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_reshaped(load, &plan).await;
}
