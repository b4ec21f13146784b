//! Impossible commands end with one clear error, and its exit code.

use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;

use imago_testbed::wait;

use crate::store::served::{Served, anywhere, imago};

/// Runs `imago store` with these words, which has to fail so, and returns its error as JSON.
#[track_caller]
pub fn fails(words: &[&str], exit: i32) -> Value {
    let output = run(words);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(exit), "{words:?}: {said}");
    assert!(output.stdout.is_empty(), "an error is on stdout");
    let said: Value = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    said["error"].clone()
}

pub fn run(words: &[&str]) -> Output {
    // A process that wrongly begins to serve must not do so for ever.
    let mut command = std::process::Command::new("timeout");
    let imago = imago(&["store"]);
    command.args(["--kill-after=1", "30"]).arg(imago.get_program()).args(imago.get_args());
    command.args(words).arg("--json").output().unwrap()
}

pub fn serve<'a>(listen: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["serve", "--listen", listen, "--admin", "127.0.0.1:0"], more].concat()
}

pub fn text(of: &Value) -> &str {
    of["message"].as_str().unwrap()
}

fn start(folder: &Path) -> (Served, String) {
    let served = Served::start(folder, 3, anywhere(), anywhere());
    let admin = served.admin.to_string();
    (served, admin)
}

#[test]
fn a_port_in_use_is_an_unmet_precondition() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error = fails(&serve(&address, &[]), 4);
    assert!(text(&error).contains(&address), "{error}");
    assert!(error["help"].as_str().unwrap().contains("free port"), "{error}");
    let error = fails(&["serve", "--listen", "127.0.0.1:0", "--admin", &address], 4);
    assert!(text(&error).contains(&address), "{error}");
}

#[test]
fn a_folder_in_use_is_an_unmet_precondition_and_the_other_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (served, admin) = start(folder.path());
    let path = folder.path().to_str().unwrap();
    let error = fails(&serve("127.0.0.1:0", &["--data", path, "--sites", "3"]), 4);
    assert!(text(&error).contains(path) && text(&error).contains("another process"), "{error}");
    assert!(run(&["split", "0:k", "--admin", &admin]).status.success());
    drop(served);
}

#[test]
fn fewer_sites_than_the_log_has_copies_at_are_an_unmet_precondition() {
    let folder = tempfile::tempdir().unwrap();
    let (mut served, admin) = start(folder.path());
    let words = ["add-replica", "0:k", "--site", "2", "--admin", &admin];
    assert!(run(&words).status.success());
    served.kill();
    let path = folder.path().to_str().unwrap();
    let error = fails(&serve("127.0.0.1:0", &["--data", path, "--sites", "2"]), 4);
    assert!(text(&error).contains("3 sites") && text(&error).contains(path), "{error}");
    drop(Served::start(folder.path(), 3, anywhere(), anywhere()));
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().join("log");
    let error = fails(&serve("127.0.0.1:0", &["--data", path.to_str().unwrap()]), 4);
    assert!(text(&error).contains(path.to_str().unwrap()), "{error}");
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    for sites in ["0", "65"] {
        let error = fails(&serve("127.0.0.1:0", &["--sites", sites]), 2);
        assert!(text(&error).contains("1 to 64"), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    let (_served, admin) = start(folder.path());
    for key in ["k", "x:k", "0", "0:\\x", "99999999999:k"] {
        let error = fails(&["split", key, "--admin", &admin], 2);
        assert!(text(&error).contains("TABLE:ROW"), "{error}");
    }
    // Read by clap, before there is anything to be said as JSON.
    assert_eq!(run(&["remaster", "0:k", "--admin", &admin]).status.code(), Some(2));
    assert_eq!(run(&["split", "0:k", "--admin", "nowhere"]).status.code(), Some(2));
    assert_eq!(run(&serve("127.0.0.1", &[])).status.code(), Some(2));
    assert_eq!(run(&serve("127.0.0.1:0", &["--sync", "0"])).status.code(), Some(2));
}

#[test]
fn a_log_in_kafka_that_makes_no_sense_is_a_usage_error_and_nothing_is_touched() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let refused = |words: &[&str], why: &str| {
        let words = [words, &["--data", data.to_str().unwrap()]].concat();
        let output = run(&serve("127.0.0.1:0", &words));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(why), "{words:?}: {said}");
    };
    refused(&["--log", "kafka://nowhere/t"], "is no HOST:PORT");
    refused(&["--log", "127.0.0.1:9092"], "kafka://HOST:PORT[,HOST:PORT]/TOPIC");
    refused(&["--log", "kafka://h:1/t?replicas=0"], "replicas");
    refused(&["--log", "kafka://h:1/t", "--sync", "always"], "--sync");
    refused(&["--log", "kafka://h:1/t", "--segment-mb", "5"], "--segment-mb");
    refused(&["--log-config", "client.properties"], "--log");
    let file = folder.path().join("client.properties");
    std::fs::write(&file, "security.protocol=ssl\nssl.ca.locaton=/etc/ca.pem\n").unwrap();
    let config = ["--log", "kafka://h:1/t", "--log-config", file.to_str().unwrap()];
    refused(&config, "line 2: ssl.ca.locaton is not understood");
    std::fs::remove_file(&file).unwrap();
    refused(&config, "cannot read");
    assert!(!data.exists());
}

