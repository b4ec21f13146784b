//! The outcome of a batch of writes, composed from the replies of the shards.
//!
//! A shard's reply numbers the operations that the shard received; the client's reply numbers those that the client
//! sent.

use bson::{Bson, Document, doc};

use super::answer::{Answer, Failure, code, integer};

/// Outcome of those operations of a client's write command that were executed so far.
#[derive(Default)]
pub(super) struct Outcome {
    n: i64,
    modified: i64,
    upserted: Vec<(usize, Bson)>,
    pub(super) errors: Vec<(usize, Document)>,
    concern_error: Option<Bson>,
    times: Option<Answer>,
}

/// Error: a shard rejected some operations of a group because routing data was stale.
pub(super) struct Stale {
    pub(super) code: i32,
    /// Operations of the group that need not be sent again, by their index in the client's command, in ascending
    /// order.
    pub(super) done: Vec<usize>,
}

impl Outcome {
    /// Adds the replies of the shards to which one group of operations was sent. Returns the operations that need not
    /// be sent again.
    ///
    /// `operations` are the group's operations in ascending order, by their index in the client's command.
    pub(super) fn take(
        &mut self,
        operations: &[usize],
        answers: Vec<Answer>,
        ordered: bool,
    ) -> Result<Vec<usize>, Stale> {
        let mut stale = None;
        let mut stale_operations = Vec::new();
        // In an ordered batch nothing was executed after an error.
        let mut end = operations.len();
        for answer in answers {
            let Ok(document) = answer.document() else { continue };
            self.n += integer(&document, "n").unwrap_or(0);
            self.modified += integer(&document, "nModified").unwrap_or(0);
            for upserted in array(&document, "upserted") {
                let index = index_of(upserted);
                if let Some(operation) = operations.get(index) {
                    let id = upserted.get("_id").cloned().unwrap_or(Bson::Null);
                    self.upserted.push((*operation, id));
                }
            }
            for error in array(&document, "writeErrors") {
                let index = index_of(error);
                let Some(operation) = operations.get(index) else { continue };
                let code = integer(error, "code").and_then(|code| i32::try_from(code).ok());
                let code = code.unwrap_or_default();
                if code::is_stale(code) {
                    stale = Some(code);
                    stale_operations.push(*operation);
                } else {
                    let mut error = error.clone();
                    error.insert("index", i32::try_from(*operation).unwrap_or(i32::MAX));
                    self.errors.push((*operation, error));
                }
                if ordered {
                    end = end.min(index + 1);
                }
            }
            if let Some(error) = document.get("writeConcernError") {
                self.concern_error.get_or_insert_with(|| error.clone());
            }
            self.times = Some(match self.times.take() {
                Some(times) => times.not_before(&answer),
                None => answer,
            });
        }
        stale_operations.sort_unstable();
        let executed = operations[..end].iter().copied();
        let is_done = |operation: &usize| stale_operations.binary_search(operation).is_err();
        let done = executed.filter(is_done).collect();
        match stale {
            Some(code) => Err(Stale { code, done }),
            None => Ok(done),
        }
    }

    /// Composes the reply to the client; if `update` is true, it contains the number of changed documents. If
    /// `repeatable` is true, a retryable write concern error is labelled as such.
    pub(super) fn answer(mut self, update: bool, repeatable: bool) -> Result<Answer, Failure> {
        let count = |value: i64| i32::try_from(value).unwrap_or(i32::MAX);
        let mut body = doc! { "n": count(self.n) };
        if update {
            body.insert("nModified", count(self.modified));
        }
        if !self.upserted.is_empty() {
            self.upserted.sort_by_key(|(operation, _)| *operation);
            let listed = self.upserted.into_iter().map(|(operation, id)| {
                doc! { "index": i32::try_from(operation).unwrap_or(i32::MAX), "_id": id }
            });
            body.insert("upserted", listed.collect::<Vec<_>>());
        }
        if !self.errors.is_empty() {
            self.errors.sort_by_key(|(operation, _)| *operation);
            // A write to several shards fails once, however many of them reject it.
            self.errors.dedup_by_key(|(operation, _)| *operation);
            let listed: Vec<_> = self.errors.into_iter().map(|(_, error)| error).collect();
            body.insert("writeErrors", listed);
        }
        if let Some(error) = self.concern_error {
            let code = error.as_document().and_then(|error| integer(error, "code"));
            let code = code.and_then(|code| i32::try_from(code).ok());
            if repeatable && code.is_some_and(code::is_retryable) {
                body.insert("errorLabels", vec!["RetryableWriteError"]);
            }
            body.insert("writeConcernError", error);
        }
        body.insert("ok", 1.0);
        let answer = Answer::try_from(body)?;
        Ok(match self.times {
            Some(times) => answer.not_before(&times),
            None => answer,
        })
    }
}

fn array<'a>(document: &'a Document, key: &str) -> impl Iterator<Item = &'a Document> {
    document.get_array(key).into_iter().flatten().filter_map(Bson::as_document)
}

fn index_of(entry: &Document) -> usize {
    integer(entry, "index").and_then(|index| usize::try_from(index).ok()).unwrap_or(0)
}

/// Returns the error of the operation with the index `index` in the form in which a server lists it in `writeErrors`.
pub(super) fn write_error(index: usize, failure: &Failure) -> Document {
    let mut error = doc! {
        "index": i32::try_from(index).unwrap_or(i32::MAX), "code": failure.code(),
    };
    let message = failure.body().get_str("errmsg").unwrap_or("no message");
    error.insert("errmsg", message);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(document: Document) -> Vec<Answer> {
        vec![Answer::try_from(document).unwrap()]
    }

    #[test]
    fn errors_get_the_numbers_of_the_client() {
        let mut outcome = Outcome::default();
        let error = doc! { "index": 1, "code": 11000, "keyValue": { "_id": 1 } };
        let done = outcome.take(
            &[3, 5, 8],
            answer(doc! { "n": 2, "writeErrors": [error], "ok": 1.0 }),
            false,
        );
        assert_eq!(done.ok(), Some(vec![3, 5, 8]));
        let merged = outcome.answer(false, false).unwrap().document().unwrap();
        let expected = doc! { "index": 5, "code": 11000, "keyValue": { "_id": 1 } };
        assert_eq!(merged, doc! { "n": 2, "writeErrors": [expected], "ok": 1.0 });
    }

    #[test]
    fn only_what_was_refused_as_stale_is_to_be_sent_again() {
        let mut outcome = Outcome::default();
        let stale = doc! { "index": 1, "code": code::STALE_CONFIG };
        let taken = outcome.take(
            &[3, 5, 8],
            answer(doc! { "n": 2, "writeErrors": [stale], "ok": 1.0 }),
            false,
        );
        assert_eq!(taken.err().map(|stale| stale.done), Some(vec![3, 8]));
        assert!(outcome.errors.is_empty());
    }

    #[test]
    fn behind_an_error_of_an_ordered_batch_nothing_is_done() {
        let mut outcome = Outcome::default();
        let stale = doc! { "index": 1, "code": code::STALE_CONFIG };
        let taken = outcome.take(
            &[3, 5, 8],
            answer(doc! { "n": 1, "writeErrors": [stale], "ok": 1.0 }),
            true,
        );
        assert_eq!(taken.err().map(|stale| stale.done), Some(vec![3]));
    }
}
