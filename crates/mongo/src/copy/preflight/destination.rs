//! Checks that a destination can hold the planned collections, and that its user may create them. A copy that would
//! fail is refused before anything is created.

use bson::{Document, doc};

use super::{Plan, Planned, key_fields};
use crate::STATE_DB;
use crate::error::{Error, Result};
use crate::server::collection::{Definition, Handle, Kind, Listed};
use crate::server::endpoint::Endpoint;
use crate::server::privileges::privileges_lacking;
use crate::server::shard::index_gaps;
use crate::server::shard_key::Key;
use crate::verify::options_differences;

/// Longest name of a database, in bytes.
const DATABASE_BYTES_MAX: usize = 63;
/// Longest name of a collection together with its database, in bytes.
const NAMESPACE_BYTES_MAX: usize = 255;

/// Privileges that a copy needs on the destination's databases.
const WRITES: [&str; 7] =
    ["collMod", "createCollection", "createIndex", "find", "insert", "remove", "update"];
/// Further privileges that a copy needs on the destination's databases to shard the collections.
const SHARDS: [&str; 2] = ["enableSharding", "moveChunk"];
/// Privileges that a copy needs on each collection of stored functions at the destination.
const WRITES_FUNCTIONS: [&str; 4] = ["find", "insert", "remove", "update"];
/// Privileges that a copy needs on the destination's database that holds the state of jobs.
const STATE: [&str; 5] = ["createIndex", "find", "insert", "remove", "update"];

/// Returns a precondition error if the collection `listed` cannot be sharded by `key`, because it is capped or has a
/// unique index that does not begin with `key`. Otherwise the servers would refuse it only after all of it is copied.
pub(super) fn check_key(key: &Key, listed: &Listed, indexes: &[Document]) -> Result<()> {
    if listed.options.get_bool("capped").unwrap_or(false) {
        return Err(Error::precondition(
            format!("{} is capped, and capped collections cannot be sharded", listed.ns),
            "copy it by a job of its own without --shard-key",
        ));
    }
    match indexes.iter().find(|index| !key.keeps(index)) {
        None => Ok(()),
        Some(index) => Err(Error::precondition(
            format!(
                "the unique index {} of {} does not begin with the shard key {}: equal values could be \
                 on different shards, so that no server would take it",
                index.get_str("name").unwrap_or_default(),
                listed.ns,
                key.text()
            ),
            "drop the index, make it an ordinary one, or choose a key that it begins with",
        )),
    }
}

/// Returns a precondition error if some shards of the collection lack an index that others have: only its owner knows
/// which shards are right.
pub(super) async fn check_indexes_are_even(from: &Handle) -> Result<()> {
    let gaps = index_gaps(from).await?;
    if gaps.is_empty() {
        return Ok(());
    }
    let told: Vec<String> = gaps.iter().map(ToString::to_string).collect();
    Err(Error::precondition(
        format!("the shards of {} do not have the same indexes: {}", from.ns, told.join("; ")),
        "build the index where it is missing, or drop it where it is, on these shards themselves",
    ))
}

/// Returns a precondition error if the collection `into` exists at the destination, with the definition `existing`,
/// and cannot hold the documents of `listed`.
pub(super) async fn check_existing(
    into: &Handle,
    existing: Option<&Definition>,
    listed: &Listed,
    plan: &Plan,
) -> Result<()> {
    let Some(existing) = existing else { return Ok(()) };
    if existing.kind != listed.kind || listed.kind == Kind::View {
        return Err(Error::precondition(
            format!("the destination has a {:?} named {} already", existing.kind, into.ns),
            "drop it, or choose another name with --ns a.b=c.d",
        ));
    }
    check_options(into, existing, listed)?;
    if !into.is_empty().await? && !plan.into_existing {
        return Err(Error::precondition(
            format!("the destination's {} already holds documents", into.ns),
            "drop it, choose another name with --ns a.b=c.d, or say --into-existing: documents \
             with the same _id are then replaced, others stay",
        ));
    }
    if plan.into_existing && !key_fields(existing.shard_key.as_ref()).is_empty() {
        return Err(Error::precondition(
            format!("{} is sharded by another key than _id", into.ns),
            "--into-existing needs a destination whose documents are found by _id; copy into an \
             empty collection instead",
        ));
    }
    if plan.shard_key.is_some() && existing.shard_key.is_some() {
        return Err(Error::precondition(
            format!("{} is sharded already", into.ns),
            "leave out --shard-key, or drop the collection",
        ));
    }
    Ok(())
}

/// Options that determine which documents a collection can hold.
const HOLDING_OPTIONS: [&str; 6] =
    ["collation", "capped", "size", "max", "clusteredIndex", "expireAfterSeconds"];

