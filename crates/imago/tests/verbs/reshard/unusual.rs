//! Collections and documents that are not as usual.

use bson::{Document, doc};
use imago_mongo::server::endpoint::Endpoint;

use crate::reshard::scene::{NS, Scene, found};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_without_the_new_key_go_along_and_orphans_do_not() {
    let scene = Scene::start(2).await;
    let note = |n: i32| {
        let mut note = doc! {"_id": n, "productID": format!("B{n:09}"), "text": "x".repeat(100)};
        match n % 4 {
            0 => note.insert("userID", format!("A{:09}", (n * 7919) % 5_000)),
            1 => note.insert("userID", bson::Bson::Null),
            2 => note.insert("userID", n),
            _ => None,
        };
        note
    };
    let notes: Vec<Document> = (0..5_000).map(|n| note(n * 10)).collect();
    scene.run("shop", doc! {"insert": "reviews", "documents": &notes}).await;
    // It begins with `_id`, which is no more unique over shards by either key.
    let unique = doc! {"key": {"_id": 1, "text": 1}, "name": "by_id", "unique": true};
    scene.run("shop", doc! {"createIndexes": "reviews", "indexes": [unique]}).await;
    // The same documents, as orphans on the shards that do not own them.
    for shard in scene.members().await {
        let own = found(&shard, "shop", doc! {"find": "reviews"}).await;
        let is_own = |id: i32| own.iter().any(|document| document.get_i32("_id").unwrap() == id);
        let orphans: Vec<Document> = notes
            .iter()
            .step_by(100)
            .filter(|note| !is_own(note.get_i32("_id").unwrap()))
            .map(|note| {
                let mut orphan = note.clone();
                orphan.insert("orphan", true);
                orphan
            })
            .collect();
        assert!(!orphans.is_empty());
        let insert = doc! {"insert": "reviews", "documents": orphans};
        let reply = shard.run("shop", insert).await.unwrap();
        assert!(reply.get("writeErrors").is_none(), "{reply}");
    }
    let plan = scene.plan(doc! {"userID": 1}, 4).await;
    let (exit, done) = scene.reshard(&plan, &[]).ended();
    assert_eq!(exit, 0, "{done}");
    scene.has_shape_of(&plan).await;
    scene.is_tidy().await;
    assert!(scene.find("shop", "reviews", doc! {}).await == notes, "they are the same");
    let mut in_all = 0;
    for shard in scene.members().await {
        in_all += found(&shard, "shop", doc! {"find": "reviews"}).await.len();
    }
    assert_eq!(in_all, notes.len(), "no orphan came along");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_no_shard_could_own_ends_the_job_and_is_named() {
    let scene = Scene::start(2).await;
    let note = |n: i32| doc! {"_id": n, "productID": format!("B{:09}", n * 25), "a": {"u": n}};
    let mut notes: Vec<Document> = (0..2_000).map(note).collect();
    // A plan that draws a sample may not have seen it.
    notes[1_234].insert("a", doc! {"u": [1, 2]});
    scene.run("shop", doc! {"insert": "reviews", "documents": &notes}).await;
    let mut plan = scene.plan(doc! {"productID": 1}, 4).await;
    (plan.key, plan.chunks) = (r#"{"a.u": 1}"#.into(), plan.chunks[..1].to_vec());
    for value in [bson::bson!([{"u": 7}, {"u": 8}]), bson::bson!({"u": [1, 2]})] {
        let change = doc! {"q": {"_id": 1_234}, "u": {"$set": {"a": value}}};
        scene.run("shop", doc! {"update": "reviews", "updates": [change]}).await;
        let mut at_work = scene.reshard(&plan, &["--verify", "none"]);
        let job = at_work.phase("execute");
        let (exit, refused) = at_work.ended();
        assert_eq!(exit, 1, "{refused}");
        assert!(refused["error"]["message"].as_str().unwrap().contains("1234"), "{refused}");
        scene.job("cancel", &job, &[]);
        scene.is_tidy().await;
        assert_eq!(scene.find("shop", "reviews", doc! {}).await.len(), 2_000);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_unique_index_may_serve_the_new_key() {
    let scene = Scene::start(2).await;
    let note = |n: i32, user: i32| {
        doc! {"_id": n, "productID": format!("B{:09}", n / 10 * 250), "userID": user}
    };
    let notes: Vec<Document> = (0..2_000).map(|n| note(n, n % 10)).collect();
    scene.run("shop", doc! {"insert": "reviews", "documents": &notes}).await;
    let key = doc! {"productID": 1, "userID": 1};
    let unique = doc! {"key": key.clone(), "name": "one", "unique": true};
    scene.run("shop", doc! {"createIndexes": "reviews", "indexes": [unique]}).await;
    let plan = scene.plan(key, 4).await;
    let mut at_work = scene.reshard(&plan, &["--documents-s", "1000"]);
    at_work.phase("execute");
    // Two documents of a product change their users with each other, by way of a third value: at
    // any moment the index allows it, but not what a copy of different moments would hold.
    let app = Box::pin(Endpoint::connect(&scene.cluster.uri(), "cluster")).await.unwrap();
    let mut wanted = notes;
    'changes: for n in (0..2_000).step_by(10) {
        for (n, user) in [(n, 100), (n + 1, 0), (n, 1)] {
            let now = wanted[n].clone();
            let before = now.clone();
            let key = doc! {"_id": n as i32, "productID": now.get_str("productID").unwrap()};
            wanted[n].insert("userID", user);
            let change = doc! {"q": key, "u": {"$set": {"userID": user}}};
            let command = doc! {"update": "reviews", "updates": [change]};
            let reply = app.run("shop", command).await.unwrap();
            if reply.get_i32("n").unwrap() != 1 {
                // The commit has begun.
                assert!(reply.to_string().contains("User writes blocked"), "{reply}");
                wanted[n] = before;
                break 'changes;
            }
        }
    }
    let (exit, done) = at_work.ended();
    assert_eq!(exit, 0, "{done}");
    scene.has_shape_of(&plan).await;
    scene.is_tidy().await;
    assert!(scene.find("shop", "reviews", doc! {}).await == wanted, "they are the same");
    let mut twice = note(15, 5);
    twice.insert("_id", 9_999);
    let reply = scene.run("shop", doc! {"insert": "reviews", "documents": [twice]}).await;
    assert!(reply.get("writeErrors").is_some(), "it is unique still: {reply}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_new_key_may_be_hashed() {
    let scene = Scene::start(2).await;
    let note = |n: i32| doc! {"_id": n, "productID": format!("B{:09}", n * 25)};
    let notes: Vec<Document> = (0..2_000).map(note).collect();
    scene.run("shop", doc! {"insert": "reviews", "documents": &notes}).await;
    let mut plan = scene.plan(doc! {"_id": 1}, 4).await;
    plan.key = r#"{"_id": "hashed"}"#.into();
    let bounds = [i64::MIN / 2, 0, i64::MAX / 2];
    for (chunk, at) in plan.chunks[1..].iter_mut().zip(bounds) {
        chunk.min = Some(format!(r#"{{"_id": {{"$numberLong": "{at}"}}}}"#));
    }
    let (exit, done) = scene.reshard(&plan, &[]).ended();
    assert_eq!(exit, 0, "{done}");
    scene.is_tidy().await;
    let mut lie = scene.chunks().await;
    lie.sort_by_key(|(min, _)| min.get_i64("_id").unwrap_or(i64::MIN));
    let on: Vec<&str> = lie.iter().map(|(_, shard)| shard.as_str()).collect();
    let wanted = plan.chunks.iter().map(|chunk| plan.shards[chunk.shard].as_str());
    assert_eq!(on, wanted.collect::<Vec<&str>>());
    assert!(scene.find("shop", "reviews", doc! {}).await == notes, "they are the same");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_new_key_may_contain_the_id_while_clients_write() {
    let scene = Scene::start(2).await;
    let load = scene.load().await;
    for key in [r#"{"userID": 1, "_id": 1}"#, r#"{"userID": 1, "_id": "hashed"}"#] {
        let (exit, done) = scene.change(&["--key", key, "--chunks", "4"]).ended();
        assert_eq!(exit, 0, "{key}: {done}");
        let plan = scene.plan_of(done["job"].as_str().unwrap()).await;
        scene.has_shape_of(&plan).await;
        scene.load_goes_on(50).await;
    }
    scene.nothing_lost(load);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn indexes_in_the_way_of_the_new_keys_stay_as_they_are() {
    let scene = Scene::start(2).await;
    let partial = doc! {"partialFilterExpression": {"userID": {"$gt": "b"}}};
    let of = |key: Document, more: Document| {
        let mut index = doc! {"key": key, "name": "userID_1"};
        index.extend(more);
        index
    };
    let user = || doc! {"userID": 1};
    for index in [
        of(user(), doc! {"sparse": true}),
        of(user(), partial),
        of(user(), doc! {"hidden": true}),
        of(user(), doc! {"collation": {"locale": "de"}}),
        of(doc! {"text": 1}, doc! {}),
    ] {
        scene.run("shop", doc! {"drop": "reviews"}).await;
        let shard = doc! {"shardCollection": NS, "key": {"productID": 1}};
        scene.run("admin", shard).await;
        let note = |n: i32| {
            let (product, user) = (format!("B{:09}", n * 7919), format!("user-{:04}", n % 333));
            doc! {"_id": format!("{n:024x}"), "productID": product, "userID": user}
        };
        let notes: Vec<Document> = (0..500).map(note).collect();
        scene.run("shop", doc! {"insert": "reviews", "documents": &notes}).await;
        scene.run("shop", doc! {"createIndexes": "reviews", "indexes": [&index]}).await;
        let (exit, done) = scene.change(&["--key", r#"{"userID": 1}"#, "--chunks", "4"]).ended();
        assert_eq!(exit, 0, "{index}: {done}");
        let listed = scene.run("shop", doc! {"listIndexes": "reviews"}).await;
        let listed = listed.get_document("cursor").unwrap().get_array("firstBatch").unwrap();
        let name_of =
            |index: &bson::Bson| index.as_document().unwrap().get_str("name").unwrap().to_owned();
        let names: Vec<String> = listed.iter().map(name_of).collect();
        // Those of `_id`, of the old key, the one in the way, and that of the new key.
        assert_eq!(names.len(), 4, "{names:?}");
        let kept = listed.iter().find(|index| name_of(index) == "userID_1").unwrap();
        let kept = kept.as_document().unwrap();
        assert!(
            index.iter().all(|(field, value)| match (field.as_str(), value) {
                ("collation", _) => kept.contains_key("collation"),
                _ => kept.get(field) == Some(value),
            }),
            "{kept}"
        );
        scene.is_tidy().await;
    }
}
