//! A MongoDB collection as the target of a load, and its content as the subject of a check.
//!
//! The documents are the reviews of the workload with `_id`, `seq` (the number of the write that left the document)
//! and `n` (the number of updates of the document). Every document is a pure function of its key, `seq` and `n`, so
//! that the check compares whole documents byte by byte.
//!
//! Reads, updates and deletes name `productID` and `userID` in addition to `_id`, as those of Morphus §5.1 do. So a
//! router sends each of them to one shard if any of these fields is the shard key.

use crate::Schema;

mod content;
mod outcome;
mod preload;

use std::time::Duration;

use bson::{Bson, Document, RawBson, RawDocumentBuf, doc, rawdoc};
use futures_util::TryStreamExt as _;
use imago_workload::history::IdForm;
use imago_workload::review::Review;
use imago_workload::target::{Insert, Outcome, Target, Update};
use mongodb::options::{ClientOptions, WriteConcern};
use mongodb::{Client, Collection};

use imago_mongo::error::{Error, Result};
use imago_mongo::namespace::Namespace;
use imago_mongo::server::endpoint::Endpoint;

pub use content::show_content;
pub use preload::{preload, require_documents};

/// Maximum number of connections of a target to each server, unless its connection string sets another number.
const POOL_MAX: u32 = 64;
/// Maximum time to find a primary, unless the connection string sets another. It is shorter than the load's timeout
/// of an operation, so that an operation for which no primary is found counts as certainly not sent.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(10);

impl Schema {
    /// Returns the `_id` of the document under a key, in the form of this schema.
    #[must_use]
    pub fn id(&self, key: u64) -> RawBson {
        match self.id_form {
            IdForm::Integer => RawBson::Int64(key as i64),
            IdForm::Text | IdForm::Scattered => RawBson::String(self.id_form.name(key)),
        }
    }

    /// Returns the document that the write number `seq` leaves under a key, after `n` updates.
    #[must_use]
    pub fn document(&self, key: u64, seq: u64, n: u64) -> RawDocumentBuf {
        self.document_with(key, seq, n, self.reviews.review(key, seq))
    }

    fn document_with(&self, key: u64, seq: u64, n: u64, review: Review) -> RawDocumentBuf {
        rawdoc! {
            "_id": self.id(key),
            "productID": review.product_id,
            "title": review.title,
            "price": review.price,
            "userID": review.user_id,
            "profileName": review.profile_name,
            "helpfulness": review.helpfulness,
            "score": review.score,
            "time": review.time,
            "summary": review.summary,
            "text": review.text,
            "seq": seq as i64,
            "n": n as i64,
        }
    }

    fn id_of(&self, key: u64) -> Bson {
        match self.id_form {
            IdForm::Integer => Bson::Int64(key as i64),
            IdForm::Text | IdForm::Scattered => Bson::String(self.id_form.name(key)),
        }
    }

    fn filter(&self, key: u64) -> Document {
        let (product_id, user_id) = self.reviews.shard_keys(key);
        doc! { "_id": self.id_of(key), "productID": product_id, "userID": user_id }
    }
}

/// A MongoDB collection to which a load is sent, with majority writes and the driver's retryable writes.
#[derive(Debug, Clone)]
pub struct MongoTarget {
    collection: Collection<RawDocumentBuf>,
    schema: Schema,
    label: String,
}

impl MongoTarget {
    /// Connects to the cluster at the connection string `uri`, and checks that it answers.
    ///
    /// # Errors
    /// Returns a usage error if the connection string is invalid, and a precondition error if the cluster does not
    /// answer or refuses the credentials.
    #[crate::boxed]
    pub async fn connect(uri: &str, namespace: &Namespace, schema: Schema) -> Result<Self> {
        let endpoint = Endpoint::connect(uri, "load's target").await?;
        let label = format!("{} {namespace}", endpoint.redacted());
        let refused = |cause| Error::server(format!("connecting to {label}"), cause);
        let mut options = ClientOptions::parse(uri).await.map_err(refused)?;
        options.app_name.get_or_insert_with(|| "imago load".into());
        options.max_pool_size.get_or_insert(POOL_MAX);
        options.server_selection_timeout.get_or_insert(SELECTION_TIMEOUT);
        options.retry_writes = Some(true);
        options.write_concern = Some(WriteConcern::majority());
        let client = Client::with_options(options).map_err(refused)?;
        let collection = client.database(&namespace.db).collection(&namespace.coll);
        Ok(Self { collection, schema, label })
    }

