//! `imago job` as an operator has it, on a real cluster.

use std::process::{Command, Output};
use std::time::Duration;

use imago_job::id::JobId;
use imago_job::journal::{Journal, Update};
use imago_job::record::{Limits, Record, Requested};
use imago_job::state::State;
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::state::journal::MongoJournal;
use imago_testbed::pool::{self, Leased, replica_set};
use imago_testbed::wait;
use serde_json::{Value, json};
use tokio_util::task::AbortOnDropHandle;

/// Runs `imago job …` in a folder of its own, without the environment of the test run.
fn job(arguments: &[&str], variables: &[(&str, &str)], file: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("imago.toml"), file).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder.path()).env_clear().envs(variables.iter().copied());
    command.arg("job").args(arguments).output().unwrap()
}

fn failure(output: &Output) -> (i32, Value) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.stdout.is_empty(), "an error is on stdout");
    let json: Value = serde_json::from_str(&stderr).unwrap_or_else(|_| panic!("{stderr}"));
    (output.status.code().unwrap(), json["error"].clone())
}

/// A cluster that keeps jobs.
struct Kept {
    journal: MongoJournal,
    cluster: Leased,
}

impl Kept {
    async fn new() -> Self {
        let cluster = Box::pin(pool::lease(replica_set(1))).await.unwrap();
        let endpoint = Box::pin(Endpoint::connect(&cluster.uri(), "destination")).await.unwrap();
        Self { journal: MongoJournal::new(endpoint), cluster }
    }

    async fn planned(&self) -> JobId {
        let now_ms = self.journal.now_ms().await.unwrap();
        let record = Record::new("copy", json!({"ns": ["a.b"]}), now_ms);
        self.journal.create(&record).await.unwrap();
        record.id
    }

    /// A job whose owner began to work at it, and gives no further sign of life.
    async fn running(&self) -> JobId {
        let id = self.planned().await;
        let epoch = self.journal.claim(&id, "other/1", 0).await.unwrap().epoch;
        let update = Update::of(State::Running { phase: "copy".to_owned() });
        self.journal.save(&id, epoch, &update).await.unwrap();
        id
    }

    /// A job with an owner that works at it until the second value is dropped.
    async fn worked_at(&self) -> (JobId, AbortOnDropHandle<()>) {
        let id = self.planned().await;
        let (journal, job) = (self.journal.clone(), id.clone());
        let epoch = journal.claim(&id, "other/1", 0).await.unwrap().epoch;
        let mut update = Update::of(State::Running { phase: "copy".to_owned() });
        journal.save(&id, epoch, &update).await.unwrap();
        let beats = tokio::spawn(async move {
            update.state = None;
            loop {
                journal.save(&job, epoch, &update).await.unwrap();
                wait::lasts(Duration::from_millis(300)).await;
            }
        });
        (id, AbortOnDropHandle::new(beats))
    }

    fn run(&self, arguments: &[&str]) -> Output {
        job(arguments, &[("IMAGO_TO", &self.cluster.uri())], "")
    }

    /// The output of a command that succeeds, as JSON.
    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--json"]].concat());
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    async fn load(&self, id: &JobId) -> Record {
        self.journal.load(id).await.unwrap()
    }
}

#[tokio::test]
async fn jobs_are_listed_and_told_apart_by_who_works_at_them() {
    let kept = Kept::new().await;
    assert_eq!(kept.json(&["list"]), json!([]));
    let (planned, running) = (kept.planned().await, kept.running().await);
    let listed = kept.json(&["list"]);
    assert_eq!(listed[0]["id"], planned.as_str());
    assert_eq!(listed[0]["is_worked_at"], false);
    assert_eq!(listed[1]["id"], running.as_str());
    assert_eq!(listed[1]["is_worked_at"], true);

    let output = kept.run(&["list"]);
    let table = String::from_utf8(output.stdout).unwrap();
    let line = table.lines().find(|line| line.starts_with(running.as_str())).unwrap();
    assert!(line.contains("running  copy"), "{table}");
}

