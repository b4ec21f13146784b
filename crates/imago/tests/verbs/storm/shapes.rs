//! Changes of a shard key on two shards of three members, to and fro between two keys.

use std::time::Duration;

use imago_testbed::Cluster;

use super::{MIX, Planned, RATE, disturbed, says_why};
use crate::reshard::dice::Dice;
use crate::reshard::disturbed::of_three;

const CHANGES: usize = 8;
/// A job that is not done after so many processes never will be.
const PROCESSES_MAX: usize = 15;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "eight changes under failures are run by make test-long"]
async fn eight_changes_of_a_shard_key_lose_nothing() {
    let mut dice = Dice::of_the_seed();
    let scene = of_three().await;
    let load = scene.load_of(RATE, MIX).await;
    let cluster: &Cluster = &scene.cluster;
    let sets = ["s1", "s2", "cfg"].map(|which| (cluster, scene.set(which)));
    for n in 1..=CHANGES {
        let plan = scene.next_plan(&mut dice).await;
        let block = ["user-writes", "validator"][dice.throw(2) as usize];
        println!("change {n} to {} by {block}", plan.key);
        let mut at_work = scene.reshard(&plan, &["--block", block, "--max-block-ms", "30000"]);
        let job = at_work.phase("prepare");
        for process in 1.. {
            assert!(process <= PROCESSES_MAX, "not done by {process} processes");
            let dies = (dice.throw(3) > 0 && process <= 4)
                .then(|| Duration::from_millis(dice.throw(8_000)));
            let failures = if process <= 4 { dice.throw(3) } else { 0 };
            let failures = Planned::drawn(&mut dice, failures, 3, Duration::from_secs(4));
            match disturbed(&mut at_work, dies, &failures, &sets).await {
                Some((0, _)) => break,
                Some((exit, ended)) => says_why(exit, &ended),
                None => {}
            }
            at_work = scene.resume(&job, &["--max-block-ms", "30000"]);
        }
        scene.has_shape_of(&plan).await;
        scene.is_tidy().await;
        scene.is_unblocked(&job).await;
        scene.load_goes_on(50).await;
    }
    scene.nothing_lost(load);
}
