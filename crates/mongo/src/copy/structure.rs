//! The indexes and options of a job's collections: built after the bulk, then kept like the source's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::Document;
use tokio::task::JoinSet;

use super::catalog::sync_views;
use super::functions::sync_functions;
use super::{Copying, retry_transient};
use crate::error::Result;
use crate::server::collection::{Definition, Handle};
use crate::server::shard::serves;
use crate::server::structure::{
    Change, build, change_to, is_unique, modify_index, modify_options, name_of,
};
use crate::server::timing::PATIENCE;

impl Copying<'_> {
    /// Builds the indexes of every collection, and defines the views. `besides` is built in the first
    /// collection even if it lists it: of a sharded one a single shard speaks for all.
    ///
    /// # Errors
    /// An error that ends the job, including a unique index that the source's own documents break.
    pub async fn build_indexes(&mut self, besides: Option<Document>) -> Result<()> {
        let (mut plain, mut unique) = (Vec::new(), Vec::new());
        for (pair, definition) in self.pairs.iter().zip(self.definitions.iter()) {
            if self.coordinator.is_gone(plain.len()) {
                plain.push((pair.destination.clone(), Vec::new()));
                unique.push((pair.destination.clone(), Vec::new()));
                continue;
            }
            let look = || pair.destination.indexes();
            let have = retry_transient("look at the indexes", self.run.control(), look).await?;
            let missing =
                |index: &&Document| !have.iter().any(|have| name_of(have) == name_of(index));
            let missing = definition.indexes.iter().filter(missing).cloned();
            let (of_unique, of_plain): (Vec<_>, Vec<_>) = missing.partition(is_unique);
            plain.push((pair.destination.clone(), of_plain));
            unique.push((pair.destination.clone(), of_unique));
        }
        if let Some(index) = besides {
            plain[0].1.retain(|other| name_of(other) != name_of(&index));
            plain[0].1.push(index);
        }
        // Changes go on being applied while these are built.
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
            self.coordinator.go_on()?;
        }
        let sync = || sync_views(self.clusters, self.run, &self.plan);
        retry_transient("define the views", self.run.control(), sync).await?;
        let sync = || sync_functions(self.clusters, self.run, &self.plan);
        retry_transient("copy the stored functions", self.run.control(), sync).await?;
        let names = |definition: &Definition| {
            definition.indexes.iter().map(name_of).map(str::to_owned).collect()
        };
        // Those of collections that others joined later are known from when they were followed last.
        let known = self.state.followed_indexes.len();
        self.state.followed_indexes.extend(self.definitions.iter().skip(known).map(names));
        // The checkpoint may be past the changes of indexes and options that were seen so far: all
        // of them are followed before a successor would take them for followed.
        let seen = self.coordinator.take_structure();
        for ns in 0..self.pairs.len() {
            if self.plan.collections[ns].creates || seen.iter().any(|(of, _)| *of == ns) {
                self.match_patiently(ns).await?;
            }
        }
        self.state.is_indexed = true;
        self.save().await
    }

    pub(super) async fn follow_structure(&mut self, ns: usize, what: &str) -> Result<()> {
        self.run.reporter().decision(
            format!("indexes and options of {} follow the source", self.pairs[ns].destination.ns),
            format!("the source reported {what}"),
        );
        self.match_patiently(ns).await
    }

    /// Repeats it while a cluster elects or is away: changes that are done already are found done.
    async fn match_patiently(&mut self, ns: usize) -> Result<()> {
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

    /// Makes indexes and options of a collection equal to those at the source now.
    async fn match_structure(&mut self, ns: usize) -> Result<()> {
        if self.coordinator.is_gone(ns) {
            return Ok(());
        }
        let (from, to) = (self.pairs[ns].source.clone(), self.pairs[ns].destination.clone());
        let Some(wanted) = from.definition().await? else { return Ok(()) };
        let definitions = Arc::clone(&self.definitions);
        let had = &definitions[ns];
        // A job of an older release, or a reverse one, begins with the source's present indexes.
        let had_names: Vec<String> = match self.state.followed_indexes.get(ns) {
            Some(names) => names.clone(),
            None => had.indexes.iter().map(|index| name_of(index).to_owned()).collect(),
        };
        let have = to.indexes().await?;
        // The index of the destination's own shard key can neither go nor be hidden.
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
        // A resumed job's knowledge of the source may be as new as `wanted`. If the job itself
        // created the collection, the options to change are those that the destination has.
        let mut had = had.options.clone();
        if self.plan.collections[ns].creates
            && let Some(made) = to.definition().await?
        {
            had = made.options;
        }
        if wanted.is_validated() && !to.bypass_validation {
            self.pairs = self.coordinator.bypass_validation(ns).await?;
        }
        modify_options(&to, &had, &wanted.options).await?;
        if let Some(names) = self.state.followed_indexes.get_mut(ns) {
            *names = wanted.indexes.iter().map(|index| name_of(index).to_owned()).collect();
        }
        let mut definitions = (*definitions).clone();
        definitions[ns] = wanted;
        self.definitions = Arc::new(definitions);
        Ok(())
    }

    /// A unique index needs both sides to be of one time while it is built.
    async fn build_one(&mut self, to: &Handle, index: &Document) -> Result<()> {
        if !is_unique(index) {
            return to.create_indexes(std::slice::from_ref(index)).await;
        }
        self.coordinator.settle().await?;
        to.create_indexes(std::slice::from_ref(index)).await?;
        self.coordinator.go_on()
    }
}
