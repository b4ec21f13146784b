//! The shard to which a command goes, and the versions of routing data in the command.

use bson::Document;

use super::catalog::{self, Sharded};

/// A shard, and the versions that the sender knows of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Endpoint {
    /// Id of the shard.
    pub(super) shard: String,
    /// Version of the collection that the shard is expected to have.
    pub(super) version: Document,
    /// Version of the database, for an unsharded collection.
    pub(super) database_version: Option<Document>,
}

impl Endpoint {
    /// Adds the versions to a command.
    pub(super) fn stamp(&self, body: &mut Document) {
        body.insert("shardVersion", self.version.clone());
        if let Some(version) = &self.database_version {
            body.insert("databaseVersion", version.clone());
        }
    }

    /// Returns the primary shard of an unsharded collection.
    pub(super) fn unsharded(shard: &str, database_version: &Document) -> Self {
        Self {
            shard: shard.to_owned(),
            version: catalog::unsharded_version(),
            database_version: Some(database_version.clone()),
        }
    }

    /// Returns a shard that owns chunks of a collection.
    pub(super) fn owner(collection: &Sharded, shard: &str) -> Self {
        let version = collection.version(shard);
        Self { shard: shard.to_owned(), version, database_version: None }
    }
}
