//! Operations that the cluster itself sampled: MongoDB 7.0 and newer keep them in `config.sampledQueries` for as long as
//! `configureQueryAnalyzer` is on.
//!
//! Source: the server's manual, `configureQueryAnalyzer` and `config.sampledQueries`.

use bson::raw::RawDocument;
use bson::{RawDocumentBuf, doc};
use futures_util::TryStreamExt;

use super::operation::{Operation, of_command};
use super::predicate::Predicate;
use super::source::{Observed, Source, SourceFacts};
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::server::endpoint::{Endpoint, answer_within};
use crate::server::timing::SEARCH_MAX;

/// First version of the server that samples.
const SINCE: [i32; 3] = [7, 0, 0];
/// Largest number of operations that are read.
const OPERATIONS_MAX: usize = 1_000_000;

/// The operations that a cluster sampled.
pub(super) struct Sampled {
    operations: Vec<Operation>,
    is_full: bool,
}

impl Sampled {
    /// Reads what the cluster sampled of the collection `ns`.
    ///
    /// # Errors
    /// Precondition for a cluster that is too old; a server's error.
    pub(super) async fn read(cluster: &Endpoint, ns: &Namespace) -> Result<Self> {
        if cluster.version() < SINCE {
            let [major, minor, patch] = cluster.version();
            return Err(Error::precondition(
                format!("MongoDB {major}.{minor}.{patch} samples no queries: 7.0 and newer do"),
                "name another source: --recording, --profile or --log",
            ));
        }
        let doing = "reading config.sampledQueries";
        let sampled = cluster.client().database("config").collection("sampledQueries");
        let mut operations = Vec::new();
        let read = async {
            let mut found = sampled.find(doc! {"ns": ns.to_string()}).await?;
            while operations.len() < OPERATIONS_MAX {
                let entry: Option<RawDocumentBuf> = found.try_next().await?;
                let Some(entry) = entry else { return Ok(false) };
                operations.extend(of_entry(&entry, &ns.coll));
            }
            Ok(true)
        };
        let is_full = answer_within(SEARCH_MAX, doing, read).await?;
        let is_full = is_full.map_err(|cause| Error::server(doing, cause))?;
        Ok(Self { operations, is_full })
    }
}

/// Returns the operations of an entry: of a read its filter alone is there, of a write its command.
fn of_entry(entry: &RawDocument, coll: &str) -> Vec<Operation> {
    let Ok(command) = entry.get_document("cmd") else { return Vec::new() };
    match entry.get_str("cmdName").unwrap_or("") {
        "find" | "aggregate" | "count" | "distinct" => {
            let filter = command.get_document("filter").map(Predicate::of).unwrap_or_default();
            vec![Operation::read(filter, command)]
        }
        _ => of_command(command, coll, &[]),
    }
}

impl Source for Sampled {
    fn read(&mut self, each: &mut dyn FnMut(Observed<'_>) -> Result<()>) -> Result<()> {
        for operation in &self.operations {
            each(Observed { operation, shard: None })?;
        }
        Ok(())
    }

    fn facts(&self) -> SourceFacts {
        let mut notes = vec!["sampled by the cluster; inserts are not".to_owned()];
        if self.is_full {
            notes.push(format!("the first {OPERATIONS_MAX} operations alone"));
        }
        SourceFacts {
            source: "config.sampledQueries".to_owned(),
            operations: self.operations.len() as u64,
            share: None,
            seconds: None,
            notes,
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};
    use imago_plan::shard_key::Kind;

    use super::*;

    #[test]
    fn entries_are_the_operations_that_were_sampled() {
        let of = |entry: Document| of_entry(&RawDocumentBuf::try_from(&entry).unwrap(), "reviews");
        let find = of(doc! {"ns": "shop.reviews", "cmdName": "find", "cmd": {
            "filter": {"user": "ada@example.org"}, "collation": {"locale": "simple"}, "let": {},
        }});
        assert_eq!((find.len(), find[0].kind, find[0].bounds.len()), (1, Kind::Read, 1));
        let update = of(doc! {"ns": "shop.reviews", "cmdName": "update", "cmd": {
            "update": "reviews", "updates": [{"q": {"_id": 7_i64}, "u": {"$set": {"stars": 5}}}],
        }});
        assert_eq!((update[0].kind, update[0].sets.len()), (Kind::UpdateOne, 1));
        let modify = of(doc! {"ns": "shop.reviews", "cmdName": "findAndModify", "cmd": {
            "findAndModify": "reviews", "query": {"user": "ada@example.org"}, "remove": true,
        }});
        assert_eq!(modify[0].kind, Kind::FindAndModify);
        assert!(of(doc! {"cmdName": "find"}).is_empty());
    }
}
