//! What came of advice on a shard key: the advice from before a change beside advice on the same collection after it.
//!
//! Both are by the operations that a source showed, the one before the change and the other after it. The new key is judged on its chunks
//! as they are now, and the old one as if the collection were changed back: clients may do something else by now, so that neither
//! the old effect nor the predicted one is a measure of the present by itself.

use imago_job::clock::now_ms;
use imago_job::id::JobId;
use imago_job::journal::Journal as _;
use imago_job::state::State;
use serde::{Deserialize, Serialize};

use super::advice::{Advice, KeyEffect};
use super::source::SourceFacts;
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::reshard::spec::Spec;
use crate::server::endpoint::Endpoint;
use crate::server::shard_key::Key;
use crate::state::journal::MongoJournal;

/// A job that has changed the shard key of a collection.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyChange {
    /// The job's id.
    pub job: JobId,
    /// The collection.
    pub ns: Namespace,
    /// The old key, as extended JSON.
    pub old_key: String,
    /// The new key, as extended JSON.
    pub key: String,
    /// Time since the job ended, in seconds.
    pub since_s: u64,
}

/// What was predicted of a change of the shard key, and what is seen after it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeyOutcome {
    /// The job that changed the key.
    pub job: String,
    /// Full name of the collection.
    pub ns: String,
    /// The old key.
    pub old_key: String,
    /// The new key.
    pub key: String,
    /// Time since the job ended, in seconds.
    pub since_s: u64,
    /// The source of the operations after the change.
    pub source: SourceFacts,
    /// Number of operations after the change that were judged.
    pub operations: u64,
    /// The old key before the change.
    pub before: ClientEffect,
    /// The new key, as predicted before the change.
    pub predicted: ClientEffect,
    /// The new key, on its chunks and by the operations after the change.
    pub now: ClientEffect,
    /// Share of the operations that each shard showed after the change; `None` if the source does not tell shards.
    pub received: Option<Vec<f64>>,
    /// Predicted throughput that the busiest shard allows, divided by that of the old key.
    pub predicted_ratio: f64,
    /// Bounds of the 90 % interval of the predicted ratio.
    pub predicted_interval: (f64, f64),
    /// The same ratio by the operations after the change; `None` if the old key cannot be judged by them.
    pub ratio_now: Option<f64>,
    /// Bounds of the 90 % interval of that ratio.
    pub interval_now: Option<(f64, f64)>,
}

/// The effect of a key on clients, in short.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientEffect {
    /// Share of the reads that one shard answers.
    pub reads_by_one: f64,
    /// Share of the writes that one shard executes.
    pub writes_by_one: f64,
    /// Share of the processor time of all shards that the busiest one takes.
    pub busiest: f64,
    /// Share of the operations that are for the most frequent value of the key.
    pub hottest: f64,
}

impl ClientEffect {
    fn of(effect: &KeyEffect) -> Self {
        Self {
            reads_by_one: effect.reads.one,
            writes_by_one: effect.writes.one,
            busiest: effect.load.iter().copied().fold(0.0, f64::max),
            hottest: effect.hottest,
        }
    }
}

impl KeyChange {
    /// Finds the job `id`.
    ///
    /// # Errors
    /// Precondition if there is no such job in the cluster, if it is no reshard, or if it has not changed a key.
    #[crate::boxed]
    pub async fn of(cluster: &Endpoint, id: &JobId) -> Result<Self> {
        let record = MongoJournal::new(cluster.clone()).load(id).await?;
        let plan = Spec::of(&record)?.reshard;
        if record.state != State::Done {
            return Err(Error::precondition(
                format!("job {id} is {}: it has not changed the key of {}", record.state, plan.ns),
                "`imago job list` shows the jobs that are done",
            ));
        }
        if is_same(&plan.old_key, &plan.key)? {
            return Err(Error::precondition(
                format!("job {id} kept the key of {}: advice is on keys", plan.ns),
                "`imago job list` shows what each job is",
            ));
        }
        Ok(Self {
            job: id.clone(),
            ns: plan.ns,
            old_key: plan.old_key,
            key: plan.key,
            since_s: now_ms().saturating_sub(record.updated_at_ms) / 1_000,
        })
    }

    /// Compares the advice `before` the change with that `after` it.
    ///
    /// # Errors
    /// Usage if `before` is on another collection or key, precondition if the collection has another key by now.
    pub fn compared(&self, before: &Advice, after: &Advice) -> Result<KeyOutcome> {
        let wrong = |what: String| {
            Err(Error::usage(
                what,
                "name the file of `imago reshard advise --json` before the change",
            ))
        };
        if before.ns != self.ns.to_string() {
            return wrong(format!(
                "the advice is on {}, and the job changed {}",
                before.ns, self.ns
            ));
        }
        if !is_key(before.present.key.as_deref(), &self.old_key)? {
            let present = before.present.key.as_deref().unwrap_or("no key");
            return wrong(format!(
                "the advice was given while the collection had {present}, and the job changed {}",
                self.old_key
            ));
        }
        if before.shards.len() != after.shards.len() {
            return wrong(format!(
                "the advice is for {} shards, and the cluster has {}",
                before.shards.len(),
                after.shards.len()
            ));
        }
        let Some(predicted) = effect_of(before, &self.key)? else {
            return wrong(format!("the advice does not judge {}", self.key));
        };
        if !is_key(after.present.key.as_deref(), &self.key)? {
            let present = after.present.key.as_deref().unwrap_or("no key");
            return Err(Error::precondition(
                format!("{} has {present} by now, and not {}", self.ns, self.key),
                "name the job that changed the key last",
            ));
        }
        let old = effect_of(after, &self.old_key)?.filter(|old| old.ratio > 0.0);
        let received = after.received.as_ref().map(|received| {
            let all = received.iter().sum::<u64>().max(1) as f64;
            received.iter().map(|shard| *shard as f64 / all).collect()
        });
        Ok(KeyOutcome {
            job: self.job.to_string(),
            ns: self.ns.to_string(),
            old_key: self.old_key.clone(),
            key: self.key.clone(),
            since_s: self.since_s,
            source: after.source.clone(),
            operations: after.operations,
            before: ClientEffect::of(&before.present),
            predicted: ClientEffect::of(predicted),
            now: ClientEffect::of(&after.present),
            received,
            predicted_ratio: predicted.ratio,
            predicted_interval: predicted.ratio_interval,
            ratio_now: old.map(|old| old.ratio.recip()),
            interval_now: { old.map(|old| old.ratio_interval) }
                .filter(|(low, _)| *low > 0.0)
                .map(|(low, high)| (high.recip(), low.recip())),
        })
    }
}

