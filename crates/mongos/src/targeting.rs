//! The shards to which an operation applies.
//!
//! The rules are those of a `mongos` 6.0: an insert goes to the shard of its document. A write of one document goes
//! to one shard by equality on the shard key, or by a query that the servers find to concern one shard; by `_id` it
//! goes to all shards at once. If the router cannot determine the shard, it queries a shard by an `explain`.

use bson::raw::{RawBsonRef, RawDocument};
use bson::{Bson, Document, doc};

use super::answer::{Failure, code};
use super::caller::Caller;
use super::catalog::{self, Placement, Sharded};
use super::core::{Namespace, Repeat};
use super::endpoint::Endpoint;
use super::shard_key::Located;

/// The properties of a write of at most one document that determine its shard.
#[derive(Debug, Clone, Copy)]
pub(super) struct Single<'a> {
    /// Query of the write.
    pub(super) query: &'a Document,
    /// Collation that the write states; `None` for the collection's default.
    pub(super) collation: Option<&'a Document>,
    /// The document that replaces the match; `None` if the write is not a replacement.
    pub(super) replacement: Option<&'a RawDocument>,
    /// True if the write inserts a document when nothing matches.
    pub(super) upsert: bool,
    /// True if a write with an exact `_id` may go to all shards, of which at most one has the document.
    pub(super) by_id: bool,
}

impl Caller {
    /// Returns the shard on which `document` is to be inserted.
    pub(super) async fn target_document(
        &self,
        namespace: &Namespace,
        placement: &Placement,
        document: &RawDocument,
    ) -> Result<Endpoint, Failure> {
        match placement {
            Placement::Unsharded { shard, database_version } => {
                Ok(Endpoint::unsharded(shard, database_version))
            }
            Placement::Sharded(collection) => {
                let located = collection.key.of_document(document)?;
                self.endpoint_at(namespace, collection, &located, None).await
            }
        }
    }

    /// Returns the shard that owns the position `located`; if only the servers can determine it, a shard is asked.
    async fn endpoint_at(
        &self,
        namespace: &Namespace,
        collection: &Sharded,
        located: &Located,
        collation: Option<&Document>,
    ) -> Result<Endpoint, Failure> {
        let known = match located {
            Located::At(place) => collection.chunk_at(place),
            _ => None,
        };
        if let Some(chunk) = known {
            return Ok(Endpoint::owner(collection, &chunk.shard));
        }
        let filter = match located {
            Located::AskServer(values) => {
                { values.iter().map(|(path, value)| (path.clone(), doc! { "$eq": value }.into())) }
                    .collect()
            }
            _ => return Err(no_place("the operation does not name one shard key")),
        };
        match &*self.ask_shards(namespace, &filter, collation).await? {
            [shard] => Ok(Endpoint::owner(collection, shard)),
            _ => Err(no_place("the servers find the shard key on several shards")),
        }
    }

    /// Returns the shards to which a write of at most one document goes: one, or all for a write by `_id`.
    pub(super) async fn target_single(
        &self,
        namespace: &Namespace,
        collection: &Sharded,
        single: Single<'_>,
    ) -> Result<Vec<Endpoint>, Failure> {
        let simple = is_simple(single.collation.or(collection.collation()));
        let located = collection.key.of_query(single.query);
        // Under another collation several values are equal, and may be in several chunks.
        if located != Located::Ambiguous && (simple || !has_text(&located)) {
            let at = self.endpoint_at(namespace, collection, &located, single.collation).await?;
            return Ok(vec![at]);
        }
        if single.upsert {
            return Err(no_place(
                "Failed to target upsert by query :: could not extract exact shard key",
            ));
        }
        let by_id = single.by_id && is_by_id(single.query) && simple;
        if !(by_id && single.query.len() == 1) {
            let shards = self.ask_shards(namespace, single.query, single.collation).await?;
            if let [shard] = &*shards {
                return Ok(vec![Endpoint::owner(collection, shard)]);
            }
        }
        if let Some(replacement) = single.replacement {
            let located = collection.key.of_document(replacement)?;
            return Ok(vec![self.endpoint_at(namespace, collection, &located, None).await?]);
        }
        if !by_id {
            return Err(Failure::new(
                code::INVALID_OPTIONS,
                "A single-document write on a sharded collection must contain an exact match on \
                 _id (and have the collection default collation) or must target a single shard \
                 (and have the simple collation)",
            ));
        }
        let everywhere = self.core.all_shards().await?.into_iter().map(|shard| Endpoint {
            shard: shard.id.clone(),
            version: catalog::ignored_version(),
            database_version: None,
        });
        Ok(everywhere.collect())
    }

