//! A store in many processes with its log in Kafka: another router takes the topic over, and the sites go
//! to it. `IMAGO_LONG` asks for many takeovers instead of a handful.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use imago_load::store::{Load, Options};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use serde_json::json;

use imago_testbed::wait;

use crate::store::change;
use crate::store::processes::{
    Process, SILENCE, SITES, all_live, ask, change, design, router, try_router,
};
use crate::store::proof::{is_long, prove, seed};
use crate::store::served::{Served, addresses};
use crate::store::topic::broker;

/// Number of pairs of routers that start at once, and of takeovers of one router by the other.
const PAIRS: usize = 4;
const TAKEOVERS: usize = 5;
const MANY: usize = 30;

/// A router's addresses for clients, orders and sites.
type Addresses = [SocketAddr; 3];

/// Addresses for two routers.
fn two() -> [Addresses; 2] {
    [addresses(), addresses()]
}

/// Sites that are told of both.
fn sites(of: &[Addresses; 2]) -> Vec<Process> {
    (0..SITES).map(|site| site_of(of, site)).collect()
}

fn site_of(of: &[Addresses; 2], site: u16) -> Process {
    Process::start_at(site, &of.map(|[_, _, peers]| peers))
}

fn answered(load: &Load, after: &str) {
    let before = load.acknowledged();
    let what = format!("something is acknowledged after {after}");
    wait::until_blocking(&what, || load.acknowledged() > before);
}

/// Runs a test beside a broker, with the topic's address.
async fn beside_kafka(name: &str, test: impl FnOnce(&str) + Send + 'static) {
    let Some(kafka) = broker(name).await else { return };
    let url = format!("kafka://{}/lists", kafka.uri());
    tokio::task::spawn_blocking(move || test(&url)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_router_whose_topic_another_one_takes_over_ends_and_its_sites_find_the_other() {
    beside_kafka("routers", |url| {
        let (seed, log) = (seed(), ["--log", url]);
        let at = two();
        let first = router(&log, at[0]);
        let sites = sites(&at);
        sites.iter().for_each(|site| _ = site.serves());
        let listens = at.map(|[listen, ..]| listen).to_vec();
        let options = Options { sessions: 6, seed, pause: Duration::from_millis(1) };
        let load = Load::start_among(listens, options).unwrap();
        change(&first, "split", "0:m", 0);
        change(&first, "add-replica", "0:m", 1);
        change(&first, "remaster", "0:m", 1);
        wait::until_blocking("the load has begun", || load.acknowledged() >= 200);
        let next = router(&log, at[1]);
        let (exit, why) = first.ended_saying();
        assert_eq!(exit, Some(1), "{why}");
        assert!(why.contains("another process took over"), "{why}");
        sites.iter().for_each(|site| _ = site.serves());
        answered(&load, "the takeover");
        all_live(&next);
        let now = design(&next);
        assert_eq!(now["partitions"][1]["master"], 1, "the design is as it was: {now}");
        let verdict = prove(load, at[1][0]);
        assert!(verdict.done > 200, "{verdict:?}");
    })
    .await;
}

/// The one that is left of two routers that started at once.
fn one_left(started: [Result<Served, (Option<i32>, String)>; 2]) -> Served {
    let is_other = |(exit, why): (Option<i32>, String)| {
        assert!(exit == Some(1) && why.contains("another process took over"), "{exit:?}: {why}");
    };
    let mut running: Vec<Served> = Vec::new();
    for one in started {
        match one {
            Ok(served) => running.push(served),
            Err(ended) => is_other(ended),
        }
    }
    if running.len() == 2 {
        let mut ended = None;
        wait::until_blocking("one of them ends", || {
            ended = running.iter_mut().position(|one| !one.runs());
            ended.is_some()
        });
        is_other(running.remove(ended.expect("one ended")).ended_saying());
    }
    running.pop().expect("one is left")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_routers_that_start_at_once_one_serves_and_the_other_ends() {
    beside_kafka("pairs", |url| {
        let log = ["--log", url];
        let at = two();
        let _sites = sites(&at);
        let mut keys = String::new();
        for pair in 1..=if is_long() { MANY } else { PAIRS } {
            let started = std::thread::scope(|scope| {
                let log = &log;
                let starting = at.map(|at| scope.spawn(move || try_router(log, at)));
                starting.map(|one| one.join().unwrap())
            });
            let mut left = one_left(started);
            keys += &format!(" pair{pair}");
            wait::until_blocking("the one that is left serves", || {
                assert!(left.runs(), "it ended");
                ask(left.listen, &format!("SET pair{pair} 1")) == "+OK"
            });
            all_live(&left);
            assert_eq!(ask(left.listen, &format!("EXISTS{keys}")), format!(":{pair}"));
            assert!(left.runs());
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_takeovers_back_and_forth_and_deaths_of_sites() {
    beside_kafka("forth", |url| {
        let (seed, log) = (seed(), ["--log", url]);
        let mut random = StdRng::seed_from_u64(seed);
        let at = two();
        let mut served = router(&log, at[0]);
        let mut sites = sites(&at);
        sites.iter().for_each(|site| _ = site.serves());
        let listens = at.map(|[listen, ..]| listen).to_vec();
        let options = Options { sessions: 6, seed, pause: Duration::from_millis(1) };
        let load = Load::start_among(listens, options).unwrap();
        for takeover in 1..=if is_long() { MANY } else { TAKEOVERS } {
            let until = Instant::now() + Duration::from_millis(random.random_range(300..1_200));
            while Instant::now() < until {
                let change = change::draw(&mut random, SITES);
                let body = json!({ "key": change.key, "site": change.site });
                let told = served.post(change.verb, &body);
                assert!(matches!(told, Some((200 | 409 | 503, _))), "{change:?}: {told:?}");
            }
            let killed = random.random_range(0..SITES);
            let is_killed = random.random_bool(0.6);
            if is_killed {
                sites[usize::from(killed)].kill();
            }
            // It knows nothing of the other one for a while, nor do the processes that wait for it.
            let is_stopped = random.random_bool(0.4);
            if is_stopped {
                served.signal(Signal::STOP);
            }
            let next = router(&log, at[takeover % 2]);
            if is_killed {
                sites[usize::from(killed)] = site_of(&at, killed);
            }
            if is_stopped {
                wait::lasts_blocking(SILENCE * random.random_range(0..3));
                served.signal(Signal::CONT);
            }
            let (exit, why) = std::mem::replace(&mut served, next).ended_saying();
            assert!(
                exit == Some(1) && why.contains("another process took over"),
                "{exit:?}: {why}"
            );
            answered(&load, &format!("takeover {takeover}"));
        }
        all_live(&served);
        let verdict = prove(load, served.listen);
        assert!(verdict.done > 200, "{verdict:?}");
    })
    .await;
}
