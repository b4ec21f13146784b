//! Twenty copies with cut-over and eight changes of a shard key, under 200 operations a second, while servers and Imago fail.
//!
//! Each job meets failures drawn from a seed that is printed (`IMAGO_SEED` draws the same again): a server is killed, or stopped
//! for 6 or 20 seconds, a primary steps down, a member is removed from its replica set and added again; and Imago's process is
//! killed and started again. One load goes on through all of it, and at the end every acknowledged operation is compared with
//! what is there. `make test-long` alone runs it: it takes half an hour.

#![allow(clippy::print_stdout, reason = "a run that fails shows what it drew")]

mod copies;
mod shapes;

use std::time::{Duration, Instant};

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::{Cluster, wait};
use serde_json::Value;

use crate::process::Process;
use crate::reshard::dice::Dice;
use crate::reshard::scene::direct;

/// Operations a second, and their kinds: as many documents come as go.
const RATE: &str = "200";
const MIX: &str = "read=20,update=40,insert=20,delete=20";
/// A process that has neither ended nor failed by then hangs.
const ENDS_WITHIN: Duration = Duration::from_secs(170);

/// A failure of a server.
#[derive(Clone, Copy, Debug)]
enum Failure {
    /// It is killed, and starts again after this time.
    Kill(Duration),
    /// It stops where it is, and goes on after this time.
    Stop(Duration),
    /// It steps down as the primary.
    StepDown,
    /// It is removed from its replica set, and added again after this time.
    Removal(Duration),
}

impl Failure {
    fn drawn(dice: &mut Dice) -> Self {
        match dice.throw(6) {
            0 | 1 => Self::Kill(Duration::from_millis(dice.throw(3_000))),
            2 => Self::Stop(Duration::from_secs(6)),
            3 => Self::Stop(Duration::from_secs(20)),
            4 => Self::StepDown,
            _ => Self::Removal(Duration::from_secs(3)),
        }
    }
}

/// A failure to come.
#[derive(Clone, Debug)]
struct Planned {
    failure: Failure,
    /// The replica set, of those that are given.
    set: usize,
    is_primary: bool,
    /// After the start of the process that it disturbs, or after the failure before it.
    after: Duration,
}

impl Planned {
    /// So many of them in a row, each within a time after the one before it.
    fn drawn(dice: &mut Dice, failures: u64, sets: u64, within: Duration) -> Vec<Self> {
        let within_ms = u64::try_from(within.as_millis()).unwrap();
        let one = |_| Self {
            failure: Failure::drawn(dice),
            set: usize::try_from(dice.throw(sets)).unwrap(),
            is_primary: dice.throw(2) == 0,
            after: Duration::from_millis(dice.throw(within_ms)),
        };
        (0..failures).map(one).collect()
    }

    /// Has it happen, and returns when the set has settled behind it.
    async fn happen(&self, cluster: &Cluster, set: &str) {
        let primary = cluster.primary(set).await.unwrap();
        let is_meant = |name: &str| (name == primary) == self.is_primary;
        let nodes = cluster.nodes();
        let node = nodes.iter().find(|node| node.set == set && is_meant(&node.name));
        // A set of one member has none but its primary.
        let Some(node) = node.or_else(|| nodes.iter().find(|node| node.name == primary)) else {
            panic!("{set} has no {primary}")
        };
        // Nor can a set lose the only member that it has.
        let is_alone = nodes.iter().filter(|node| node.set == set).count() == 1;
        if is_alone && matches!(self.failure, Failure::Removal(_)) {
            return;
        }
        println!("{:?} of {}", self.failure, node.name);
        match self.failure {
            Failure::Kill(down) => {
                cluster.kill(&node.name).unwrap();
                wait::lasts(down).await;
                cluster.restart(&node.name).await.unwrap();
            }
            Failure::Stop(down) => {
                cluster.stop(&node.name).unwrap();
                wait::lasts(down).await;
                cluster.resume(&node.name).unwrap();
            }
            Failure::StepDown => {
                cluster.step_down(set).await.unwrap();
            }
            Failure::Removal(away) => {
                let host = format!("127.0.0.1:{}", node.port);
                let Some(member) = member_of(cluster, set, &host).await else {
                    panic!("{host} is no member of {set}")
                };
                let is_host = |other: &Document| other.get_str("host").is_ok_and(|at| at == host);
                reconfigure(cluster, set, |members| members.retain(|one| !is_host(one))).await;
                wait::lasts(away).await;
                let add = |members: &mut Vec<Document>| {
                    if !members.iter().any(is_host) {
                        members.push(member.clone());
                    }
                };
                reconfigure(cluster, set, add).await;
            }
        }
        cluster.settled(set).await.unwrap();
    }
}

