//! Advice on a shard key: the keys worth having for a collection, each with its effect on what clients do.
//!
//! Operations come from a [`Source`](source::Source): a recording, the servers' profilers, or their logs. Documents are
//! sampled as for a plan of a change. [`imago_plan::shard_key`] routes the operations by each candidate key; this module
//! supplies the values of both as numbers, and reports what came out with the reasons.
//!
//! Invariants: nothing of the collection is changed; every operation of the source is in the report, judged or counted with
//! the reason why a condition of it chooses no shards.

mod advice;
mod dictionary;
mod encode;
mod fields;
mod judge;
mod log_file;
mod operation;
mod outcome;
mod positions;
mod predicate;
mod profile;
mod recorder;
mod recording;
mod replay;
mod sampled_queries;
mod source;

use std::path::PathBuf;
use std::time::Duration;

use bson::Document;
use imago_job::control::Control;
use imago_plan::reshard::placement::Shares as ServerShares;
use imago_plan::shard_key::{self, Costs, FIELDS_MAX, Layout, Rules, Wanted, Workload};

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::reshard::plan::survey::{Survey, survey};
use crate::reshard::plan::{Request as PlanRequest, SAMPLE};
use crate::server::collection::Handle;
use crate::server::endpoint::Endpoint;
use crate::server::shard_key::{Key, is_hashed};

pub use advice::{Advice, Change, Ignored, KeyEffect, Shares};
pub use fields::FieldFacts;
pub use outcome::{ClientEffect, KeyChange, KeyOutcome};
pub use recorder::{Pending, Recorder};
pub use replay::Replay;
pub use source::SourceFacts;

use encode::{Encoded, encode};
use fields::FieldSample;
use judge::Inputs;
use operation::Operation;
use source::Source;

/// Processor time of the parts of an operation on one shard, where it is not given: of MongoDB 6.0 with documents of 1 KB
/// in memory.
pub const COSTS: Costs = Costs { request_us: 60.0, document_us: 3.0, write_us: 60.0 };
/// Number of the best keys whose change is planned.
const PLANNED: usize = 2;

/// Where the operations come from.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Logs of the cluster's servers, in which slow operations are written as JSON lines.
    Logs(Vec<PathBuf>),
    /// A file of [`Recorder`].
    Recording(PathBuf),
    /// What the cluster itself has sampled, since MongoDB 7.0.
    SampledQueries,
    /// The profilers of the shards, which are switched on for a time.
    Profilers {
        /// The time.
        within: Duration,
        /// Share of the operations that is recorded; `None` chooses it by their rate.
        rate: Option<f64>,
    },
}

/// A request for advice on the shard key of a collection.
#[derive(Clone, Debug)]
pub struct Request {
    /// Full name of the collection.
    pub ns: Namespace,
    /// Where operations come from.
    pub from: Origin,
    /// Name of this process, as `host/1234`.
    pub process: String,
    /// Keys to judge in any case, as extended JSON.
    pub keys: Vec<String>,
    /// Number of shards to judge keys for; `None`: as many as the cluster has.
    pub shards: Option<u16>,
    /// Number of documents to sample.
    pub sample: u64,
    /// Processor time of the parts of an operation on one shard.
    pub costs: Costs,
}

/// Judges the shard keys that a collection could have by what clients did.
///
/// # Errors
/// Usage for a key that cannot be a shard key; precondition if there is no such collection, if it has no documents, or if
/// the source has no operation on it.
#[crate::boxed]
pub async fn advise(cluster: &Endpoint, request: &Request, control: &Control) -> Result<Advice> {
    Ok(advised(cluster, request, control, false).await?.0)
}

/// What a trial of advice on a copy of a sample needs.
#[derive(Clone, Debug)]
pub struct Trial {
    /// Judgement of the same operations with every key on as many chunks as a plan of a change makes, also the present one.
    pub advice: Advice,
    /// Number of shards that keys were judged for.
    pub shards: usize,
    /// Number of chunks that a plan of a change makes.
    pub chunks: usize,
    /// The sample and the commands.
    pub replay: Replay,
}

/// Judges keys as [`advise`] does, and returns what a trial of them needs as well; `None`, with the reason among the notes, if there is none.
///
/// # Errors
/// Those of [`advise`].
#[crate::boxed]
pub async fn advise_for_trial(
    cluster: &Endpoint,
    request: &Request,
    control: &Control,
) -> Result<(Advice, Option<Trial>)> {
    advised(cluster, request, control, true).await
}

