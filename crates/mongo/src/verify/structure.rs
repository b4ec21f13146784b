//! Comparison of collections' options and indexes.
//!
//! Indexes are compared as sets by name, options field by field. Fields that a server adds by itself are removed
//! where the definition is read ([`crate::server::collection`]).

use std::collections::BTreeMap;

use bson::{Bson, Document, RawBson};
use serde::{Deserialize, Serialize};

use crate::bson::ext_json::ExtJson;
use crate::server::collection::{Definition, Kind};
use crate::server::retention::{NO_MAX, integer};
use crate::server::structure::{is_same, plain_index, sorted};

/// An option or index that differs between source and destination, or between the shards of one of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StructureDifference {
    /// Name of the option or index.
    pub name: String,
    /// The option or index at the source, in extended JSON, or in words if the source's shards differ; `None` if the
    /// source does not have it.
    pub source: Option<String>,
    /// The option or index at the destination, in extended JSON, or in words if the destination's shards differ;
    /// `None` if the destination does not have it.
    pub destination: Option<String>,
}

impl StructureDifference {
    /// Returns the difference as a clause in words.
    #[must_use]
    pub fn in_words(&self) -> String {
        let or_none = |side: &Option<String>| side.clone().unwrap_or_else(|| "none".into());
        format!(
            "{} is {} at the source, and {} at the destination",
            self.name,
            or_none(&self.source),
            or_none(&self.destination)
        )
    }
}

/// Returns the options that differ between `source` and `destination`. The kind of the collection counts as an
/// option.
pub(crate) fn options(source: &Definition, destination: &Definition) -> Vec<StructureDifference> {
    let flat = |definition: &Definition| {
        let mut fields: BTreeMap<String, Bson> = definition
            .options
            .iter()
            .filter(|(name, value)| name.as_str() != "uuid" && !is_default(name, value))
            .map(|(name, value)| (name.clone(), plain_option(name, value)))
            .collect();
        if definition.kind != Kind::Collection {
            fields.insert("type".into(), format!("{:?}", definition.kind).to_lowercase().into());
        }
        fields
    };
    differences(&flat(source), &flat(destination))
}

/// Returns the indexes that differ between `source` and `destination`. The index that a sharded destination needs for
/// its own shard key is not a difference.
pub(crate) fn indexes(source: &Definition, destination: &Definition) -> Vec<StructureDifference> {
    let by_name = |definition: &Definition| -> BTreeMap<String, Bson> {
        let named = |index: &Document| {
            let name = index.get_str("name").unwrap_or_default().to_owned();
            (name, Bson::Document(plain_index(index)))
        };
        definition.indexes.iter().map(named).collect()
    };
    let mut found = differences(&by_name(source), &by_name(destination));
    if let Some(shard_key) = &destination.shard_key {
        found.retain(|difference| {
            let is_extra = difference.source.is_none();
            !(is_extra && serves(destination, &difference.name, shard_key))
        });
    }
    found
}

/// Returns true if the index with this name exists for the shard key alone.
fn serves(definition: &Definition, name: &str, shard_key: &Document) -> bool {
    let is_named = |index: &&Document| index.get_str("name").is_ok_and(|found| found == name);
    let index = definition.indexes.iter().find(is_named);
    let Some(index) = index else { return false };
    let only_names = index.keys().all(|field| matches!(field.as_str(), "key" | "name"));
    let key = index.get_document("key").ok();
    // An index that begins with the key serves the key too, where an index on the key alone is hidden.
    let of = |key: &Document| {
        key.iter().take(shard_key.len()).map(|(f, v)| (f.clone(), v.clone())).collect()
    };
    let begins = |key: &Document| {
        let rest: Vec<&String> = key.keys().skip(shard_key.len()).collect();
        let start: Document = of(key);
        (rest.is_empty() || rest == ["_id"]) && is_same(&start.into(), &shard_key.clone().into())
    };
    only_names && key.is_some_and(begins)
}

/// Returns true if the option has its default value. Servers list such options for a collection that once had a
/// validator or a limit on documents.
fn is_default(name: &str, value: &Bson) -> bool {
    match (name, value) {
        ("validator", Bson::Document(validator)) => validator.is_empty(),
        ("validationLevel", Bson::String(level)) => level == "strict",
        ("validationAction", Bson::String(action)) => action == "error",
        ("max", value) => integer(value) == Some(NO_MAX),
        _ => false,
    }
}

