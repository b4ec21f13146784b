//! `imago provision record`: a job's reads through the proxy are exactly those that the job made.

use std::process::Command;

use bson::{Bson, Document, doc};
use imago_mongo::server::endpoint::Endpoint;
use imago_provision::trace::{Ending, Error, Options, Read, Torn, Trace};
use imago_testbed::pool::{self, replica_set};
use imago_testbed::process::{ProcessId, Signal};
use imago_testbed::wait;
use imago_workload::history::{Fate, Header, History};
use imago_workload::mix::Kind;
use serde_json::Value;

use crate::chain::scene::{MESSAGES, NS, Scene, message, output, said};
use crate::process::Process;

/// The recording of a job: its words come after `--`.
fn record(scene: &Scene, uri: &str, out: &str, job: &[&str]) -> Command {
    let words = ["provision", "record", "--uri", uri, "--ns", NS, "--out", out, "--json", "--"];
    scene.program(&[&words[..], job].concat())
}

/// A chain of three phases at the proxy's URI.
fn chain(more: &[&'static str]) -> Vec<&'static str> {
    let mut words = vec![env!("CARGO_BIN_EXE_imago"), "chain", "run", "--uri", "{uri}", "--ns", NS];
    words.extend(["--modulo", "1500", "--keys", "400", "--length", "3", "--batch", "64"]);
    words.extend(more);
    words
}

/// The reads of each phase; the batches of a phase end in any order.
fn sorted(trace: &Trace) -> Vec<Vec<Read>> {
    let mut phases = trace.phases.clone();
    for phase in &mut phases {
        phase.sort_by_key(|read| read.key.hash64());
    }
    phases
}

fn read_trace(scene: &Scene, name: &str) -> Trace {
    Trace::read(&scene.path(name)).unwrap()
}

#[tokio::test]
async fn the_trace_has_exactly_the_keys_that_the_job_read_phase_by_phase() {
    let scene = Scene::start().await;
    let job = chain(&["--workers", "3", "--trace", "own.imt", "--json"]);
    let recorded = output(record(&scene, &scene.cluster.uri(), "proxied.imt", &job), "");
    assert!(recorded.status.success(), "{}", said(&recorded));
    let report: Value = serde_json::from_slice(&recorded.stdout).unwrap();
    let (own, proxied) = (read_trace(&scene, "own.imt"), read_trace(&scene, "proxied.imt"));
    assert_eq!(own.phases.len(), 3);
    assert_eq!(own.phases[0].len(), 400);
    assert_eq!(sorted(&own), sorted(&proxied));
    assert_eq!(proxied.ending, Ending::Complete);
    assert_eq!(proxied.header.namespace, NS);
    assert_eq!((&report["phases"], &report["reads"]), (&3.into(), &own.reads().into()));
    assert_eq!((&report["exit_code"], &report["late_reads"]), (&0.into(), &0.into()));
    let bytes = message(7).to_vec().unwrap().len() as u32;
    assert!(own.phases.iter().flatten().all(|read| read.document_bytes == Some(bytes)));

    // The job's own recording has also the reads that its cache answers; the database sees the first alone.
    if scene.cache.is_some() {
        let uri = scene.cache_uri();
        for (own, proxied, is_warm) in [("o1", "p1", false), ("o2", "p2", true)] {
            let job = ["--cache", &uri, "--trace", own].map(str::to_owned);
            let mut words: Vec<&str> = chain(&[]);
            words.extend(job.iter().map(String::as_str));
            let recorded = output(record(&scene, &scene.cluster.uri(), proxied, &words), "");
            assert!(recorded.status.success(), "{}", said(&recorded));
            let (own, proxied) = (read_trace(&scene, own), read_trace(&scene, proxied));
            assert_eq!(own.reads(), report["reads"].as_u64().unwrap());
            assert_eq!(proxied.reads() == 0, is_warm);
        }
    }
}

#[tokio::test]
async fn a_job_that_fails_leaves_a_trace_that_says_so() {
    let scene = Scene::start().await;
    let job = format!("{} && exit 3", chain(&[]).join(" "));
    let words = ["sh", "-c", &job];
    let failed = output(record(&scene, &scene.cluster.uri(), "failed.imt", &words), "");
    assert_eq!(failed.status.code(), Some(1));
    assert!(said(&failed).contains("exit code 3"), "{}", said(&failed));
    let report: Value = serde_json::from_slice(&failed.stdout).unwrap();
    assert_eq!(report["exit_code"], 3);
    let trace = read_trace(&scene, "failed.imt");
    assert_eq!(trace.phases.len(), 3);
    assert!(matches!(&trace.ending, Ending::Incomplete(why) if why.contains("exit code 3")));

    // Nothing is written over.
    let again = output(record(&scene, &scene.cluster.uri(), "failed.imt", &words), "");
    assert_eq!(again.status.code(), Some(2));
}

#[tokio::test]
async fn a_recording_that_is_interrupted_or_killed_keeps_what_was_read() {
    let scene = Scene::start().await;
    // The job ends by itself when the recording is gone.
    let wait = "tail --pid=$PPID -f /dev/null";
    let job = format!("{}; touch read; {wait}", chain(&[]).join(" "));
    let words = ["sh", "-c", &job];

    let interrupted = record(&scene, &scene.cluster.uri(), "interrupted.imt", &words);
    let mut running = Process::start(interrupted, scene.path("interrupted.json"));
    let read = scene.path("read");
    wait::until_blocking("the chain has run", || read.exists());
    ProcessId::of(running.id()).unwrap().signal(Signal::INT).unwrap();
    let (exit, _) = running.ended();
    assert_eq!(exit, 5, "{}", running.errors());
    let trace = read_trace(&scene, "interrupted.imt");
    assert_eq!(trace.phases.len(), 3);
    assert!(matches!(&trace.ending, Ending::Incomplete(why) if why.contains("interrupted")));

    std::fs::remove_file(&read).unwrap();
    let killed = record(&scene, &scene.cluster.uri(), "killed.imt", &words);
    let mut running = Process::start(killed, scene.path("killed.json"));
    wait::until_blocking("the chain has run", || read.exists());
    running.kill();
    let path = scene.path("killed.imt");
    let torn = Trace::read(&path).unwrap_err();
    let Error::Torn { whole_phases, .. } = torn else { panic!("{torn}") };
    // The last phase had not ended.
    assert_eq!(whole_phases, 2);
    let options = Options { torn: Torn::UseWholePhases, gap: None };
    let whole = Trace::read_with(&path, options).unwrap();
    assert_eq!(sorted(&whole)[..], sorted(&trace)[..2]);
}

#[tokio::test]
async fn the_reads_of_a_load_are_those_of_its_history_and_scans_are_counted() {
    let scene = Scene::start().await;
    let imago = env!("CARGO_BIN_EXE_imago");
    let job = [imago, "load", "--uri", "{uri}", "--ns", "shop.loaded", "--documents", "200"];
    let more = ["--mix", "read=70,update=20,scan=10", "--duration", "2s", "--record", "history"];
    let uri = scene.cluster.uri();
    let words = ["provision", "record", "--uri", &uri, "--out", "load.imt"];
    // Without --ns the collection is the first that is read by _id.
    let words = [&words[..], &["--json", "--"], &job[..], &more[..]].concat();
    let recorded = output(scene.program(&words), "");
    assert!(recorded.status.success(), "{}", said(&recorded));
    let report: Value = serde_json::from_slice(&recorded.stdout).unwrap();
    let mut made = Vec::new();
    let mut scans = 0;
    History::scan(&scene.path("history"), |header: &Header, op| match (op.kind, op.fate) {
        (Kind::Read, Fate::Acked | Fate::NotFound) => {
            made.push(Bson::from(header.id_form.name(op.key)));
        }
        (Kind::Scan, _) => scans += 1,
        _ => {}
    })
    .unwrap();
    let trace = read_trace(&scene, "load.imt");
    let read: Vec<Bson> = trace.phases.iter().flatten().map(|read| read.key.to_bson()).collect();
    let sorted = |mut keys: Vec<Bson>| {
        keys.sort_by_key(ToString::to_string);
        keys
    };
    assert!(!made.is_empty());
    assert_eq!(sorted(read), sorted(made));
    assert_eq!(report["namespace"], "shop.loaded");
    assert!(report["other_reads"].as_u64().unwrap() >= scans, "{report}");
    assert_eq!(trace.other_reads, report["other_reads"].as_u64().unwrap());

    // The plan speaks of the load's own requests: one key each, several at once, for two seconds.
    let words = ["provision", "plan", "load.imt", "--deadline", "60s", "--shards", "1,2"];
    let advice = output(scene.program(&[&words[..], &["--json"]].concat()), "");
    let advice: Value = serde_json::from_slice(&advice.stdout).unwrap();
    let job = &advice["as_recorded"];
    assert_eq!((&job["requests"], &job["keys_per_request"]), (&trace.reads().into(), &1.0.into()));
    assert!(job["at_once"].as_u64() > Some(1), "{job}");
    let took_s = job["took_s"].as_f64().unwrap();
    assert!((1.5..4.0).contains(&took_s) && job["own_s"].as_f64() < Some(took_s), "{job}");
    assert_eq!(job["shapes"].as_array().unwrap().len(), 2 * 3, "members and reads: {job}");
    let told = String::from_utf8(output(scene.program(&words), "").stdout).unwrap();
    assert!(told.starts_with("As it reads now, the job took "), "{told}");
}

#[tokio::test]
async fn a_replica_set_is_recorded_at_its_primary() {
    let cluster = Box::pin(pool::lease(replica_set(3))).await.unwrap();
    let endpoint = Box::pin(Endpoint::connect(&cluster.uri(), "cluster")).await.unwrap();
    let messages: Vec<Document> = (0..MESSAGES).map(message).collect();
    endpoint.run("shop", doc! { "insert": "messages", "documents": messages }).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder.path());
    command.args(["provision", "record", "--uri", &cluster.uri(), "--out", "set.imt", "--"]);
    command.args(chain(&["--reads", "nearest", "--trace", "own.imt"]));
    let recorded = output(command, "");
    assert!(recorded.status.success(), "{}", said(&recorded));
    let read = |name: &str| Trace::read(&folder.path().join(name)).unwrap();
    assert_eq!(sorted(&read("own.imt")), sorted(&read("set.imt")));
    assert_eq!(read("set.imt").phases.len(), 3);
}

#[test]
fn tls_and_other_databases_are_refused_before_the_job_starts() {
    let folder = tempfile::tempdir().unwrap();
    for (uri, exit) in [
        ("mongodb+srv://cluster.example.net", 4),
        ("mongodb://127.0.0.1:1/?tls=true", 4),
        ("mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100", 4),
        ("redis://127.0.0.1:1", 2),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        command.current_dir(folder.path());
        let words = ["provision", "record", "--uri", uri, "--out", "none.imt", "--"];
        command.args(words).args(["touch", "started"]);
        let refused = output(command, "");
        assert_eq!(refused.status.code(), Some(exit), "{uri}: {}", said(&refused));
    }
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
}
