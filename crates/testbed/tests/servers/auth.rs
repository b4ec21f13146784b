//! Authorisation on real servers: the users that may write, and those that a write block stops.

use bson::{Document, doc};
use imago_testbed::{Cluster, ClusterSpec};
use mongodb::Client;
use mongodb::error::{ErrorKind, WriteFailure};

/// "User writes are blocked."
const USER_WRITES_BLOCKED: i32 = 371;

async fn insert(uri: &str, id: i32) -> Result<(), mongodb::error::Error> {
    let client = Client::with_uri_str(uri).await.unwrap();
    let documents = client.database("test").collection::<Document>("guarded");
    documents.insert_one(doc! { "_id": id }).await.map(|_| ())
}

fn code(error: &mongodb::error::Error) -> Option<i32> {
    match &*error.kind {
        ErrorKind::Write(WriteFailure::WriteError(error)) => Some(error.code),
        ErrorKind::Command(error) => Some(error.code),
        _ => None,
    }
}

#[tokio::test]
async fn a_write_block_stops_the_application_and_lets_the_administrator_pass() {
    let cluster = Cluster::start(ClusterSpec::replica_set("guarded", 1).with_auth()).await.unwrap();
    let (app, admin) = (cluster.uri(), cluster.admin_uri());
    insert(&app, 1).await.unwrap();

    let block = |global: bool| doc! { "setUserWriteBlockMode": 1, "global": global };
    let administrator = Client::with_uri_str(&admin).await.unwrap().database("admin");
    administrator.run_command(block(true)).await.unwrap();
    let refused = insert(&app, 2).await.unwrap_err();
    assert_eq!(code(&refused), Some(USER_WRITES_BLOCKED), "{refused}");
    insert(&admin, 3).await.unwrap();

    administrator.run_command(block(false)).await.unwrap();
    insert(&app, 4).await.unwrap();
}

#[tokio::test]
async fn without_credentials_nothing_can_be_read() {
    let cluster = Cluster::start(ClusterSpec::replica_set("closed", 1).with_auth()).await.unwrap();
    let port = cluster.nodes()[0].port;
    let uri = format!("mongodb://127.0.0.1:{port}/?directConnection=true");
    let client = Client::with_uri_str(&uri).await.unwrap();
    let refused = client.list_database_names().await.unwrap_err();
    assert_eq!(code(&refused), Some(13), "{refused}");
}

#[tokio::test]
async fn the_application_cannot_lift_a_write_block() {
    let cluster = Cluster::start(ClusterSpec::replica_set("lift", 1).with_auth()).await.unwrap();
    let application = Client::with_uri_str(&cluster.uri()).await.unwrap().database("admin");
    let command = doc! { "setUserWriteBlockMode": 1, "global": false };
    let refused = application.run_command(command).await.unwrap_err();
    assert_eq!(code(&refused), Some(13), "{refused}");
}