fn check_options(into: &Handle, existing: &Definition, listed: &Listed) -> Result<()> {
    let wanted = Definition {
        kind: listed.kind,
        options: listed.options.clone(),
        indexes: Vec::new(),
        building: Vec::new(),
        shard_key: None,
    };
    let differences = options_differences(&wanted, existing);
    match differences.iter().find(|found| HOLDING_OPTIONS.contains(&found.name.as_str())) {
        Some(found) => Err(Error::precondition(
            format!("the destination's {} has another option {}", into.ns, found.name),
            "it could not hold the same documents: drop it, and the job creates it like the \
             source's",
        )),
        None => Ok(()),
    }
}

/// Returns a precondition error if the destination's servers reject a name in the plan.
pub(super) async fn check_names(destination: &Endpoint, plan: &Plan) -> Result<()> {
    let all: Vec<&Planned> = plan.all().collect();
    for planned in &all {
        let name = planned.to.to_string();
        if planned.to.db.len() > DATABASE_BYTES_MAX || name.len() > NAMESPACE_BYTES_MAX {
            return Err(Error::precondition(
                format!("the name {name} is too long"),
                format!(
                    "servers take {DATABASE_BYTES_MAX} bytes of a database's name, and \
                     {NAMESPACE_BYTES_MAX} with the collection's: choose another with --ns a.b=c.d"
                ),
            ));
        }
    }
    let there = destination.run("admin", doc! {"listDatabases": 1, "nameOnly": true}).await?;
    let there = there.get_array("databases").into_iter().flatten();
    let there = there.filter_map(|db| db.as_document()?.get_str("name").ok());
    let mut known: Vec<&str> = there.chain(all.iter().map(|planned| &*planned.to.db)).collect();
    known.sort_unstable();
    known.dedup();
    for planned in &all {
        let db = &*planned.to.db;
        let twin = known.iter().find(|known| **known != db && known.eq_ignore_ascii_case(db));
        if let Some(twin) = twin {
            return Err(Error::precondition(
                format!("the databases {db} and {twin} differ by case alone, which servers refuse"),
                "choose the name that is there with --ns a.b=c.d",
            ));
        }
    }
    Ok(())
}

/// Returns a precondition error if the destination's user lacks a privilege that the copy needs there.
pub(super) async fn check_rights(destination: &Endpoint, plan: &Plan) -> Result<()> {
    let status = doc! {"connectionStatus": 1, "showPrivileges": true};
    let status = destination.run("admin", status).await?;
    let mut needed = WRITES.to_vec();
    if plan.shard_key.is_some() {
        needed.extend(SHARDS);
    }
    let of = |db: &str, coll: Option<&str>, actions: &[&str], role: &str| {
        let lacking = privileges_lacking(&status, db, coll, actions);
        if lacking.is_empty() {
            return Ok(());
        }
        let coll = coll.map(|coll| format!(" or its collection {coll}")).unwrap_or_default();
        Err(Error::precondition(
            format!(
                "the user of the destination may not {} on the database {db}{coll}",
                lacking.join(", ")
            ),
            format!("grant the role{role} on {db}, or name another user"),
        ))
    };
    for planned in plan.collections.iter().chain(&plan.views) {
        of(&planned.to.db, Some(&planned.to.coll), &needed, "s readWrite and dbAdmin")?;
    }
    for planned in &plan.functions {
        of(&planned.to.db, Some(&planned.to.coll), &WRITES_FUNCTIONS, " readWrite")?;
    }
    of(STATE_DB, None, &STATE, " readWrite")
}

/// Parses `text` as a shard key; returns `None` without a text, and an error if it cannot be a shard key.
pub(super) fn key_of(text: Option<&str>) -> Result<Option<Key>> {
    text.map(Key::parse).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_sharded_is_known_before_it_is_copied() {
        let listed = |options| Listed {
            ns: "shop.orders".parse().unwrap(),
            kind: Kind::Collection,
            options,
        };
        let key = Key::parse(r#"{"customer": 1}"#).unwrap();
        let unique = |fields: Document| vec![doc! {"name": "i", "key": fields, "unique": true}];
        let check = |options, indexes: Vec<Document>| check_key(&key, &listed(options), &indexes);
        assert!(check(doc! {}, unique(doc! {"customer": 1, "number": 1})).is_ok());
        let error = check(doc! {}, unique(doc! {"number": 1})).unwrap_err();
        assert!(error.to_string().contains("unique index i of shop.orders"), "{error}");
        assert!(check(doc! {"capped": true, "size": 4096}, vec![]).is_err());
    }
}
