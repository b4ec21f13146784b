//! The indexes and options of a job's collections: built after the bulk, then kept equal to the source's.
//!
//! The source's stream reports most of their changes. It does not report all: the server's own `reshardCollection`
//! builds the index of the new key in a collection of another name. So both catalogs are also compared periodically
//! and before a cut-over. Differences that the job cannot remove by itself are obstacles to a cut-over.
//!
//! The retention rules are the exception: see [`crate::server::retention`].

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::Document;
use futures_util::{StreamExt, TryStreamExt, stream};
use imago_job::control::Control;
use tokio::task::JoinSet;

use super::catalog::sync_views;
use super::differences::{Differences, differences, outdated};
use super::functions::sync_functions;
use super::{CopyJob, INSPECTIONS_MAX, retry_transient, save};
use crate::error::{Error, Result};
use crate::replicate::pair::Pair;
use crate::server::collection::{Definition, Handle, Kind, name_of};
use crate::server::retention::Suspension;
use crate::server::shard::serves;
use crate::server::structure::{Change, build, change_to, is_unique, modify_index, modify_options};
use crate::server::timing::PATIENCE;
use crate::verify::StructureDifference;

impl CopyJob<'_> {
    /// Builds the indexes of every collection at the destination, and defines the views and stored functions. The
    /// index `besides` is built in the first collection even if the list of its indexes there has it: for a sharded
    /// collection, the list comes from a single shard.
    ///
    /// # Errors
    /// Returns an error that ends the job, such as a unique index that the source's own documents violate.
    pub async fn build_indexes(&mut self, besides: Option<Document>) -> Result<()> {
        self.predict_indexes();
        let suspension = self.suspension();
        let (mut plain, mut unique) = (Vec::new(), Vec::new());
        let (pairs, control) = (Arc::clone(&self.pairs), self.run.control().clone());
        let is_gone = (0..pairs.len()).map(|ns| self.coordinator.is_gone(ns)).collect();
        let have = indexes_of(&pairs, is_gone, &control).await?;
        for ((pair, definition), have) in self.pairs.iter().zip(self.definitions.iter()).zip(have) {
            let definition = suspension.applied_to(definition);
            if self.coordinator.is_gone(plain.len()) {
                plain.push((pair.destination.clone(), Vec::new()));
                unique.push((pair.destination.clone(), Vec::new()));
                continue;
            }
            let missing =
                |index: &&Document| !have.iter().any(|have| name_of(have) == name_of(index));
            let missing = definition.indexes.iter().filter(missing).cloned();
            let (of_unique, of_plain): (Vec<_>, Vec<_>) = missing.partition(is_unique);
            plain.push((pair.destination.clone(), of_plain));
            unique.push((pair.destination.clone(), of_unique));
        }
        if let Some(mut index) = besides {
            suspension.index(&mut index);
            plain[0].1.retain(|other| name_of(other) != name_of(&index));
            plain[0].1.push(index);
        }
        // The coordinator continues to apply changes while these indexes are built.
        let mut builds = JoinSet::new();
        let control = self.run.control().clone();
        builds.spawn(async move { build(&plain, &control).await });
        loop {
            self.step().await?;
            if let Some(built) = builds.try_join_next() {
                built.expect("a build neither panics nor is aborted")?;
                break;
            }
        }
        if unique.iter().any(|(_, indexes)| !indexes.is_empty()) {
            self.coordinator.settle().await?;
            build(&unique, self.run.control()).await?;
            self.coordinator.leave_settled()?;
        }
        let sync = || sync_views(self.clusters, self.run, &self.plan);
        retry_transient("define the views", self.run.control(), sync).await?;
        let sync = || sync_functions(self.clusters, self.run, &self.plan);
        retry_transient("copy the stored functions", self.run.control(), sync).await?;
        let names = |definition: &Definition| {
            definition.indexes.iter().map(name_of).map(str::to_owned).collect()
        };
        // For collections that were there before others joined, the names are those of when they were last followed.
        let known = self.state.followed_indexes.len();
        self.state.followed_indexes.extend(self.definitions.iter().skip(known).map(names));
        // The checkpoint may be past the changes of indexes and options that were seen so far. All of them are
        // followed now, since a successor would assume that they were.
        let seen = self.coordinator.take_structure();
        let mut outdated: BTreeSet<usize> = seen.into_iter().map(|(ns, _)| ns).collect();
        let (pairs, definitions) = (Arc::clone(&self.pairs), Arc::clone(&self.definitions));
        let (plan, control) = (self.plan.clone(), self.run.control().clone());
        outdated.extend(self::outdated(&pairs, &definitions, &plan, suspension, &control).await?);
        for ns in outdated {
            self.match_structure_with_retries(ns).await?;
        }
        self.state.is_indexed = true;
        self.realize_indexes();
        self.save().await
    }

    pub(super) async fn follow_structure(&mut self, ns: usize, what: &str) -> Result<()> {
        self.run.reporter().decision(
            format!("indexes and options of {} follow the source", self.pairs[ns].destination.ns),
            format!("the source reported {what}"),
        );
        self.match_structure_with_retries(ns).await
    }

    /// Runs [`CopyJob::match_structure`] for the collection number `ns`, and repeats it while a cluster elects or is
    /// unavailable. The operation is idempotent.
    async fn match_structure_with_retries(&mut self, ns: usize) -> Result<()> {
        let began = Instant::now();
        let mut attempt = 0;
        loop {
            let Err(error) = self.match_structure(ns).await else { return Ok(()) };
            attempt += 1;
            let tired = attempt >= PATIENCE.attempts_max || began.elapsed() > PATIENCE.elapsed_max;
            if !error.is_transient() || tired {
                return Err(error);
            }
            tracing::debug!(%error, attempt, "indexes and options are compared again");
            let pause_ms = PATIENCE.backoff.pause_ms(attempt, rand::random());
            self.run.control().sleep(Duration::from_millis(pause_ms)).await?;
        }
    }

    /// Makes the indexes and options of the collection number `ns` at the destination equal to those that the source
    /// has now.
    async fn match_structure(&mut self, ns: usize) -> Result<()> {
        if self.coordinator.is_gone(ns) {
            return Ok(());
        }
        let (from, to) = (self.pairs[ns].source.clone(), self.pairs[ns].destination.clone());
        let Some(source) = from.definition().await?.filter(is_collection) else { return Ok(()) };
        let wanted = self.suspension().applied_to(&source);
        let definitions = Arc::clone(&self.definitions);
        let had = &definitions[ns];
        // A job of an older release, and a reverse job, start with the source's present indexes.
        let had_names: Vec<String> = match self.state.followed_indexes.get(ns) {
            Some(names) => names.clone(),
            None => had.indexes.iter().map(|index| name_of(index).to_owned()).collect(),
        };
        let made = to.definition().await?;
        self.note_retention(ns, &source, made.as_ref()).await?;
        let have = to.indexes().await?;
        // The index of the destination's own shard key can neither be dropped nor hidden.
        let shard_key = to.shard_key().await?;
        let is_needed = |index: &Document| shard_key.as_ref().is_some_and(|key| serves(index, key));
        for gone in have.iter().filter(|have| {
            had_names.iter().any(|name| name == name_of(have))
                && !wanted.indexes.iter().any(|index| name_of(index) == name_of(have))
                && !is_needed(have)
        }) {
            to.drop_index(name_of(gone)).await?;
        }
        for index in &wanted.indexes {
            let held = have.iter().find(|have| name_of(have) == name_of(index));
            match change_to(held, index) {
                Change::None => {}
                _ if held.is_some_and(is_needed) => {}
                Change::Settings => modify_index(&to, index).await?,
                Change::Build => {
                    if held.is_some() {
                        to.drop_index(name_of(index)).await?;
                    }
                    self.build_one(&to, index).await?;
                }
            }
        }
        // The definition that a resumed job has may be as new as `wanted`. So, if the job itself created the
        // collection, the options to change are those that the destination has.
        let mut had = self.suspension().options(&had.options);
        if self.plan.collections[ns].creates
            && let Some(made) = &made
        {
            had = made.options.clone();
        }
        if wanted.is_validated() && !to.bypass_validation {
            self.pairs = self.coordinator.bypass_validation(ns).await?;
        }
        modify_options(&to, &had, &wanted.options).await?;
        if let Some(names) = self.state.followed_indexes.get_mut(ns) {
            *names = wanted.indexes.iter().map(|index| name_of(index).to_owned()).collect();
        }
        let mut definitions = (*definitions).clone();
        definitions[ns] = source;
        self.definitions = Arc::new(definitions);
        Ok(())
    }

    /// Saves the retention rules of collection number `ns` in the job's record before they are changed at the
    /// destination.
    async fn note_retention(
        &mut self,
        ns: usize,
        source: &Definition,
        destination: Option<&Definition>,
    ) -> Result<()> {
        let before = self.state.retention.get(&ns).cloned();
        self.state.note_retention(ns, self.suspension(), source, destination);
        if self.state.retention.get(&ns) == before.as_ref() {
            return Ok(());
        }
        self.checkpoints.finish().await?;
        save(self.run, &self.state).await
    }

    pub(super) fn suspension(&self) -> Suspension {
        Suspension::between(&self.clusters.source, &self.clusters.destination)
    }

    /// Removes the differences `found` by a comparison of both catalogs, and records those that remain. The same
    /// difference is not tried twice in a row.
    ///
    /// # Errors
    /// Returns an error that ends the job.
    pub(super) async fn match_differing(&mut self, found: Differences) -> Result<()> {
        let Differences { differing, building } = found;
        self.catalog.building = building;
        for ns in 0..self.pairs.len() {
            let Some(found) = differing.get(&ns) else {
                self.catalog.unmatched.remove(&ns);
                continue;
            };
            if self.catalog.unmatched.get(&ns) == Some(found) {
                continue;
            }
            match self.follow_structure(ns, "a difference between both catalogs").await {
                // The comparison below finds the difference again, and it is an obstacle.
                Err(error @ Error::Server { .. }) if !error.is_transient() => {
                    tracing::warn!(%error, "the catalogs could not be made equal");
                }
                followed => followed?,
            }
            let (pair, planned) = (&self.pairs[ns], &self.plan.collections[ns]);
            let compare = || differences(pair, planned, self.suspension());
            let compared = retry_transient("compare both catalogs", self.run.control(), compare);
            let left = compared.await?.differing;
            if left.is_empty() {
                self.catalog.unmatched.remove(&ns);
            } else {
                self.catalog.unmatched.insert(ns, left);
            }
        }
        Ok(())
    }

    /// Describes, as obstacles to a cut-over, the indexes and options that the job could not make equal, and the
    /// indexes that are being built at the source.
    pub(super) fn structure_obstacles(&self) -> Vec<String> {
        let one = |(ns, found): (&usize, &Vec<StructureDifference>)| {
            let pair = &self.pairs[*ns];
            let (from, to) = (&pair.source.ns, &pair.destination.ns);
            let words = found.iter().map(|of| of.in_words()).collect::<Vec<String>>().join("; ");
            format!("the job could not make {to} like {from}: {words}; make them equal by hand")
        };
        self.catalog.unmatched.iter().map(one).chain(self.catalog.building.clone()).collect()
    }

    /// Returns a precondition error if a cut-over would abort an index build at the source, as of the last
    /// inspection.
    ///
    /// # Errors
    /// Returns a precondition error that names the index.
    pub(super) fn refuse_building(&self) -> Result<()> {
        match self.catalog.building.first() {
            None => Ok(()),
            Some(building) => Err(Error::precondition(
                format!("the job may not be cut over: {building}"),
                "wait until it is built, or drop it at the source; then try again",
            )),
        }
    }

    /// Builds one index in the destination's collection `to`. A unique index is built at a settled point, where the
    /// destination equals the source as of one time.
    async fn build_one(&mut self, to: &Handle, index: &Document) -> Result<()> {
        if !is_unique(index) {
            return to.create_indexes(std::slice::from_ref(index)).await;
        }
        self.coordinator.settle().await?;
        let built = to.create_indexes(std::slice::from_ref(index)).await;
        self.coordinator.leave_settled()?;
        built
    }
}

fn is_collection(definition: &Definition) -> bool {
    definition.kind == Kind::Collection
}

/// Returns the indexes of each collection at the destination, by its number, and none for a collection that is gone:
/// its name may now be a view's.
async fn indexes_of(
    pairs: &[Pair],
    is_gone: Vec<bool>,
    control: &Control,
) -> Result<Vec<Vec<Document>>> {
    let looks = pairs.iter().zip(is_gone).map(|(pair, is_gone)| async move {
        if is_gone {
            return Ok(Vec::new());
        }
        let look = || pair.destination.indexes();
        retry_transient("look at the indexes", control, look).await
    });
    let looks: Vec<_> = looks.collect();
    stream::iter(looks).buffered(INSPECTIONS_MAX).try_collect().await
}
