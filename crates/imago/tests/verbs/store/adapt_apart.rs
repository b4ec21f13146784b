//! Adaptation with each site in a process of its own: it moves masters, outlives a site that is killed and the router
//! that is killed, and loses nothing that was acknowledged.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use imago_testbed::wait;
use serde_json::Value;

use crate::store::drain;
use crate::store::misuse::run;
use crate::store::processes::{Process, SITES, all_live, ask, await_design, design, peers, router};
use crate::store::served::{Served, addresses};

/// Counters of each kind.
const COUNTERS: u64 = 400;
const CLIENTS: u64 = 8;
/// The kinds, one after the other in the order of keys.
const KINDS: [&str; 2] = ["a", "b"];

/// Clients that count up counters of one kind, all alike.
struct Counting {
    is_over: Arc<AtomicBool>,
    kind: Arc<AtomicU64>,
    acknowledged: Arc<AtomicU64>,
    /// Requests without an answer, or with an error: they may or may not have happened.
    unknown: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

impl Counting {
    fn start(listen: SocketAddr) -> Self {
        let (is_over, kind) = (Arc::new(AtomicBool::new(false)), Arc::<AtomicU64>::default());
        let (acknowledged, unknown) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let client = |n: u64| {
            let (is_over, kind) = (Arc::clone(&is_over), Arc::clone(&kind));
            let (acknowledged, unknown) = (Arc::clone(&acknowledged), Arc::clone(&unknown));
            std::thread::spawn(move || {
                let (mut connection, mut at) = (None, n * 53);
                while !is_over.load(Ordering::Relaxed) {
                    at = at
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let kind = KINDS[kind.load(Ordering::Relaxed) as usize];
                    match incremented(&mut connection, listen, kind, (at >> 33) % COUNTERS) {
                        Some(true) => _ = acknowledged.fetch_add(1, Ordering::Relaxed),
                        Some(false) => _ = unknown.fetch_add(1, Ordering::Relaxed),
                        None => wait::lasts_blocking(Duration::from_millis(20)),
                    }
                }
            })
        };
        let clients = (0..CLIENTS).map(client).collect();
        Self { is_over, kind, acknowledged, unknown, clients }
    }