#[tokio::test]
async fn a_job_is_removed_once_it_has_ended() {
    let kept = Kept::new().await;
    let (id, other) = (kept.planned().await, kept.planned().await);
    let (exit, error) = failure(&kept.run(&["remove", id.as_str(), "--json"]));
    assert_eq!((exit, &error["code"]), (4, &json!("job_unfinished")), "{error}");
    assert!(error["help"].as_str().unwrap().contains("imago job cancel"), "{error}");
    kept.json(&["cancel", id.as_str()]);
    assert_eq!(kept.json(&["remove", id.as_str()]), json!({"removed": id.as_str()}));
    let listed = kept.json(&["list"]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["id"], other.as_str());
    let (exit, error) = failure(&kept.run(&["remove", id.as_str(), "--json"]));
    assert_eq!((exit, &error["code"]), (2, &json!("unknown_job")), "{error}");
}

#[tokio::test]
async fn the_status_says_what_can_be_done_next() {
    let kept = Kept::new().await;
    let id = kept.planned().await;
    let status = kept.json(&["status", id.as_str()]);
    assert_eq!(status["state"], "planned");
    assert_eq!(status["next"], format!("`imago job resume {id}` or `imago job cancel {id}`"));
    let output = kept.run(&["status", id.as_str()]);
    let words = String::from_utf8(output.stdout).unwrap();
    assert!(words.contains("owner     none\n"), "{words}");
}

