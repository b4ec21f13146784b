//! Judging of keys: the effect of each on a workload, what forbids or speaks against it, and the order.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use bson::Document;
use imago_plan::reshard::placement::Shares as ServerShares;
use imago_plan::shard_key::{
    self, Costs, Effect, Estimate, FIELDS_MAX, Key as PlanKey, Layout, LayoutError, Part, Point,
    Reach, Rules, Value, Workload,
};

use super::advice::{KeyEffect, Shares};
use super::fields::FieldSample;
use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::reshard::findings::{obstacle, warning};
use crate::reshard::plan::Finding;
use crate::reshard::plan::survey::Survey;
use crate::server::shard_key::{Key, is_hashed};

/// Share of the operations for one value, or of the inserts into one chunk, from which on it is a warning.
const CONCENTRATED: f64 = 0.2;
/// Number of sampled documents of one value from which on its size is known.
const JUMBO_DOCUMENTS: usize = 3;
/// Share of the writes that change a field of the key from which on it is a warning.
const CHANGED: f64 = 0.01;
/// Keys whose throughputs cannot be told apart, and differ by less than this share, are ordered by their simplicity.
const ALIKE: f64 = 0.05;

/// What all keys are judged by.
pub(super) struct Inputs<'a> {
    pub(super) survey: &'a Survey,
    pub(super) sample: &'a FieldSample,
    pub(super) workload: &'a Workload,
    pub(super) rules: Rules,
    pub(super) costs: Costs,
    /// Value of null in each field.
    pub(super) nulls: Vec<Value>,
    /// Number of chunks of a planned layout.
    pub(super) chunks: usize,
    /// Largest size of a chunk, in bytes.
    pub(super) chunk_bytes: u64,
    /// Shares of the shards.
    pub(super) shares: ServerShares,
}

/// A key with its layout and its effect.
pub(super) struct Judged {
    pub(super) key: PlanKey,
    pub(super) layout: Layout,
    pub(super) effect: Effect,
}