    /// Ends them; what was acknowledged is there.
    fn end(self, listen: SocketAddr) {
        self.is_over.store(true, Ordering::Relaxed);
        self.clients.into_iter().for_each(|client| client.join().unwrap());
        let number = |kind: &str, n: u64| {
            let answer = ask(listen, &format!("INCRBY {kind}:{n:06} 0"));
            answer.strip_prefix(':').unwrap_or_else(|| panic!("{answer}")).parse::<u64>().unwrap()
        };
        let sum = KINDS.iter().flat_map(|kind| (0..COUNTERS).map(|n| number(kind, n))).sum::<u64>();
        let acknowledged = self.acknowledged.load(Ordering::Relaxed);
        let most = acknowledged + self.unknown.load(Ordering::Relaxed);
        println!("{acknowledged} acknowledged, {most} sent, {sum} found");
        assert!((acknowledged..=most).contains(&sum), "{sum} of {acknowledged} to {most}");
        assert!(acknowledged > 500, "{acknowledged}");
    }
}

/// Counts one up: whether that was acknowledged, or nothing if it was not even sent.
fn incremented(
    connection: &mut Option<BufReader<TcpStream>>,
    listen: SocketAddr,
    kind: &str,
    n: u64,
) -> Option<bool> {
    if connection.is_none() {
        let stream = TcpStream::connect(listen).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        *connection = Some(BufReader::new(stream));
    }
    let stream = connection.as_mut()?;
    let mut line = String::new();
    let is_sent = stream.get_mut().write_all(format!("INCR {kind}:{n:06}\r\n").as_bytes());
    let is_answered =
        is_sent.is_ok() && stream.read_line(&mut line).is_ok_and(|_| line.ends_with("\r\n"));
    if !is_answered {
        *connection = None;
    }
    Some(is_answered && line.starts_with(':'))
}

/// The output of a command about adaptation.
fn told(router: &Served, words: &[&str]) -> Value {
    let output = run(&[words, &["--admin", &router.admin.to_string()]].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What adaptation explains.
pub fn explained(router: &Served) -> Value {
    told(router, &["explain"])
}

/// The masters of the partitions that may have counters of a kind.
fn masters(design: &Value, kind: &str) -> BTreeSet<u64> {
    let (first, end) = (format!("0:{kind}:"), format!("0:{kind};"));
    let partitions = design["partitions"].as_array().unwrap().iter();
    let has_some = |one: &&Value| {
        let is_behind = one["end"].as_str().is_some_and(|end| end <= first.as_str());
        !is_behind && one["start"].as_str().unwrap() < end.as_str()
    };
    partitions.filter(has_some).map(|one| one["master"].as_u64().unwrap()).collect()
}

fn site(number: u16, peers: SocketAddr) -> Process {
    Process::start_with(number, &[peers], &["--site-cpu", "0.1"])
}

#[test]
fn adaptation_moves_masters_to_sites_apart_and_outlives_their_deaths() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().to_str().unwrap();
    let flags = ["--data", data, "--sync", "5", "--adapt", "on"];
    let mut served = router(&flags, addresses());
    let [listen, admin, peers] = [served.listen, served.admin, peers(&served)];
    let mut sites: Vec<_> = (0..SITES).map(|number| site(number, peers)).collect();
    sites.iter().for_each(|site| _ = site.serves());
    let counting = Counting::start(listen);
    let spread = |served: &Served, kind: &str| {
        let what = format!("two sites master counters {kind}");
        await_design(served, &what, |now| masters(now, kind).len() > 1)
    };
    assert_eq!(masters(&design(&served), "a").len(), 1, "all is at one site");
    let now = spread(&served, "a");
    let report = explained(&served);
    assert!(report["changes"].as_u64() >= Some(2), "{report}");
    assert_eq!(report["sites"].as_array().unwrap().len(), usize::from(SITES), "{report}");
    let done = report["decisions"].as_array().unwrap().iter().find(|one| one["verdict"] == "done");
    let ratio = |bound: &str| done.and_then(|one| one["latency_ratio"][bound].as_f64()).unwrap();
    let (low, expected, high) = (ratio("low"), ratio("expected"), ratio("high"));
    assert!(0.0 < low && low < expected && expected < high, "{report}");
    let foresight = told(&served, &["foresight"]);
    assert!(foresight["plans"].as_u64() >= Some(1), "{foresight}");
    assert_eq!(foresight["predictions"][0]["name"], "latency_ratio", "{foresight}");
    let heat = told(&served, &["heat", "--of", "writes"]);
    let ranges = heat["ranges"].as_array().unwrap().iter();
    let writes = ranges.flat_map(|one| one["writes"].as_array().unwrap()).filter_map(Value::as_f64);
    assert!(writes.sum::<f64>() > 100.0, "{heat}");
    assert_eq!(told(&served, &["adapt", "--partitions-max", "500"])["partitions_max"], 500);
    let why = told(&served, &["explain", "0:a:000007"]);
    assert_eq!(why["explanation"]["sites"].as_array().unwrap().len(), usize::from(SITES), "{why}");
    // A site is killed that masters some of what clients write.
    let killed = usize::try_from(*masters(&now, "a").last().unwrap()).unwrap();
    sites[killed].kill();
    wait::lasts_blocking(Duration::from_millis(700));
    let report = explained(&served);
    assert_eq!((&report["has_ended"], &report["mode"]), (&false.into(), &"on".into()), "{report}");
    sites[killed] = site(u16::try_from(killed).unwrap(), peers);
    all_live(&served);
    // Work that is new, and all of it at one site.
    counting.kind.store(1, Ordering::Relaxed);
    spread(&served, "b");
    let report = explained(&served);
    assert!(report["sites"][killed]["predicted_cpu"].is_number(), "{report}");
    // The next router goes on from what the folder has.
    let changes = report["changes"].as_u64().unwrap();
    wait::until_blocking("what was learned is in the folder", || {
        let kept = std::fs::read_to_string(folder.path().join("adapt.json")).unwrap_or_default();
        let kept: Value = serde_json::from_str(&kept).unwrap_or_default();
        kept["changes"].as_u64() >= Some(changes) && kept["site_cpu"] == 0.1
    });
    served.kill();
    served = router(&flags, [listen, admin, peers]);
    all_live(&served);
    let mut report = Value::Null;
    wait::until_blocking("it decides by what was learned", || {
        report = explained(&served);
        let is_at_work = report["transactions_s"].as_f64() > Some(0.0);
        is_at_work && report["distrust"].is_null() && report["changes"].as_u64() >= Some(changes)
    });
    let of = |name: &str| {
        let functions = report["functions"].as_array().unwrap();
        functions.iter().find(|one| one["name"] == name).unwrap()["samples"].as_u64()
    };
    assert!(of("commit") > Some(4), "{report}");
    // A site that is drained gets nothing back, though adaptation goes on.
    let admin = served.admin.to_string();
    let site = killed;
    assert_eq!(told(&served, &["drain", &site.to_string()])["state"], "drained");
    wait::lasts_blocking(Duration::from_secs(1));
    assert_eq!(drain::site(&admin, site), (false, 0, 0));
    assert_eq!(explained(&served)["has_ended"], false);
    told(&served, &["add", &site.to_string()]);
    assert!(drain::site(&admin, site).0, "it is in use again");
    counting.end(listen);
}
