//! The weights, the movement and the writes of plans of real collections.

use bson::{Document, doc};
use futures_util::TryStreamExt;
use imago_mongo::reshard::plan::{Flowing, Plan, Request};
use mongodb::Collection;

use crate::reshard_plan::world::{DOCUMENTS, Place, SHARDS, codes, run, warning};

fn bytes_of(document: &Document) -> u64 {
    bson::serialize_to_vec(document).unwrap().len() as u64
}

/// The least number of bytes that move with at most ⌈m/N⌉ chunks on each shard, by trying all.
fn least(plan: &Plan) -> u64 {
    let cap = plan.chunks.len().div_ceil(3);
    let all = 3_usize.pow(u32::try_from(plan.chunks.len()).unwrap());
    let tries = (0..all).filter_map(|number| {
        let (mut number, mut counts, mut moved) = (number, [0; 3], 0);
        for chunk in &plan.chunks {
            counts[number % 3] += 1;
            moved += chunk.size.bytes - chunk.bytes_on[number % 3];
            number /= 3;
        }
        counts.iter().all(|count| *count <= cap).then_some(moved)
    });
    tries.min().unwrap()
}

fn moved_by(plan: &Plan, placing: &str) -> u64 {
    let found = plan.compared.iter().find(|compared| compared.placing == placing);
    found.unwrap().moved.bytes
}

