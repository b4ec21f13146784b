//! Sizes and counts: listDatabases, collStats and dbStats, summed over the shards; and serverStatus, of the router
//! itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use bson::{Bson, Document, doc};

use super::answer::{Answer, Failure, integer};
use super::caller::Caller;
use super::catalog::Placement;
use super::core::{Namespace, Repeat, database_of, is_config_database};
use super::ddl::merge_times;

impl Caller {
    /// Runs `listDatabases`: sums the sizes over the shards; `config` and `admin` are listed by the config server.
    pub(super) async fn list_databases(&self, body: &Document) -> Result<Answer, Failure> {
        let mut listed: BTreeMap<String, Document> = BTreeMap::new();
        let names_only = body.get_bool("nameOnly").unwrap_or(false);
        let mut answers = Vec::new();
        let mut sets = self.core.all_shards().await?;
        sets.push(Arc::clone(&self.core.config));
        for set in sets {
            let on_config = set.id == "config";
            let user = self.user.as_ref();
            let answer = self.core.on_primary(user, &set, body.clone(), None, Repeat::Safe).await?;
            let document = answer.document()?;
            let databases = document.get_array("databases").into_iter().flatten();
            for database in databases.filter_map(Bson::as_document) {
                let name = database.get_str("name").unwrap_or_default();
                // Each node has its own databases with these names; those of the cluster are on the config server.
                if name == "local" || (is_config_database(name) != on_config) {
                    continue;
                }
                let entry = listed.entry(name.to_owned()).or_insert_with(|| doc! { "name": name });
                if !names_only {
                    let size = integer(entry, "sizeOnDisk").unwrap_or(0)
                        + integer(database, "sizeOnDisk").unwrap_or(0);
                    let empty = entry.get_bool("empty").unwrap_or(true)
                        && database.get_bool("empty").unwrap_or(true);
                    entry.insert("sizeOnDisk", size);
                    entry.insert("empty", empty);
                }
            }
            answers.push(answer);
        }
        let total: i64 = listed.values().filter_map(|entry| integer(entry, "sizeOnDisk")).sum();
        let databases: Vec<Document> = listed.into_values().collect();
        let mut merged = doc! { "databases": databases };
        if !names_only {
            merged.insert("totalSize", total);
            merged.insert("totalSizeMb", total / (1024 * 1024));
        }
        merged.insert("ok", 1.0);
        let answer = Answer::try_from(merged)?;
        Ok(answers.iter().fold(answer, Answer::not_before))
    }

    /// Runs `collStats` and `dataSize`: sums the numbers over the shards that own chunks, and lists those of each
    /// shard too.
    pub(super) async fn coll_stats(&self, body: &Document) -> Result<Answer, Failure> {
        let namespace = Namespace::of(body)?;
        if namespace.is_on_config() {
            return self.on_config(body.clone(), Repeat::Safe).await;
        }
        let sharded =
            matches!(self.core.placement(&namespace, false).await?, Placement::Sharded(_));
        let answers = self.on_owners(&namespace, body, false).await?;
        let mut merged = doc! { "sharded": sharded, "ns": namespace.to_string() };
        add_up(&mut merged, &answers)?;
        if let (Some(size), Some(count)) = (integer(&merged, "size"), integer(&merged, "count")) {
            merged.insert("avgObjSize", if count > 0 { size / count } else { 0 });
        }
        let mut shards = Document::new();
        for (seed, answer) in &answers {
            let id = seed.split_once('/').map_or(&**seed, |(set, _)| set);
            shards.insert(id, answer.document()?);
        }
        merged.insert("shards", shards);
        merged.insert("ok", 1.0);
        merge_times(Answer::try_from(merged)?, &answers)
    }

    /// Runs `serverStatus` of the router itself. A shard supplies host, version and local time, and checks the
    /// client's privilege.
    pub(super) async fn server_status(&self, body: Document) -> Result<Answer, Failure> {
        let shard = self.on_shard(body).await?;
        let about = shard.document()?;
        let up = self.core.started.elapsed();
        let mut status = Document::new();
        for key in ["host", "version", "localTime"] {
            if let Some(value) = about.get(key) {
                status.insert(key, value.clone());
            }
        }
        status.insert("process", "mongos");
        status.insert("pid", i64::from(std::process::id()));
        status.insert("uptime", up.as_secs_f64().round());
        status.insert("uptimeMillis", i64::try_from(up.as_millis()).unwrap_or(i64::MAX));
        if let Some(times) = self.core.threads.times() {
            let count = |us: u64| i64::try_from(us).unwrap_or(i64::MAX);
            let (user, system) = (count(times.user_us), count(times.system_us));
            status.insert("extra_info", doc! { "user_time_us": user, "system_time_us": system });
        }
        status.insert("ok", 1.0);
        Ok(Answer::try_from(status)?.not_before(&shard))
    }

    /// Runs `dbStats`: sums the numbers over all shards.
    pub(super) async fn db_stats(&self, body: &Document) -> Result<Answer, Failure> {
        let mut answers = Vec::new();
        for shard in self.core.all_shards().await? {
            let user = self.user.as_ref();
            let run = self.core.on_primary(user, &shard, body.clone(), None, Repeat::Safe).await?;
            answers.push((shard.seed.clone(), run));
        }
        let mut merged = doc! { "db": database_of(body) };
        add_up(&mut merged, &answers)?;
        merged.insert("ok", 1.0);
        merge_times(Answer::try_from(merged)?, &answers)
    }
}

/// Adds the sizes and counts in `answers` to those of `merged`, and copies properties such as `capped` from the last
/// reply.
fn add_up(merged: &mut Document, answers: &[(String, Answer)]) -> Result<(), Failure> {
    const SUMS: [&str; 12] = [
        "count",
        "size",
        "storageSize",
        "totalIndexSize",
        "totalSize",
        "freeStorageSize",
        "numOrphanDocs",
        "collections",
        "views",
        "objects",
        "dataSize",
        "indexSize",
    ];
    for (_, answer) in answers {
        let document = answer.document()?;
        for key in SUMS {
            if let Some(value) = integer(&document, key) {
                merged.insert(key, integer(merged, key).unwrap_or(0) + value);
            }
        }
        for key in ["nindexes", "capped", "indexes", "scaleFactor", "timeseries"] {
            if let Some(value) = document.get(key) {
                merged.insert(key, value.clone());
            }
        }
        if let Ok(sizes) = document.get_document("indexSizes") {
            let mut sums = merged.get_document("indexSizes").cloned().unwrap_or_default();
            for key in sizes.keys() {
                let sum = integer(&sums, key).unwrap_or(0) + integer(sizes, key).unwrap_or(0);
                sums.insert(key, sum);
            }
            merged.insert("indexSizes", sums);
        }
    }
    Ok(())
}
