//! The indexes and options of a copied collection: their comparison, creation and modification.

use std::collections::BTreeMap;

use bson::{Bson, Document, RawBson, doc};
use futures_util::{StreamExt, TryStreamExt, stream};
use imago_job::control::Control;

use crate::bson::order::cmp_values;
use crate::error::Result;
use crate::server::collection::{Handle, name_of};
use crate::server::retention::{NO_MAX, integer};
use crate::server::timing::retry_transient;

/// Number of collections whose indexes are built concurrently: each collection, even a small one, takes a few
/// commits.
const BUILDS_AT_ONCE: usize = 4;

/// Builds the given indexes of each collection; indexes that exist already are left unchanged.
pub(crate) async fn build(indexes: &[(Handle, Vec<Document>)], control: &Control) -> Result<()> {
    let missing = indexes.iter().filter(|(_, indexes)| !indexes.is_empty());
    let builds = missing.map(|(to, indexes)| async move {
        let what = format!("build the indexes of {}", to.ns);
        retry_transient(&what, control, || to.create_indexes(indexes)).await
    });
    let builds: Vec<_> = builds.collect();
    stream::iter(builds).buffer_unordered(BUILDS_AT_ONCE).try_collect().await
}

pub(crate) fn is_unique(index: &Document) -> bool {
    index.get_bool("unique").unwrap_or(false)
}

/// The kind of change that makes an index of the destination equal to the source's index of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// No change: the two indexes are equal.
    None,
    /// A `collMod` changes the settings of the destination's index.
    Settings,
    /// The index is built, after the destination's index of the same name, if any, is dropped.
    Build,
}

/// The settings of an index that `collMod` can change.
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
    // `collMod` can change an expiry, but can neither add nor remove one.
    let expires = |index: &Document| index.contains_key("expireAfterSeconds");
    if is_same_index(&plain(held), &plain(wanted)) && expires(held) == expires(wanted) {
        Change::Settings
    } else {
        Change::Build
    }
}

/// Sets the settings of the index of `to` with the name of `index` to those of `index`, which is the source's.
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
    // For a capped collection without a bound on documents, servers list no `max`, or the largest number.
    let bound = |of: &Document, field| of.get(field).and_then(integer).filter(|n| *n != NO_MAX);
    for (field, changed) in [("size", "cappedSize"), ("max", "cappedMax")] {
        let (had, wanted) = (bound(had, field), bound(wanted, field));
        if had != wanted {
            command.insert(changed, wanted.unwrap_or(0));
        }
    }
    if command.len() == 1 {
        return Ok(());
    }
    to.check_owner("collMod")?;
    to.endpoint.run_at_length(&to.ns.db, command).await.map(|_| ())
}

/// Returns true if two indexes are equal. The order of fields in the key counts, that of settings does not.
pub(crate) fn is_same_index(a: &Document, b: &Document) -> bool {
    is_same(&plain_index(a).into(), &plain_index(b).into())
}

/// Returns `index` without the fields that a server adds by itself, with its settings sorted by name.
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

/// Returns `document` with its top-level fields sorted by name; nested documents, such as key patterns, keep their
/// order.
pub(crate) fn sorted(document: &Document) -> Document {
    let fields: BTreeMap<&String, &Bson> = document.iter().collect();
    fields.into_iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// Returns true if two values are equal. Numbers of different types can be equal: shells and drivers store the
/// direction of an index as one type or the other.
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
