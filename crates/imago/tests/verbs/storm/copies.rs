//! Copies with cut-over, to and fro between two replica sets of three members.

use std::time::Duration;

use bson::doc;
use imago_testbed::pool::replica_set;
use imago_testbed::{Cluster, ClusterSpec, wait};

use super::{MIX, Planned, RATE, disturbed, says_why};
use crate::cutover::scene::{NS, Scene, administer};
use crate::reshard::dice::Dice;

const COPIES: usize = 20;
/// A job that is not done after so many processes never will be.
const PROCESSES_MAX: usize = 15;

/// One round: the collection goes from one cluster to the other.
struct Round<'a> {
    scene: &'a Scene,
    from: &'a Cluster,
    to: &'a Cluster,
    n: usize,
}

impl Round<'_> {
    fn words<'w>(&self, words: &[&'w str], uris: &'w [String; 2]) -> Vec<&'w str> {
        [words, &["--from", &uris[0], "--to", &uris[1]]].concat()
    }

    async fn run(&self, dice: &mut Dice) {
        let uris = [self.from.admin_uri(), self.to.admin_uri()];
        let sets = [self.from, self.to].map(|cluster| (cluster, cluster.name().to_owned()));
        let rate = ["500", "2000", "none"][dice.throw(3) as usize];
        let mut words = vec!["copy", "--ns", NS, "--until", "caught-up"];
        if rate != "none" {
            words.extend(["--documents-s", rate]);
        }
        let copy = self.scene.telling(&self.words(&words, &uris));
        let mut at_work = self.scene.spawn(copy, &format!("copy-{}", self.n));
        let job = at_work.phase("prepare");
        println!("round {}: {job} from {} at {rate}", self.n, self.from.name());
        for process in 1.. {
            assert!(process <= PROCESSES_MAX, "not copied by {process} processes");
            let (dies, failures) = drawn(dice, process);
            match disturbed(&mut at_work, dies, &failures, &sets).await {
                Some((0, _)) => break,
                Some((exit, ended)) => says_why(exit, &ended),
                None => {}
            }
            let resume = ["job", "resume", &job, "--until", "caught-up"];
            let resume = self.scene.telling(&self.words(&resume, &uris));
            at_work = self.scene.spawn(resume, &format!("resume-{}-{process}", self.n));
        }
        let hook = self.scene.switch_to(self.to);
        for process in 1.. {
            assert!(process <= PROCESSES_MAX, "not cut over by {process} processes");
            let words = ["cutover", &job, "--sample", "200", "--on-cutover", &hook];
            let cutover = self.scene.telling(&self.words(&words, &uris));
            let mut at_work = self.scene.spawn(cutover, &format!("cutover-{}-{process}", self.n));
            let (dies, failures) = drawn(dice, process);
            match disturbed(&mut at_work, dies, &failures, &sets).await {
                Some((0, _)) => break,
                // Its process was killed behind the end of the job.
                Some((4, ended)) if ended.to_string().contains("is done") => break,
                Some((exit, ended)) => says_why(exit, &ended),
                None => {}
            }
        }
        self.scene.load_goes_on(50);
        // What was still under way to the old cluster is answered by now, as its servers are up.
        wait::lasts(Duration::from_secs(3)).await;
        let unblock = self.scene.imago(&self.words(&["cutover", &job, "--unblock"], &uris));
        let (exit, said) = self.scene.run(unblock);
        assert_eq!(exit, 0, "{said}");
        administer(self.from, "shop", doc! {"drop": "reviews"}).await;
    }
}

/// When a process dies, if it does, and the failures that it meets: fewer for later ones, so that the job ends.
fn drawn(dice: &mut Dice, process: usize) -> (Option<Duration>, Vec<Planned>) {
    let dies =
        (dice.throw(3) > 0 && process <= 4).then(|| Duration::from_millis(dice.throw(8_000)));
    let failures = if process <= 4 { dice.throw(3) } else { 0 };
    (dies, Planned::drawn(dice, failures, 2, Duration::from_secs(4)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "twenty copies under failures are run by make test-long"]
async fn twenty_copies_with_cut_over_lose_nothing() {
    let mut dice = Dice::of_the_seed();
    let set = || ClusterSpec { election_timeout_ms: 2_000, ..replica_set(3) }.with_auth();
    let scene = Scene::of(set(), set()).await;
    let load = scene.load_of(RATE, "60s", MIX);
    let (mut from, mut to): (&Cluster, &Cluster) = (&scene.old, &scene.new);
    for n in 1..=COPIES {
        Round { scene: &scene, from, to, n }.run(&mut dice).await;
        (from, to) = (to, from);
    }
    scene.nothing_lost(load, from);
}