impl Inputs<'_> {
    /// Returns the rules for the present layout: nothing is refused in a collection that is not sharded.
    pub(super) fn present_rules(&self, old: &Key) -> Rules {
        let is_sharded = !old.pattern.is_empty();
        Rules { finds_single_writes: self.rules.finds_single_writes || !is_sharded, ..self.rules }
    }

    /// Returns the present layout: the chunks that there are. Without a shard key all documents are one chunk.
    pub(super) fn present(&self, old: &Key) -> Result<Layout> {
        let shards = self.shares.servers();
        let documents = &self.sample.documents;
        let pattern = if old.pattern.is_empty() {
            bson::doc! {"_id": 1}
        } else {
            old.pattern.clone()
        };
        let key = self.key(&pattern)?;
        let chunks: Vec<(Point, u16)> = { self.survey.owners.chunks().iter() }
            .map(|(min, shard)| (self.bound(&key, &pattern, min), *shard as u16))
            .collect();
        Ok(Layout::present(documents, key, &chunks, shards))
    }

    /// Returns the position of the lower bound `min` of a chunk.
    fn bound(&self, key: &PlanKey, pattern: &Document, min: &Id) -> Point {
        let mut point = Point::default();
        let raw = min.as_raw();
        for (at, (part, path)) in key.parts().iter().zip(pattern.keys()).enumerate() {
            let value = raw.as_document().and_then(|bound| bound.get(path).ok().flatten());
            point[at] = match value {
                None | Some(bson::RawBsonRef::MinKey) => i64::MIN,
                Some(bson::RawBsonRef::MaxKey) => i64::MAX,
                Some(bson::RawBsonRef::Int64(hash)) if part.is_hashed => hash,
                Some(value) => {
                    let id = Id::from_raw(value);
                    part.position(self.sample.dictionary.value(part.field, &id))
                }
            };
        }
        point
    }

    /// Returns the key with this pattern.
    ///
    /// # Errors
    /// A precondition error for a key of too many fields, or of a field that is not sampled.
    pub(super) fn key(&self, pattern: &Document) -> Result<PlanKey> {
        let part = |(path, way): (&String, &bson::Bson)| {
            let field = self.sample.dictionary.field(path)?;
            Some(Part { field, is_hashed: is_hashed(way) })
        };
        let parts: Option<Vec<Part>> = pattern.iter().map(part).collect();
        parts.and_then(PlanKey::new).ok_or_else(|| {
            Error::precondition(
                format!("the key {pattern} cannot be judged"),
                format!("keys of up to {FIELDS_MAX} fields are, and of few fields in all"),
            )
        })
    }

    /// Returns the key as the servers write it.
    pub(super) fn pattern(&self, key: &PlanKey) -> Key {
        let part = |part: &Part| {
            let path = self.sample.dictionary.path(part.field).to_owned();
            let way = if part.is_hashed { "hashed".into() } else { bson::Bson::Int32(1) };
            (path, way)
        };
        Key { pattern: key.parts().iter().map(part).collect() }
    }

    /// Returns the effect of a layout on the workload, by the rules of the cluster.
    pub(super) fn effect(&self, layout: &Layout, rules: Rules) -> Effect {
        let documents = &self.sample.documents;
        shard_key::effect(self.workload, documents, layout, rules, &self.nulls, self.costs)
    }

    fn judge(&self, key: PlanKey) -> Result<Judged, LayoutError> {
        let documents = &self.sample.documents;
        let layout = Layout::planned(documents, key.clone(), self.chunks, &self.shares)?;
        let effect = self.effect(&layout, self.rules);
        Ok(Judged { key, layout, effect })
    }

    /// Judges all `keys`, on as many threads as there are processors.
    ///
    /// # Errors
    /// A precondition error if chunks cannot be placed.
    pub(super) fn judge_all(&self, keys: &[PlanKey]) -> Result<Vec<Judged>> {
        let next = AtomicUsize::new(0);
        let judged: Mutex<Vec<(usize, Result<Judged, LayoutError>)>> =
            Mutex::new(Vec::with_capacity(keys.len()));
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        std::thread::scope(|scope| {
            for _ in 0..threads.min(keys.len()) {
                scope.spawn(|| {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(key) = keys.get(index) else { break };
                        let done = self.judge(key.clone());
                        judged.lock().unwrap_or_else(PoisonError::into_inner).push((index, done));
                    }
                });
            }
        });
        let mut judged = judged.into_inner().unwrap_or_else(PoisonError::into_inner);
        // In the order of the keys, whichever thread was first.
        judged.sort_by_key(|(index, _)| *index);
        judged.into_iter().map(|(_, judged)| judged).collect::<Result<Vec<_>, _>>().map_err(
            |cause| Error::precondition(format!("keys cannot be judged: {cause}"), "see the cause"),
        )
    }

    /// Returns the report of a judged key. `gain` is its throughput compared with the present key's.
    pub(super) fn report(&self, judged: &Judged, gain: Estimate) -> KeyEffect {
        let (effect, layout) = (&judged.effect, &judged.layout);
        let total: f64 = effect.total_us.max(f64::MIN_POSITIVE);
        let bytes: u64 = layout.bytes().iter().sum();
        let (_, heaviest, heaviest_documents) = effect.heaviest.unwrap_or_default();
        let heaviest_share = heaviest as f64 / bytes.max(1) as f64;
        KeyEffect {
            key: Some(self.pattern(&judged.key).text()),
            reads: shares(&effect.reads),
            writes: shares(&effect.writes),
            throughput: effect.throughput(),
            ratio: gain.value,
            ratio_interval: gain.interval,
            requests: effect.operations.clone(),
            load: effect.load_us.iter().map(|load| load / total).collect(),
            scatter: effect.scatter_us / total,
            bytes: layout.bytes(),
            chunks: layout.chunks() as u64,
            largest_chunk_bytes: layout.largest_chunk_bytes(),
            hottest: effect.hottest.map_or(0.0, |(_, share)| share),
            heaviest: heaviest_share,
            inserts_in_one_chunk: effect.inserts_in_one_chunk,
            transactions_on_one: effect.transactions_on_one,
            key_changes: effect.key_changes,
            findings: self.findings(judged, heaviest, heaviest_documents),
            why_not: None,
            change: None,
        }
    }

    /// Returns what forbids the key, and what speaks against it.
    fn findings(&self, judged: &Judged, heaviest: u64, documents: usize) -> Vec<Finding> {
        let mut found = Vec::new();
        let (effect, key) = (&judged.effect, self.pattern(&judged.key));
        for part in judged.key.parts() {
            let facts = &self.sample.facts[usize::from(part.field)];
            if facts.arrays > 0.0 {
                let what = format!("{} holds arrays, which no shard key may", facts.field);
                found.push(obstacle("array", what, "choose another field"));
            }
        }
        for index in self.survey.definition.indexes.iter().filter(|index| !key.keeps(index)) {
            let name = index.get_str("name").unwrap_or("an index");
            found.push(obstacle(
                "unique_index",
                format!("the unique index {name} does not begin with the key"),
                "drop the index or make it an ordinary one, if the key is worth that",
            ));
        }
        let refused = effect.reads.refused + effect.writes.refused;
        if refused > 0 {
            let all = effect.reads.total() + effect.writes.total();
            found.push(obstacle(
                "refused_writes",
                format!(
                    "{} of the operations are writes of one document, or upserts, that do not say enough \
                     of the key; the server refuses them",
                    percent(refused as f64 / all.max(1) as f64)
                ),
                "add the key's fields to their queries first",
            ));
        }
        // One sampled document may stand for more than a chunk.
        if heaviest > self.chunk_bytes && documents >= JUMBO_DOCUMENTS {
            let what = format!(
                "documents of one value take {} MiB, more than a chunk, and can never be split",
                heaviest >> 20
            );
            found.push(warning("jumbo", what, "add a field to the key"));
        }
        let hottest = effect.hottest.map_or(0.0, |(_, share)| share);
        if hottest > CONCENTRATED {
            let what = format!("{} of the operations are for one value", percent(hottest));
            found.push(warning("hot_value", what, "one shard will always serve them"));
        }
        if let Some(share) = effect.inserts_in_one_chunk.filter(|share| *share > CONCENTRATED) {
            let what = format!("{} of the inserts go to one chunk", percent(share));
            found.push(warning("hot_chunk", what, "a hashed field spreads a growing one"));
        }
        if effect.key_changes > CHANGED {
            let share = percent(effect.key_changes);
            let what = format!("{share} of the writes change a field of the key");
            let help = "each moves a document: it needs a transaction or a retryable write";
            found.push(warning("changing", what, help));
        }
        found
    }
}