#[tokio::test]
async fn a_job_that_is_not_there_is_a_usage_error() {
    let kept = Kept::new().await;
    let id = JobId::from_parts(1, 1);
    for verb in ["status", "pause", "cancel"] {
        let (exit, error) = failure(&kept.run(&[verb, id.as_str(), "--json"]));
        assert_eq!((exit, &error["code"]), (2, &json!("unknown_job")), "{verb}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_is_recorded_and_says_who_will_do_it() {
    let kept = Kept::new().await;
    let (planned, (running, _owner)) = (kept.planned().await, kept.worked_at().await);
    let recorded = kept.json(&["pause", planned.as_str()]);
    assert_eq!(recorded["owner"], Value::Null);
    assert!(recorded["message"].as_str().unwrap().contains("No process works at it"), "{recorded}");
    let asked = kept.json(&["pause", running.as_str()]);
    assert_eq!(asked["owner"], "other/1");
    for id in [planned, running] {
        assert_eq!(kept.load(&id).await.control, Requested::Pause);
    }
}

#[tokio::test]
async fn a_job_without_an_owner_is_cancelled_at_once() {
    let kept = Kept::new().await;
    let id = kept.planned().await;
    assert_eq!(kept.json(&["cancel", id.as_str()])["state"], "cancelled");
    let record = kept.load(&id).await;
    assert_eq!((record.state, record.owner), (State::Cancelled, None));

    let (exit, error) = failure(&kept.run(&["cancel", id.as_str(), "--json"]));
    assert_eq!((exit, &error["code"]), (4, &json!("job_final")), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_is_worked_at_is_asked_to_end() {
    let kept = Kept::new().await;
    let (id, _owner) = kept.worked_at().await;
    let asked = kept.json(&["cancel", id.as_str()]);
    assert_eq!((&asked["state"], &asked["owner"]), (&json!("running"), &json!("other/1")));
    let record = kept.load(&id).await;
    assert_eq!(record.control, Requested::Cancel);
    assert_eq!(record.state, State::Running { phase: "copy".to_owned() });
}

#[tokio::test]
async fn a_reply_names_no_owner_that_has_just_died() {
    let kept = Kept::new().await;
    let id = kept.running().await;
    let paused = kept.json(&["pause", id.as_str()]);
    assert_eq!(paused["owner"], Value::Null, "{paused}");
    assert!(paused["message"].as_str().unwrap().contains("No process works at it"), "{paused}");
    assert_eq!(kept.json(&["cancel", id.as_str()])["state"], "cancelled");
}

#[tokio::test]
async fn limits_are_set_one_by_one() {
    let kept = Kept::new().await;
    let id = kept.planned().await;
    kept.json(&["set", id.as_str(), "--mb-s", "2.5", "--secondary-lag-s", "10"]);
    kept.json(&["set", id.as_str(), "--documents-s", "500", "--secondary-lag-s", "none"]);
    let expected = Limits { documents_s: Some(500), bytes_s: Some(2_500_000), ..Limits::default() };
    assert_eq!(kept.load(&id).await.limits, expected);
}

/// Nothing listens on these ports, and what was asked for is told from the message.
const NOWHERE: [&str; 2] = [
    "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=200",
    "mongodb://127.0.0.1:2/?serverSelectionTimeoutMS=200",
];

fn unreachable(output: &Output) -> String {
    let (exit, error) = failure(output);
    assert_eq!((exit, &error["code"]), (4, &json!("unreachable")), "{error}");
    error["message"].as_str().unwrap().to_owned()
}

#[test]
fn the_cluster_can_be_set_once_for_all_verbs() {
    let [first, second] = NOWHERE;
    let list = ["list", "--json"];
    let by_variable = job(&list, &[("IMAGO_TO", first)], "");
    assert!(unreachable(&by_variable).contains("127.0.0.1:1"));
    let by_file = job(&list, &[], &format!("to = '{second}'"));
    assert!(unreachable(&by_file).contains("127.0.0.1:2"));
}

#[test]
fn what_is_set_closer_to_the_verb_wins() {
    let [first, second] = NOWHERE;
    let list = ["list", "--json"];
    let by_variable = job(&list, &[("IMAGO_TO", first), ("IMAGO_JOB_LIST_TO", second)], "");
    assert!(unreachable(&by_variable).contains("127.0.0.1:2"));
    let by_file = job(&list, &[], &format!("to = '{first}'\n[job]\nto = '{second}'"));
    assert!(unreachable(&by_file).contains("127.0.0.1:2"));
    let by_both = job(&list, &[("IMAGO_TO", first)], &format!("[job.list]\nto = '{second}'"));
    assert!(unreachable(&by_both).contains("127.0.0.1:1"), "the environment is over the file");
}

/// A command whose arguments are valid fails at the connection, since nothing listens there.
#[test]
fn a_limit_may_be_a_part_of_a_megabyte_and_a_block_may_not_take_no_time() {
    let [from, to] = NOWHERE;
    let imago = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
        command.env_clear().args(arguments).args(["--from", from, "--to", to, "--json"]);
        failure(&command.output().unwrap())
    };
    let (exit, error) = imago(&["copy", "--ns", "shop.orders", "--mb-s", "2.5"]);
    assert_eq!((exit, &error["code"]), (4, &json!("unreachable")), "{error}");
    let (exit, error) = imago(&["cutover", "1m7ya6gyq-24np", "--max-block-ms", "0"]);
    assert_eq!(exit, 2, "{error}");
}

#[test]
fn what_makes_no_sense_is_refused_before_any_cluster_is_asked() {
    let id = JobId::from_parts(1, 1);
    let [nowhere, _] = NOWHERE;
    let arguments: [&[&str]; 5] = [
        &["list", "--json"],
        &["status", "no-id", "--to", nowhere, "--json"],
        &["set", id.as_str(), "--to", nowhere, "--json"],
        &["set", id.as_str(), "--to", nowhere, "--documents-s", "0", "--json"],
        &["set", id.as_str(), "--to", nowhere, "--mb-s", "1", "--bytes-s", "1", "--json"],
    ];
    for arguments in arguments {
        let (exit, error) = failure(&job(arguments, &[], ""));
        assert_eq!(exit, 2, "{arguments:?}: {error}");
    }
}
