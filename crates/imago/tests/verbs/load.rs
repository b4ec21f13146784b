//! `imago load` as a user meets it: run, steered from other processes, checked.

mod redis;
mod target;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use imago_testbed::pool::{self, replica_set};
use imago_testbed::wait;
use serde_json::Value;

fn imago(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(folder).arg("load").args(words);
    command
}

fn json(output: &Output) -> Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text} {}", String::from_utf8_lossy(&output.stderr))
    })
}

/// A load that does not outlive a failing test.
struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Waits until the running load has done something, as another process sees it.
fn wait_for(folder: &Path, what: impl Fn(&Value) -> bool) {
    wait::until_blocking("the load gets there", || {
        let status = imago(folder, &["status", "--control", "s", "--json"]).output().unwrap();
        status.status.success() && what(&json(&status))
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_switch_too_early_is_found_as_lost_writes() {
    let cluster = Box::pin(pool::lease(replica_set(1))).await.unwrap();
    let (uri, folder) = (cluster.uri(), tempfile::tempdir().unwrap());
    let folder = folder.path();
    let run = ["--uri", &uri, "--ns", "shop.old", "--documents", "200", "--until-stopped"];
    let more = ["--record", "h", "--control", "s", "--mix", "update=1,insert=1", "--json"];
    let running = imago(folder, &run).args(more).stdout(Stdio::piped()).spawn().unwrap();
    let mut running = Load(running);
    wait_for(folder, |status| status["writes"]["ok"].as_u64() > Some(50));

    let switch = ["switch", "--control", "s", "--uri", &uri, "--ns", "shop.new"];
    assert!(imago(folder, &switch).output().unwrap().status.success());
    let before = imago(folder, &["status", "--control", "s", "--json"]).output().unwrap();
    let before = json(&before)["writes"]["ok"].as_u64().unwrap();
    wait_for(folder, |status| status["writes"]["ok"].as_u64() > Some(before + 20));
    // It returns when the history is closed, so that it can be checked at once.
    assert!(imago(folder, &["stop", "--control", "s"]).output().unwrap().status.success());

    // Inserts went to the new collection, into which nothing was copied: the old one lacks them,
    // the new one lacks everything before.
    for ns in ["shop.old", "shop.new"] {
        let check = ["check", "--uri", &uri, "--ns", ns, "--history", "h", "--json"];
        let checked = imago(folder, &check).output().unwrap();
        assert_eq!(checked.status.code(), Some(3));
        let verdict = json(&checked);
        assert!(verdict["lost"].as_u64() > Some(0), "{verdict}");
        assert!(verdict["named"][0]["id"].as_str().unwrap().starts_with("review-"));
    }
    assert!(running.0.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_undisturbed_load_passes_its_check() {
    let cluster = Box::pin(pool::lease(replica_set(1))).await.unwrap();
    let (uri, folder) = (cluster.uri(), tempfile::tempdir().unwrap());
    let run = ["--uri", &uri, "--ns", "shop.reviews", "--documents", "200", "--duration", "1s"];
    let run = imago(folder.path(), &run).args(["--record", "h", "--json"]).output().unwrap();
    let report = json(&run);
    assert!(report["writes"]["ok"].as_u64() > Some(0), "{report}");
    assert!(report["timeline"].as_array().unwrap().len() >= 10);
    let check = ["check", "--uri", &uri, "--history", "h", "--json"];
    let checked = imago(folder.path(), &check).output().unwrap();
    assert_eq!(checked.status.code(), Some(0));
    assert_eq!(json(&checked)["lost"], 0);
}
