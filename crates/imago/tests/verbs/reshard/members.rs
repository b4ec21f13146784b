//! The members of a shard that are read from, and the effect of their deaths on a change of shape.
//!
//! One cluster and one load serve all deaths; the collection gets shape after shape. A server dies and comes
//! back. `make test` kills each of the victims once, in phases in turn from a drawn one; `IMAGO_LONG` kills
//! each victim in each phase.

#![allow(clippy::print_stdout, reason = "a run that fails shows what it drew")]

use std::time::{Duration, Instant};

use bson::{Bson, Document, doc};
use imago_mongo::reshard::plan::Plan;
use serde_json::Value;

use imago_testbed::wait;

use crate::reshard::dice::{Dice, is_long};
use crate::reshard::disturbed::{done_in_the_end, of_three};
use crate::reshard::scene::{NS, Scene, found};

const PHASES: [&str; 6] = ["prepare", "execute", "index", "recover", "verify", "commit"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Primary,
    /// The secondary that the bulk is read from.
    Reader,
    /// A secondary that has nothing to do with it.
    Idle,
    ConfigPrimary,
}

const VICTIMS: [Victim; 4] = [Victim::Primary, Victim::Reader, Victim::Idle, Victim::ConfigPrimary];

/// A secondary, by its name and as `host:port`.
type Secondary = (String, String);

impl Scene {
    /// The secondaries of a set, in the order of their names.
    async fn secondaries(&self, set: &str) -> Vec<Secondary> {
        let primary = self.cluster.primary(set).await.unwrap();
        let nodes = self.cluster.nodes().into_iter();
        let others = nodes.filter(|node| node.set == set && node.name != primary);
        others.map(|node| (node.name, format!("127.0.0.1:{}", node.port))).collect()
    }

    /// Says of a set's members in which data centre each of them, as `host:port`, is.
    async fn tag(&self, set: &str, centre: impl Fn(&str) -> &'static str) {
        self.cluster.end_with_this_test();
        let primary = self.cluster.primary(set).await.unwrap();
        let node = self.cluster.nodes().into_iter().find(|node| node.name == primary).unwrap();
        let server = self.direct(node.port).await;
        let reply = server.run("admin", doc! {"replSetGetConfig": 1}).await.unwrap();
        let mut config = reply.get_document("config").unwrap().clone();
        let version = config.get_i32("version").unwrap();
        config.insert("version", version + 1);
        for member in config.get_array_mut("members").unwrap() {
            let Bson::Document(member) = member else { panic!("no member: {member}") };
            let dc = centre(member.get_str("host").unwrap());
            member.insert("tags", doc! {"dc": dc});
        }
        server.run("admin", doc! {"replSetReconfig": config}).await.unwrap();
    }

    /// Has the plan read each shard from its first secondary; that one and the other, for each shard.
    async fn read_from_secondaries(&self, plan: &mut Plan) -> Vec<[Secondary; 2]> {
        let mut pairs = Vec::new();
        for shard in &plan.shards {
            let pair: [Secondary; 2] = self.secondaries(shard).await.try_into().unwrap();
            pairs.push(pair);
        }
        plan.members = pairs.iter().map(|[reader, _]| Some(reader.1.clone())).collect();
        pairs
    }
}

