//! Shards a new, empty collection so that a copy fills all shards evenly from the start.

use std::time::{Duration, Instant};

use bson::raw::RawBsonRef;
use bson::{Bson, Document, RawDocumentBuf, doc};
use futures_util::TryStreamExt;
use imago_plan::copy::split_points::cuts;

use crate::bson::order::Id;
use crate::error::{Error, Result, code};
use crate::server::collection::Handle;
use crate::server::endpoint::{Endpoint, answer, prefer_secondary};
use crate::server::structure::is_same_index;

/// Number of initial chunks on each shard of a collection with a hashed key.
const HASHED_CHUNKS_PER_SHARD: i32 = 2;
/// Number of sampled documents for each shard, from which the split points of a ranged key follow.
const SAMPLE_PER_SHARD: u64 = 200;
/// Server error code `ConflictingOperationInProgress`: a shard of the migration takes part in another one.
const BUSY: i32 = 117;
/// Longest time for which a migration waits for busy shards.
const BUSY_MAX: Duration = Duration::from_secs(120);
/// Pause before a migration that found a shard busy is tried again.
const BUSY_PAUSE: Duration = Duration::from_millis(500);

/// Shards the empty collection `to` by `key`. Splits a ranged key at the points that divide a sample of the documents
/// of `from` equally among the shards, and moves each chunk to its shard. Completes the work of an earlier process
/// that died meanwhile.
///
/// # Errors
/// Fails if the router refuses.
#[crate::boxed]
pub async fn shard(from: &Handle, to: &Handle, key: &Document) -> Result<()> {
    let router = &to.endpoint;
    let is_hashed = key.values().any(|kind| kind.as_str() == Some("hashed"));
    let shards = shards(to).await?;
    if to.shard_key().await?.is_none() {
        let mut command = doc! {"shardCollection": to.ns.to_string(), "key": key.clone()};
        if to.definition().await?.is_some_and(|definition| definition.is_collated()) {
            command.insert("collation", doc! {"locale": "simple"});
        }
        to.create_indexes(&[key_index(&from.indexes().await?, key)]).await?;
        // Sharding may have to be enabled for the database first; it is no error if it is enabled already.
        router
            .run("admin", doc! {"enableSharding": &to.ns.db})
            .await
            .map(|_| ())
            .or_else(|error| if error.is_transient() { Err(error) } else { Ok(()) })?;
        // Servers pre-split a new collection by themselves only if the hashed field comes first.
        if is_hashed && key.values().next().is_some_and(|way| way.as_str() == Some("hashed")) {
            let count = i32::try_from(shards.len()).unwrap_or(1) * HASHED_CHUNKS_PER_SHARD;
            command.insert("numInitialChunks", count);
        }
        router.run_at_length("admin", command).await?;
    }
    if is_hashed || shards.len() < 2 {
        return Ok(());
    }
    let ns = to.ns.to_string();
    let mut bounds = lower_bounds(to).await?;
    let mut points = bounds.clone();
    if bounds.len() + 1 < shards.len() {
        points = split_points(from, key, shards.len()).await?;
        for at in points.iter().filter(|at| !bounds.contains(at)) {
            router.run("admin", doc! {"split": &ns, "middle": document_of(at)?}).await?;
        }
        bounds.extend(points.iter().cloned());
        bounds.sort_unstable();
        bounds.dedup();
    }
    // The first chunk stays on the shard where the collection was created.
    for at in bounds {
        let share = points.partition_point(|point| *point <= at).min(shards.len() - 1);
        if share == 0 {
            continue;
        }
        let find = document_of(&at)?;
        let to = &shards[share];
        let command = doc! {"moveChunk": &ns, "find": find, "to": to, "_waitForDelete": false};
        move_chunk(router, &command).await?;
    }
    Ok(())
}

/// Shards the empty collection `to` by the text field `field`, so that each shard gets an equal share of documents
/// whose keys are distributed as `sample` is.
///
/// # Errors
/// Fails if the router refuses.
#[crate::boxed]
pub async fn spread(to: &Handle, field: &str, mut sample: Vec<String>) -> Result<()> {
    let count = shards(to).await?.len();
    sample.sort_unstable();
    spread_at(to, field, &cuts(sample, count)).await
}

