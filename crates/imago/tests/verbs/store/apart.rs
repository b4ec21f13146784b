//! A store in many processes: sites and the router are killed and stopped, one after the other and at the
//! same time, and sites are drained, while clients use it and its design changes. `IMAGO_LONG` asks for many faults instead of a
//! handful.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use imago_load::store::{Load, Options};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rustix::process::Signal;
use serde_json::{Value, json};

use imago_testbed::wait;

use crate::store::adapt_apart::explained;
use crate::store::change;
use crate::store::processes::{
    Process, SILENCE, SITES, all_live, ask, await_design, change, design, peers, router,
};
use crate::store::proof::{is_long, prove, seed};
use crate::store::served::{Served, addresses, anywhere, imago};
use crate::store::topic::broker;

const HANDFUL: u32 = 8;
const MANY: u32 = 100;

/// One with its log in a folder.
fn alone(folder: &Path) -> Served {
    router(&["--data", folder.to_str().unwrap(), "--sync", "5"], addresses())
}

#[test]
fn what_was_acknowledged_outlives_deaths_of_sites_and_of_the_router() {
    let folder = tempfile::tempdir().unwrap();
    outlives(&["--data", folder.path().to_str().unwrap(), "--sync", "5"]);
}

#[test]
fn what_was_acknowledged_outlives_them_while_the_store_adapts() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    // A change pays at once where it pays at all.
    outlives(&["--data", data, "--sync", "5", "--adapt", "on", "--adapt-horizon", "1000"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_acknowledged_outlives_them_with_the_log_in_kafka() {
    let Some(kafka) = broker("apart").await else { return };
    let (url, folder) = (format!("kafka://{}/lists", kafka.uri()), tempfile::tempdir().unwrap());
    let data = folder.path().to_str().unwrap().to_owned();
    let outlived = tokio::task::spawn_blocking(move || outlives(&["--log", &url, "--data", &data]));
    outlived.await.unwrap();
}

/// Sites and the router are killed and stopped, with the log that these arguments name.
fn outlives(log: &[&str]) {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let mut router_process = router(log, addresses());
    let addresses = [router_process.listen, router_process.admin, peers(&router_process)];
    let [listen, _, peers] = addresses;
    // Where the store adapts, sites have little, so that it pays to share the work.
    let more: &[&str] = if log.contains(&"--adapt") { &["--site-cpu", "0.03"] } else { &[] };
    let start = |site| Process::start_with(site, &[peers], more);
    let mut sites: Vec<_> = (0..SITES).map(start).collect();
    sites.iter().for_each(|site| _ = site.serves());
    let options = Options { sessions: 6, seed, pause: Duration::from_millis(1) };
    let load = Load::start(listen, options).unwrap();
    let mut happened: BTreeMap<&str, u32> = BTreeMap::new();
    let mut drained = None;
    for _ in 0..if is_long() { MANY } else { HANDFUL } {
        let until = Instant::now() + Duration::from_millis(random.random_range(500..1_500));
        while Instant::now() < until {
            let change = change::draw(&mut random, SITES);
            let body = json!({ "key": change.key, "site": change.site });
            match router_process.post(change.verb, &body) {
                Some((200, _)) => *happened.entry(change.verb).or_default() += 1,
                Some((409 | 503, _)) => {}
                other => panic!("{change:?}: {other:?}"),
            }
        }
        let at = random.random_range(0..sites.len());
        let number = u16::try_from(at).unwrap();
        // What was drained is taken into use again while other faults happen.
        if let Some(site) = drained.take() {
            let done = posted(&router_process, "add", &json!({ "site": site }));
            *happened.entry(done).or_default() += 1;
        }
        let fault = match random.random_range(0..11) {
            0..=3 => {
                sites[at].kill();
                wait::lasts_blocking(Duration::from_millis(random.random_range(0..700)));
                sites[at] = start(number);
                "site killed"
            }
            4..=5 => {
                router_process.kill();
                router_process = router(log, addresses);
                "router killed"
            }
            6 => {
                // Longer than it may be silent: it comes back without knowing that it was given up.
                sites[at].signal(Signal::STOP);
                wait::lasts_blocking(SILENCE * 2);
                sites[at].signal(Signal::CONT);
                "site stopped"
            }
            7 => {
                sites[at].kill();
                router_process.kill();
                router_process = router(log, addresses);
                sites[at] = start(number);
                "both killed"
            }
            _ => {
                drained = Some(number);
                posted(&router_process, "drain", &json!({ "site": number }))
            }
        };
        *happened.entry(fault).or_default() += 1;
        let before = load.acknowledged();
        let what = format!("something is acknowledged after {fault}");
        wait::until_blocking(&what, || load.acknowledged() > before);
    }
    println!("{happened:?}");
    if let Some(site) = drained {
        posted(&router_process, "add", &json!({ "site": site }));
    }
    // Transactions that need what a dead site had to itself wait for it.
    all_live(&router_process);
    if log.contains(&"--adapt") {
        let report = explained(&router_process);
        assert_eq!(report["has_ended"], false, "{report}");
        println!("{} changes by adaptation, {} undone", report["changes"], report["undone"]);
    }
    let verdict = prove(load, listen);
    assert!(verdict.done > 200, "{verdict:?}");
}

/// Has the router drain a site or take it into use again, where it can.
fn posted(router: &Served, verb: &'static str, body: &Value) -> &'static str {
    match (router.post(verb, body), verb) {
        (Some((200, _)), "drain") => "site drained",
        (Some((200, _)), _) => "site in use again",
        (Some((409 | 503, _)), _) => "drain refused",
        (other, _) => panic!("{verb} {body}: {other:?}"),
    }
}

#[test]
fn replicas_take_over_from_a_site_that_dies_and_from_one_that_is_silent() {
    let folder = tempfile::tempdir().unwrap();
    let router = alone(folder.path());
    let mut sites: Vec<_> = (0..2).map(|site| Process::start(site, peers(&router))).collect();
    assert_eq!(sites.iter().map(Process::serves).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(ask(router.listen, "MSET a 1 b 2"), "+OK");
    change(&router, "add-replica", "0:a", 1);
    sites[0].kill();
    await_design(&router, "the replica is the master", |now| now["partitions"][0]["master"] == 1);
    assert_eq!(ask(router.listen, "INCR a"), ":2", "without the site that had written it");
    sites[0] = Process::start(0, peers(&router));
    assert_eq!(sites[0].serves(), 2, "a new epoch");
    change(&router, "add-replica", "0:a", 0);
    sites[1].signal(Signal::STOP);
    await_design(&router, "the other one took over", |now| now["partitions"][0]["master"] == 0);
    assert_eq!(ask(router.listen, "INCR a"), ":3");
    sites[1].signal(Signal::CONT);
    assert_eq!(sites[1].serves(), 2, "it finds that its epoch is over, and begins another");
    change(&router, "add-replica", "0:a", 1);
    let now = design(&router);
    assert_eq!(now["partitions"][0]["rows"], 2, "{now}");
    // The report and the metrics have the log traffic to each site.
    for site in 0..2 {
        let log = &now["sites"][site]["log"];
        let sent =
            router.metric(&format!("imago_store_site_log_sent_bytes_total{{site=\"{site}\"}}"));
        let whole =
            router.metric(&format!("imago_store_site_log_whole_bytes_total{{site=\"{site}\"}}"));
        assert!(log["sent_bytes"].as_f64() <= Some(sent) && sent > 0.0 && whole > 0.0, "{now}");
    }
}

#[test]
fn who_comes_as_a_site_that_is_there_is_served_instead_and_the_other_ends() {
    let folder = tempfile::tempdir().unwrap();
    let router = alone(folder.path());
    let mut first = Process::start(0, peers(&router));
    first.serves();
    assert_eq!(ask(router.listen, "SET a 1"), "+OK");
    let second = Process::start(0, peers(&router));
    assert_eq!(second.serves(), 2);
    assert_eq!(first.ended(), Some(4));
    assert_eq!(ask(router.listen, "INCR a"), ":2");
}

#[test]
fn a_site_that_the_router_does_not_know_or_that_has_another_secret_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "open sesame\n").unwrap();
    let data = folder.path().join("data");
    let (data, secret_file) = (data.to_str().unwrap(), secret.to_str().unwrap());
    let more = ["--data", data, "--peers", "127.0.0.1:0", "--secret-file", secret_file];
    let router = Served::start_as("router", &more, 2, [anywhere(), anywhere()]);
    let at = peers(&router).to_string();
    let refused = |words: &[&str], why: &str| {
        let mut command = imago(&["store", "site", "--json", "--router", &at]);
        let output = command.args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(4), "{said}");
        assert!(said.contains(why), "{said}");
    };
    refused(&["--number", "0"], "secret");
    refused(&["--number", "2", "--secret-file", secret.to_str().unwrap()], "2 sites");
    // A connection of another protocol does no harm to the connections after it.
    let mut stranger = TcpStream::connect(&at).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut command = imago(&["store", "site", "--json", "--router", &at, "--number", "0"]);
    command.arg("--secret-file").arg(&secret).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.contains("serves"), "{line:?}");
}
