//! The effect of the rename on clients: on their change streams, and on writes that they send
//! again.

use std::time::{Duration, Instant};

use bson::{Document, RawDocumentBuf, doc};
use imago_testbed::pool::sharded;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::reshard::scene::{Scene, found};

/// Sends a command as it is, with its session and number, as a driver does that sends it again.
async fn send(scene: &Scene, command: &Document) -> Document {
    let uri = scene.cluster.uri();
    let address = uri.trim_start_matches("mongodb://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = RawDocumentBuf::try_from(command).unwrap();
    let length = 21 + body.as_bytes().len() as i32;
    let header = [length, 1, 0, 2013, 0];
    let mut message: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
    message.push(0);
    message.extend(body.as_bytes());
    stream.write_all(&message).await.unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).await.unwrap();
    let mut answer = vec![0; i32::from_le_bytes(length) as usize - 4];
    stream.read_exact(&mut answer).await.unwrap();
    let body = RawDocumentBuf::from_bytes(answer[17..].to_vec()).unwrap();
    Document::try_from(body).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_end_and_a_repeated_write_is_recognised_only_where_its_document_stays() {
    let scene = Scene::of(sharded(2)).await;
    let note = |n: i32| {
        doc! {"_id": n, "productID": format!("B{:09}", n * 500), "userID": (n * 37) % 100, "k": 0}
    };
    let notes: Vec<Document> = (0..100).map(note).collect();
    scene.run("shop", doc! {"insert": "reviews", "documents": &notes}).await;
    let was = on_shards(&scene).await;
    let coll = scene.admin.client().database("shop").collection::<Document>("reviews");
    let mut stream = coll.watch().await.unwrap();
    let increment = |n: i32| {
        let key = notes[n as usize].clone();
        let q = doc! {"_id": n, "productID": key.get_str("productID").unwrap(),
        "userID": key.get_i32("userID").unwrap()};
        let id =
            bson::Binary { subtype: bson::spec::BinarySubtype::Uuid, bytes: vec![n as u8; 16] };
        doc! {
            "update": "reviews", "updates": [{"q": q, "u": {"$inc": {"k": 1}}}],
            "lsid": {"id": id}, "txnNumber": 1_i64, "$db": "shop",
        }
    };
    for n in 0..100 {
        assert_eq!(send(&scene, &increment(n)).await.get_i32("n").unwrap(), 1);
    }
    let plan = scene.plan(doc! {"userID": 1}, 4).await;
    let (exit, done) = scene.reshard(&plan, &["--block", "none"]).ended();
    assert_eq!(exit, 0, "{done}");
    let is = on_shards(&scene).await;
    let (mut stayed, mut moved) = (Vec::new(), Vec::new());
    for n in 0..100 {
        let again = send(&scene, &increment(n)).await;
        assert_eq!(again.get_i32("n").unwrap(), 1, "{again}");
        let now = coll.find_one(doc! {"_id": n}).await.unwrap().unwrap();
        let of = if was[n as usize] == is[n as usize] { &mut stayed } else { &mut moved };
        of.push(now.get_i32("k").unwrap());
    }
    assert!(!stayed.is_empty() && stayed.iter().all(|k| *k == 1), "recognised: {stayed:?}");
    assert!(!moved.is_empty() && moved.iter().all(|k| *k == 2), "done twice: {moved:?}");

    let (mut seen, began) = (Vec::new(), Instant::now());
    while began.elapsed() < Duration::from_secs(20) {
        match stream.next_if_any().await.unwrap() {
            Some(event) => seen.push(format!("{:?}", event.operation_type).to_lowercase()),
            None if !stream.is_alive() => break,
            None => {}
        }
    }
    seen.dedup();
    assert_eq!(seen.last().map(String::as_str), Some("invalidate"), "{seen:?}");
}

/// The shard of each document, in the order of their `_id`s.
async fn on_shards(scene: &Scene) -> Vec<usize> {
    let mut on = vec![0; 100];
    for (shard, member) in scene.members().await.iter().enumerate() {
        for note in found(member, "shop", doc! {"find": "reviews"}).await {
            on[note.get_i32("_id").unwrap() as usize] = shard;
        }
    }
    on
}