#[crate::boxed]
async fn advised(
    cluster: &Endpoint,
    request: &Request,
    control: &Control,
    has_trial: bool,
) -> Result<(Advice, Option<Trial>)> {
    let named: Vec<Key> = request.keys.iter().map(|key| Key::parse(key)).collect::<Result<_>>()?;
    let of = Handle::new(cluster.clone(), request.ns.clone());
    let survey = survey(&of).await?;
    let old = Key { pattern: present_pattern(&survey) };
    // What would be refused in the end is refused before anything is recorded.
    let shares = shares(&survey, request.shards)?;
    for key in named.iter().chain([&old]) {
        if key.pattern.len() > FIELDS_MAX {
            return Err(Error::precondition(
                format!("the key {} has more than {FIELDS_MAX} fields", key.text()),
                "keys of more fields are not judged",
            ));
        }
    }
    let mut source: Box<dyn Source> = match &request.from {
        Origin::Logs(paths) => Box::new(log_file::Logs::open(paths, &request.ns)?),
        Origin::Recording(path) => Box::new(recording::Recording::open(path, &request.ns)?),
        Origin::SampledQueries => {
            Box::new(sampled_queries::Sampled::read(cluster, &request.ns).await?)
        }
        Origin::Profilers { within, rate } => {
            let process = &request.process;
            let recording =
                profile::Recording { ns: &request.ns, within: *within, rate: *rate, process };
            Box::new(profile::record(cluster, &survey.shards, &recording, control).await?)
        }
    };
    let seen = source.survey()?;
    if seen.operations == 0 {
        return Err(Error::precondition(
            format!("{} shows no operation on {}", source.facts().source, request.ns),
            "record while clients work, or for longer",
        ));
    }
    let paths = fields::paths(needed(&survey, &old, &named), &seen.paths);
    let sample = fields::sample(&of, &survey, &old, paths, &seen.paths, request.sample, control);
    let sample = sample.await?;
    let encoded = encode(&mut *source, &sample, survey.definition.is_collated())?;
    let rules = Rules {
        id: sample.dictionary.field("_id"),
        finds_single_writes: cluster.version() >= [7, 1, 0],
    };
    let chunk_bytes = survey.chunk_bytes.max(1);
    let chunks = chunks(&survey, shares.servers());
    let mut inputs = Inputs {
        survey: &survey,
        workload: &Workload::default(),
        rules,
        costs: request.costs,
        nulls: sample.dictionary.nulls(),
        chunks,
        chunk_bytes,
        shares,
        sample: &sample,
    };
    let forms_left_out = encoded.forms_left_out;
    let received = received(&encoded.shards, survey.shards.len());
    let Judgeable { workload, ignored, factors } = once_each(encoded, &inputs, &old)?;
    if workload.is_empty() {
        return Err(Error::precondition(
            format!("no operation of {} can be judged", source.facts().source),
            "record for longer",
        ));
    }
    inputs.workload = &workload;
    let mut advice = judged(&inputs, &old, &named, request)?;
    advice.source = source.facts();
    advice.received = received;
    if forms_left_out > 0 {
        advice.source.notes.push(format!(
            "{forms_left_out} operations have a form of which only the kind counts: there are too many"
        ));
    }
    advice.ignored = { ignored.into_iter() }
        .map(|(conditions, operations)| Ignored { conditions: conditions.to_owned(), operations })
        .collect();
    if request.shards.is_none() {
        for key in advice.keys.iter_mut().filter(|key| key.is_possible()).take(PLANNED) {
            if let Err(cause) = plan_change(cluster, request, key, control).await {
                // What was judged is worth reporting all the same.
                let key = key.key.as_deref().unwrap_or_default();
                advice.source.notes.push(format!("a change to {key} cannot be planned: {cause}"));
            }
        }
    }
    if !has_trial {
        return Ok((advice, None));
    }
    if forms_left_out > 0 {
        advice.source.notes.push("operations of so many forms cannot be replayed".to_owned());
        return Ok((advice, None));
    }
    let open = (0..inputs.shares.servers()).filter(|shard| inputs.shares.is_open(*shard)).count();
    let even = Request { shards: u16::try_from(open).ok(), ..request.clone() };
    let judged = judged(&inputs, &old, &named, &even)?;
    let operations = kept_operations(&mut *source, &factors)?;
    let indexes = &survey.definition.indexes;
    match Replay::of(cluster, &request.ns, indexes, &operations).await {
        Ok(replay) => {
            let trial = Trial { advice: judged, shards: open, chunks: inputs.chunks, replay };
            Ok((advice, Some(trial)))
        }
        // What was judged is worth reporting all the same.
        Err(cause) => {
            advice.source.notes.push(format!("operations cannot be replayed: {cause}"));
            Ok((advice, None))
        }
    }
}

