//! The present shape of a cluster that is there already: the chain runs on it, and nothing of it is changed.
//!
//! Neither servers nor caches are restarted or emptied, so that the first run with a cache begins with what the cache has, and
//! each later one with what the run before left. The shares of the shards, and what requests cost, are those of a probe.

use std::path::Path;

use imago_provision::probe::Probe;

use super::cell::{CacheAt, Cell, Reads};
use super::compare::{Predictor, compare};
use super::file::File;
use super::{Measured, Outcome, Setup, run};
use crate::error::{Error, Result};

/// A cluster, and what is measured there.
pub struct Present<'a> {
    /// Its connection string.
    pub uri: &'a str,
    /// The collection.
    pub ns: &'a str,
    /// The cache's connection string, if there is one.
    pub cache: Option<&'a str>,
    /// A probe of this cluster.
    pub probe: &'a Path,
}

/// Runs the chain so often without the cache, and once with it, as far as the file does not have it yet; and puts what is
/// predicted beside it.
///
/// # Errors
/// The probe cannot be read, the chain fails, or its keys are others with the cache.
pub async fn present(present: &Present<'_>, setup: &Setup<'_>) -> Result<Outcome> {
    let probe = Probe::read(present.probe)
        .map_err(|cause| Error::Size(format!("{}: {cause}", present.probe.display())))?;
    let mut file = File::open(setup.out, &setup.common)?;
    let trace = setup.out.with_extension("imt");
    let plain = Cell {
        shares: percent(&probe.shards.iter().map(|shard| shard.documents).collect::<Vec<_>>()),
        members: probe.shards.iter().map(|shard| shard.members).max().unwrap_or(1),
        cache_bytes: 0,
        cache_at: CacheAt::Worker,
        reads: Reads::Primary,
    };
    let mut wanted: Vec<(u32, Cell)> = (0..setup.runs).map(|run| (run, plain.clone())).collect();
    if let Some(uri) = present.cache {
        wanted.push((0, Cell { cache_bytes: run::room(uri).await?, ..plain.clone() }));
    }
    let mut result = None;
    for (round, cell) in wanted {
        let has = |run: &super::cell::Run| run.run == round && run.cell == cell;
        if file.runs().iter().any(has) && trace.exists() {
            continue;
        }
        if setup.cancel.is_cancelled() {
            let what = "interrupted: the same command goes on with what is missing";
            return Err(Error::Wrong(what.into()));
        }
        let unfinished = (!trace.exists()).then(|| trace.with_extension("part.imt"));
        if let Some(unfinished) = &unfinished {
            super::remove(unfinished)?;
        }
        let cache = present.cache.filter(|_| cell.cache_bytes > 0);
        let place = run::Place { uri: present.uri, ns: present.ns, cache };
        let ran =
            run::on(setup.program, &place, &setup.common, &cell, round, unfinished.as_deref());
        let ran = ran.await?;
        if let Some(unfinished) = &unfinished {
            super::rename(unfinished, &trace)?;
        }
        let digest = result.get_or_insert_with(|| ran.result_sha256.clone());
        if *digest != ran.result_sha256 {
            return Err(Error::Wrong(format!("{cell}: the chain's keys are others than before")));
        }
        (setup.say)(format!("{cell}, run {}: {:.2} s", round + 1, ran.run.job_s(usize::MAX)));
        file.add(ran.run)?;
    }
    let measured = Measured {
        runs: file.runs().to_vec(),
        trace,
        probe: present.probe.to_path_buf(),
        probed: (Vec::new(), 0),
        unshared: None,
    };
    let predictor = Predictor::read(&measured.trace, &measured.probe, &setup.common)?;
    let (cells, accuracy) = compare(&measured, &predictor, &[setup.common.length as usize])?;
    Ok(Outcome { accuracy, unshared: None, keys: predictor.keys(), cells })
}

/// Shares as whole percent that sum up to a hundred, the largest remainders rounded up.
fn percent(shares: &[f64]) -> Vec<u32> {
    let all: f64 = shares.iter().sum();
    if shares.is_empty() || all <= 0.0 {
        return vec![100];
    }
    let exact: Vec<f64> = shares.iter().map(|share| 100.0 * share / all).collect();
    let mut whole: Vec<u32> = exact.iter().map(|share| *share as u32).collect();
    let mut order: Vec<usize> = (0..exact.len()).collect();
    order.sort_by(|one, other| exact[*other].fract().total_cmp(&exact[*one].fract()));
    let missing = 100 - whole.iter().sum::<u32>().min(100);
    for shard in order.into_iter().take(missing as usize) {
        whole[shard] += 1;
    }
    whole
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percents_sum_up_to_a_hundred() {
        assert_eq!(percent(&[0.4401, 0.5599]), [44, 56]);
        assert_eq!(percent(&[1.0, 1.0, 1.0]), [34, 33, 33]);
        assert_eq!(percent(&[0.996, 0.004]), [100, 0]);
        assert_eq!(percent(&[]), [100]);
    }
}
