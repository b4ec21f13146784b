//! Measurement of an existing cluster: the chain runs on its present shape, and nothing of the cluster is changed.
//!
//! Neither servers nor caches are restarted or emptied: a run with the cache starts with the present content of the
//! cache. The shares of the shards and the request costs are taken from a probe.

use std::path::Path;

use imago_provision::probe::Probe;

use super::cell::{CacheAt, Cell, Reads, Run};
use super::compare::{Predictor, compare};
use super::file::{self, File};
use super::{Measured, Outcome, Setup, grid, run};
use crate::error::{Error, Result};

/// An existing cluster.
pub struct Present<'a> {
    /// Connection string of the cluster.
    pub uri: &'a str,
    /// The collection, as `database.collection`.
    pub ns: &'a str,
    /// Connection string of the cache; None without a cache.
    pub cache: Option<&'a str>,
    /// File with a probe of this cluster.
    pub probe: &'a Path,
}

/// Runs the chain `setup.runs` times without the cache, and once with it if there is one. Runs that the file already
/// has are skipped. Returns the measurements with their predictions.
///
/// # Errors
/// Fails if the probe cannot be read, if the chain fails, or if it ends with other keys with the cache than without
/// it.
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
        // A run that the file already has was repeated only to record its trace.
        if !is_there {
            file.add(ran)?;
        }
    }
    let measured = Measured::read(file.runs(), trace, present.probe.to_path_buf())?;
    let predictor = Predictor::read(&measured.trace, &measured.probe, &setup.common)?;
    let (cells, accuracy) = compare(&measured, &predictor, &[setup.common.length as usize])?;
    Ok(Outcome { accuracy, unshared: None, keys: predictor.keys(), cells })
}
