//! The shards that an operation reaches, by the rules of a router.
//!
//! Equalities on the first fields of a key, and a range on the next one, bound an operation to one part of the key's space
//! or to several (`$in`); it reaches the shards that have chunks there. A hashed field is bounded by equalities only. A
//! write of one document needs to reach one shard, or to name an `_id`, with which it is sent to all shards.

use super::workload::{Condition, Kind, Operation, Shape};
use super::{Field, Layout, Part, Point, Value, Workload};

/// Largest number of parts of the key's space for one operation. Beyond it, they count as one range from the first to
/// the last.
const PARTS_MAX: usize = 4_096;

/// Rules that depend on the server.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The field `_id`; `None` if no operation has a condition on it.
    pub id: Option<Field>,
    /// True if a write of one document may lack both the key and `_id` (MongoDB 7.1 and newer): it reaches all shards.
    pub finds_single_writes: bool,
}

/// Some shards of a cluster.
#[derive(Clone, Debug)]
pub(super) struct ShardSet {
    words: Vec<u64>,
    len: usize,
}

impl ShardSet {
    pub(super) fn new(shards: usize) -> Self {
        Self { words: vec![0; shards.div_ceil(64)], len: 0 }
    }

    fn clear(&mut self) {
        self.words.fill(0);
        self.len = 0;
    }

    /// Adds the shard; returns true if it was not in the set.
    pub(super) fn insert(&mut self, shard: u16) -> bool {
        let (word, bit) = (usize::from(shard) / 64, 1 << (shard % 64));
        let is_new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.len += usize::from(is_new);
        is_new
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(at, word)| {
            let mut rest = *word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros() as usize;
                rest &= rest.checked_sub(1)?;
                Some(at * 64 + bit)
            })
        })
    }
}

/// The place of an operation, other than its shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// The router refuses the operation.
    Refused,
    /// The operation is for one value of the key, in the chunk `chunk`.
    At {
        /// The value.
        point: Point,
        /// Index of the chunk.
        chunk: usize,
    },
    /// The operation is for a part of the key's space.
    Part,
    /// The operation says nothing of the key's first field, or nothing that bounds it.
    All,
}

/// Place of the values of a key's field in an operation: the condition, and the index of its first value.
type Bound = Option<(Condition, usize)>;

/// Routes the operations of a workload over the chunks of one key.
pub(super) struct Router<'a> {
    layout: &'a Layout,
    rules: Rules,
    /// Value of null in each field.
    nulls: &'a [Value],
    /// For each shape without `In` the bounds of the key's fields.
    bounds: Vec<Option<Vec<Bound>>>,
    /// Shards that have chunks.
    owners: ShardSet,
    /// The parts of the key's space that are being computed: lower and upper bounds, both included.
    parts: Vec<(Point, Point)>,
    /// The shards of the last operation.
    pub(super) reached: ShardSet,
}

impl<'a> Router<'a> {
    pub(super) fn new(
        layout: &'a Layout,
        workload: &Workload,
        rules: Rules,
        nulls: &'a [Value],
    ) -> Self {
        let mut owners = ShardSet::new(layout.shards());
        for chunk in 0..layout.chunks() {
            owners.insert(layout.shard_of(chunk));
        }
        let bounds = { workload.shapes().iter() }
            .map(|shape| {
                let has_lists =
                    shape.conditions.iter().any(|(_, condition)| *condition == Condition::In);
                (!has_lists).then(|| bounds_of(layout, shape, |_| 0))
            })
            .collect();
        let reached = ShardSet::new(layout.shards());
        Self { layout, rules, nulls, bounds, owners, parts: Vec::new(), reached }
    }

    /// Returns the number of shards that have chunks.
    pub(super) fn owners(&self) -> usize {
        self.owners.len()
    }

    /// Routes an operation whose shape has the index `shape`; [`Router::reached`] has its shards afterwards.
    pub(super) fn route(&mut self, shape: usize, operation: &Operation<'_>) -> Route {
        self.reached.clear();
        let route = self.place(shape, operation);
        match route {
            Route::At { chunk, .. } => {
                self.reached.insert(self.layout.shard_of(chunk));
            }
            Route::All => self.reached.clone_from(&self.owners),
            Route::Part => self.reach_parts(),
            Route::Refused => {}
        }
        let route = self.permitted(route, operation);
        if route == Route::Refused {
            self.reached.clear();
        }
        route
    }

    /// Applies the rules for writes, which a router sends to one shard or to all shards of the cluster.
    fn permitted(&mut self, route: Route, operation: &Operation<'_>) -> Route {
        let shape = operation.shape;
        let is_one = self.reached.len() == 1;
        if shape.kind == Kind::WriteMany && !shape.is_upsert && !is_one {
            return self.reach_all();
        }
        let is_single =
            matches!(shape.kind, Kind::UpdateOne | Kind::DeleteOne | Kind::FindAndModify);
        let needs_shard = is_single || shape.is_upsert;
        if !needs_shard || self.rules.finds_single_writes || matches!(route, Route::At { .. }) {
            return route;
        }
        if shape.is_opaque {
            return self.reach_all();
        }
        if shape.is_upsert || shape.kind == Kind::FindAndModify {
            return Route::Refused;
        }
        if is_one && shape.kind == Kind::UpdateOne {
            return route;
        }
        let id = self.rules.id;
        if id.is_some_and(|id| shape.conditions.contains(&(id, Condition::Equal))) {
            return self.reach_all();
        }
        Route::Refused
    }

    /// Has the operation reach every shard of the cluster, those without chunks included.
    fn reach_all(&mut self) -> Route {
        for shard in 0..self.layout.shards() {
            self.reached.insert(shard as u16);
        }
        Route::All
    }