/// The configuration of a replica set, from its primary.
async fn configuration(cluster: &Cluster, set: &str) -> Option<(Endpoint, Document)> {
    let primary = cluster.primary(set).await.ok()?;
    let port = cluster.nodes().iter().find(|node| node.name == primary)?.port;
    let primary = direct(cluster, port).await;
    let reply = primary.run("admin", doc! {"replSetGetConfig": 1}).await.ok()?;
    Some((primary, reply.get_document("config").ok()?.clone()))
}

fn members(config: &Document) -> Vec<Document> {
    let members = config.get_array("members").unwrap();
    members.iter().map(|member| member.as_document().unwrap().clone()).collect()
}

async fn member_of(cluster: &Cluster, set: &str, host: &str) -> Option<Document> {
    let (_, config) = configuration(cluster, set).await?;
    members(&config).into_iter().find(|member| member.get_str("host").is_ok_and(|at| at == host))
}

/// Changes the members of a replica set through its present primary. A primary that is removed steps down by itself only
/// after another one was elected, so it is asked to first.
async fn reconfigure(cluster: &Cluster, set: &str, change: impl Fn(&mut Vec<Document>)) {
    wait::until_with(Duration::from_millis(300), "the set has its new members", async || {
        let Some((primary, mut config)) = configuration(cluster, set).await else { return false };
        let before = members(&config);
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return true;
        }
        let own = primary.run("admin", doc! {"hello": 1}).await.unwrap();
        let is_in = after.iter().any(|member| member.get("host") == own.get("me"));
        if !is_in {
            cluster.step_down(set).await.unwrap();
            return false;
        }
        let version = config.get_i32("version").unwrap();
        config.insert("version", version + 1);
        config.insert("members", after);
        primary.run("admin", doc! {"replSetReconfig": config}).await.is_ok()
    })
    .await;
}

/// Lets a process run while these failures happen, and kills it after `dies` if it lives that long: its exit code and what it
/// said, or nothing if it was killed.
async fn disturbed(
    at_work: &mut Process,
    dies: Option<Duration>,
    failures: &[Planned],
    sets: &[(&Cluster, String)],
) -> Option<(i32, Value)> {
    let began = Instant::now();
    let storm = async {
        for planned in failures {
            wait::lasts(planned.after).await;
            let (cluster, set) = &sets[planned.set];
            planned.happen(cluster, set).await;
        }
    };
    let lives = async {
        let mut killed = false;
        wait::until("the process ends", async || {
            if dies.is_some_and(|dies| began.elapsed() >= dies) && at_work.is_running() {
                println!("killed after {} ms", began.elapsed().as_millis());
                at_work.kill();
                killed = true;
            }
            assert!(began.elapsed() < ENDS_WITHIN, "it hangs: {}", at_work.errors());
            killed || !at_work.is_running()
        })
        .await;
        killed
    };
    let ((), killed) = tokio::join!(Box::pin(storm), lives);
    (!killed).then(|| at_work.ended())
}

/// Checks that a process which did not reach its goal says why, and in a way that can be resumed.
fn says_why(exit: i32, ended: &Value) {
    assert!(matches!(exit, 1 | 4 | 5), "{exit} {ended}");
    assert!(ended["error"]["message"].is_string(), "{ended}");
    println!("ended by {exit}: {}", ended["error"]["message"]);
}