fn plain_option(name: &str, value: &Bson) -> Bson {
    match (name, value) {
        // Each of these options is a set of settings whose order has no meaning.
        ("collation" | "clusteredIndex" | "indexOptionDefaults", Bson::Document(document)) => {
            let mut sorted = sorted(document);
            for server_own in ["v", "version"] {
                sorted.remove(server_own);
            }
            Bson::Document(sorted)
        }
        _ => value.clone(),
    }
}

fn differences(
    source: &BTreeMap<String, Bson>,
    destination: &BTreeMap<String, Bson>,
) -> Vec<StructureDifference> {
    let mut names: Vec<&String> = source.keys().chain(destination.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let differ = |name: &String| match (source.get(name), destination.get(name)) {
        (Some(a), Some(b)) if is_same(a, b) => None,
        (a, b) => Some(StructureDifference {
            name: name.clone(),
            source: a.map(shown),
            destination: b.map(shown),
        }),
    };
    names.into_iter().filter_map(differ).collect()
}

fn shown(value: &Bson) -> String {
    let raw = RawBson::try_from(value.clone()).ok();
    let text = raw.and_then(|raw| serde_json::to_string(&ExtJson(raw.as_raw_bson_ref())).ok());
    text.unwrap_or_else(|| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::doc;

    fn definition(options: Document, indexes: Vec<Document>) -> Definition {
        Definition {
            kind: Kind::Collection,
            options,
            indexes,
            building: Vec::new(),
            shard_key: None,
        }
    }

    #[test]
    fn what_a_validator_leaves_behind_is_no_difference() {
        let before = definition(doc! {}, vec![]);
        let level = |level: &str| {
            doc! {"validator": {}, "validationLevel": level, "validationAction": "error"}
        };
        assert_eq!(options(&before, &definition(level("strict"), vec![])), []);
        assert_eq!(options(&before, &definition(level("moderate"), vec![])).len(), 1);
    }

    #[test]
    fn a_bound_of_documents_that_was_removed_is_no_difference() {
        let capped = |max: Document| {
            let mut options = doc! {"capped": true, "size": 4096};
            options.extend(max);
            definition(options, vec![])
        };
        let removed = capped(doc! {"max": 2_147_483_647});
        assert_eq!(options(&capped(doc! {}), &removed), []);
        assert_eq!(options(&capped(doc! {"max": 500}), &removed).len(), 1);
    }

    #[test]
    fn an_option_of_one_side_is_a_difference() {
        let source = definition(doc! {"capped": true, "size": 4096}, vec![]);
        let destination = definition(doc! {"size": 4096.0, "capped": true}, vec![]);
        assert_eq!(options(&source, &destination), []);
        let plain = definition(doc! {}, vec![]);
        let names: Vec<String> =
            options(&source, &plain).into_iter().map(|difference| difference.name).collect();
        assert_eq!(names, ["capped", "size"]);
    }

    #[test]
    fn the_order_of_a_key_counts_and_that_of_settings_does_not() {
        let index = |key: Document| doc! {"key": key, "name": "i", "unique": true};
        let source = definition(doc! {}, vec![index(doc! {"a": 1, "b": 1})]);
        let swapped = definition(doc! {}, vec![index(doc! {"b": 1, "a": 1})]);
        let other_types = definition(
            doc! {},
            vec![doc! {"unique": true, "name": "i", "key": {"a": 1.0, "b": 1_i64}}],
        );
        assert_eq!(indexes(&source, &swapped).len(), 1);
        assert_eq!(indexes(&source, &other_types), []);
    }

    #[test]
    fn only_the_destinations_own_shard_key_index_may_be_extra() {
        let source = definition(doc! {}, vec![]);
        let mut destination = definition(
            doc! {},
            vec![
                doc! {"key": {"a": "hashed"}, "name": "a_hashed"},
                doc! {"key": {"b": 1}, "name": "b_1"},
            ],
        );
        destination.shard_key = Some(doc! {"a": "hashed"});
        let found = indexes(&source, &destination);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name, "b_1");
        assert_eq!(found[0].source, None);
    }
}
