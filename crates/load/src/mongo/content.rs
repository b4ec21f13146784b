//! The final content of a collection, shown to a check document by document.

use bson::{RawBsonRef, RawDocument, doc};
use imago_workload::check::{Checker, Found};
use imago_workload::history::IdForm;
use mongodb::options::{ReadConcern, SelectionCriteria};

use super::MongoTarget;
use crate::Schema;
use imago_mongo::error::{Error, Result};

/// Number of documents that the server sends in one batch while the collection is read.
const BATCH_DOCUMENTS: u32 = 4000;

/// Passes every document of the collection, read at read concern `majority` from primaries, to the check. Returns the
/// number of documents.
///
/// The load must have ended, so that the content is final.
///
/// # Errors
/// Fails with the error of the server.
#[crate::boxed]
pub async fn show_content(target: &MongoTarget, checker: &mut Checker) -> Result<u64> {
    let doing = |cause| Error::server(format!("reading {}", target.label), cause);
    let find = target
        .collection
        .find(doc! {})
        .read_concern(ReadConcern::majority())
        .selection_criteria(SelectionCriteria::ReadPreference(
            mongodb::options::ReadPreference::Primary,
        ))
        .batch_size(BATCH_DOCUMENTS);
    let mut cursor = find.into_future().await.map_err(doing)?;
    let mut shown = 0;
    while cursor.advance().await.map_err(doing)? {
        show(&target.schema, cursor.current(), checker);
        shown += 1;
    }
    Ok(shown)
}

fn show(schema: &Schema, document: &RawDocument, checker: &mut Checker) {
    let id = document.get("_id").ok().flatten();
    let Some(key) = id.and_then(|id| key_of(schema.id_form, id)) else {
        let name = id.map_or_else(|| "(no _id)".to_owned(), |id| format!("{id:?}"));
        return checker.add_foreign_document(&name, "its _id is not one that this load makes");
    };
    let number = |name| document.get_i64(name).ok().and_then(|number| u64::try_from(number).ok());
    let (Some(seq), Some(n)) = (number("seq"), number("n")) else {
        return checker.add_foreign_document(&schema.id_form.name(key), "it lacks seq or n");
    };
    let intact = schema.document(key, seq, n).as_bytes() == document.as_bytes();
    checker.add_document(Found { key, seq, n, intact });
}

fn key_of(form: IdForm, id: RawBsonRef<'_>) -> Option<u64> {
    match (form, id) {
        (IdForm::Integer, RawBsonRef::Int64(number)) => u64::try_from(number).ok(),
        (IdForm::Text | IdForm::Scattered, RawBsonRef::String(name)) => form.key(name),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use imago_workload::review::Reviews;

    #[test]
    fn a_documents_id_leads_back_to_its_key() {
        for id_form in [IdForm::Text, IdForm::Integer, IdForm::Scattered] {
            let schema = Schema { id_form, reviews: Reviews::default() };
            let document = schema.document(4711, 4711, 0);
            let id = document.get("_id").unwrap().unwrap();
            assert_eq!(key_of(id_form, id), Some(4711));
        }
    }

    #[test]
    fn an_id_of_another_type_is_no_key() {
        assert_eq!(key_of(IdForm::Integer, RawBsonRef::Int32(5)), None);
        assert_eq!(key_of(IdForm::Integer, RawBsonRef::Int64(-5)), None);
        assert_eq!(key_of(IdForm::Text, RawBsonRef::Int64(5)), None);
    }
}
