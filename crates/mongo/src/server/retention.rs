//! Retention: the rules by which a server deletes documents by itself, and their suspension at a destination.
//!
//! A server expires documents by TTL indexes, and in clustered collections by `expireAfterSeconds`; it evicts the
//! oldest documents of a capped collection. A destination that did so by itself would not equal the source as of one
//! time: the source may drop the index, or raise its time, while the job is paused or has no process, and the TTL
//! monitors of two clusters are never in phase. The source's own deletions reach the destination as changes.
//!
//! Invariants:
//! - While a job has a destination, only the job deletes documents there: TTL indexes have a time that is never
//!   reached ([`NEVER_S`], as mongosync sets it), clustered collections have none, and capped ones have a size that
//!   they do not reach ([`UNBOUNDED_BYTES`]).
//! - The job's state holds the retention rules of the destination before they are suspended, so that the cut-over, an
//!   operator's decision, or a cancellation can restore them.
//!
//! A document whose date is more than [`NEVER_S`] (68 years) in the past still expires.

use std::collections::BTreeMap;

use bson::{Bson, Document, doc};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::server::collection::{Definition, Handle, Kind, name_of};
use crate::server::endpoint::Endpoint;

/// Expiry time of a suspended TTL index, in seconds after the date in the document: the longest that servers accept.
pub const NEVER_S: i64 = 2_147_483_647;
/// Expiry time of a suspended TTL index at a server before 6.0, in seconds after the date in the document: some of
/// these servers refuse a time longer than that since 1970.
const NEVER_BEFORE_6_S: i64 = 1_700_000_000;
/// Maximum size of a suspended capped collection, in bytes. Servers allocate only the used part.
pub const UNBOUNDED_BYTES: i64 = 1 << 40;
/// The `max` (number of documents) that servers list for a capped collection whose `max` was removed.
pub(crate) const NO_MAX: i64 = 2_147_483_647;

const EXPIRE_AFTER: &str = "expireAfterSeconds";

/// The rules by which a server deletes documents of one collection. The default keeps every document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// The expiry time of each TTL index, in seconds after the date in the document, by the index's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub indexes: BTreeMap<String, i64>,
    /// The expiry time of a clustered collection, in seconds after the date in `_id`; `None` if its documents do not
    /// expire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expire_after_s: Option<i64>,
    /// The limits of a capped collection; `None` for other collections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capped: Option<Capped>,
}

/// The limits of a capped collection, beyond which the oldest documents are evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capped {
    /// Maximum size of the collection, in bytes.
    pub size: i64,
    /// Maximum number of documents in the collection; `None` if it is not bounded.
    pub max: Option<i64>,
}

/// The retention rules that a job suspends at its destination, by the versions of both clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspension {
    /// True if the limits of capped collections are suspended: from 6.0 on, a source reports evictions as deletes,
    /// and a destination can change the size.
    pub capped: bool,
    /// Expiry time that a suspended TTL index gets, in seconds after the date in the document.
    pub never_s: i64,
}

impl Suspension {
    /// Returns the suspension that the versions of the two clusters permit.
    #[must_use]
    pub fn between(source: &Endpoint, destination: &Endpoint) -> Self {
        let is_new = destination.version() >= [6, 0, 0];
        Self {
            capped: is_new && source.version() >= [6, 0, 0],
            never_s: if is_new { NEVER_S } else { NEVER_BEFORE_6_S },
        }
    }

    /// Returns `definition` with its retention rules suspended.
    #[must_use]
    pub fn applied_to(self, definition: &Definition) -> Definition {
        let mut suspended = definition.clone();
        suspended.indexes.iter_mut().for_each(|index| self.index(index));
        suspended.options = self.options(&definition.options);
        suspended
    }

    /// Suspends the expiry of an index that is to be built; an index without an expiry stays as it is.
    pub fn index(self, index: &mut Document) {
        if index.contains_key(EXPIRE_AFTER) {
            index.insert(EXPIRE_AFTER, self.never());
        }
    }

    fn never(self) -> Bson {
        i32::try_from(self.never_s).map_or(Bson::Int64(self.never_s), Bson::Int32)
    }

    /// Returns those retention rules of `definition` that are in force and that this suspension covers.
    #[must_use]
    pub fn of(self, definition: &Definition) -> Retention {
        let mut rules = Retention::of(definition);
        rules.capped = rules.capped.filter(|_| self.capped);
        rules
    }

