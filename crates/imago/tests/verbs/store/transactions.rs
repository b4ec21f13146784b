//! `imago load tpcc`, `smallbank`, `twitter` and `ycsb` on a store whose design changes, and whose processes are killed.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use imago_testbed::wait;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::store::processes::{Process, SITES, ask, peers, router};
use crate::store::proof::seed;
use crate::store::served::{Served, addresses, anywhere, imago};

/// A TPC-C of 40,000 rows.
const TPCC: [&str; 9] =
    ["tpcc", "--warehouses", "2", "--items", "2000", "--customers", "60", "--mix", "five"];
const SMALLBANK: [&str; 3] = ["smallbank", "--customers", "2000"];
const TWITTER: [&str; 3] = ["twitter", "--users", "500"];

const YCSB: [&str; 3] = ["ycsb", "--users", "2000"];

/// A load at work.
struct Load(Child);

fn command(benchmark: &[&str], served: &Served, more: &[&str]) -> Command {
    let mut command = imago(&["load"]);
    command.args(benchmark).args(["--store", &served.listen.to_string(), "--json"]).args(more);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    command
}

impl Load {
    fn start(benchmark: &[&str], served: &Served, seconds: u32) -> Self {
        let time = format!("{seconds}s");
        let more = ["--preloaded", "--sessions", "6", "--duration", &time];
        Self(command(benchmark, served, &more).spawn().unwrap())
    }

    fn is_at_work(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    /// Its result, which must be without a contradiction.
    fn consistent(self) -> Value {
        let output = self.0.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}\n{errors}", String::from_utf8_lossy(&output.stdout));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["contradictions"], json!([]), "{report}");
        report
    }
}

/// Fills a store, and checks its rows.
fn fill(benchmark: &[&str], served: &Served) {
    let output = command(benchmark, served, &["--duration", "0s"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["kinds"], json!({}), "a load without a duration only checks: {report}");
}

fn done(report: &Value, field: &str) -> u64 {
    let kinds = report["kinds"].as_object().unwrap();
    kinds.values().map(|kind| kind[field].as_u64().unwrap()).sum()
}

/// Changes the partition at one of these keys, and returns whether the change was made.
fn change(served: &Served, starts: &[&str], rng: &mut StdRng, sites: u16) -> bool {
    let verbs =
        ["split", "add-replica", "add-replica", "remaster", "remaster", "remove-replica", "merge"];
    let verb = verbs[rng.random_range(0..verbs.len())];
    let key = format!("0:{}", starts[rng.random_range(0..starts.len())]);
    let body = json!({ "key": key, "site": rng.random_range(0..sites) });
    match served.post(verb, &body) {
        Some((200, _)) => true,
        Some((409 | 503, _)) | None => false,
        other => panic!("{verb} {key}: {other:?}"),
    }
}

fn is_consistent_while_the_design_changes(benchmark: &[&str], starts: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(seed());
    let served = Served::start_with(folder.path(), 4, anywhere(), anywhere(), &["--sync", "5"]);
    fill(benchmark, &served);
    let mut load = Load::start(benchmark, &served, 4);
    let mut changes = 0;
    while load.is_at_work() {
        changes += u32::from(change(&served, starts, &mut rng, 4));
    }
    let report = load.consistent();
    println!("{changes} changes: {report}");
    assert!(done(&report, "done") > 300 && changes > 20, "{changes} changes: {report}");
    assert_eq!(done(&report, "unknown") + done(&report, "gave_up"), 0, "{report}");
    assert!(report["rows"].as_u64().unwrap() >= 4_000, "{report}");
}

#[test]
fn tpcc_is_consistent_while_the_design_changes() {
    let starts =
        ["d000105", "d0002", "c0001", "c000205", "t0001", "t0002", "l0001", "o0001", "w0002", "i"];
    is_consistent_while_the_design_changes(&TPCC, &starts);
}

#[test]
fn smallbank_has_its_money_while_the_design_changes() {
    let starts = ["c000000500", "c000001000", "c000001500", "s", "s000000700", "s000001400"];
    is_consistent_while_the_design_changes(&SMALLBANK, &starts);
}

#[test]
fn twitter_has_every_tweet_while_the_design_changes() {
    let starts = ["t00000100", "t00000200", "t00000400", "u", "u00000250", "f00000250", "r"];
    is_consistent_while_the_design_changes(&TWITTER, &starts);
}

#[test]
fn ycsb_has_every_increment_while_the_design_changes() {
    let starts = ["user00000010", "user00000100", "user00000500", "user00001000", "user00001500"];
    is_consistent_while_the_design_changes(&YCSB, &starts);
}

#[test]
fn tpcc_is_consistent_after_deaths_of_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = StdRng::seed_from_u64(seed());
    let mut served = Served::start(folder.path(), 2, anywhere(), anywhere());
    fill(&TPCC, &served);
    let mut load = Load::start(&TPCC, &served, 9);
    let began = Instant::now();
    for _ in 0..3 {
        wait::lasts_blocking(Duration::from_millis(rng.random_range(500..1_500)));
        assert!(load.is_at_work());
        served.kill();
        served = Served::start(folder.path(), 2, served.listen, served.admin);
    }
    println!("three deaths in {:?}", began.elapsed());
    let report = load.consistent();
    assert!(done(&report, "done") > 100, "{report}");
    assert!(done(&report, "unknown") > 0, "a death met a transaction: {report}");
}

