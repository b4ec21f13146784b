//! Findings about the collection's definition and the servers' version.

use bson::Document;

use crate::error::Result;
use crate::namespace::Namespace;
use crate::server::collection::Handle;
use crate::server::endpoint::Endpoint;
use crate::server::shard::index_gaps;

use super::{Finding, obstacle, warning};
use crate::reshard::plan::survey::Survey;
use crate::server::shard_key::Key;

/// Lowest supported version of the servers. Change streams of older servers do not contain documents as they were,
/// and older servers cannot block writes.
const VERSION_MIN: [i32; 3] = [6, 0, 0];

/// Returns the findings about the definition of the surveyed collection `ns`; `key` is its new shard key.
pub(in crate::reshard) fn definition_findings(
    router: &Endpoint,
    ns: &Namespace,
    survey: &Survey,
    key: &Key,
) -> Vec<Finding> {
    let mut found = Vec::new();
    found.extend(version(router.version()));
    found.extend(sharded(survey.entry.as_ref(), ns, key));
    let indexes = survey.definition.indexes.iter();
    found.extend(indexes.filter_map(|index| unique(index, key)));
    found.extend(collation(survey, key));
    found
}

/// Returns an obstacle for each index that some shards lack or have in another form. Only the owner of the collection
/// knows whether it is to have that index.
pub(in crate::reshard) async fn index_findings(of: &Handle) -> Result<Vec<Finding>> {
    let gaps = index_gaps(of).await?.into_iter();
    let found = gaps.map(|gap| {
        obstacle(
            "index_gap",
            format!("the shards do not have the same indexes: {gap}"),
            "build it where it is missing, or drop it where it is, on these shards themselves",
        )
    });
    Ok(found.collect())
}

fn version(version: [i32; 3]) -> Option<Finding> {
    let [major, minor, patch] = version;
    (version < VERSION_MIN).then(|| {
        obstacle(
            "version",
            format!("the cluster is MongoDB {major}.{minor}.{patch}"),
            "upgrade it to 6.0 or newer: older servers cannot block writes for the cut-over",
        )
    })
}

/// Returns an obstacle if the collection is not sharded or is being resharded by the server. `entry` is its document
/// in `config.collections`.
fn sharded(entry: Option<&Document>, ns: &Namespace, key: &Key) -> Option<Finding> {
    let Some(entry) = entry else {
        return Some(obstacle(
            "not_sharded",
            format!("{ns} is not sharded"),
            format!(
                "shard it: sh.shardCollection(\"{ns}\", {}), after creating an index that begins \
                 with that key",
                key.text()
            ),
        ));
    };
    entry.contains_key("reshardingFields").then(|| {
        obstacle(
            "resharding",
            format!("the server is resharding {ns} now"),
            "wait for its end, or end it with sh.abortReshardCollection()",
        )
    })
}

fn unique(index: &Document, key: &Key) -> Option<Finding> {
    if key.keeps(index) {
        return None;
    }
    let name = index.get_str("name").unwrap_or("an index");
    let fields = index.get_document("key").cloned().unwrap_or_default();
    let fields: Vec<&str> = fields.keys().map(String::as_str).collect();
    Some(obstacle(
        "unique_index",
        format!(
            "the unique index {name} on ({}) does not begin with the new key {}: equal values \
             could be on different shards, and no server would notice",
            fields.join(", "),
            key.text()
        ),
        format!(
            "drop the index, make it an ordinary one, or choose a key that it begins with, such \
             as {{\"{}\": 1}}",
            fields.first().unwrap_or(&"_id")
        ),
    ))
}

fn collation(survey: &Survey, key: &Key) -> Option<Finding> {
    let collation = survey.definition.options.get_document("collation").ok()?;
    if !survey.definition.is_collated() {
        return None;
    }
    let locale = collation.get_str("locale").unwrap_or("?");
    Some(warning(
        "collation",
        format!(
            "strings of the collection compare by the collation {locale}, but chunks are always \
             cut by simple comparison"
        ),
        format!(
            "nothing, as the shadow gets an index of {} with the simple collation; queries by the \
             new key reach one shard only if they ask for {{locale: \"simple\"}}",
            key.text()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    fn is_kept(index: &Document, key: &str) -> bool {
        unique(index, &Key::parse(key).unwrap()).is_none()
    }

    #[test]
    fn a_unique_index_is_kept_if_it_begins_with_the_key() {
        let index = doc! {"name": "i", "unique": true, "key": {"a": -1, "b": 1}};
        assert!(is_kept(&index, r#"{"a": 1}"#));
        assert!(is_kept(&index, r#"{"a": 1, "b": 1}"#));
        assert!(is_kept(&index, r#"{"a": "hashed"}"#));
        assert!(!is_kept(&index, r#"{"b": 1}"#));
        assert!(!is_kept(&index, r#"{"a": 1, "c": 1}"#));
        assert!(is_kept(&doc! {"name": "i", "key": {"z": 1}}, r#"{"b": 1}"#));
        let by_id = doc! {"name": "i", "unique": true, "key": {"_id": 1, "z": 1}};
        assert!(is_kept(&by_id, r#"{"b": 1}"#));
        assert!(is_kept(&doc! {"name": "_id_", "key": {"_id": 1}}, r#"{"b": 1}"#));
    }

    #[test]
    fn a_collection_that_the_server_reshards_is_left_to_it() {
        let (ns, key) = (Namespace::new("d", "c"), Key::parse(r#"{"a": 1}"#).unwrap());
        let code = |entry: &Document| sharded(Some(entry), &ns, &key).map(|found| found.code);
        assert_eq!(code(&doc! {"_id": "d.c"}), None);
        let at_it = doc! {"_id": "d.c", "reshardingFields": {"state": "cloning"}};
        assert_eq!(code(&at_it).as_deref(), Some("resharding"));
    }

    #[test]
    fn servers_older_than_6_are_in_the_way() {
        assert!(version([5, 0, 30]).is_some());
        assert!(version([6, 0, 0]).is_none());
    }
}
