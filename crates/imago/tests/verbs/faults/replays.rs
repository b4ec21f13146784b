//! The process that follows is killed again and again, and its successors apply changes that were applied already.
//!
//! `make test-long` kills fifty times, `make test` three times.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_testbed::pool::{replica_set, sharded};
use imago_testbed::{Cluster, wait};
use tokio::task::JoinHandle;

use crate::cutover::catalog::bury;
use crate::cutover::scene::{Scene, administer};
use crate::process::Process;
use crate::reshard::dice::{Dice, is_long};

/// Between two groups of a client's writes.
const PAUSE: Duration = Duration::from_millis(4);

/// Runs `imago` between both clusters, with every event as a line of JSON.
fn between(scene: &Scene, words: &[&str], name: &str) -> Process {
    let (from, to) = (scene.old.admin_uri(), scene.new.admin_uri());
    let words = [words, &["--from", &from, "--to", &to]].concat();
    scene.spawn(scene.telling(&words), name)
}

/// Clients that write until they are stopped.
struct Clients {
    is_over: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<u64>>,
}

impl Clients {
    /// So many of them; each makes one group of writes after another, by `write`, with a sequence of its own.
    async fn start<F>(at: &Cluster, many: u64, write: fn(Endpoint, u64) -> F) -> Self
    where
        F: Future<Output = u64> + Send + 'static,
    {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for client in 0..many {
            let source = Endpoint::connect(&at.admin_uri(), "source").await.unwrap();
            let is_over = Arc::clone(&is_over);
            tasks.push(tokio::spawn(async move {
                let (mut written, mut n) = (0, 0);
                while !is_over.load(Ordering::Relaxed) {
                    written += write(source.clone(), n * many + client).await;
                    n += 1;
                    wait::lasts(PAUSE).await;
                }
                written
            }));
        }
        Self { is_over, tasks }
    }

    /// Stops them; the writes that changed something.
    async fn stop(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        let mut written = 0;
        for client in self.tasks {
            written += client.await.unwrap();
        }
        written
    }
}

/// Kills the process of a copy at drawn moments while clients write, goes on with another one each time, and lets the last one
/// catch up.
async fn killed_again_and_again(scene: &Scene, ns: &str, clients: Clients) {
    let mut dice = Dice::of_the_seed();
    let mut at_work = between(scene, &["copy", "--ns", ns], "copy");
    let job = at_work.phase("follow");
    for n in 0..if is_long() { 50 } else { 3 } {
        wait::lasts(Duration::from_millis(dice.throw(1_500))).await;
        at_work.kill();
        bury(&scene.new, &job).await;
        at_work = between(scene, &["job", "resume", &job], &format!("resume-{n}"));
        at_work.phase("follow");
    }
    at_work.kill();
    bury(&scene.new, &job).await;
    let written = clients.stop().await;
    assert!(written > 100, "only {written} writes were made");
    let resume = ["job", "resume", &job, "--until", "caught-up"];
    let (exit, ended) = between(scene, &resume, "last").ended();
    assert_eq!(exit, 0, "{ended}");
    let (exit, verified) = between(scene, &["verify", "--ns", ns], "verify").ended();
    assert_eq!(exit, 0, "{verified}");
}

/// Runs one statement; true if it changed something. One that breaks a unique index does not.
async fn changes(source: &Endpoint, coll: &str, statement: Document) -> bool {
    let command = match statement.contains_key("u") {
        true => doc! {"update": coll, "updates": [statement]},
        false => doc! {"delete": coll, "deletes": [statement]},
    };
    source.run("shop", command).await.unwrap().get_i32("n").unwrap() > 0
}

const ACCOUNTS: u64 = 400;

fn account(n: u64) -> Document {
    let n = i64::try_from(n).unwrap();
    doc! {
        "_id": 4_400_000_000_i64 + n, "email": format!("customer.{n}@example.com"),
        "settings": {"language": "de", "newsletter": n % 2 == 0}, "notes": "x".repeat(300),
    }
}