fn effect_of<'a>(advice: &'a Advice, key: &str) -> Result<Option<&'a KeyEffect>> {
    for effect in &advice.keys {
        if is_key(effect.key.as_deref(), key)? {
            return Ok(Some(effect));
        }
    }
    Ok(None)
}

fn is_key(one: Option<&str>, other: &str) -> Result<bool> {
    one.map_or(Ok(false), |one| is_same(one, other))
}

fn is_same(one: &str, other: &str) -> Result<bool> {
    Ok(Key::parse(one)?.is_same(&Key::parse(other)?.pattern))
}

#[cfg(test)]
mod tests {
    use super::super::advice::Shares;
    use super::*;

    fn effect(key: &str, reads_by_one: f64, ratio: f64) -> KeyEffect {
        let reads = Shares { operations: 900, one: reads_by_one, ..Shares::default() };
        KeyEffect {
            key: Some(key.to_owned()),
            reads,
            writes: reads,
            throughput: 4_000.0 * ratio,
            ratio,
            ratio_interval: (0.8 * ratio, 1.25 * ratio),
            requests: vec![300, 340, 260],
            load: vec![0.33, 0.38, 0.29],
            scatter: 0.0,
            bytes: vec![50_000_000; 3],
            chunks: 3,
            largest_chunk_bytes: 50_000_000,
            hottest: 0.01,
            heaviest: 0.01,
            inserts_in_one_chunk: None,
            transactions_on_one: None,
            key_changes: 0.0,
            findings: Vec::new(),
            why_not: None,
            change: None,
        }
    }

    fn advice(present: KeyEffect, keys: Vec<KeyEffect>) -> Advice {
        let source = SourceFacts {
            source: "profilers of 3 shards".to_owned(),
            operations: 900,
            share: Some(1.0),
            seconds: Some(60.0),
            notes: Vec::new(),
        };
        Advice {
            ns: "shop.reviews".to_owned(),
            shards: ["s1", "s2", "s3"].map(str::to_owned).to_vec(),
            source,
            operations: 900,
            received: Some(vec![300, 400, 300]),
            ignored: Vec::new(),
            documents: 20_000,
            fields: Vec::new(),
            present,
            keys,
            advised: None,
        }
    }

    const OLD: &str = r#"{"time": 1}"#;
    const NEW: &str = r#"{"userID": "hashed"}"#;

    fn change() -> KeyChange {
        KeyChange {
            job: "1m8ncax28-ebam".parse().unwrap(),
            ns: Namespace::new("shop", "reviews"),
            old_key: r#"{"time":1}"#.to_owned(),
            key: NEW.to_owned(),
            since_s: 3_700,
        }
    }

    #[test]
    fn a_change_is_compared_with_its_prediction() {
        let before = advice(effect(OLD, 0.0, 1.0), vec![effect(NEW, 0.98, 2.5)]);
        let after = advice(effect(NEW, 0.97, 1.0), vec![effect(OLD, 0.0, 0.5)]);
        let outcome = change().compared(&before, &after).unwrap();
        assert_eq!((outcome.predicted.reads_by_one, outcome.now.reads_by_one), (0.98, 0.97));
        assert_eq!((outcome.predicted_ratio, outcome.ratio_now), (2.5, Some(2.0)));
        let (low, high) = outcome.interval_now.unwrap();
        assert!((low - 1.6).abs() < 1e-9 && (high - 2.5).abs() < 1e-9, "{low} {high}");
        assert_eq!(outcome.received, Some(vec![0.3, 0.4, 0.3]));
    }

    #[test]
    fn advice_that_says_nothing_of_the_change_is_refused() {
        let before = advice(effect(OLD, 0.0, 1.0), vec![effect(NEW, 0.98, 2.5)]);
        let after = advice(effect(NEW, 0.97, 1.0), vec![effect(OLD, 0.0, 0.5)]);
        let refused = |before: &Advice, after: &Advice| {
            change().compared(before, after).unwrap_err().to_string()
        };
        let other = Advice { ns: "shop.orders".to_owned(), ..before.clone() };
        assert!(refused(&other, &after).contains("on shop.orders"));
        let unjudged = Advice { keys: Vec::new(), ..before.clone() };
        assert!(refused(&unjudged, &after).contains("does not judge"));
        assert!(refused(&after, &after).contains("while the collection had"));
        assert!(refused(&before, &before).contains("by now"));
    }
}
