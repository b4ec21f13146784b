//! The present shape of a cluster that is there already: the chain runs on it, and nothing of it is changed.
//!
//! Neither servers nor caches are restarted or emptied, so that the first run with a cache begins with what the cache has, and
//! each later one with what the run before left. The shares of the shards, and what requests cost, are those of a probe.

use std::path::Path;

use imago_provision::probe::Probe;

use super::cell::{CacheAt, Cell, Reads, Run};
use super::compare::{Predictor, compare};
use super::file::{self, File};
use super::{Measured, Outcome, Setup, grid, run};
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
#[crate::boxed]
pub async fn present(present: &Present<'_>, setup: &Setup<'_>) -> Result<Outcome> {
    let probe = Probe::read(present.probe)
        .map_err(|cause| Error::Size(format!("{}: {cause}", present.probe.display())))?;
    let mut file = File::open(setup.out, &setup.common)?;
    let trace = file::trace(setup.out);
    let (shares, members) = grid::shape_of(&probe);
    let plain =
        Cell { shares, members, cache_bytes: 0, cache_at: CacheAt::Worker, reads: Reads::Primary };
    let mut wanted: Vec<(u32, Cell)> = (0..setup.runs).map(|run| (run, plain.clone())).collect();
    if let Some(uri) = present.cache {
        wanted.push((0, Cell { cache_bytes: run::room(uri).await?, ..plain.clone() }));
    }
    for (round, cell) in wanted {
        let has = |run: &Run| run.run == round && run.cell == cell;
        let is_there = file.runs().iter().any(has);
        if is_there && trace.exists() {
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
        let job_s = ran.job_s(usize::MAX);
        (setup.say)(format!("{cell}, run {}: {job_s:.2} s", round + 1));
        // It was run again for its trace alone.
        if !is_there {
            file.add(ran)?;
        }
    }
    let measured = Measured::read(file.runs(), trace, present.probe.to_path_buf())?;
    let predictor = Predictor::read(&measured.trace, &measured.probe, &setup.common)?;
    let (cells, accuracy) = compare(&measured, &predictor, &[setup.common.length as usize])?;
    Ok(Outcome { accuracy, unshared: None, keys: predictor.keys(), cells })
}
