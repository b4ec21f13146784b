//! Indexes and options of a copied collection: telling them apart, building and changing them.

use std::collections::BTreeMap;

use bson::{Bson, Document, RawBson, doc};
use imago_job::control::Control;

use crate::bson::order::cmp_values;
use crate::error::Result;
use crate::server::collection::Handle;
use crate::server::timing::retry_transient;

/// Builds indexes; those that exist already are left as they are.
pub(crate) async fn build(indexes: &[(Handle, Vec<Document>)], control: &Control) -> Result<()> {
    for (to, indexes) in indexes {
        let what = format!("build the indexes of {}", to.ns);
        retry_transient(&what, control, || to.create_indexes(indexes)).await?;
    }
    Ok(())
}

pub(crate) fn name_of(index: &Document) -> &str {
    index.get_str("name").unwrap_or_default()
}

pub(crate) fn is_unique(index: &Document) -> bool {
    index.get_bool("unique").unwrap_or(false)
}

/// Compares an index of the destination with the source's index of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing: it is.
    None,
    /// `collMod`.
    Settings,
    /// Only building it, once one that is in its place is gone.
    Build,
}

/// Settings of an index that `collMod` changes.
const SETTINGS: [&str; 2] = ["hidden", "expireAfterSeconds"];

pub(crate) fn change_to(held: Option<&Document>, wanted: &Document) -> Change {
    let Some(held) = held else { return Change::Build };
    if is_same_index(held, wanted) {
        return Change::None;
    }
    let plain = |index: &Document| {
        let mut plain = index.clone();
        for setting in SETTINGS {
            plain.remove(setting);
        }
        plain
    };
    // An index can be given another expiry in place, but neither a first one nor none.
    let expires = |index: &Document| index.contains_key("expireAfterSeconds");
    if is_same_index(&plain(held), &plain(wanted)) && expires(held) == expires(wanted) {
        Change::Settings
    } else {
        Change::Build
    }
}

/// Makes the settings of an index equal to those at the source.
pub(crate) async fn modify_index(to: &Handle, index: &Document) -> Result<()> {
    to.check_owner("collMod")?;
    let hidden = index.get_bool("hidden").unwrap_or(false);
    let mut change = doc! {"name": name_of(index), "hidden": hidden};
    if let Some(expiry) = index.get("expireAfterSeconds") {
        change.insert("expireAfterSeconds", expiry.clone());
    }
    let command = doc! {"collMod": &to.ns.coll, "index": change};
    to.endpoint.run_at_length(&to.ns.db, command).await.map(|_| ())
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
    to.check_owner("collMod")?;
    to.endpoint.run_at_length(&to.ns.db, command).await.map(|_| ())
}

/// True if two indexes are the same: the order of a key counts, that of settings does not.
pub(crate) fn is_same_index(a: &Document, b: &Document) -> bool {
    is_same(&plain_index(a).into(), &plain_index(b).into())
}

/// An index without the fields that a server adds by itself, its settings by name.
pub(crate) fn plain_index(index: &Document) -> Document {
    let mut plain = sorted(index);
    for server_own in ["v", "ns", "background"] {
        plain.remove(server_own);
    }
    if let Some(Bson::Document(collation)) = plain.get_mut("collation") {
        *collation = sorted(collation);
        collation.remove("version");
    }
    plain
}

/// The fields by name; nested documents, such as key patterns, keep their order.
pub(crate) fn sorted(document: &Document) -> Document {
    let fields: BTreeMap<&String, &Bson> = document.iter().collect();
    fields.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// True if values are equal, numbers of different types included: shells and drivers store the
/// direction of an index as one or the other.
pub(crate) fn is_same(a: &Bson, b: &Bson) -> bool {
    match (RawBson::try_from(a.clone()), RawBson::try_from(b.clone())) {
        (Ok(a), Ok(b)) => cmp_values(a.as_raw_bson_ref(), b.as_raw_bson_ref()).is_eq(),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_is_another_under_the_same_name_is_built_anew() {
        let held = doc! {"key": {"a": 1, "b": 1}, "name": "i", "expireAfterSeconds": 60};
        let with = |field: &str, value: Bson| {
            let mut index = held.clone();
            index.insert(field, value);
            index
        };
        assert_eq!(change_to(Some(&held), &held), Change::None);
        assert_eq!(change_to(None, &held), Change::Build);
        for (field, value) in
            [("hidden", Bson::Boolean(true)), ("expireAfterSeconds", Bson::Int32(5))]
        {
            assert_eq!(change_to(Some(&held), &with(field, value)), Change::Settings);
        }
        for (field, value) in
            [("unique", Bson::Boolean(true)), ("key", doc! {"b": 1, "a": 1}.into())]
        {
            assert_eq!(change_to(Some(&held), &with(field, value)), Change::Build);
        }
        let mut lasting = held.clone();
        lasting.remove("expireAfterSeconds");
        assert_eq!(change_to(Some(&held), &lasting), Change::Build, "or it would expire documents");
    }
}
