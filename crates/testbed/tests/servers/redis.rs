//! A Redis server: up, written to, killed, stopped, and up again with its data.

use std::time::Duration;

use imago_testbed::process::Liveness;
use imago_testbed::{Single, SingleSpec, find_redis, require};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// A server below `folder`; none, with a word, where this machine has no Redis.
async fn start(name: &str, folder: &tempfile::TempDir) -> Option<Single> {
    require(find_redis())?;
    let place = Some(folder.path().to_path_buf());
    let spec = SingleSpec {
        folder: place,
        memory_mb: 16,
        cpu_percent: Some(80),
        ..SingleSpec::redis(name)
    };
    Some(Single::start(spec).await.unwrap())
}

/// The server's answer to a command, as it comes over the wire.
async fn ask(port: u16, command: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.strip_suffix("+OK\r\n").unwrap().to_owned()
}

#[tokio::test]
async fn a_killed_server_comes_back_on_its_port_with_what_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = start("killed", &folder).await else { return };
    let port = redis.port();
    assert_eq!(ask(port, "PING").await, "+PONG\r\n");
    assert_eq!(ask(port, "SET kept yes").await, "+OK\r\n");

    redis.kill().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());
    assert_eq!(redis.node().process, None);

    redis.restart().await.unwrap();
    assert_eq!(redis.port(), port);
    assert_eq!(ask(port, "GET kept").await, "$3\r\nyes\r\n");
    if let Some(why) = redis.unshared() {
        return eprintln!("without a share of the processors: {why}");
    }
    let node = redis.node();
    let groups = std::fs::read_to_string(format!("/proc/{}/cgroup", node.process.unwrap().pid));
    let groups = groups.unwrap();
    let own = groups
        .lines()
        .any(|line| line.contains("/imago-testbed-") && line.ends_with(&format!("-{}", node.name)));
    assert!(own, "{groups}");
}

#[tokio::test]
async fn a_stopped_server_is_silent_until_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = start("stopped", &folder).await else { return };
    redis.stop().unwrap();
    let silent = timeout(Duration::from_millis(200), ask(redis.port(), "PING")).await;
    assert!(silent.is_err());
    redis.resume().unwrap();
    assert_eq!(ask(redis.port(), "PING").await, "+PONG\r\n");
}

#[tokio::test]
async fn beyond_its_memory_it_refuses_writes() {
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = start("full", &folder).await else { return };
    let answers = async {
        for n in 0..40 {
            let answer = ask(redis.port(), &format!("SETRANGE big{n} 1048576 x")).await;
            if answer.starts_with("-OOM") {
                return n;
            }
        }
        40
    };
    assert!((8..17).contains(&answers.await));
}

#[tokio::test]
async fn a_dropped_server_leaves_neither_process_nor_data() {
    let folder = tempfile::tempdir().unwrap();
    let Some(redis) = start("dropped", &folder).await else { return };
    let process = redis.node().process.unwrap();
    drop(redis);
    assert_eq!(process.liveness(), Liveness::Gone);
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}
