//! A Cassandra cluster: up, written to with a quorum, a node killed, and up again with what it missed.
//!
//! Its protocol's few messages that are needed are put together by hand: they need no client.

use std::net::SocketAddr;

use imago_testbed::process::Liveness;
use imago_testbed::{CassandraCluster, CassandraSpec, NodeInfo, find_cassandra, require, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const STARTUP: u8 = 1;
const READY: u8 = 2;
const QUERY: u8 = 7;
const RESULT: u8 = 8;
const ONE: u16 = 1;
const QUORUM: u16 = 4;

async fn exchange(stream: &mut TcpStream, kind: u8, body: &[u8]) -> (u8, Vec<u8>) {
    let mut message = vec![4, 0, 0, 0, kind];
    message.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    message.extend(body);
    stream.write_all(&message).await.unwrap();
    let mut header = [0; 9];
    stream.read_exact(&mut header).await.unwrap();
    let length = u32::from_be_bytes(header[5..].try_into().unwrap());
    let mut answer = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut answer).await.unwrap();
    (header[4], answer)
}

/// The result of a query at a node, as it comes over the wire; or the error.
async fn try_ask(node: &NodeInfo, query: &str, consistency: u16) -> Result<Vec<u8>, String> {
    let mut stream = TcpStream::connect(SocketAddr::from((node.host, node.port))).await.unwrap();
    let options = b"\x00\x01\x00\x0bCQL_VERSION\x00\x053.0.0";
    assert_eq!(exchange(&mut stream, STARTUP, options).await.0, READY);
    let mut body = Vec::from(u32::try_from(query.len()).unwrap().to_be_bytes());
    body.extend(query.as_bytes());
    body.extend(consistency.to_be_bytes());
    body.push(0);
    match exchange(&mut stream, QUERY, &body).await {
        (RESULT, answer) => Ok(answer),
        (_, answer) => Err(String::from_utf8_lossy(&answer).into_owned()),
    }
}

/// Waits until a node answers a read with a quorum, and with this: it may not see its peers yet.
async fn reads(node: &NodeInfo, query: &str, text: &str) {
    let what = format!("{} reads with a quorum", node.name);
    wait::until(&what, async || {
        try_ask(node, query, QUORUM).await.is_ok_and(|answer| has(&answer, text))
    })
    .await;
}

async fn ask(node: &NodeInfo, query: &str, consistency: u16) -> Vec<u8> {
    let answer = try_ask(node, query, consistency).await;
    answer.unwrap_or_else(|error| panic!("{query}: {error}"))
}

fn has(answer: &[u8], text: &str) -> bool {
    answer.windows(text.len()).any(|bytes| bytes == text.as_bytes())
}

#[tokio::test]
#[ignore = "three nodes of Java are started by make test-long"]
async fn a_quorum_serves_without_a_node_and_the_node_comes_back_with_what_it_missed() {
    let Some(_) = require(find_cassandra()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let place = Some(folder.path().to_path_buf());
    let spec = CassandraSpec {
        racks: 3,
        heap_mb: 256,
        cpu_percent: Some(90),
        folder: place,
        ..CassandraSpec::new("ring", 3)
    };
    let cluster = CassandraCluster::start(spec).await.unwrap();
    let nodes = cluster.nodes();
    match cluster.unshared() {
        Some(why) => eprintln!("without shares of the processors: {why}"),
        None => nodes.iter().for_each(|node| {
            let pid = node.process.unwrap().pid;
            let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
            let own = groups.lines().any(|line| {
                line.contains("/imago-testbed-") && line.ends_with(&format!("-{}", node.name))
            });
            assert!(own, "{groups}");
        }),
    }
    let names: Vec<&str> = nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["ring-1", "ring-2", "ring-3"]);
    assert!(nodes.iter().all(|node| node.port == nodes[0].port && node.host.is_loopback()));

    let peers = ask(&nodes[2], "SELECT rack, data_center FROM system.peers_v2", ONE).await;
    assert!(has(&peers, "rack1") && has(&peers, "rack2"), "{peers:?}");
    for schema in [
        "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}",
        "CREATE TABLE shop.reviews (id text PRIMARY KEY, body text)",
    ] {
        ask(&nodes[0], schema, QUORUM).await;
    }
    let insert = "INSERT INTO shop.reviews (id, body) VALUES ('B00JGTVU5A:1398442107', 'before')";
    let read = "SELECT body FROM shop.reviews WHERE id = 'B00JGTVU5A:1398442107'";
    // A node takes nothing of a table that it does not know yet.
    for (node, query) in [(0, insert), (0, read), (1, read), (2, read)] {
        wait::until("all nodes have the schema", async || {
            try_ask(&nodes[node], query, QUORUM).await.is_ok()
        })
        .await;
    }
    reads(&nodes[2], read, "before").await;

    cluster.servers().kill("ring-2").unwrap();
    assert_eq!(cluster.nodes()[1].process, None);
    ask(
        &nodes[0],
        "INSERT INTO shop.reviews (id, body) VALUES ('B00JGTVU5A:1398442107', 'while it was away')",
        QUORUM,
    )
    .await;
    reads(&nodes[2], read, "while it was away").await;

    cluster.servers().restart("ring-2").await.unwrap();
    let again = cluster.nodes();
    assert_eq!((again[1].host, again[1].port), (nodes[1].host, nodes[1].port));
    reads(&nodes[1], read, "while it was away").await;
    assert!(
        cluster
            .servers()
            .kill("ring-4")
            .unwrap_err()
            .to_string()
            .contains("ring-1, ring-2, ring-3")
    );

    cluster.servers().stop("ring-3").unwrap();
    let stopped = cluster.nodes()[2].process.unwrap();
    assert_eq!(stopped.liveness(), Liveness::Stopped);
    cluster.servers().resume("ring-3").unwrap();
    reads(&nodes[2], read, "while it was away").await;
}

#[test]
fn what_cannot_be_started_is_said_before_anything_is() {
    let spec = |nodes, racks, heap_mb| CassandraSpec {
        racks,
        heap_mb,
        ..CassandraSpec::new("ring", nodes)
    };
    for (spec, named) in [
        (spec(0, 1, 512), "0 nodes"),
        (spec(33, 1, 512), "33 nodes"),
        (spec(2, 3, 512), "3 racks for 2 nodes"),
        (spec(3, 0, 512), "0 racks"),
        (spec(3, 3, 64), "a heap of 64 MB"),
        (CassandraSpec { cpu_percent: Some(5), ..CassandraSpec::new("ring", 3) }, "5 % of"),
    ] {
        assert!(spec.check().unwrap_err().to_string().contains(named), "{named}");
    }
    assert!(spec(6, 3, 256).check().is_ok());
}
