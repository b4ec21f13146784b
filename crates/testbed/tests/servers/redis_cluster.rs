//! A Redis Cluster: up, written to, a master killed and replaced, and up again as a replica with its data.

use std::net::SocketAddr;
use std::time::Duration;

use imago_testbed::process::Liveness;
use imago_testbed::{NodeInfo, RedisCluster, RedisClusterSpec, find_redis, require, wait};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Between two looks at a node.
const POLL: Duration = Duration::from_millis(50);

/// The node's answer to a command, as it comes over the wire; nothing if it does not take us.
async fn ask(node: &NodeInfo, command: &str) -> String {
    let exchange = async {
        let mut stream = TcpStream::connect(SocketAddr::from((node.host, node.port))).await?;
        stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    exchange.await.unwrap_or_default().trim_end_matches("+OK\r\n").to_owned()
}

async fn says(node: &NodeInfo, command: &str, part: &str) {
    let what = format!("{} answers {command} with {part}", node.name);
    wait::until_with(POLL, &what, async || ask(node, command).await.contains(part)).await;
}

#[tokio::test]
async fn a_replica_takes_a_killed_masters_place_and_that_comes_back_with_what_it_missed() {
    let Some(_) = require(find_redis()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let place = Some(folder.path().to_path_buf());
    let spec =
        RedisClusterSpec { folder: place, memory_mb: 32, ..RedisClusterSpec::new("slots", 3) };
    let cluster = RedisCluster::start(spec).await.unwrap();
    let nodes = cluster.nodes();
    let names: Vec<&str> = nodes.iter().map(|node| &*node.name).collect();
    assert_eq!(names, ["slots-1", "slots-2", "slots-3", "slots-4", "slots-5", "slots-6"]);
    assert!(nodes.iter().all(|node| node.port == nodes[0].port && node.host.is_loopback()));
    // The slot of this key is 15495: the third master's, whose replica is the sixth node.
    assert_eq!(ask(&nodes[2], "SET a before").await, "");
    says(&nodes[0], "GET a", &format!("-MOVED 15495 {}:{}", nodes[2].host, nodes[2].port)).await;
    // What a replica has not got yet is lost with its master.
    assert!(ask(&nodes[2], "WAIT 1 10000").await.contains(':'));
    says(&nodes[5], "INFO replication", "role:slave").await;
    let offset = ask(&nodes[2], "INFO replication").await;
    let offset = offset.lines().find(|line| line.starts_with("master_repl_offset")).unwrap();
    assert_ne!(offset, "master_repl_offset:0");

    cluster.servers().kill("slots-3").unwrap();
    assert_eq!(cluster.nodes()[2].process, None);
    says(&nodes[5], "GET a", "before").await;
    assert_eq!(ask(&nodes[5], "SET a while-it-was-away").await, "");

    cluster.servers().restart("slots-3").await.unwrap();
    let again = cluster.nodes();
    assert_eq!((again[2].host, again[2].port), (nodes[2].host, nodes[2].port));
    says(&nodes[2], "INFO replication", "master_link_status:up").await;
    says(&nodes[2], "CLUSTER INFO", "cluster_state:ok").await;
    assert!(
        cluster.servers().kill("slots-7").unwrap_err().to_string().contains("slots-5, slots-6")
    );

    cluster.servers().stop("slots-1").unwrap();
    assert_eq!(cluster.nodes()[0].process.unwrap().liveness(), Liveness::Stopped);
    cluster.servers().resume("slots-1").unwrap();
    cluster.servers().terminate("slots-1").await.unwrap();
    assert!(ask(&nodes[0], "PING").await.is_empty());
    let processes: Vec<_> = cluster.nodes().into_iter().filter_map(|node| node.process).collect();
    assert_eq!(processes.len(), 5);
    drop(cluster);
    assert!(processes.iter().all(|process| process.liveness() == Liveness::Gone));
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}