/// Returns the operations of a source that are judged, in their order: at most as many as are replayed, at equal distances.
/// `factors` has for each operation of the source the number of shards that showed it if it is judged: it has as many times the documents.
fn kept_operations(source: &mut dyn Source, factors: &[Option<u32>]) -> Result<Vec<Operation>> {
    let kept = factors.iter().flatten().count();
    let step = kept.div_ceil(replay::OPERATIONS_MAX).max(1);
    let (mut at, mut taken, mut operations) = (0, 0, Vec::new());
    source.read(&mut |observed| {
        if let Some(Some(factor)) = factors.get(at) {
            if taken % step == 0 {
                let mut operation = observed.operation.clone();
                operation.documents = operation.documents.saturating_mul(*factor);
                operations.push(operation);
            }
            taken += 1;
        }
        at += 1;
        Ok(())
    })?;
    Ok(operations)
}

fn present_pattern(survey: &Survey) -> Document {
    let entry = survey.entry.as_ref();
    entry.and_then(|entry| entry.get_document("key").ok()).cloned().unwrap_or_default()
}

/// Returns the paths of the fields that are sampled in any case: those of `_id`, of the present key, of named keys and of
/// indexes.
fn needed(survey: &Survey, old: &Key, named: &[Key]) -> Vec<String> {
    let keys = std::iter::once(old).chain(named).flat_map(Key::fields).map(str::to_owned);
    let indexed = indexes(survey).into_iter().flatten();
    std::iter::once("_id".to_owned()).chain(keys).chain(indexed).collect()
}

/// Returns the fields of the collection's ordinary indexes.
fn indexes(survey: &Survey) -> Vec<Vec<String>> {
    let keys = survey.definition.indexes.iter().filter_map(|index| index.get_document("key").ok());
    let is_plain = |key: &&Document| key.values().all(|way| !is_special(way));
    keys.filter(is_plain).map(|key| key.keys().cloned().collect()).collect()
}

fn is_special(way: &bson::Bson) -> bool {
    way.as_str().is_some() && !is_hashed(way)
}

/// Returns the shares of the shards that chunks are placed on: all that are not being drained, or `shards` of them and of new
/// ones.
fn shares(survey: &Survey, shards: Option<u16>) -> Result<ServerShares> {
    let is_open = |shard: usize| survey.shards.get(shard).is_none_or(|shard| !shard.is_draining);
    let present = survey.shards.len();
    let open = (0..present).filter(|shard| is_open(*shard)).count();
    let wanted = shards.map_or(open, usize::from);
    let all = present + wanted.saturating_sub(open);
    let mut left = wanted;
    let share = |shard: usize| {
        let is_used = is_open(shard) && left > 0;
        left -= usize::from(is_used);
        u64::from(is_used)
    };
    ServerShares::new((0..all).map(share).collect()).map_err(|cause| {
        Error::usage(format!("{wanted} shards cannot be judged: {cause}"), "choose --shards")
    })
}

/// Returns the number of chunks of a planned layout, as a plan of a change makes it.
fn chunks(survey: &Survey, shards: usize) -> usize {
    let request = PlanRequest::of_key(Namespace::new("", ""), String::new());
    let wanted =
        super::planning::wanted(&request, survey, &vec![true; shards], survey.stored.bytes);
    wanted.chunks
}