    /// Returns the driver's handle of the collection.
    #[must_use]
    pub fn collection(&self) -> &Collection<RawDocumentBuf> {
        &self.collection
    }

    /// Returns the form of the documents that the load writes.
    #[must_use]
    pub fn schema(&self) -> &Schema {
        &self.schema
    }
}

impl Target for MongoTarget {
    async fn read(&self, key: u64) -> Outcome {
        let find = self.collection.find_one(self.schema.filter(key));
        match find.into_future().await {
            Ok(Some(_)) => Outcome::Acked,
            Ok(None) => Outcome::NotFound,
            // A failed read has changed nothing.
            Err(error) => Outcome::Refused(outcome::cause_text(&error)),
        }
    }

    async fn insert(&self, insert: Insert) -> Outcome {
        let Insert { key, seq, review } = insert;
        let document = self.schema.document_with(key, seq, 0, review);
        let done = self.collection.insert_one(&document).into_future().await;
        outcome::of_write(done.map(|_| 1))
    }

    async fn update(&self, update: Update) -> Outcome {
        let Update { key, seq, price } = update;
        let change = doc! { "$set": { "seq": seq as i64, "price": price }, "$inc": { "n": 1_i64 } };
        let update = self.collection.update_one(self.schema.filter(key), change);
        let done = update.into_future().await;
        outcome::of_write(done.map(|done| done.matched_count))
    }

    async fn delete(&self, key: u64) -> Outcome {
        let delete = self.collection.delete_one(self.schema.filter(key));
        let done = delete.into_future().await;
        outcome::of_write(done.map(|done| done.deleted_count))
    }

    async fn scan(&self, key: u64, documents_max: u32) -> Outcome {
        let from = doc! { "_id": { "$gte": self.schema.id_of(key) } };
        let find = self.collection.find(from).sort(doc! { "_id": 1 });
        let read = async {
            let cursor = find.limit(i64::from(documents_max)).into_future().await?;
            cursor.try_for_each(|_| std::future::ready(Ok(()))).await
        };
        match read.await {
            Ok(()) => Outcome::Acked,
            Err(error) => Outcome::Refused(outcome::cause_text(&error)),
        }
    }

    fn label(&self) -> String {
        self.label.clone()
    }
}

#[cfg(test)]
mod tests {
    use imago_workload::review::Reviews;

    use super::*;

    #[test]
    fn documents_have_the_size_that_was_asked_for() {
        for id_form in [IdForm::Text, IdForm::Integer, IdForm::Scattered] {
            for size_bytes in [Reviews::SIZE_BYTES_MIN, 1000, 16_000] {
                let schema =
                    Schema { id_form, reviews: Reviews { size_bytes, ..Reviews::default() } };
                for key in 0..50 {
                    let bytes = schema.document(key, key, 0).as_bytes().len();
                    let off = bytes.abs_diff(size_bytes as usize);
                    assert!(off <= 8, "{bytes} bytes for {size_bytes} with {id_form:?}");
                }
            }
        }
    }

    #[test]
    fn only_seq_price_and_counter_change_by_an_update() {
        let schema = Schema { id_form: IdForm::Text, reviews: Reviews::default() };
        let (before, after) = (schema.document(5, 5, 0), schema.document(5, 90, 1));
        let changed: Vec<_> = before
            .iter()
            .zip(after.iter())
            .map(|(before, after)| (before.expect("valid"), after.expect("valid")))
            .filter(|(before, after)| before != after)
            .map(|(before, _)| before.0.to_string())
            .collect();
        assert_eq!(changed, ["price", "seq", "n"]);
    }
}
