//! Deaths at random moments: of Imago, and of servers beside it.
//!
//! One cluster and one load for all of it. Shape after shape is given to the collection, each job killed at
//! moments drawn from a seed and resumed until it is done; in between, a server dies and comes back. The
//! seed is printed; `IMAGO_SEED` gives it again. `IMAGO_LONG` asks for many deaths instead of a handful.
//! No dead process is reported: its successor waits until it must be dead, as it does for a user.
//! The same seed draws the same moments, blocks and servers; what a process is doing then is up to the
//! machine.

#![allow(clippy::print_stdout, reason = "a run that fails shows what it drew")]

use std::time::{Duration, Instant};

use imago_testbed::{Role, wait};

use crate::process::Process;
use crate::reshard::dice::{Dice, is_long};
use crate::reshard::disturbed::of_three;
use crate::reshard::scene::Scene;

const HANDFUL: u32 = 2;
const MANY: u32 = 50;
/// A job that is not done after so many processes never will be.
const PROCESSES_MAX: u32 = 12;
/// The test's bound for a handful of deaths; it grows in proportion with their number.
const HANDFUL_WITHIN: Duration = Duration::from_secs(300);

/// Waits until then; false when the process ended before.
async fn lives_for(at_work: &mut Process, time: Duration) -> bool {
    let began = Instant::now();
    wait::until("it ends, or the time is over", async || {
        began.elapsed() >= time || !at_work.is_running()
    })
    .await;
    at_work.is_running()
}

/// Kills a server, and starts it again after a moment.
async fn inject(scene: &Scene, dice: &mut Dice) {
    let sets = ["s1", "s2", "cfg"].map(|which| scene.set(which));
    let set = &sets[dice.throw(3) as usize];
    let primary = scene.cluster.primary(set).await.unwrap();
    let mut nodes = scene.cluster.nodes();
    nodes.retain(|node| node.set == *set && node.name != primary);
    // Of the config servers only the primary is killed: the death of another one has no effect.
    let is_secondary = dice.throw(2) == 0 && nodes.iter().any(|node| node.role == Role::Member);
    let down = Duration::from_millis(dice.throw(1_500));
    let node = if is_secondary { nodes[0].name.clone() } else { primary };
    println!("{node} is down for {} ms", down.as_millis());
    scene.cluster.kill(&node).unwrap();
    wait::lasts(down).await;
    scene.cluster.restart(&node).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deaths_at_any_moment_lose_nothing() {
    let deaths_wanted = if is_long() { MANY } else { HANDFUL };
    let mut dice = Dice::of_the_seed();
    let scene = of_three().await;
    let load = scene.load().await;
    let (began, within) = (Instant::now(), HANDFUL_WITHIN * deaths_wanted / HANDFUL);
    // Lifetime of a process that is not killed: deaths are drawn from that time.
    let mut life_ms = 4_000;
    let mut deaths = 0;
    while deaths < deaths_wanted {
        let plan = scene.next_plan(&mut dice).await;
        let block = ["user-writes", "validator"][dice.throw(2) as usize];
        println!("{} by {block}, after {} s", plan.key, began.elapsed().as_secs());
        let words = ["--block", block, "--max-block-ms", "20000"];
        let mut at_work = scene.reshard(&plan, &words);
        let job = at_work.phase("prepare");
        let mut killed = 0;
        for process in 1.. {
            assert!(process <= PROCESSES_MAX, "not done by {process} processes");
            assert!(began.elapsed() < within, "not done within {} s", within.as_secs());
            // The last one is left to finish, so that its life is known; of a job at most three die.
            let dies = killed < 3 && deaths < deaths_wanted && dice.throw(4) > 0;
            let lives = Duration::from_millis(dice.throw(life_ms));
            let injects = dice.throw(3) == 0;
            let started = Instant::now();
            if injects {
                let before = Duration::from_millis(dice.throw(life_ms));
                lives_for(&mut at_work, before).await;
                inject(&scene, &mut dice).await;
            }
            if dies && lives_for(&mut at_work, lives).await {
                at_work.kill();
                (killed, deaths) = (killed + 1, deaths + 1);
                println!("death {deaths} after {} ms", started.elapsed().as_millis());
            } else {
                let (exit, ended) = at_work.ended();
                if exit == 0 {
                    if !injects && process == 1 {
                        life_ms = u64::try_from(started.elapsed().as_millis()).unwrap().max(1_000);
                    }
                    break;
                }
                // Servers that are away may end it; then it says so.
                assert!(matches!(exit, 1 | 4 | 5), "{exit} {ended} {}", at_work.errors());
                assert!(ended["error"]["message"].is_string(), "{ended}");
                println!("ended: {}", ended["error"]["message"]);
            }
            at_work = scene.resume(&job, &["--max-block-ms", "20000"]);
        }
        scene.has_shape_of(&plan).await;
        scene.is_tidy().await;
        scene.is_unblocked(&job).await;
        scene.load_goes_on(20).await;
    }
    scene.nothing_lost(load);
}

impl Scene {
    /// Neither a validator nor the record speaks of a block any more.
    pub async fn is_unblocked(&self, job: &str) {
        let validation = self.validation().await;
        assert!(!validation.to_string().contains("imago"), "{validation}");
        let state = &self.record(job).await["checkpoint"]["job"];
        assert_eq!(state["is_blocked"], false, "{state}");
        assert!(state["validation"].is_null() && state["drained_to"].is_null(), "{state}");
    }
}