/// The operations that are judged.
struct Judgeable {
    workload: Workload,
    /// Number of those with each kind of condition that chooses no shards.
    ignored: Vec<(&'static str, u64)>,
    /// For each operation of the source, the number of shards that showed it if it is among them.
    factors: Vec<Option<u32>>,
}

/// Returns the operations of a source, each of them once: shards show an operation at each that executed it.
fn once_each(encoded: Encoded, inputs: &Inputs<'_>, old: &Key) -> Result<Judgeable> {
    let Encoded { workload, shards, ignored, .. } = encoded;
    if shards.iter().all(Option::is_none) {
        let factors = vec![Some(1); ignored.len()];
        return Ok(Judgeable { workload, ignored: encode::ignored(ignored.into_iter()), factors });
    }
    let (layout, rules) = (inputs.present(old)?, inputs.present_rules(old));
    let counted = shard_key::count_once(&workload, &layout, rules, &inputs.nulls, &shards);
    let kept = ignored.into_iter().zip(&counted).filter(|(_, counted)| counted.is_some());
    let ignored = encode::ignored(kept.map(|(bits, _)| bits));
    let workload = workload.filtered(|index| counted[index]);
    Ok(Judgeable { workload, ignored, factors: counted })
}

/// Returns the number of operations that each of the `present` shards showed; `None` if an operation's shard is unknown.
fn received(shown: &[Option<u16>], present: usize) -> Option<Vec<u64>> {
    let mut received = vec![0; present];
    for shard in shown {
        *received.get_mut(usize::from((*shard)?))? += 1;
    }
    Some(received)
}

/// Judges all keys, and returns the report without the facts about the source.
fn judged(inputs: &Inputs<'_>, old: &Key, named: &[Key], request: &Request) -> Result<Advice> {
    let sample: &FieldSample = inputs.sample;
    let now = inputs.present(old)?;
    let present_key = now.key().clone();
    // Keys for another number of shards are compared with the present key on as many.
    let layout = match request.shards {
        Some(_) if !old.pattern.is_empty() => {
            let planned = Layout::planned(
                &sample.documents,
                present_key.clone(),
                inputs.chunks,
                &inputs.shares,
            );
            planned.map_err(|cause| Error::precondition(cause.to_string(), "choose --shards"))?
        }
        _ => now,
    };
    let present_effect = inputs.effect(&layout, inputs.present_rules(old));
    let mut wanted = Wanted {
        usable: sample.usable(),
        id: sample.dictionary.field("_id"),
        indexes: Vec::new(),
        named: Vec::new(),
    };
    for index in indexes(inputs.survey) {
        wanted.indexes.extend(
            index.iter().map(|path| sample.dictionary.field(path)).collect::<Option<Vec<_>>>(),
        );
    }
    if !old.pattern.is_empty() {
        wanted.named.push(present_key.clone());
    }
    for key in named {
        let key = inputs.key(&key.pattern)?;
        if !wanted.named.contains(&key) {
            wanted.named.push(key);
        }
    }
    let keys = shard_key::candidates(inputs.workload, &sample.documents, &wanted);
    let judged = inputs.judge_all(&keys)?;
    let present = judge::Judged { key: present_key.clone(), layout, effect: present_effect };
    let gain = |effect| shard_key::compare(effect, &present.effect);
    let mut reports: Vec<KeyEffect> = { judged.iter() }
        .filter(|judged| old.pattern.is_empty() || judged.key != present_key)
        .map(|judged| inputs.report(judged, gain(&judged.effect)))
        .collect();
    judge::order(&mut reports);
    let best = reports.first().filter(|key| key.is_possible()).cloned();
    if let Some(best) = &best {
        for key in &mut reports[1..] {
            key.why_not = Some(judge::why_not(key, best));
        }
    }
    let mut present_report = inputs.report(&present, gain(&present.effect));
    if old.pattern.is_empty() {
        present_report.key = None;
    }
    let advised = best.filter(|key| key.ratio_interval.0 > 1.0).and_then(|key| key.key);
    let names = (0..inputs.shares.servers()).map(|shard| {
        let known = inputs.survey.shards.get(shard).map(|shard| shard.name.clone());
        known.unwrap_or_else(|| format!("new shard {}", shard + 1))
    });
    Ok(Advice {
        ns: request.ns.to_string(),
        shards: names.collect(),
        source: SourceFacts {
            source: String::new(),
            operations: 0,
            share: None,
            seconds: None,
            notes: Vec::new(),
        },
        operations: inputs.workload.len() as u64,
        received: None,
        ignored: Vec::new(),
        documents: sample.documents.len() as u64,
        fields: sample.facts.clone(),
        present: present_report,
        keys: reports,
        advised,
    })
}

/// Plans the change to `key`, and adds the plan's findings to those of the key.
async fn plan_change(
    cluster: &Endpoint,
    request: &Request,
    key: &mut KeyEffect,
    control: &Control,
) -> Result<()> {
    let text = key.key.clone().expect("a candidate has a key");
    let mut wanted = PlanRequest::of_key(request.ns.clone(), text.clone());
    wanted.sample = request.sample.min(SAMPLE);
    let plan = super::planning::plan(cluster, &wanted, control).await?;
    let known: Vec<String> = key.findings.iter().map(|finding| finding.code.clone()).collect();
    key.findings.extend(plan.findings.into_iter().filter(|of| !known.contains(&of.code)));
    key.change = Some(Change {
        command: format!(
            "imago reshard plan --uri {} --ns {} --key '{text}'",
            cluster.redacted(),
            request.ns
        ),
        moved_bytes: plan.moved.bytes,
        predicted_s: plan.predicted_s,
        paced_s: plan.paced_s,
    });
    Ok(())
}