/// Documents of the collection that a member has returned to `find` commands.
async fn given(scene: &Scene, host: &str) -> i64 {
    let port = host.rsplit_once(':').unwrap().1.parse().unwrap();
    // Slices are cut by looks at single documents.
    let is_bulk = doc! {"$exists": false};
    let asked = doc! {"ns": NS, "op": {"$in": ["query", "getmore"]}, "command.limit": is_bulk};
    let member = scene.direct(port).await;
    let find = doc! {"find": "system.profile", "filter": asked};
    let notes = found(&member, "shop", find).await;
    let documents = |note: &Document| i64::from(note.get_i32("nreturned").unwrap_or(0));
    notes.iter().map(documents).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_bulk_is_read_from_the_members_of_the_plan() {
    let scene = of_three().await;
    let note = |n: i32| doc! {"_id": n, "productID": format!("B{n:09}"), "userID": n * 37 % 100};
    let notes: Vec<Document> = (0..2_000).map(|n| note(n * 25)).collect();
    let insert = doc! {
        "insert": "reviews", "documents": &notes, "writeConcern": {"w": 3},
    };
    scene.run("shop", insert).await;
    // The stream of changes begins with this, and not with the last document: it would be looked at once more.
    assert_eq!(scene.application_writes().await, Ok(()));
    let mut plan = scene.usual_plan().await;
    let pairs = scene.read_from_secondaries(&mut plan).await;
    scene.cluster.end_with_this_test();
    for member in scene.members().await {
        member.run("shop", doc! {"profile": 2}).await.unwrap();
    }
    let (exit, done) = scene.reshard(&plan, &["--verify", "none"]).ended();
    assert_eq!(exit, 0, "{done}");
    let mut read = 0;
    for [(_, reader), (_, idle)] in &pairs {
        read += given(&scene, reader).await;
        assert_eq!(given(&scene, idle).await, 0, "{idle} is not the plan's");
    }
    // A read that continues with another size of batches begins with the last document.
    assert!((2_000..2_010).contains(&read), "documents are read once, not {read} times in all");
    scene.has_shape_of(&plan).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_plan_reads_from_members_beside_the_primaries_and_says_what_crosses() {
    let scene = of_three().await;
    let note =
        |n: i32| doc! {"_id": n, "productID": format!("B{:09}", n * 25), "userID": n * 37 % 100};
    let notes: Vec<Document> = (0..2_000).map(note).collect();
    scene.run("shop", doc! {"insert": "reviews", "documents": &notes}).await;
    let uri = scene.cluster.admin_uri();
    let key = ["--key", r#"{"userID": 1}"#, "--chunks", "6"];
    let words = [&["reshard", "plan", "--uri", &uri, "--ns", NS], &key[..]].concat();
    let plan = || scene.imago(&words).ended();
    let crosses = |plan: &Value| {
        let all = plan["findings"].as_array().unwrap();
        all.iter().find(|finding| finding["code"] == "data_centres").cloned()
    };
    let mut beside = Vec::new();
    let sets = [scene.set("s1"), scene.set("s2")];
    for set in &sets {
        let [(_, here), (_, far)]: [Secondary; 2] =
            scene.secondaries(set).await.try_into().unwrap();
        scene.tag(set, |host| if host == far { "west" } else { "east" }).await;
        beside.push(here);
    }
    let (exit, near) = plan();
    assert_eq!((exit, &near["members"]), (0, &serde_json::json!(beside)), "{near}");
    assert_eq!(crosses(&near), None, "{near}");

    scene.tag(&sets[1], |_| "west").await;
    let (exit, apart) = plan();
    let told = crosses(&apart).unwrap();
    let what = told["what"].as_str().unwrap();
    assert_eq!((exit, told["weight"].as_str()), (0, Some("warning")), "{told}");
    assert!(
        what.contains("bytes cross") && what.contains(&format!("from {} to {}", sets[1], sets[0])),
        "{what}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_death_in_any_phase_loses_nothing() {
    let scene = of_three().await;
    let load = scene.load().await;
    let mut dice = Dice::of_the_seed();
    let first = dice.throw(PHASES.len() as u64) as usize;
    for (n, victim) in VICTIMS.into_iter().enumerate() {
        let one = [PHASES[(first + n) % PHASES.len()]];
        for phase in if is_long() { &PHASES[..] } else { &one } {
            dies(&scene, phase, victim, &mut dice).await;
        }
    }
    scene.nothing_lost(load);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_may_lose_two_of_three_members_for_a_while() {
    let scene = of_three().await;
    let load = scene.load().await;
    let mut plan = scene.usual_plan().await;
    let pairs = scene.read_from_secondaries(&mut plan).await;
    let mut at_work = scene.reshard(&plan, &["--pace", "full", "--documents-s", "500"]);
    let job = at_work.phase("execute");
    // The member it writes to and the one it reads from: the third alone cannot be elected.
    let primary = scene.cluster.primary(&plan.shards[0]).await.unwrap();
    let both = [primary, pairs[0][0].0.clone()];
    both.iter().for_each(|node| scene.cluster.kill(node).unwrap());
    wait::lasts(Duration::from_secs(6)).await;
    assert!(at_work.is_running(), "it waits for them: {}", at_work.errors());
    for node in &both {
        scene.cluster.restart(node).await.unwrap();
    }
    done_in_the_end(&scene, &job, at_work).await;
    scene.is_reshaped(load, &plan).await;
}

async fn dies(scene: &Scene, phase: &str, victim: Victim, dice: &mut Dice) {
    let mut plan = scene.next_plan(dice).await;
    let pairs = scene.read_from_secondaries(&mut plan).await;
    let shard = dice.throw(pairs.len() as u64) as usize;
    let node = match victim {
        Victim::Primary => scene.cluster.primary(&plan.shards[shard]).await.unwrap(),
        Victim::Reader => pairs[shard][0].0.clone(),
        Victim::Idle => pairs[shard][1].0.clone(),
        Victim::ConfigPrimary => scene.cluster.primary(&scene.set("cfg")).await.unwrap(),
    };
    // So slow that a reader dies while it is read from.
    let words = ["--pace", "full", "--documents-s", "1200", "--max-block-ms", "20000"];
    let mut at_work = scene.reshard(&plan, &words);
    let job = at_work.phase(phase);
    scene.cluster.kill(&node).unwrap();
    let killed = Instant::now();
    wait::lasts(Duration::from_millis(dice.throw(1_500))).await;
    if (phase, victim) == ("execute", Victim::Reader) {
        wait::until("another one takes its place", async || {
            let said = at_work.errors();
            assert!(!said.contains(r#""to":"index""#), "no other member took its place: {said}");
            said.contains("reader_replaced")
        })
        .await;
    }
    let down_ms = killed.elapsed().as_millis();
    scene.cluster.restart(&node).await.unwrap();
    let ended = done_in_the_end(scene, &job, at_work).await;
    let s = killed.elapsed().as_secs();
    println!("{phase}: {victim:?} {node} down for {down_ms} ms, done after {s} s: {ended:?}");
    let is_secondary = matches!(victim, Victim::Reader | Victim::Idle);
    assert!(!is_secondary || ended.is_none(), "a secondary's death ended it: {ended:?}");
    scene.has_shape_of(&plan).await;
    scene.is_tidy().await;
    scene.is_unblocked(&job).await;
    scene.load_goes_on(20).await;
}