/// Shards the empty collection `to` by `field`, with one chunk on each shard. `points` are the lower bounds of all
/// chunks but the first, in order: one fewer than there are shards.
///
/// # Errors
/// Fails if the router refuses.
///
/// # Panics
/// Panics if the cluster has no shard.
pub async fn spread_at<V: Clone + Into<Bson>>(
    to: &Handle,
    field: &str,
    points: &[V],
) -> Result<()> {
    let router = &to.endpoint;
    let ns = to.ns.to_string();
    router.run("admin", doc! {"enableSharding": &to.ns.db}).await?;
    router.run_at_length("admin", doc! {"shardCollection": &ns, "key": {field: 1}}).await?;
    let shards = shards(to).await?;
    let points: Vec<Bson> = points.iter().cloned().map(Into::into).collect();
    for at in &points {
        router.run("admin", doc! {"split": &ns, "middle": {field: at}}).await?;
    }
    // The first chunk stays on the shard where the collection was created.
    for (at, shard) in points.iter().zip(&shards[1..]) {
        let find = doc! {field: at};
        move_chunk(router, &doc! {"moveChunk": &ns, "find": find, "to": shard}).await?;
    }
    Ok(())
}

/// Returns true if `index` can be the index that a collection sharded by `key` needs.
pub(crate) fn serves(index: &Document, key: &Document) -> bool {
    let is_whole = ["partialFilterExpression", "sparse", "collation", "hidden"];
    let is_whole = is_whole.iter().all(|option| !index.contains_key(option));
    let of = |key: &Document| doc! {"key": key.clone()};
    is_whole && index.get_document("key").is_ok_and(|found| is_same_index(&of(found), &of(key)))
}

/// An index that some shards of a collection lack, or have in another form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexGap {
    /// The name of the index.
    pub index: String,
    /// The names of the shards that lack the index, or have a different index of this name.
    pub lacks: Vec<String>,
}

impl std::fmt::Display for IndexGap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is not on {}", self.index, self.lacks.join(", "))
    }
}

/// Returns the indexes that differ between the shards that hold documents of the collection `of`: a router lists the
/// indexes of one shard only. Empty for a replica set or an unsharded collection; shards that the connected user
/// cannot reach are not compared.
///
/// # Errors
/// Fails if the router does not list the chunks.
pub(crate) async fn index_gaps(of: &Handle) -> Result<Vec<IndexGap>> {
    if !of.endpoint.is_sharded() || of.shard_key().await?.is_none() {
        return Ok(Vec::new());
    }
    let mut owners: Vec<String> = chunks(of).await?.into_iter().map(|(_, shard)| shard).collect();
    owners.sort_unstable();
    owners.dedup();
    let (mut listed, mut building) = (Vec::new(), Vec::new());
    for (name, shard) in of.endpoint.shards().await? {
        if !owners.contains(&name) {
            continue;
        }
        let indexes = match shard {
            Ok(shard) => Handle::new(shard, of.ns.clone()).listed_indexes().await,
            Err(error) => Err(error),
        };
        match indexes {
            Ok((indexes, of_shard)) => {
                listed.push((name, indexes));
                building.extend(of_shard);
            }
            Err(error) => tracing::info!(name, %error, "its indexes are not compared"),
        }
    }
    // Some shards complete a build before others.
    let mut gaps = gaps(&listed);
    gaps.retain(|gap| !building.contains(&gap.index));
    Ok(gaps)
}

fn gaps(listed: &[(String, Vec<Document>)]) -> Vec<IndexGap> {
    let named = |index: &Document| index.get_str("name").unwrap_or_default().to_owned();
    let mut names: Vec<String> = listed.iter().flat_map(|(_, all)| all.iter().map(named)).collect();
    names.sort_unstable();
    names.dedup();
    let gap = |index: String| {
        let find = |all: &'_ [Document]| all.iter().find(|of| named(of) == index).cloned();
        // The form of the index that most shards have counts as the collection's.
        let found: Vec<Option<Document>> = listed.iter().map(|(_, all)| find(all)).collect();
        let same = |a: &Document| found.iter().flatten().filter(|b| is_same_index(a, b)).count();
        let most = found.iter().flatten().max_by_key(|index| same(index)).cloned()?;
        let lacks = |of: &Option<Document>| !of.as_ref().is_some_and(|of| is_same_index(of, &most));
        let lacking = listed.iter().zip(&found).filter(|(_, of)| lacks(of));
        let lacks: Vec<String> = lacking.map(|((shard, _), _)| shard.clone()).collect();
        (!lacks.is_empty()).then_some(IndexGap { index, lacks })
    };
    names.into_iter().filter_map(gap).collect()
}

