//! Rolls of three real nodes that are disturbed: a node with another schema, a drain that hangs, a node that is restarted by
//! hand meanwhile; and a cluster that wants a password.

use imago_testbed::wait;
use imago_tune::cassandra::Uri;
use imago_tune::cassandra::connection::connect_to;

use super::ring::{NODES, has_line, ring, ring_of};
use crate::standing::Standing;

/// A roll that restarts every node of a cluster file.
fn roll(cluster: &str) -> [&str; 6] {
    ["tune", "roll", "--cluster", cluster, "--set", "native_transport_max_threads=48"]
}

/// Has the second node say that its schema has this version: what it says until the change of a table has reached it.
fn say_schema(ring: &Standing, version: &str) {
    let uri: Uri = ring.uri.parse().unwrap();
    let node = uri.nodes[1].parse().unwrap();
    let told = async {
        let session = connect_to(node, &uri).await.unwrap();
        let set = format!("UPDATE system.local SET schema_version = {version} WHERE key = 'local'");
        session.query_unpaged(set, ()).await.unwrap();
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(told);
}

/// The versions of the schema that the nodes say they have.
fn schemas(ring: &Standing) -> Vec<String> {
    let uri: Uri = ring.uri.parse().unwrap();
    let told = async {
        let mut all = Vec::new();
        for node in &uri.nodes {
            let session = connect_to(node.parse().unwrap(), &uri).await.unwrap();
            let asked = "SELECT toJson(schema_version) FROM system.local";
            let answer =
                session.query_unpaged(asked, ()).await.unwrap().into_rows_result().unwrap();
            let (version,) = answer.single_row::<(String,)>().unwrap();
            all.push(version.trim_matches('"').to_owned());
        }
        all
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(told)
}

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn a_drain_that_hangs_and_a_restart_by_hand_are_outlived() {
    let Some(ring) = ring() else { return };
    let filled = ring.run(&[
        "load",
        "--uri",
        &ring.uri,
        "--ns",
        "shop.reviews",
        "--documents",
        "200",
        "--duration",
        "0s",
    ]);
    assert!(filled.status.success(), "{filled:?}");
    // A nodetool of ring-1 whose drain does not end.
    let tool = ring.configuration("ring-1", "nodetool");
    let hangs = ring.path("nodetool");
    let text = format!(
        "#!/bin/sh\n[ \"$1\" = drain ] && exec sleep 30\nexec '{}' \"$@\"\n",
        tool.display()
    );
    std::fs::write(&hangs, text).unwrap();
    let own =
        format!("name = \"ring-1\"\nnodetool = \"sh '{}'\"\ndrain_max_s = 3\n", hangs.display());
    let text = std::fs::read_to_string(&ring.cluster).unwrap();
    let cluster = ring.path("cluster.toml");
    std::fs::write(&cluster, text.replace("name = \"ring-1\"\n", &own)).unwrap();
    let before = ring.pids();
    let roll = roll(cluster.to_str().unwrap());

    // Nothing is begun while a node has another schema.
    let versions = schemas(&ring);
    assert!(versions.iter().all(|version| *version == versions[0]), "{versions:?}");
    say_schema(&ring, "9d8a5fd6-7f2a-3f0f-a0a5-5e2ab8ec5cd1");
    let said = ring.refused(&roll, 4);
    assert!(said.contains("the nodes have different schemas"), "{said}");
    assert_eq!(ring.pids(), before);
    say_schema(&ring, &versions[0]);

    let mut roll = ring.start_process(&roll, "roll");
    roll.until("the first node is stopped although it did not drain", |said| {
        said["event"] == "decision" && said["what"] == "ring-1: starts"
    });
    let warned = |what: &str| {
        roll.said().iter().any(|said| said["event"] == "warning" && said["code"] == what)
    };
    assert!(warned("drain"), "{:?}", roll.said());

    // Another node is restarted by hand while the first one comes back.
    ring.json(&["testbed", "inject", "ring", "kill", "--node", "ring-3"]);
    ring.json(&["testbed", "inject", "ring", "restart", "--node", "ring-3"]);
    let (exit, outcome) = roll.ended();
    assert_eq!(exit, 0, "{outcome}");
    assert_eq!(outcome["nodes"].as_array().unwrap().len(), 3, "{outcome}");
    let after = ring.pids();
    assert!(before.iter().zip(&after).all(|(before, after)| before != after));
    assert!(NODES.iter().all(|node| has_line(&ring, node, "native_transport_max_threads: 48")));
    let status = ring.json(&["testbed", "status", "ring"]);
    assert_eq!(status["health"], "up", "{status}");
}

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn a_wrong_password_is_said_before_anything_is_touched() {
    let Some(ring) = ring_of(1, &[]) else { return };
    let file = ring.configuration("ring-1", "cassandra.yaml");
    let text = std::fs::read_to_string(&file).unwrap();
    let is_other = |line: &&str| !line.starts_with("authenticator");
    let kept: Vec<&str> = text.lines().filter(is_other).collect();
    std::fs::write(&file, kept.join("\n") + "\nauthenticator: PasswordAuthenticator\n").unwrap();
    ring.json(&["testbed", "inject", "ring", "kill", "--node", "ring-1"]);
    ring.json(&["testbed", "inject", "ring", "restart", "--node", "ring-1"]);
    let with = |user: &str| ring.uri.replace("cassandra://", &format!("cassandra://{user}@"));
    let jobs = |uri: &str| ring.run(&["tune", "jobs", "--uri", uri, "--json"]);
    // Cassandra makes its first user some time after it has begun to serve.
    wait::until_blocking("the first user is let in", || {
        jobs(&with("cassandra:cassandra")).status.success()
    });
    for uri in [with("cassandra:wrong"), ring.uri.clone()] {
        let text = std::fs::read_to_string(&ring.cluster).unwrap();
        let cluster = ring.path("cluster.toml");
        std::fs::write(&cluster, text.replace(&ring.uri, &uri)).unwrap();
        let written = std::fs::read_to_string(&file).unwrap();
        let roll = roll(cluster.to_str().unwrap());
        let said = ring.refused(&roll, 4);
        assert!(said.to_lowercase().contains("authenticat"), "{said}");
        assert!(!said.contains("wrong"), "a password is not repeated: {said}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), written);
    }
}
