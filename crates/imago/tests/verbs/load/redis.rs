//! A load on Redis: a server of its own, and a cluster whose masters die.

use std::path::Path;
use std::process::Stdio;

use imago_testbed::{Single, SingleSpec, find_redis, require, wait};
use serde_json::Value;

use super::{Load, imago, json};
use crate::standing::Standing;

fn is_missing() -> bool {
    require(find_redis()).is_none()
}

/// The answer of a node to some words of the protocol, as it comes over the wire.
fn ask(node: &str, command: &str) -> String {
    use std::io::{Read as _, Write as _};
    let mut stream = std::net::TcpStream::connect(node).unwrap();
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// The verdict of a check, which ends with this code.
fn check(folder: &Path, uri: &str, history: &str, exit: i32) -> Value {
    let words = ["check", "--uri", uri, "--history", history, "--json"];
    let checked = imago(folder, &words).output().unwrap();
    let verdict = json(&checked);
    assert_eq!(checked.status.code(), Some(exit), "{verdict}");
    verdict
}

#[tokio::test]
async fn a_load_on_a_server_passes_its_check_and_a_record_that_is_taken_away_is_found() {
    if is_missing() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let place = Some(folder.path().to_path_buf());
    let spec = SingleSpec { folder: place, ..SingleSpec::redis("load") };
    let server = Single::start(spec).await.unwrap();
    let uri = format!("{}/0", server.uri());
    let node = format!("127.0.0.1:{}", server.port());
    ask(&node, "SET shop:other 1");
    let run = ["--uri", &uri, "--ns", "shop.reviews", "--documents", "300", "--duration", "1s"];
    let mix = "read=30,update=30,insert=15,delete=10,scan=15";
    let more = ["--rate", "600", "--reinsert", "0.5", "--mix", mix, "--record", "h", "--json"];
    let report = json(&imago(folder.path(), &run).args(more).output().unwrap());
    assert_eq!((&report["unavailable"], &report["failures"]), (&0.into(), &Value::Array(vec![])));
    assert!(report["writes"]["ok"].as_u64() > Some(50), "{report}");
    let hash = ask(&node, "HLEN shop:reviews:review-000000000299");
    assert!(hash.starts_with(":1") || hash.starts_with(":0"), "{hash}");
    let verdict = check(folder.path(), &uri, "h", 0);
    assert!(verdict["documents"].as_u64() > Some(200), "{verdict}");

    let again = imago(folder.path(), &run).output().unwrap();
    assert_eq!(again.status.code(), Some(4), "it is filled already");
    for key in 0..300 {
        ask(&node, &format!("DEL shop:reviews:review-{key:012}"));
    }
    let verdict = check(folder.path(), &uri, "h", 3);
    assert!(verdict["lost"].as_u64() > Some(100), "{verdict}");
    let elsewhere = ["check", "--uri", "cassandra://127.0.0.1:1", "--history", "h"];
    let refused = imago(folder.path(), &elsewhere).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("the history was recorded on Redis"));
}

#[test]
fn writes_that_replicas_acknowledged_outlive_a_killed_master_and_others_are_found_lost() {
    if is_missing() {
        return;
    }
    let cluster = Standing::start("slots", &["redis", "--masters", "3", "--memory-mb", "64"]);
    let folder = cluster.path("");
    let nodes: Vec<&str> = cluster.uri.trim_start_matches("redis://").split(',').collect();
    // The third node comes first, and is killed: another one has to be asked.
    let uri = format!("redis://{},{}", nodes[2], nodes[1]);
    let run = ["--uri", &uri, "--ns", "shop.reviews", "--documents", "500", "--rate", "400"];
    let more = ["--mix", "read=30,update=50,insert=10,scan=10", "--json", "--until-stopped"];
    let load = |history: &str, control: &str, wait: &str| {
        let words = ["--record", history, "--control", control, "--wait-replicas", wait];
        let mut command = imago(&folder, &run);
        Load(command.args(more).args(words).stdout(Stdio::piped()).spawn().unwrap())
    };
    let status = |control: &str| {
        let told = imago(&folder, &["status", "--control", control, "--json"]).output().unwrap();
        if told.status.success() { json(&told) } else { Value::Null }
    };
    let until = |control: &str, what: &dyn Fn(&Value) -> bool| {
        wait::until_blocking("the load gets there", || what(&status(control)));
    };
    let stop = |mut load: Load, control: &str| {
        assert!(imago(&folder, &["stop", "--control", control]).output().unwrap().status.success());
        let mut printed = String::new();
        std::io::Read::read_to_string(load.0.stdout.as_mut().unwrap(), &mut printed).unwrap();
        assert!(load.0.wait().unwrap().success());
        serde_json::from_str::<Value>(&printed).unwrap()
    };

    let running = load("waited", "w", "1");
    until("w", &|status| status["writes"]["ok"].as_u64() > Some(100));
    cluster.inject("kill", "slots-3");
    wait::until_blocking("its replica takes its place", || {
        ask(nodes[5], "INFO replication").contains("role:master")
    });
    cluster.inject("restart", "slots-3");
    wait::until_blocking("the writes of all are acknowledged again", || {
        ask(nodes[2], "INFO replication").contains("master_link_status:up")
            && ask(nodes[2], "CLUSTER INFO").contains("cluster_state:ok")
    });
    let before = status("w")["writes"]["ok"].as_u64().unwrap();
    until("w", &|status| status["writes"]["ok"].as_u64() > Some(before + 50));
    let report = stop(running, "w");
    assert!(report["unavailable"].as_u64() > Some(0), "{report}");
    let verdict = check(&folder, &uri, "waited", 0);
    assert_eq!((&verdict["lost"], &verdict["stale"]), (&0.into(), &0.into()));

    // A replica is away, and its master dies with what it acknowledged meanwhile.
    let records = format!("redis://{}", nodes[1]);
    cluster.inject("kill", "slots-4");
    let words = ["--uri", &*records, "--ns", "shop.lost", "--documents", "200", "--duration", "1s"];
    let alone = imago(&folder, &words).args(["--record", "alone", "--json"]).output().unwrap();
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    let refused = imago(&folder, &words).args(["--wait-replicas", "1"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("0 replicas in step"));
    cluster.inject("kill", "slots-1");
    cluster.inject("restart", "slots-4");
    assert!(ask(nodes[3], "CLUSTER FAILOVER TAKEOVER").contains("+OK"));
    wait::until_blocking("the cluster is well", || {
        ask(nodes[1], "CLUSTER INFO").contains("cluster_state:ok")
            && ask(nodes[3], "INFO replication").contains("role:master")
    });
    let verdict = check(&folder, &records, "alone", 3);
    assert!(verdict["lost"].as_u64() > Some(20), "{verdict}");
}
