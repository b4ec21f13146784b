//! A Kafka server: up, told of a topic, killed, and up again with its data.
//!
//! Its protocol's oldest versions are put together by hand: they need no client.

use imago_testbed::process::Liveness;
use imago_testbed::{Single, SingleSpec, find_kafka, require};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const METADATA: i16 = 3;
const API_VERSIONS: i16 = 18;
const CREATE_TOPICS: i16 = 19;

/// A server below `folder`; none, with a word, where this machine has no Kafka or no Java.
async fn start(name: &str, folder: &tempfile::TempDir) -> Option<Single> {
    require(find_kafka())?;
    let place = Some(folder.path().to_path_buf());
    let spec = SingleSpec { folder: place, ..SingleSpec::kafka(name) };
    Some(Single::start(spec).await.unwrap())
}

/// The server's answer to a request, behind the id that comes back with it.
async fn ask(port: u16, request: i16, version: i16, body: &[u8]) -> Vec<u8> {
    const ID: i32 = 1;
    let no_client: i16 = -1;
    let mut message = Vec::new();
    message.extend(request.to_be_bytes());
    message.extend(version.to_be_bytes());
    message.extend(ID.to_be_bytes());
    message.extend(no_client.to_be_bytes());
    message.extend(body);
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_i32(i32::try_from(message.len()).unwrap()).await.unwrap();
    stream.write_all(&message).await.unwrap();

    let length = usize::try_from(stream.read_i32().await.unwrap()).unwrap();
    assert_eq!(stream.read_i32().await.unwrap(), ID);
    let mut answer = vec![0; length - 4];
    stream.read_exact(&mut answer).await.unwrap();
    answer
}

async fn create_topic(port: u16, name: &str) {
    let mut body = Vec::new();
    body.extend(1_i32.to_be_bytes());
    body.extend(i16::try_from(name.len()).unwrap().to_be_bytes());
    body.extend(name.as_bytes());
    // One partition, one copy, placed and configured as the server likes; within 10 s, for real.
    body.extend(1_i32.to_be_bytes());
    body.extend(1_i16.to_be_bytes());
    body.extend(0_i32.to_be_bytes());
    body.extend(0_i32.to_be_bytes());
    body.extend(10_000_i32.to_be_bytes());
    body.push(0);
    let answer = ask(port, CREATE_TOPICS, 2, &body).await;
    // Throttle time, one topic, its name, the error code.
    let code = 4 + 4 + 2 + name.len();
    assert_eq!(answer[code..code + 2], [0, 0], "{answer:?}");
}

async fn has_topic(port: u16, name: &str) -> bool {
    let all_topics: i32 = -1;
    let answer = ask(port, METADATA, 1, &all_topics.to_be_bytes()).await;
    answer.windows(name.len()).any(|bytes| bytes == name.as_bytes())
}

#[tokio::test]
async fn it_says_which_versions_of_its_protocol_it_has_as_soon_as_it_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let Some(kafka) = start("versions", &folder).await else { return };
    let answer = ask(kafka.port(), API_VERSIONS, 0, &[]).await;
    assert_eq!(answer[..2], [0, 0]);
    let versions = answer[6..].chunks_exact(6).map(|one| i16::from_be_bytes([one[0], one[1]]));
    assert!(versions.into_iter().any(|request| request == METADATA));
}

#[tokio::test]
async fn a_killed_server_comes_back_on_its_port_with_its_topics() {
    let folder = tempfile::tempdir().unwrap();
    let Some(kafka) = start("killed", &folder).await else { return };
    let port = kafka.port();
    create_topic(port, "kept").await;
    kafka.kill().unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err());

    kafka.restart().await.unwrap();
    assert_eq!(kafka.port(), port);
    assert!(has_topic(port, "kept").await);
    assert!(!has_topic(port, "never-made").await);
}

#[tokio::test]
async fn a_dropped_server_leaves_neither_process_nor_data() {
    let folder = tempfile::tempdir().unwrap();
    let Some(kafka) = start("dropped", &folder).await else { return };
    let process = kafka.node().process.unwrap();
    drop(kafka);
    assert_eq!(process.liveness(), Liveness::Gone);
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}