    /// Returns the shards that own chunks and may have matches of `query`.
    pub(super) async fn target_query(
        &self,
        namespace: &Namespace,
        placement: &Placement,
        query: &Document,
        collation: Option<&Document>,
    ) -> Result<Vec<Endpoint>, Failure> {
        let collection = match placement {
            Placement::Unsharded { shard, database_version } => {
                return Ok(vec![Endpoint::unsharded(shard, database_version)]);
            }
            Placement::Sharded(collection) => collection,
        };
        let located = collection.key.of_query(query);
        if is_simple(collation.or(collection.collation()))
            && let Located::At(place) = &located
            && let Some(chunk) = collection.chunk_at(place)
        {
            return Ok(vec![Endpoint::owner(collection, &chunk.shard)]);
        }
        let shards = if query.is_empty() {
            collection.owners()
        } else {
            self.ask_shards(namespace, query, collation).await?
        };
        Ok(shards.iter().map(|shard| Endpoint::owner(collection, shard)).collect())
    }

    /// Asks a shard, by an `explain` of a routed find, for the ids of the shards that may have matches of `filter`.
    async fn ask_shards(
        &self,
        namespace: &Namespace,
        filter: &Document,
        collation: Option<&Document>,
    ) -> Result<Vec<String>, Failure> {
        let mut find = doc! { "clusterFind": &namespace.collection, "filter": filter };
        if let Some(collation) = collation {
            find.insert("collation", collation);
        }
        let explain = doc! {
            "explain": find, "verbosity": "queryPlanner", "$db": &namespace.database,
        };
        let answer = self.routed(explain, None, Repeat::Safe).await?.document()?;
        let shards = answer
            .get_document("queryPlanner")
            .and_then(|planner| planner.get_document("winningPlan"))
            .and_then(|plan| plan.get_array("shards"))
            .map_err(Failure::malformed)?;
        let names = shards.iter().filter_map(Bson::as_document);
        Ok(names.filter_map(|shard| shard.get_str("shardName").ok()).map(str::to_owned).collect())
    }
}

/// Returns true if strings compare byte by byte under `collation`; `None` is the simple collation.
fn is_simple(collation: Option<&Document>) -> bool {
    collation
        .is_none_or(|collation| collation.get_str("locale").is_ok_and(|locale| locale == "simple"))
}

/// Returns true if a value of `located` may equal other values under a collation: text, or a document.
fn has_text(located: &Located) -> bool {
    let is_text =
        |value: &Bson| matches!(value, Bson::String(_) | Bson::Symbol(_) | Bson::Document(_));
    match located {
        Located::At(values) => values.iter().any(is_text),
        Located::AskServer(values) => values.iter().any(|(_, value)| is_text(value)),
        Located::Ambiguous => false,
    }
}

/// Returns true if `query` requires one exact value of `_id`.
fn is_by_id(query: &Document) -> bool {
    match query.get("_id") {
        Some(Bson::Document(value)) => match value.keys().next() {
            Some(first) if first.starts_with('$') => value.len() == 1 && first == "$eq",
            _ => true,
        },
        Some(Bson::RegularExpression(_)) | None => false,
        Some(_) => true,
    }
}

/// Returns the replacement document of `update`, an element of `updates`; `None` for operators and pipelines.
pub(super) fn replacement(update: &RawDocument) -> Option<&RawDocument> {
    match update.get("u") {
        Ok(Some(RawBsonRef::Document(document))) if !has_operators(document) => Some(document),
        _ => None,
    }
}

/// Returns true if the first field of `document` is an update operator (`$…`).
pub(super) fn has_operators(document: &RawDocument) -> bool {
    let first = document.iter().next().and_then(Result::ok);
    first.is_some_and(|(key, _)| key.as_str().starts_with('$'))
}

fn no_place(message: &str) -> Failure {
    Failure::new(code::SHARD_KEY_NOT_FOUND, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_equality_on_id_is_a_write_by_id() {
        assert!(is_by_id(&doc! { "_id": 1, "x": { "$gt": 1 } }));
        assert!(is_by_id(&doc! { "_id": { "$eq": 1 } }));
        assert!(is_by_id(&doc! { "_id": { "a": 1 } }));
        assert!(!is_by_id(&doc! { "_id": { "$gt": 1 } }));
        assert!(!is_by_id(&doc! { "x": 1 }));
    }
}
