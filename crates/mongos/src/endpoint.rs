//! The shard to which a command goes, and the versions of routing data in the command.

use bson::Document;

use super::catalog::{self, Sharded};

/// Destination of a versioned command: a shard, and the versions of routing data that the router sends with the
/// command.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Endpoint {
    /// Id of the destination shard.
    pub(super) shard: String,
    /// Shard version: the version of the collection that the router expects this shard to have.
    pub(super) version: Document,
    /// Version of the collection's database; `None` for a sharded collection, for which it is not checked.
    pub(super) database_version: Option<Document>,
}

impl Endpoint {
    /// Adds the fields `shardVersion` and `databaseVersion` to the command `body`.
    pub(super) fn stamp(&self, body: &mut Document) {
        body.insert("shardVersion", self.version.clone());
        if let Some(version) = &self.database_version {
            body.insert("databaseVersion", version.clone());
        }
    }

    /// Returns the endpoint for an unsharded collection: `shard` is the id of its database's primary shard.
    pub(super) fn unsharded(shard: &str, database_version: &Document) -> Self {
        Self {
            shard: shard.to_owned(),
            version: catalog::unsharded_version(),
            database_version: Some(database_version.clone()),
        }
    }

    /// Returns the endpoint for the chunks of `collection` that the shard with the id `shard` owns.
    pub(super) fn owner(collection: &Sharded, shard: &str) -> Self {
        let version = collection.version(shard);
        Self { shard: shard.to_owned(), version, database_version: None }
    }
}