#[test]
fn a_broker_that_is_not_there_is_an_unmet_precondition() {
    // Bound and let go: nothing listens there.
    let gone: SocketAddr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = fails(&serve("127.0.0.1:0", &["--log", &format!("kafka://{gone}/t")]), 4);
    assert!(text(&error).contains(&format!("{gone}")), "{error}");
}

#[test]
fn a_change_that_the_design_does_not_allow_is_an_unmet_precondition() {
    let folder = tempfile::tempdir().unwrap();
    let (_served, admin) = start(folder.path());
    let refused = |words: &[&str], why: &str| {
        let error = fails(&[words, &["--admin", &admin]].concat(), 4);
        assert!(text(&error).contains(why), "{error}");
    };
    refused(&["merge", "0:k"], "no partition behind it");
    refused(&["remaster", "0:k", "--site", "1"], "no replica");
    refused(&["remove-replica", "0:k", "--site", "1"], "no replica");
    refused(&["add-replica", "0:k", "--site", "0"], "a copy already");
    refused(&["add-replica", "0:k", "--site", "9"], "3 sites");
    refused(&["remaster", "0:k", "--site", "9"], "no replica");
    assert!(run(&["split", "0:k", "--admin", &admin]).status.success());
    refused(&["split", "0:k"], "not at its first");
}

#[test]
fn a_store_that_is_not_there_is_a_failure() {
    // Bound and let go: nothing listens there.
    let gone: SocketAddr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = fails(&["split", "0:k", "--admin", &gone.to_string()], 1);
    assert!(text(&error).contains(&gone.to_string()), "{error}");
    assert!(error["help"].as_str().unwrap().contains("--admin"), "{error}");
}

#[test]
fn a_store_that_is_asked_to_end_ends_well_and_lets_its_folder_go() {
    let folder = tempfile::tempdir().unwrap();
    let (served, _) = start(folder.path());
    assert_eq!(served.interrupted(), Some(0));
    drop(Served::start(folder.path(), 3, anywhere(), anywhere()));
}

#[test]
fn a_store_with_a_closed_stderr_ends_when_asked() {
    let mut command = imago(&["store", "serve", "--json", "--sites", "1"]);
    command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut begun = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut begun).unwrap();
    drop(child.stderr.take());
    let id = rustix::process::Pid::from_child(&child);
    // It logs that it ends, into a pipe without a reader.
    rustix::process::kill_process(id, rustix::process::Signal::INT).unwrap();
    let mut ended = None;
    wait::until_blocking("it ends", || {
        ended = child.try_wait().unwrap();
        ended.is_some()
    });
    assert_eq!(ended.and_then(|ended| ended.code()), Some(0), "it began with {begun}");
}