    /// Returns the options of a collection with its retention rules suspended, as [`Suspension::applied_to`] does.
    #[must_use]
    pub fn options(self, options: &Document) -> Document {
        let mut options = options.clone();
        options.remove(EXPIRE_AFTER);
        if self.capped && options.get_bool("capped").unwrap_or(false) {
            options.insert("size", UNBOUNDED_BYTES);
            options.remove("max");
        }
        options
    }
}

/// Returns the expiry time of a TTL index, in seconds after the date in the document; `None` if the index has no
/// expiry, or one that is never reached. Servers before 5.0 accepted every number: NaN expires nothing.
pub(crate) fn expires_after_s(index: &Document) -> Option<i64> {
    let after = index.get(EXPIRE_AFTER)?;
    let is_number = !matches!(after, Bson::Double(n) if n.is_nan());
    let after_s = integer(after).filter(|_| is_number)?.clamp(0, NEVER_S);
    (after_s != NEVER_S && after_s != NEVER_BEFORE_6_S).then_some(after_s)
}

impl Retention {
    /// Returns the retention rules of `definition` that are in force, without suspended ones.
    #[must_use]
    pub fn of(definition: &Definition) -> Self {
        let time = |index: &Document| Some((name_of(index).to_owned(), expires_after_s(index)?));
        let options = &definition.options;
        let capped = || {
            let size = integer(options.get("size")?)?;
            let max = options.get("max").and_then(integer).filter(|max| *max != NO_MAX);
            (size < UNBOUNDED_BYTES).then_some(Capped { size, max })
        };
        Self {
            indexes: definition.indexes.iter().filter_map(time).collect(),
            expire_after_s: options.get(EXPIRE_AFTER).and_then(integer),
            capped: if definition.is_capped() { capped() } else { None },
        }
    }

    /// Returns true if these rules never delete a document.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns these rules, those of a destination, overridden by the rules of `source`; the expiry times of the
    /// destination's further indexes stay.
    #[must_use]
    pub fn overridden_by(mut self, source: Self) -> Self {
        self.indexes.extend(source.indexes);
        Self { indexes: self.indexes, ..source }
    }
}

/// Suspends the retention rules that are in force in the collection `to`, whose definition is `have`.
///
/// # Errors
/// Fails if the server does not reply or refuses, or if it is uncertain that this process owns the job.
#[crate::boxed]
pub async fn suspend(to: &Handle, have: &Definition, suspension: Suspension) -> Result<()> {
    let in_force = suspension.of(have);
    for name in in_force.indexes.keys() {
        modify(to, doc! {"index": {"name": name, EXPIRE_AFTER: suspension.never()}}).await?;
    }
    if in_force.expire_after_s.is_some() {
        modify(to, doc! {EXPIRE_AFTER: "off"}).await?;
    }
    if let Some(Capped { max, .. }) = in_force.capped {
        let mut change = doc! {"cappedSize": UNBOUNDED_BYTES};
        change.extend(max.map(|_| ("cappedMax".into(), Bson::Int32(0))));
        modify(to, change).await?;
    }
    Ok(())
}

/// Puts the retention rules `rules` in force in the collection `to`. Indexes that do not exist, rules that are in
/// force already, and a collection that is gone are left unchanged.
///
/// # Errors
/// Fails if the server does not reply or refuses, or if it is uncertain that this process owns the job.
#[crate::boxed]
pub async fn restore(to: &Handle, rules: &Retention) -> Result<()> {
    if rules.is_empty() {
        return Ok(());
    }
    let is_collection = |of: &Definition| of.kind == Kind::Collection;
    let Some(have) = to.definition().await?.filter(is_collection) else { return Ok(()) };
    for index in &have.indexes {
        let (name, time) = (name_of(index), index.get(EXPIRE_AFTER).and_then(integer));
        if let (Some(after_s), Some(time)) = (rules.indexes.get(name), time)
            && time != *after_s
        {
            modify(to, doc! {"index": {"name": name, EXPIRE_AFTER: *after_s}}).await?;
        }
    }
    let in_force = Retention::of(&have);
    let is_clustered = have.options.contains_key("clusteredIndex");
    let is_missing = is_clustered && in_force.expire_after_s.is_none();
    if let Some(after_s) = rules.expire_after_s.filter(|_| is_missing) {
        modify(to, doc! {EXPIRE_AFTER: after_s}).await?;
    }
    if let Some(Capped { size, max }) = rules.capped.filter(|_| have.is_capped())
        && in_force.capped != rules.capped
    {
        let mut change = doc! {"cappedSize": size};
        change.extend(max.map(|max| ("cappedMax".into(), Bson::Int64(max))));
        modify(to, change).await?;
    }
    Ok(())
}

