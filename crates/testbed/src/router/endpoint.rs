//! The shard that a command goes to, and the versions of routing data that it carries.

use bson::Document;

use super::catalog::{self, Sharded};

/// A shard, and the sender's knowledge of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Endpoint {
    /// The shard's id.
    pub(super) shard: String,
    /// The version of the collection that it is expected to have.
    pub(super) version: Document,
    /// The version of the database, where the collection is not sharded.
    pub(super) database_version: Option<Document>,
}

impl Endpoint {
    /// Puts the versions into a command.
    pub(super) fn stamp(&self, body: &mut Document) {
        body.insert("shardVersion", self.version.clone());
        if let Some(version) = &self.database_version {
            body.insert("databaseVersion", version.clone());
        }
    }

    /// The primary shard of a collection that is not sharded.
    pub(super) fn unsharded(shard: &str, database_version: &Document) -> Self {
        Self {
            shard: shard.to_owned(),
            version: catalog::unsharded_version(),
            database_version: Some(database_version.clone()),
        }
    }

    /// A shard as an owner of chunks.
    pub(super) fn owner(collection: &Sharded, shard: &str) -> Self {
        let version = collection.version(shard);
        Self { shard: shard.to_owned(), version, database_version: None }
    }
}