/// The number of `{"u":{"$numberInt":"5"}}`.
fn serde_json_number(text: &str) -> i64 {
    text.chars().filter(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

/// Everything that the cluster keeps of the test's database and of Imago's own, their chunks
/// included; the servers write about their own sessions at any time.
async fn state(place: &Place) -> Vec<String> {
    let client = place.router.client();
    let config = client.database("config");
    let all = async |documents: Collection<Document>, filter: Document| {
        let found = documents.find(filter).sort(doc! {"_id": 1}).await.unwrap();
        found.try_collect::<Vec<Document>>().await.unwrap()
    };
    let ours = doc! {"_id": {"$regex": format!("^({}|imago)[.]", place.db)}};
    let entries = all(config.collection("collections"), ours).await;
    let uuids: Vec<_> = entries.iter().map(|entry| entry.get("uuid").unwrap().clone()).collect();
    let chunks = all(config.collection("chunks"), doc! {"uuid": {"$in": uuids}}).await;
    let mut state = vec![format!("{entries:?}"), format!("{chunks:?}")];
    for name in ["shards", "settings"] {
        state.push(format!("{name} {:?}", all(config.collection(name), doc! {}).await));
    }
    for db in [place.db.as_str(), "imago"] {
        let mut names = client.database(db).list_collection_names().await.unwrap();
        names.sort();
        for name in names {
            let documents = all(client.database(db).collection(&name), doc! {}).await;
            state.push(format!("{db}.{name} {documents:?}"));
        }
    }
    state
}

#[test]
fn weights_are_what_is_there() {
    run("weights", |place| async move {
        place.filled("weights").await;
        let plan = place.plan(&place.request("weights", Some(r#"{"u": 1}"#))).await.unwrap();
        let all: Vec<Document> =
            place.documents("weights").find(doc! {}).await.unwrap().try_collect().await.unwrap();
        assert_eq!(plan.size.documents, u64::try_from(DOCUMENTS).unwrap());
        assert_eq!(plan.size.bytes, all.iter().map(bytes_of).sum::<u64>());
        assert_eq!(plan.sampled, plan.size.documents);
        assert_eq!(plan.chunks.len(), 6);
        // Each chunk, counted anew from its bounds.
        let min = |chunk: usize| -> Option<i64> {
            let text = plan.chunks.get(chunk)?.min.as_deref()?;
            Some(serde_json_number(text))
        };
        for (index, chunk) in plan.chunks.iter().enumerate() {
            let is_in = |document: &&Document| {
                let u = i64::from(document.get_i32("u").unwrap());
                min(index).is_none_or(|min| min <= u) && min(index + 1).is_none_or(|next| u < next)
            };
            for shard in 0..SHARDS {
                let lies = |document: &&Document| document.get_i32("k").unwrap() / 1_000 == shard;
                let here = all.iter().filter(is_in).filter(lies).map(bytes_of).sum::<u64>();
                assert_eq!(chunk.bytes_on[usize::try_from(shard).unwrap()], here, "{chunk:?}");
            }
        }
        assert_eq!(plan.moved.bytes, least(&plan));
        assert_eq!(plan.flows.iter().map(|flow| flow.size.bytes).sum::<u64>(), plan.moved.bytes);
        assert_eq!(plan.flows.iter().map(|flow| flow.sockets).sum::<usize>(), plan.flows.len() * 2);
        let ports = place.world.cluster.nodes().into_iter().map(|node| node.port);
        let hosts: Vec<_> = ports.take(3).map(|port| Some(format!("127.0.0.1:{port}"))).collect();
        assert_eq!(plan.members, hosts);
        assert_eq!(codes(&plan), []);
    });
}

#[test]
fn connections_are_given_as_asked() {
    run("sockets", |place| async move {
        place.filled("weights").await;
        let asked = |flowing, sockets| Request {
            flowing,
            sockets,
            ..place.request("weights", Some(r#"{"u": 1}"#))
        };
        let given = async |flowing, sockets| {
            let plan = place.plan(&asked(flowing, sockets)).await.unwrap();
            assert_eq!(plan.flows.len(), 6);
            (plan.flows.iter().map(|flow| flow.sockets).sum::<usize>(), codes(&plan))
        };
        assert_eq!(given(Flowing::Fixed, 0).await, (6, Vec::new()));
        assert_eq!(given(Flowing::Orchestra, 17).await, (17, Vec::new()));
        assert_eq!(given(Flowing::Wfs, 4).await, (6, warning("few_sockets")));
        // Each of six chunks comes from the two shards that it does not go to.
        assert_eq!(given(Flowing::ChunkBased, 0).await, (12, Vec::new()));
    });
}

#[test]
fn a_reversed_key_moves_almost_nothing() {
    run("reversed", |place| async move {
        place.filled("weights").await;
        let plan = place.plan(&place.request("weights", Some(r#"{"r": 1}"#))).await.unwrap();
        assert!(plan.moved.bytes < plan.size.bytes / 100, "{:?}", plan.moved);
        assert_eq!(plan.moved.bytes, least(&plan));
        assert!(moved_by(&plan, "server") > plan.size.bytes / 2);
        assert!(moved_by(&plan, "greedy") <= plan.moved.bytes);
    });
}

#[test]
fn a_sample_is_near_to_the_whole() {
    run("sample", |place| async move {
        place.filled("weights").await;
        let few = Request { sample: 1_000, ..place.request("weights", Some(r#"{"u": 1}"#)) };
        let plan = place.plan(&few).await.unwrap();
        assert!((800..1_200).contains(&plan.sampled), "{}", plan.sampled);
        let whole = place.plan(&place.request("weights", Some(r#"{"u": 1}"#))).await.unwrap();
        assert_eq!(plan.size, whole.size);
        let share = plan.moved.bytes.abs_diff(whole.moved.bytes) * 100 / whole.moved.bytes;
        assert!(share < 15, "{:?} {:?}", plan.moved, whole.moved);
    });
}

#[test]
fn orphans_do_not_count() {
    run("orphans", |place| async move {
        place.filled("orphans").await;
        let before = place.plan(&place.request("orphans", Some(r#"{"u": 1}"#))).await.unwrap();
        let left = |n: i32| doc! {"_id": 10_000 + n, "k": n, "u": n, "filler": "y".repeat(300)};
        // The second shard owns none of these.
        let shard = place.on_shard(1, "orphans").await;
        shard.insert_many((0..900).map(left)).await.unwrap();
        let after = place.plan(&place.request("orphans", Some(r#"{"u": 1}"#))).await.unwrap();
        assert_eq!((after.size, after.moved), (before.size, before.moved));
        let few = Request { sample: 2_000, ..place.request("orphans", Some(r#"{"u": 1}"#)) };
        let estimated = place.plan(&few).await.unwrap().size.documents;
        assert!(estimated.abs_diff(3_000) < 300, "{estimated}");
    });
}

#[test]
fn hashed_keys_are_the_servers() {
    run("hashed", |place| async move {
        let ns = place.ns("hashed");
        let numbered = doc! {"shardCollection": &ns, "key": {"k": "hashed"}, "numInitialChunks": 6};
        place.admin(numbered).await;
        place.fill("hashed").await;
        place.filled("weights").await;
        let kept = Request { chunks: Some(6), ..place.request("hashed", None) };
        let plan = place.plan(&kept).await.unwrap();
        assert_eq!(plan.old_key, r#"{"k": "hashed"}"#);
        for shard in 0..SHARDS {
            let there = place.on_shard(shard, "hashed").await;
            let there = there.find(doc! {}).await.unwrap().try_collect::<Vec<_>>().await.unwrap();
            let index = usize::try_from(shard).unwrap();
            let held = plan.chunks.iter().map(|chunk| chunk.bytes_on[index]).sum::<u64>();
            assert_eq!(held, there.iter().map(bytes_of).sum::<u64>(), "shard {shard}");
        }
        // By the hash of the same value nothing would move, were it cut at the same places.
        assert!(plan.moved.bytes < plan.size.bytes / 4, "{:?}", plan.moved);
        let to_hashed =
            place.plan(&place.request("weights", Some(r#"{"k": "hashed"}"#))).await.unwrap();
        assert_eq!(to_hashed.chunks.len(), 6);
        assert!(to_hashed.chunks[3].min.as_ref().unwrap().contains("$numberLong"));
    });
}

#[test]
fn a_drained_shard_gets_nothing() {
    run("drained", |place| async move {
        place.filled("weights").await;
        let drained =
            Request { drain_shards: vec![place.shard(1)], ..place.request("weights", None) };
        let plan = place.plan(&drained).await.unwrap();
        assert!(plan.chunks.iter().all(|chunk| chunk.shard != 1));
        assert_eq!(plan.space_bytes[1], 0);
        assert_eq!(plan.key, plan.old_key);
        assert!(plan.imbalance.0 < 1.1 && plan.imbalance.1 < 1.1, "{:?}", plan.imbalance);
        assert!(plan.compared.iter().all(|compared| compared.placing != "server"), "the same key");
    });
}

#[test]
fn nothing_is_written() {
    run("unwritten", |place| async move {
        place.filled("weights").await;
        let before = state(&place).await;
        place.plan(&place.request("weights", Some(r#"{"u": 1, "r": "hashed"}"#))).await.unwrap();
        // Not by assert_eq, which would print all of it.
        let after = state(&place).await;
        let differing = before.iter().zip(&after).find(|(before, after)| before != after);
        assert!(before.len() == after.len() && differing.is_none(), "{differing:?}");
    });
}