    fn place(&mut self, shape: usize, operation: &Operation<'_>) -> Route {
        if operation.shape.is_opaque {
            return Route::All;
        }
        let layout = self.layout;
        let listed;
        let bounds = match &self.bounds[shape] {
            Some(bounds) => bounds,
            None => {
                let rank = |at: usize| operation.values.get(at).rank as usize;
                listed = bounds_of(layout, operation.shape, rank);
                &listed
            }
        };
        let is_insert = operation.shape.kind == Kind::Insert;
        self.parts.clear();
        self.parts.push(Default::default());
        let mut is_exact = true;
        for (at, (part, bound)) in layout.key.parts().iter().zip(bounds).enumerate() {
            let position = |index: usize| part.position(operation.values.get(index));
            match bound {
                Some((Condition::Equal, index)) if is_exact => {
                    let position = position(*index);
                    extend(&mut self.parts, at, position, position);
                }
                Some((Condition::In, index)) if is_exact => {
                    let count = operation.values.get(*index).rank as usize;
                    let positions = (0..count).map(|offset| position(index + 1 + offset));
                    is_exact = extend_each(&mut self.parts, at, positions);
                }
                Some((Condition::Between, index)) if is_exact && !part.is_hashed => {
                    extend(&mut self.parts, at, position(*index), position(index + 1));
                    is_exact = false;
                }
                None if is_insert => {
                    let null = self.nulls[usize::from(part.field)];
                    extend(&mut self.parts, at, part.position(null), part.position(null));
                }
                _ => {
                    if at == 0 {
                        return Route::All;
                    }
                    is_exact = false;
                    extend(&mut self.parts, at, i64::MIN, i64::MAX);
                }
            }
        }
        match &self.parts[..] {
            [(point, _)] if is_exact => Route::At { point: *point, chunk: layout.chunk_of(point) },
            _ => Route::Part,
        }
    }

    /// Adds the shards of all parts to those that were reached.
    fn reach_parts(&mut self) {
        let layout = self.layout;
        for (low, high) in &self.parts {
            if low > high {
                continue;
            }
            let (mut chunk, last) = (layout.chunk_of(low), layout.chunk_of(high));
            while chunk <= last && self.reached.len() < self.owners.len() {
                self.reached.insert(layout.shard_of(chunk));
                chunk = layout.next_other(chunk);
            }
        }
        if self.reached.len() == 0 {
            // Nothing can match; the router asks one shard all the same.
            self.reached.insert(layout.shard_of(0));
        }
    }
}

/// Sets the bounds of the field at `at` in all parts.
fn extend(parts: &mut [(Point, Point)], at: usize, low: i64, high: i64) {
    for part in parts {
        (part.0[at], part.1[at]) = (low, high);
    }
}

/// Sets the field at `at` to each of `positions` in all parts. Returns false if there would be too many parts: then the
/// field is bounded by the least and the greatest position.
fn extend_each(
    parts: &mut Vec<(Point, Point)>,
    at: usize,
    positions: impl ExactSizeIterator<Item = i64> + Clone,
) -> bool {
    if positions.len() * parts.len() > PARTS_MAX || positions.len() == 0 {
        let low = positions.clone().min().unwrap_or(0);
        extend(parts, at, low, positions.max().unwrap_or(-1));
        return false;
    }
    let before = std::mem::take(parts);
    for part in before {
        for position in positions.clone() {
            let mut next = part;
            (next.0[at], next.1[at]) = (position, position);
            parts.push(next);
        }
    }
    true
}

/// Returns for each of the key's fields its condition in `shape`, with the index of its first value. `length` returns
/// the number of values of the list whose first value has the given index.
fn bounds_of(layout: &Layout, shape: &Shape, length: impl Fn(usize) -> usize) -> Vec<Bound> {
    let mut starts = Vec::with_capacity(shape.conditions.len());
    let mut next = 0;
    for (_, condition) in &shape.conditions {
        starts.push(next);
        next += match condition {
            Condition::Equal => 1,
            Condition::Between => 2,
            Condition::In => 1 + length(next),
        };
    }
    let bound = |part: &Part| {
        let at = shape.conditions.iter().position(|(field, _)| *field == part.field)?;
        Some((shape.conditions[at].1, starts[at]))
    };
    layout.key.parts().iter().map(bound).collect()
}

/// Counts operations once that shards have shown, each at every shard that executed it: `shown_at` has the shard that showed
/// each operation. Returns for each the number of shards that showed it if it counts, at the first of the shards that it
/// reaches; `None` for the others. An insert counts where it is shown, and so does an operation at a shard that it should not
/// reach.
#[must_use]
pub fn count_once(
    workload: &Workload,
    layout: &Layout,
    rules: Rules,
    nulls: &[Value],
    shown_at: &[Option<u16>],
) -> Vec<Option<u32>> {
    let mut router = Router::new(layout, workload, rules, nulls);
    let mut counted = |(index, shown_at): (usize, &Option<u16>)| {
        let operation = workload.get(index);
        let Some(shard) = shown_at.filter(|_| operation.shape.kind != Kind::Insert) else {
            return Some(1);
        };
        router.route(workload.shape_at(index), &operation);
        let is_expected = router.reached.iter().any(|reached| reached == usize::from(shard));
        let is_first = router.reached.iter().next() == Some(usize::from(shard));
        let shards = router.reached.len() as u32;
        match (is_expected, is_first) {
            (false, _) => Some(1),
            (true, true) => Some(shards),
            (true, false) => None,
        }
    };
    shown_at.iter().enumerate().map(&mut counted).collect()
}