/// An address goes from one account to another, which gives up its own or swaps it; some accounts are closed and opened again.
async fn pass_an_address_on(source: Endpoint, turn: u64) -> u64 {
    let id = |n: u64| account(n % ACCOUNTS).get_i64("_id").unwrap();
    let (a, b) = (id(turn.wrapping_mul(2_654_435_761) >> 7), id(turn.wrapping_mul(40_503) >> 3));
    let find = doc! {"find": "accounts", "filter": {"_id": {"$in": [a, b]}}};
    let found = source.run("shop", find).await.unwrap();
    let found = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
    let email = |id: i64| {
        let mut all = found.iter().map(|found| found.as_document().unwrap());
        let found = all.find(|found| found.get_i64("_id").unwrap() == id);
        found.map(|found| found.get_str("email").unwrap().to_owned())
    };
    let set = |id: i64, email: &str| doc! {"q": {"_id": id}, "u": {"$set": {"email": email}}};
    let (Some(of_a), Some(of_b)) = (email(a), email(b)) else {
        let new = format!("new.{turn}@example.com");
        let again = doc! {"q": {"_id": a}, "u": {"_id": a, "email": new}, "upsert": true};
        return u64::from(changes(&source, "accounts", again).await);
    };
    let parked = format!("parked.{turn}@example.com");
    let statements = match turn % 4 {
        0 => vec![doc! {"q": {"_id": a}, "limit": 1}, set(b, &of_a)],
        1 => vec![set(a, &parked), set(b, &of_a)],
        _ => vec![set(a, &parked), set(b, &of_a), set(a, &of_b)],
    };
    let mut written = 0;
    for statement in statements {
        written += u64::from(changes(&source, "accounts", statement).await);
    }
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_value_that_moves_between_ids_is_replayed_after_kills() {
    let scene = Scene::of(replica_set(1), replica_set(1)).await;
    let accounts: Vec<Document> = (0..ACCOUNTS).map(account).collect();
    administer(&scene.old, "shop", doc! {"insert": "accounts", "documents": accounts}).await;
    let unique = doc! {"key": {"email": 1}, "name": "email_1", "unique": true};
    administer(&scene.old, "shop", doc! {"createIndexes": "accounts", "indexes": [unique]}).await;
    let clients = Clients::start(&scene.old, 4, pass_an_address_on).await;
    killed_again_and_again(&scene, "shop.accounts", clients).await;
}

/// An order of one of the tenants below 50, which are all on one shard.
fn order(n: u64) -> Document {
    let n = i64::try_from(n).unwrap();
    let id = format!("order-2026-{n:07}");
    doc! {"_id": id, "tenant": n % 50, "state": "new", "lines": "x".repeat(200)}
}

/// Orders come, change and go, all of them on one shard.
async fn write_to_one_shard(source: Endpoint, turn: u64) -> u64 {
    let this = |n: u64| {
        let order = order(n);
        doc! {"_id": order.get_str("_id").unwrap(), "tenant": order.get_i64("tenant").unwrap()}
    };
    let upsert = doc! {"q": this(turn), "u": order(turn), "upsert": true};
    let paid = doc! {"q": this(turn / 2), "u": {"$set": {"state": "paid"}}};
    let deleted = doc! {"q": this(turn / 3), "limit": 1};
    let mut written = 0;
    for statement in [upsert, paid, deleted] {
        written += u64::from(changes(&source, "orders", statement).await);
    }
    written
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_idle_loses_nothing_of_the_busy_one_by_kills() {
    let scene = Scene::of(sharded(2), replica_set(1)).await;
    administer(&scene.old, "admin", doc! {"enableSharding": "shop"}).await;
    let shard = doc! {"shardCollection": "shop.orders", "key": {"tenant": 1}};
    administer(&scene.old, "admin", shard).await;
    let split = doc! {"split": "shop.orders", "middle": {"tenant": 50}};
    administer(&scene.old, "admin", split).await;
    for (tenant, shard) in [(0, "s1"), (50, "s2")] {
        let to = format!("{}-{shard}", scene.old.name());
        let moved = doc! {"moveChunk": "shop.orders", "find": {"tenant": tenant}, "to": to};
        administer(&scene.old, "admin", moved).await;
    }
    let of_the_idle = (0..200).map(|n| {
        let mut order = order(9_000_000 + n);
        order.insert("tenant", 50 + i64::try_from(n % 50).unwrap());
        order
    });
    let of_the_idle: Vec<Document> = of_the_idle.collect();
    administer(&scene.old, "shop", doc! {"insert": "orders", "documents": of_the_idle}).await;
    let clients = Clients::start(&scene.old, 2, write_to_one_shard).await;
    killed_again_and_again(&scene, "shop.orders", clients).await;
}