/// Returns the index that a collection needs to be sharded by `key`; Imago builds it before the server would build
/// one. If an index of `like` can serve, that index is returned, with its own name and uniqueness. Otherwise the name
/// differs from those of all indexes in `like`, which are built too. If an index is equal but hidden, servers accept
/// no second index on the key alone, but one that begins with the key.
pub(crate) fn key_index(like: &[Document], key: &Document) -> Document {
    if let Some(serving) = like.iter().find(|index| serves(index, key)) {
        return serving.clone();
    }
    let is_hidden_twin = |index: &Document| {
        let mut shown = index.clone();
        shown.remove("hidden").is_some() && serves(&shown, key)
    };
    let mut of = key.clone();
    if like.iter().any(is_hidden_twin) && !of.contains_key("_id") {
        of.insert("_id", 1);
    }
    let parts = of.iter().map(|(field, way)| match way.as_str() {
        Some(way) => format!("{field}_{way}"),
        None => format!("{field}_1"),
    });
    let usual = parts.collect::<Vec<String>>().join("_");
    let is_free =
        |name: &String| !like.iter().any(|index| index.get_str("name").is_ok_and(|of| of == name));
    // A collection has at most 64 indexes.
    let others = (1..).map(|n| match n {
        1 => format!("{usual}_shard_key"),
        n => format!("{usual}_shard_key_{n}"),
    });
    let name = std::iter::once(usual.clone()).chain(others).find(is_free).expect("one is free");
    doc! {"key": of, "name": name}
}

/// Returns the lower bounds of the chunks of the collection `to`, except the first chunk, in order.
async fn lower_bounds(to: &Handle) -> Result<Vec<Id>> {
    let bound = |(min, _): (Document, String)| {
        let min = RawDocumentBuf::try_from(&min).map_err(|e| Error::malformed("a chunk", e))?;
        Ok(Id::from_raw(RawBsonRef::Document(&min)))
    };
    chunks(to).await?.into_iter().skip(1).map(bound).collect()
}

/// Returns the chunks of the collection `of` in order: the lower bound of each, and the name of its shard.
pub(crate) async fn chunks(of: &Handle) -> Result<Vec<(Document, String)>> {
    let config = of.endpoint.client().database("config");
    let doing = "reading config.chunks";
    let failed = |error| Error::server(doing, error);
    let ns = of.ns.to_string();
    let collections = config.collection::<Document>("collections");
    let found = collections.find_one(doc! {"_id": &ns});
    let found = answer(doing, found.into_future()).await?.map_err(failed)?;
    // Since 5.0, chunks refer to their collection by its UUID.
    let uuid = found.and_then(|of| of.get("uuid").cloned()).unwrap_or(Bson::Null);
    let chunks = config.collection::<Document>("chunks");
    let filter = doc! {"$or": [{"uuid": uuid}, {"ns": &ns}]};
    let read = async { chunks.find(filter).sort(doc! {"min": 1}).await?.try_collect().await };
    let read: mongodb::error::Result<Vec<Document>> = answer(doing, read).await?;
    let parse = |chunk: &Document| {
        let (min, shard) = (chunk.get_document("min").ok()?, chunk.get_str("shard").ok()?);
        Some((min.clone(), shard.to_owned()))
    };
    let parse = |chunk: Document| parse(&chunk).ok_or_else(|| Error::malformed("a chunk", chunk));
    read.map_err(failed)?.into_iter().map(parse).collect()
}