async fn modify(to: &Handle, change: Document) -> Result<()> {
    to.check_owner("collMod")?;
    let mut command = doc! {"collMod": &to.ns.coll};
    command.extend(change);
    to.endpoint.run_at_length(&to.ns.db, command).await.map(|_| ())
}

/// Returns the whole number that `value` holds, which may be of any of the server's number types, or `None` for
/// another type.
pub(crate) fn integer(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(n) => Some(i64::from(*n)),
        Bson::Int64(n) => Some(*n),
        // Shells send whole numbers as doubles, far below 2^53.
        #[expect(clippy::cast_possible_truncation)]
        Bson::Double(n) => Some(*n as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUSPENSION: Suspension = Suspension { capped: true, never_s: NEVER_S };

    fn sessions(options: Document, after: impl Into<Bson>) -> Definition {
        let ttl = doc! {"key": {"seenAt": 1}, "name": "seenAt_1", EXPIRE_AFTER: after.into()};
        let plain = doc! {"key": {"user": 1}, "name": "user_1"};
        let (kind, indexes) = (Kind::Collection, vec![plain, ttl]);
        Definition { kind, options, indexes, building: Vec::new(), shard_key: None }
    }

    #[test]
    fn suspended_rules_are_none_and_the_definition_is_otherwise_the_same() {
        let clustered = doc! {"clusteredIndex": {"key": {"_id": 1}}, EXPIRE_AFTER: 86_400_i64};
        let before = sessions(clustered, 3_600.0);
        let rules = Retention::of(&before);
        assert_eq!(rules.indexes, BTreeMap::from([("seenAt_1".to_owned(), 3_600)]));
        assert_eq!(rules.expire_after_s, Some(86_400));
        let suspended = SUSPENSION.applied_to(&before);
        assert!(Retention::of(&suspended).is_empty());
        assert_eq!(suspended.indexes[0], before.indexes[0]);
        assert!(suspended.options.contains_key("clusteredIndex"));
        assert_eq!(suspended.indexes.len(), 2, "a TTL index stays one: collMod alone restores it");
    }

    #[test]
    fn a_time_that_is_no_number_never_comes() {
        let rules = |after: Bson| Retention::of(&sessions(doc! {}, after)).indexes;
        for never in [Bson::Double(f64::NAN), Bson::Int32(i32::MAX), Bson::Int64(1 << 40)] {
            assert!(rules(never.clone()).is_empty(), "{never}");
        }
        assert_eq!(rules(Bson::Double(60.0)).len(), 1);
        let old = Suspension { capped: false, never_s: NEVER_BEFORE_6_S };
        assert!(Retention::of(&old.applied_to(&sessions(doc! {}, 60))).is_empty());
    }

    #[test]
    fn a_capped_collection_is_suspended_only_where_its_evictions_arrive_as_changes() {
        let capped = doc! {"capped": true, "size": 1_048_576, "max": 5_000};
        let before = sessions(capped.clone(), 60);
        let bounds = Capped { size: 1_048_576, max: Some(5_000) };
        assert_eq!(Retention::of(&before).capped, Some(bounds));
        let suspended = SUSPENSION.applied_to(&before);
        assert_eq!(Retention::of(&suspended).capped, None);
        assert_eq!(Suspension { capped: false, ..SUSPENSION }.options(&capped), capped);
        let unlimited = doc! {"capped": true, "size": 4096, "max": i32::MAX};
        let bounds = Retention::of(&sessions(unlimited, 60)).capped;
        assert_eq!(bounds, Some(Capped { size: 4096, max: None }));
    }

    #[test]
    fn the_source_decides_where_both_have_a_rule() {
        let index = |name: &str, after_s| BTreeMap::from([(name.to_owned(), after_s)]);
        let own = Retention {
            indexes: [index("at_1", 10), index("own_1", 20)].into_iter().flatten().collect(),
            ..Retention::default()
        };
        let source = Retention { indexes: index("at_1", 30), ..Retention::default() };
        let both = own.overridden_by(source);
        assert_eq!(
            both.indexes,
            [index("at_1", 30), index("own_1", 20)].into_iter().flatten().collect()
        );
    }
}
