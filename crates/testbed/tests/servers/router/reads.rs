//! find, getMore, aggregate, count, distinct, and reads at a time.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use mongodb::bson::Timestamp;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{client, code, on_both_shards, shared, split_collection};

/// Runs one command on a connection of its own, exactly as given.
pub(crate) async fn raw_command(port: u16, body: &Document) -> Document {
    let body = body.to_vec().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut message = Vec::new();
    for field in [i32::try_from(21 + body.len()).unwrap(), 1, 0, 2013, 0] {
        message.extend_from_slice(&field.to_le_bytes());
    }
    message.push(0);
    message.extend_from_slice(&body);
    stream.write_all(&message).await.unwrap();
    let length = usize::try_from(stream.read_i32_le().await.unwrap()).unwrap();
    let mut rest = vec![0; length - 4];
    stream.read_exact(&mut rest).await.unwrap();
    Document::from_reader(&rest[17..]).unwrap()
}

#[tokio::test]
async fn a_driver_takes_it_for_a_router() {
    let cluster = shared().await;
    let client = client(&cluster).await;
    let hello = client.database("admin").run_command(doc! { "hello": 1 }).await.unwrap();
    assert_eq!(hello.get_str("msg").ok(), Some("isdbgrid"));
    assert_eq!(hello.get_i32("maxWireVersion").ok(), Some(17));
}

#[tokio::test]
async fn its_status_has_its_own_processor_time() {
    let cluster = shared().await;
    let admin = client(&cluster).await.database("admin");
    let used_us = async || {
        let status = admin.run_command(doc! { "serverStatus": 1 }).await.unwrap();
        assert_eq!(status.get_str("process").ok(), Some("mongos"));
        let extra = status.get_document("extra_info").unwrap();
        extra.get_i64("user_time_us").unwrap() + extra.get_i64("system_time_us").unwrap()
    };
    let before_us = used_us().await;
    for _ in 0..50 {
        admin.run_command(doc! { "listDatabases": 1 }).await.unwrap();
    }
    let grown_us = used_us().await - before_us;
    assert!(grown_us > 0, "50 commands took {grown_us} µs of the router's processor time");
}

#[tokio::test]
async fn a_large_result_comes_whole_in_many_batches() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "r_large").await;
    let filler = "x".repeat(1_000);
    let documents = on_both_shards(1_500).into_iter().map(|mut document| {
        document.insert("filler", &filler);
        document
    });
    collection.insert_many(documents).await.unwrap();
    let cursor = collection.find(doc! {}).batch_size(100).sort(doc! { "k": 1 }).await.unwrap();
    let found: Vec<Document> = cursor.try_collect().await.unwrap();
    let keys: Vec<i32> = found.iter().map(|document| document.get_i32("k").unwrap()).collect();
    assert_eq!(keys, (-1_500..1_500).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_closed_cursor_is_not_found() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "r_closed").await;
    collection.insert_many(on_both_shards(20)).await.unwrap();
    let database = collection.client().database("r_closed");
    let find = doc! { "find": "c", "batchSize": 2 };
    let answer = database.run_command(find).await.unwrap();
    let id = answer.get_document("cursor").unwrap().get_i64("id").unwrap();
    assert_ne!(id, 0);
    let kill = doc! { "killCursors": "c", "cursors": [id] };
    let killed = database.run_command(kill).await.unwrap();
    assert_eq!(killed.get_array("cursorsKilled").unwrap().len(), 1);
    let more = doc! { "getMore": id, "collection": "c" };
    assert_eq!(code(&database.run_command(more).await.unwrap_err()), Some(43));
}

