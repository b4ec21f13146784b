//! Making a plan: survey, sample, weigh, place, assign connections, check for obstacles.
//!
//! Invariant: nothing is written, neither to a server nor to a job's state.

use imago_job::control::Control;
use imago_plan::reshard::flow::Latencies;

use crate::error::{Error, Result};
use crate::server::collection::Handle;
use crate::server::endpoint::Endpoint;

use crate::reshard::findings::{self, PredictedDuration, Wanted};
use crate::reshard::plan::chunk_weights::{ChunkWeights, shard_sizes, sum, weigh};
use crate::reshard::plan::placement::Choice;
use crate::reshard::plan::predict::{
    FullRead, PredictionInput, paced_s, seconds, slowness, space_bytes,
};
use crate::reshard::plan::readers;
use crate::reshard::plan::sample::draw;
use crate::reshard::plan::shard_probe::{ShardReport, reach};
use crate::reshard::plan::survey::{Shard, Survey, survey};
use crate::reshard::plan::{Chunk, Placing, Plan, Request};
use crate::server::shard_key::{Key, text_of};

/// Maximum number of chunks of a plan, unless more are requested by number.
const CHUNKS_MAX: u64 = 10_000;
/// Minimum number of chunks per shard if their number is not requested, so that the balancer has some to move.
const CHUNKS_PER_SHARD: u64 = 2;

/// Plans the requested change of a collection's shape, and predicts its effect. Documents are read as fast as the
/// pace of `control` allows.
///
/// # Errors
/// Returns a usage error for an invalid request; a precondition error for a collection or shard that does not exist
/// or cannot be planned for; a server's error. Every other obstacle is one of the plan's findings.
#[crate::boxed]
pub async fn plan(cluster: &Endpoint, request: &Request, control: &Control) -> Result<Plan> {
    let typed = request.key.as_deref().map(Key::parse).transpose()?;
    let of = Handle::new(cluster.clone(), request.ns.clone());
    let survey = survey(&of).await?;
    let (old, new) = keys(&survey, typed, request)?;
    let open = open(&survey.shards, request)?;
    let sample = draw(&of, &survey, (&old, &new), request.sample, control).await?;
    let held = shard_sizes(&sample, &survey.shards);
    let size = sum(held.iter().copied());
    let wanted = wanted(request, &survey, &open, size.bytes);
    // Weighing uses a local processor, the findings the servers, so both run concurrently.
    let (weighing, cluster_findings) = tokio::join!(
        tokio::task::spawn_blocking(move || {
            let weighed = weigh(&sample, &held, wanted.chunks);
            (sample, weighed)
        }),
        findings::cluster_findings(&of, &survey, &old, control),
    );
    let (sample, weighed) = weighing.expect("weighing neither panics nor is aborted");
    let cluster_findings = cluster_findings?;
    let choice = Choice::new(&weighed.rows, &open)?;
    let chosen = choice.place(request.placing)?;
    let reached = reach(cluster, &survey.shards, &request.ns).await;
    let flows =
        choice.flows(&chosen.server_of, request.flowing, request.sockets, &latencies(&reached));
    let readers = readers::choose(&reached, &chosen.bytes);
    let mut compared = Vec::new();
    for placing in [Placing::Balanced, Placing::Greedy, Placing::Random] {
        compared.push(Choice::compare(placing, &choice.place(placing)?));
    }
    // The server reshards only by another key.
    if old != new {
        compared.push(choice.server());
    }
    let limits = control.throttle().limits();
    let drawn = sample.documents.len() as u64;
    let look = sample.read_in.map(|took| FullRead { read: survey.stored, drawn, took });
    let base = PredictionInput { size, chunks: weighed.rows.len(), slowness: slowness(look) };
    let predicted_s = seconds(base, limits);
    let paced_s = limits.is_paced.then(|| paced_s(base, limits));
    let index_bytes = survey.shards.iter().map(|shard| shard.index_bytes).sum();
    let space_bytes = space_bytes(&chosen.after, size, index_bytes);
    let mut found = findings::definition_findings(cluster, &request.ns, &survey, &new);
    found.extend(findings::index_findings(&of).await?);
    found.extend(findings::document_findings(&sample, &weighed, &new, wanted)?);
    found.extend(findings::privilege_findings(cluster, &request.ns).await?);
    found.extend(cluster_findings);
    found.extend(findings::shard_findings(
        &request.ns,
        &survey.shards,
        &reached,
        PredictedDuration { predicted_s, paced_s },
        &space_bytes,
    ));
    if survey.is_balanced {
        let (shards, chunk_bytes) = (&survey.shards, survey.chunk_bytes);
        found.extend(findings::balancer_finding(&request.ns, shards, chunk_bytes, &chosen.after));
    }
    found.extend(findings::crossing_finding(&survey.shards, &readers));
    found.extend(findings::socket_finding(request, &flows));
    Ok(Plan {
        ns: request.ns.clone(),
        old_key: old.text(),
        key: new.text(),
        shards: survey.shards.into_iter().map(|shard| shard.name).collect(),
        size: weighed.total(),
        chunks: chunks(&weighed, &chosen.server_of)?,
        placing: request.placing,
        flowing: request.flowing,
        flows,
        moved: chosen.moved,
        imbalance: chosen.imbalance,
        compared,
        sampled: sample.documents.len() as u64,
        predicted_s,
        paced_s,
        space_bytes,
        members: readers.hosts,
        findings: findings::sorted(found),
    })
}

