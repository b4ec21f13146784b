//! The shadow is not what it should be.

use bson::doc;

use crate::reshard::scene::Scene;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_that_is_wrong_does_not_take_the_name() {
    let scene = Scene::start(2).await;
    let load = scene.load().await;
    let plan = scene.usual_plan().await;
    let mut at_work = scene.reshard(&plan, &[]);
    let job = at_work.phase("index");
    at_work.kill();
    scene.bury(&job).await;
    // More than the load can mend by writing to them.
    let shadow = format!("imago.shadow.{job}");
    let change = doc! {
        "q": {"seq": {"$mod": [97, 5]}}, "u": {"$set": {"score": -1.0}}, "multi": true,
    };
    let changed = scene.run("shop", doc! {"update": &shadow, "updates": [change]}).await;
    assert!(changed.get_i32("n").unwrap() > 10, "{changed}");
    let gone = doc! {"q": {"seq": {"$mod": [97, 6]}}, "limit": 0};
    scene.run("shop", doc! {"delete": &shadow, "deletes": [gone]}).await;
    let (exit, failed) = scene.resume(&job, &[]).ended();
    assert_eq!(exit, 4, "{failed}");
    assert!(failed.to_string().contains("documents differ, the first is"), "{failed}");
    assert_eq!(scene.application_writes().await, Ok(()));
    let cancelled = scene.job("cancel", &job, &[]);
    assert_eq!(cancelled["state"], "cancelled", "{cancelled}");
    scene.is_as_before(load).await;
}