/// Runs the moveChunk `command` once both shards are free: a shard takes part in one migration at a time, including
/// those of the balancer.
async fn move_chunk(router: &Endpoint, command: &Document) -> Result<()> {
    let began = Instant::now();
    loop {
        match router.run_at_length("admin", command.clone()).await {
            Err(Error::Server { cause, .. })
                if code(&cause) == Some(BUSY) && began.elapsed() < BUSY_MAX =>
            {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            moved => return moved.map(|_| ()),
        }
    }
}

/// Returns the names of the cluster's shards. The first is the primary shard of the database of `to`, on which a new
/// collection is created: that shard's share stays there.
async fn shards(to: &Handle) -> Result<Vec<String>> {
    let config = to.endpoint.client().database("config").collection::<Document>("shards");
    let failed = |error| Error::server("reading config.shards", error);
    let mut found: Vec<Document> = config
        .find(doc! {})
        .sort(doc! {"_id": 1})
        .await
        .map_err(failed)?
        .try_collect()
        .await
        .map_err(failed)?;
    let databases = to.endpoint.client().database("config").collection::<Document>("databases");
    let own = databases.find_one(doc! {"_id": &to.ns.db}).await;
    let own = own.map_err(|error| Error::server("reading config.databases", error))?;
    let own = own.and_then(|own| own.get_str("primary").ok().map(str::to_owned));
    found.sort_by_key(|shard| shard.get_str("_id").ok() != own.as_deref());
    Ok(found.iter().filter_map(|shard| shard.get_str("_id").ok().map(str::to_owned)).collect())
}

/// Returns the values of `key` that cut a sample of the documents of `from` into `shares` equal shares.
async fn split_points(from: &Handle, key: &Document, shares: usize) -> Result<Vec<Id>> {
    let mut projection = doc! {"_id": 0};
    for field in key.keys() {
        projection.insert(field.replace('.', "_"), format!("${field}"));
    }
    let size = SAMPLE_PER_SHARD * shares as u64;
    let documents = from.size().await?.documents;
    let failed = |error| Error::server(format!("sampling {}", from.ns), error);
    let sample: Vec<Document> = from
        .endpoint
        .client()
        .database(&from.ns.db)
        .collection::<Document>(&from.ns.coll)
        .aggregate([uniform(documents, size), doc! {"$project": projection}])
        .selection_criteria(prefer_secondary())
        .await
        .map_err(failed)?
        .try_collect()
        .await
        .map_err(failed)?;
    // A key of several fields is ordered like a document of these fields.
    let value_of = |document: &Document, field: &str| {
        document.get(field.replace('.', "_")).cloned().unwrap_or(Bson::Null)
    };
    let keyed = sample.iter().map(|document| {
        let key: Document = key.keys().map(|f| (f.clone(), value_of(document, f))).collect();
        RawDocumentBuf::try_from(&key)
            .map(|raw| Id::from_raw(RawBsonRef::Document(&raw)))
            .map_err(|e| Error::malformed("a sampled shard key", e))
    });
    Ok(cuts(keyed.collect::<Result<Vec<Id>>>()?, shares))
}

fn document_of(key: &Id) -> Result<Document> {
    match Bson::try_from(key.as_raw()) {
        Ok(Bson::Document(document)) => Ok(document),
        other => Err(Error::malformed("a shard key's value", format!("{other:?}"))),
    }
}

/// Maximum number of documents of a collection of which a sample reads all documents: that takes about a minute for
/// each shard, even from disk.
pub(crate) const READ_MAX: u64 = 10_000_000;

/// Returns the pipeline stage that selects about `size` of a collection's `documents` documents at random: each with
/// the same probability if the collection has at most [`READ_MAX`] documents, by `$sample` if it has more.
#[expect(clippy::cast_precision_loss, reason = "a share")]
pub(crate) fn uniform(documents: u64, size: u64) -> Document {
    if documents <= READ_MAX {
        let rate = (size as f64 / documents.max(1) as f64).min(1.0);
        return doc! {"$match": {"$sampleRate": rate}};
    }
    doc! {"$sample": {"size": i64::try_from(size).unwrap_or(i64::MAX)}}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_lacks_an_index_or_has_another_is_named() {
        let id = || doc! {"name": "_id_", "key": {"_id": 1}};
        let email = |unique: bool| {
            let mut index = doc! {"name": "email_1", "key": {"email": 1}};
            if unique {
                index.insert("unique", true);
            }
            index
        };
        let on = |shard: &str, more: Vec<Document>| (shard.to_owned(), [vec![id()], more].concat());
        let lacks = |shards: &[&str]| {
            let lacks = shards.iter().map(ToString::to_string).collect();
            vec![IndexGap { index: "email_1".into(), lacks }]
        };
        let even = [on("s1", vec![email(true)]), on("s2", vec![email(true)])];
        assert_eq!(gaps(&even), []);
        assert_eq!(gaps(&[on("s1", vec![email(true)]), on("s2", vec![])]), lacks(&["s2"]));
        let other = [even[0].clone(), even[1].clone(), on("s3", vec![email(false)])];
        assert_eq!(gaps(&other), lacks(&["s3"]));
    }

    #[test]
    fn the_index_of_a_key_gets_a_name_that_is_free() {
        let key = doc! {"email": 1};
        let name = |like: &[Document]| key_index(like, &key);
        let of = |name: &str| doc! {"key": {"email": 1}, "name": name};
        assert_eq!(name(&[]), of("email_1"));
        let own = doc! {"key": {"email": 1}, "name": "by_mail", "unique": true};
        assert_eq!(name(std::slice::from_ref(&own)), own, "one that serves");
        let sparse = doc! {"key": {"email": 1}, "name": "email_1", "sparse": true};
        assert_eq!(name(std::slice::from_ref(&sparse)), of("email_1_shard_key"));
        let other = doc! {"key": {"customer": 1}, "name": "email_1_shard_key"};
        assert_eq!(name(&[sparse, other]), of("email_1_shard_key_2"));
        let hidden = doc! {"key": {"email": 1}, "name": "email_1", "hidden": true};
        let beside = doc! {"key": {"email": 1, "_id": 1}, "name": "email_1__id_1"};
        assert_eq!(name(&[hidden]), beside, "servers take no second one on the key alone");
    }
}