/// Returns the shard keys before and after the change; `typed` is the requested one. An unsharded collection is one
/// chunk of all keys, so any key serves as its old one.
fn keys(survey: &Survey, typed: Option<Key>, request: &Request) -> Result<(Key, Key)> {
    let pattern = survey.entry.as_ref().and_then(|entry| entry.get_document("key").ok());
    let old = Key { pattern: pattern.cloned().unwrap_or_default() };
    let changes_shape = request.chunks.is_some()
        || request.chunk_bytes.is_some()
        || !request.add_shards.is_empty()
        || !request.drain_shards.is_empty();
    let is_same = typed.as_ref().is_none_or(|new| new.is_same(&old.pattern));
    if is_same && !changes_shape && pattern.is_some() {
        return Err(Error::usage(
            format!("{} is sharded by {} already", request.ns, old.text()),
            "name another key with --key, or another shape with --chunks, --chunk-size-mb, \
             --add-shard or --drain-shard",
        ));
    }
    match typed.filter(|_| !is_same).or_else(|| pattern.map(|_| old.clone())) {
        Some(new) => Ok((old, new)),
        None => Err(Error::precondition(
            format!("{} is not sharded, so it has no key to keep", request.ns),
            "shard it with sh.shardCollection(), or name a key with --key to see what it would do",
        )),
    }
}

/// Returns for each of `shards` whether it may have chunks after the change.
fn open(shards: &[Shard], request: &Request) -> Result<Vec<bool>> {
    let known = |name: &String| shards.iter().any(|shard| shard.name == *name);
    let named = request.add_shards.iter().chain(&request.drain_shards);
    if let Some(unknown) = { named }.find(|name| !known(name)) {
        let names: Vec<&str> = shards.iter().map(|shard| shard.name.as_str()).collect();
        return Err(Error::precondition(
            format!("the cluster has no shard {unknown}"),
            format!("it has {}; a new one is first added with sh.addShard()", names.join(", ")),
        ));
    }
    if let Some(both) = request.add_shards.iter().find(|name| request.drain_shards.contains(name)) {
        return Err(Error::usage(
            format!("shard {both} cannot be added and drained at once"),
            "name it once, with --add-shard or with --drain-shard",
        ));
    }
    let leaving = |shard: &&Shard| shard.is_draining && request.add_shards.contains(&shard.name);
    if let Some(shard) = shards.iter().find(leaving) {
        return Err(Error::precondition(
            format!("the cluster is emptying shard {}", shard.name),
            "leave it out of --add-shard, or take removeShard back by adding the shard again",
        ));
    }
    let is_open = |shard: &Shard| !shard.is_draining && !request.drain_shards.contains(&shard.name);
    let open: Vec<bool> = shards.iter().map(is_open).collect();
    if !open.contains(&true) {
        return Err(Error::usage(
            "every shard is to be drained, and nothing is left to hold the collection",
            "leave a shard out of --drain-shard",
        ));
    }
    Ok(open)
}

pub(super) fn wanted(request: &Request, survey: &Survey, open: &[bool], bytes: u64) -> Wanted {
    let open = open.iter().filter(|open| **open).count();
    let chunk_bytes = request.chunk_bytes.unwrap_or(survey.chunk_bytes).max(1);
    let least = CHUNKS_PER_SHARD * open as u64;
    let by_size = bytes.div_ceil(chunk_bytes).max(least).min(CHUNKS_MAX.max(least));
    let chunks = request.chunks.unwrap_or(usize::try_from(by_size).unwrap_or(usize::MAX)).max(1);
    Wanted { chunks, open, chunk_bytes }
}

/// Minimum round trip that is used, in µs; shorter ones differ by chance and by other load of the machines.
const LATENCY_MIN_US: u32 = 500;

/// Returns the latency between each pair of shards, in µs: the sum of the round trips from Imago, through which all
/// documents pass, to both. If one round trip is unknown, all are assumed to be equal.
fn latencies(reached: &[std::result::Result<ShardReport, String>]) -> Latencies {
    let known = reached.iter().all(Result::is_ok);
    let of = |shard: usize| match &reached[shard] {
        Ok(reached) if known => reached.latency_us.max(LATENCY_MIN_US),
        _ => LATENCY_MIN_US,
    };
    Latencies::new(reached.len(), |from, to| of(from).saturating_add(of(to)))
}

fn chunks(weighed: &ChunkWeights, server_of: &[usize]) -> Result<Vec<Chunk>> {
    let chunk = |(index, row): (usize, &Vec<crate::server::collection::Size>)| {
        let min = index.checked_sub(1).map(|before| text_of(&weighed.cuts[before])).transpose()?;
        Ok(Chunk {
            min,
            size: sum(row.iter().copied()),
            bytes_on: row.iter().map(|size| size.bytes).collect(),
            shard: server_of[index],
        })
    };
    weighed.rows.iter().enumerate().map(chunk).collect()
}