#[tokio::test]
async fn count_and_distinct_see_every_shard() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "r_count").await;
    let documents = on_both_shards(30).into_iter().map(|mut document| {
        let k = document.get_i32("k").unwrap();
        document.insert("tags", vec![k.rem_euclid(3), 100]);
        document
    });
    collection.insert_many(documents).await.unwrap();
    assert_eq!(collection.estimated_document_count().await.unwrap(), 60);
    let negative = collection.count_documents(doc! { "k": { "$lt": 10 } }).await.unwrap();
    assert_eq!(negative, 40);
    let tags = collection.distinct("tags", doc! { "k": { "$gte": -9 } }).await.unwrap();
    let mut tags: Vec<_> = tags.iter().map(|tag| tag.as_i32().unwrap()).collect();
    tags.sort_unstable();
    assert_eq!(tags, [0, 1, 2, 100]);
}

#[tokio::test]
async fn an_aggregation_is_merged_over_the_shards() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "r_aggregate").await;
    collection.insert_many(on_both_shards(10)).await.unwrap();
    let group = doc! { "$group": { "_id": null, "n": { "$sum": 1 }, "k": { "$sum": "$k" } } };
    let cursor = collection.aggregate([group]).await.unwrap();
    let groups: Vec<Document> = cursor.try_collect().await.unwrap();
    assert_eq!(groups, [doc! { "_id": null, "n": 20, "k": -10 }]);
}

#[tokio::test]
async fn a_causal_session_reads_its_own_writes() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "r_causal").await;
    let mut session = collection.client().start_session().causal_consistency(true).await.unwrap();
    for k in [-1, 1, -2, 2] {
        collection.insert_one(doc! { "_id": k, "k": k }).session(&mut session).await.unwrap();
        let found = collection.find_one(doc! { "_id": k }).session(&mut session).await.unwrap();
        assert!(found.is_some(), "{k}");
    }
}

#[tokio::test]
async fn a_read_after_a_writes_time_sees_it_on_another_connection() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "r_after").await;
    let other = client(&cluster).await.database("r_after");
    for k in -5..5 {
        let insert = doc! { "insert": "c", "documents": [{ "_id": k, "k": k }] };
        let written = collection.client().database("r_after").run_command(insert).await.unwrap();
        let time = written.get_timestamp("operationTime").unwrap();
        let find = doc! {
            "find": "c", "filter": { "_id": k },
            "readConcern": { "level": "majority", "afterClusterTime": time },
        };
        let found = other.run_command(find).await.unwrap();
        let batch = found.get_document("cursor").unwrap().get_array("firstBatch").unwrap().clone();
        assert_eq!(batch.len(), 1, "{k}");
    }
}

#[tokio::test]
async fn a_snapshot_shows_both_shards_as_of_one_time() {
    let cluster = shared().await;
    let collection = split_collection(&cluster, "r_snapshot").await;
    collection.insert_many(on_both_shards(5)).await.unwrap();
    let database = collection.client().database("r_snapshot");
    let ping = database.run_command(doc! { "find": "c", "limit": 1 }).await.unwrap();
    let at: Timestamp = ping.get_timestamp("operationTime").unwrap();
    collection.delete_many(doc! { "k": { "$gte": -2, "$lt": 2 } }).await.unwrap();
    let find = doc! {
        "find": "c", "readConcern": { "level": "snapshot", "atClusterTime": at },
    };
    let found = database.run_command(find).await.unwrap();
    let cursor = found.get_document("cursor").unwrap();
    assert_eq!(cursor.get_array("firstBatch").unwrap().len(), 10);
    assert_eq!(cursor.get_timestamp("atClusterTime").ok(), Some(at));
    assert_eq!(collection.count_documents(doc! {}).await.unwrap(), 6);
}

#[tokio::test]
async fn what_it_does_not_know_is_refused_by_name() {
    let cluster = shared().await;
    let client = client(&cluster).await;
    let refused = client.database("admin").run_command(doc! { "mapReduce": "c" }).await;
    let refused = refused.unwrap_err();
    assert_eq!(code(&refused), Some(59));
    assert!(refused.to_string().contains("mapReduce"), "{refused}");
}
