//! Indexes and options of a copied collection: telling them apart, building and changing them.

use bson::{Bson, Document, doc};
use imago_job::control::Control;

use crate::collection::Handle;
use crate::copy::patiently;
use crate::error::Result;

/// Builds indexes; those that exist already are left as they are.
pub(crate) async fn build(indexes: &[(Handle, Vec<Document>)], control: &Control) -> Result<()> {
    for (to, indexes) in indexes {
        let what = format!("build the indexes of {}", to.ns);
        patiently(&what, control, || to.create_indexes(indexes)).await?;
    }
    Ok(())
}

pub(crate) fn name_of(index: &Document) -> &str {
    index.get_str("name").unwrap_or_default()
}

pub(crate) fn is_unique(index: &Document) -> bool {
    index.get_bool("unique").unwrap_or(false)
}

/// Brings an index's changeable options to what they are at the source; what cannot be changed in
/// place is rebuilt.
pub(crate) async fn modify_index(to: &Handle, index: &Document) -> Result<()> {
    let mut change = doc! {"name": name_of(index)};
    for field in ["expireAfterSeconds", "hidden"] {
        if let Some(value) = index.get(field) {
            change.insert(field, value.clone());
        } else if field == "hidden" {
            change.insert(field, false);
        }
    }
    let command = doc! {"collMod": &to.ns.coll, "index": change};
    match to.endpoint.run_at_length(&to.ns.db, command).await {
        Ok(_) => Ok(()),
        Err(error) if error.is_transient() => Err(error),
        Err(_) => {
            to.drop_index(name_of(index)).await?;
            to.create_indexes(std::slice::from_ref(index)).await
        }
    }
}

pub(crate) async fn modify_options(to: &Handle, had: &Document, wanted: &Document) -> Result<()> {
    let mut command = doc! {"collMod": &to.ns.coll};
    let none = [
        ("validator", Bson::Document(doc! {})),
        ("validationLevel", "strict".into()),
        ("validationAction", "error".into()),
        ("changeStreamPreAndPostImages", Bson::Document(doc! {"enabled": false})),
        ("expireAfterSeconds", "off".into()),
    ];
    for (field, default) in none {
        if had.get(field) != wanted.get(field) {
            command.insert(field, wanted.get(field).cloned().unwrap_or(default));
        }
    }
    for (field, changed) in [("size", "cappedSize"), ("max", "cappedMax")] {
        if let (Some(had), Some(wanted)) = (had.get(field), wanted.get(field))
            && had != wanted
        {
            command.insert(changed, wanted.clone());
        }
    }
    if command.len() == 1 {
        return Ok(());
    }
    to.endpoint.run_at_length(&to.ns.db, command).await.map(|_| ())
}
