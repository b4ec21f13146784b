//! Operations of the cluster that a plan finds under way, held up in the middle.

use std::time::Duration;

use bson::doc;
use imago_mongo::reshard::plan::Weight;

use imago_testbed::wait::Wait;

use crate::reshard_plan::world::{obstacle, run_alone, warning};

#[test]
fn what_goes_on_now_is_found() {
    run_alone("now", |place| async move {
        place.filled("busy").await;
        let first = place.client(&place.shard(0)).await.database("admin");
        let hold = async |point: &str, mode: &str| {
            let command = doc! {"configureFailPoint": point, "mode": mode};
            first.run_command(command).await.unwrap();
        };
        let until = async |code: Vec<(Weight, String)>| {
            let what = format!("{code:?} is found");
            let wait = Wait::until(Duration::from_millis(100), &what);
            while place.find("busy", r#"{"u": 1}"#).await != code {
                wait.again().await;
            }
        };

        hold("hangAfterStartingIndexBuild", "alwaysOn").await;
        let router = place.router.clone();
        let index = doc! {"key": {"r": 1}, "name": "r_1"};
        let command = doc! {"createIndexes": "busy", "indexes": [index]};
        let db = place.db.clone();
        let built = tokio::spawn(async move { router.run_at_length(&db, command).await });
        until(obstacle("index_build")).await;
        hold("hangAfterStartingIndexBuild", "off").await;
        built.await.unwrap().unwrap();
        until(Vec::new()).await;

        hold("moveChunkHangAtStep3", "alwaysOn").await;
        let router = place.router.clone();
        let command = doc! {"moveChunk": place.ns("busy"), "find": {"k": 1}, "to": place.shard(1)};
        let moved = tokio::spawn(async move { router.run_at_length("admin", command).await });
        until(warning("migration")).await;
        hold("moveChunkHangAtStep3", "off").await;
        moved.await.unwrap().unwrap();
        until(Vec::new()).await;
    });
}