#[test]
fn smallbank_has_its_money_after_the_death_of_a_site() {
    let folder = tempfile::tempdir().unwrap();
    let data = ["--data", folder.path().to_str().unwrap(), "--sync", "5"];
    let served = router(&data, addresses());
    let at = peers(&served);
    let mut sites: Vec<_> = (0..SITES).map(|site| Process::start(site, at)).collect();
    sites.iter().for_each(|site| _ = site.serves());
    fill(&SMALLBANK, &served);
    let mut rng = StdRng::seed_from_u64(seed());
    for key in ["c000001000", "s"] {
        for _ in 0..4 {
            change(&served, &[key], &mut rng, SITES);
        }
    }
    let mut load = Load::start(&SMALLBANK, &served, 10);
    wait::lasts_blocking(Duration::from_secs(2));
    assert!(load.is_at_work());
    sites[0].kill();
    wait::lasts_blocking(Duration::from_secs(2));
    sites[0] = Process::start(0, at);
    let report = load.consistent();
    assert!(done(&report, "done") > 100, "{report}");
}

#[test]
fn a_store_that_lost_a_row_contradicts_and_one_with_rows_is_not_filled() {
    let folder = tempfile::tempdir().unwrap();
    let served = Served::start_with(folder.path(), 1, anywhere(), anywhere(), &["--sync", "5"]);
    fill(&TPCC, &served);
    let again = command(&TPCC, &served, &["--duration", "0s"]).output().unwrap();
    assert_eq!(again.status.code(), Some(4), "{again:?}");
    assert!(String::from_utf8_lossy(&again.stderr).contains("--preloaded"), "{again:?}");

    // Of the same seed, and begun in the same second: their payments are other ones.
    for _ in 0..3 {
        let more = ["--preloaded", "--duration", "200ms"];
        let brief = command(&TPCC, &served, &more).output().unwrap();
        assert!(brief.status.success(), "{brief:?}");
    }

    assert_eq!(ask(served.listen, "DEL l0002070000001 l000207000000101"), ":1");
    let broken = command(&TPCC, &served, &["--duration", "0s", "--preloaded"]).output().unwrap();
    assert_eq!(broken.status.code(), Some(3), "{broken:?}");
    let report: Value = serde_json::from_slice(&broken.stdout).unwrap();
    let found = report["contradictions"].to_string();
    assert!(found.contains("4 and 6: warehouse 2, district 7: order 1 has"), "{report}");
    // The wrong benchmark for the rows.
    let other =
        command(&SMALLBANK, &served, &["--duration", "0s", "--preloaded"]).output().unwrap();
    assert_eq!(other.status.code(), Some(3), "{other:?}");
}

#[test]
fn a_store_that_is_not_there_or_wants_a_password_is_an_unmet_precondition() {
    let away = imago(&["load", "ycsb", "--store", &anywhere().to_string()]).output().unwrap();
    let said = String::from_utf8_lossy(&away.stderr).into_owned();
    assert_eq!((away.status.code(), said.contains("imago store serve")), (Some(4), true), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "correct horse battery staple\n").unwrap();
    let more = ["--sync", "5", "--password-file", file.to_str().unwrap()];
    let served = Served::start_with(folder.path(), 1, anywhere(), anywhere(), &more);
    let benchmark = ["ycsb", "--users", "400"];
    let locked = command(&benchmark, &served, &[]).output().unwrap();
    let said = String::from_utf8_lossy(&locked.stderr).into_owned();
    assert_eq!((locked.status.code(), said.contains("--password-file")), (Some(4), true), "{said}");
    let more = ["--password-file", file.to_str().unwrap(), "--rate", "200", "--duration", "2s"];
    let admitted = command(&benchmark, &served, &more).output().unwrap();
    assert!(admitted.status.success(), "{admitted:?}");
    let report: Value = serde_json::from_slice(&admitted.stdout).unwrap();
    let at_a_rate = report["throughput_s"].as_f64().unwrap();
    assert!((100.0..205.0).contains(&at_a_rate), "{report}");
}