/// Orders keys: those that are possible first, then by throughput. Those whose interval reaches the best one are alike, and
/// are ordered by the number of their fields; a hash comes last, since no range is bounded by it.
pub(super) fn order(keys: &mut [KeyEffect]) {
    let possible = keys.iter().filter(|key| key.is_possible());
    let best = possible.map(|key| key.ratio).fold(0.0, f64::max);
    let is_alike =
        |key: &KeyEffect| key.ratio_interval.1 >= best && key.ratio >= best * (1.0 - ALIKE);
    let text = |key: &KeyEffect| key.key.clone().unwrap_or_default();
    keys.sort_by(|a, b| {
        let class = |key: &KeyEffect| (!key.is_possible(), !is_alike(key));
        let simple =
            |key: &KeyEffect| (text(key).matches(": ").count(), text(key).contains("hashed"));
        let order = class(a).cmp(&class(b));
        let order = order.then_with(|| match is_alike(a) {
            true => simple(a).cmp(&simple(b)),
            false => std::cmp::Ordering::Equal,
        });
        order.then(b.ratio.total_cmp(&a.ratio))
    });
}

/// Returns the sentence that says why `key` is not the one that is advised.
pub(super) fn why_not(key: &KeyEffect, first: &KeyEffect) -> String {
    if let Some(finding) = key.findings.iter().find(|_| !key.is_possible()) {
        return finding.what.clone();
    }
    let busiest = |key: &KeyEffect| key.load.iter().copied().fold(0.0, f64::max);
    let lost = first.throughput / key.throughput.max(1e-9) - 1.0;
    if lost < ALIKE {
        return "allows no more than the first key, which is simpler".into();
    }
    let scatters = key.reads.all + key.reads.several > first.reads.all + first.reads.several + 0.05;
    let cause = if key.scatter > first.scatter + 0.02 && scatters {
        format!(
            "{} of the reads reach more than one shard",
            percent(key.reads.all + key.reads.several)
        )
    } else if key.scatter > first.scatter + 0.02 {
        let share = key.writes.all + key.writes.several;
        format!("{} of the writes reach more than one shard", percent(share))
    } else {
        format!("the busiest shard takes {} of the load", percent(busiest(key)))
    };
    format!("the first key allows {} more: here {cause}", percent(lost))
}

fn shares(reach: &Reach) -> Shares {
    let total = reach.total().max(1) as f64;
    Shares {
        operations: reach.total(),
        one: reach.one as f64 / total,
        several: reach.several as f64 / total,
        all: reach.all as f64 / total,
        refused: reach.refused as f64 / total,
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}
