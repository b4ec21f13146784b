//! The steps of a roll that change its canary, compare it with the other nodes, and decide whether the roll goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::compaction;
use super::super::error::{Error, Result};
use super::super::knobs::{self, Value};
use super::super::ring::{Cluster, chain};
use super::Change;
use super::canary::{Canary, Finding, MeasuredWindows, compared, describe, measure_windows};
use super::work::{LOOK_EVERY, Work};

impl Work<'_> {
    /// Returns true if the roll has a canary that has not passed yet, so that only the canary may be changed.
    pub(super) fn has_pending_canary(&self) -> bool {
        let is_over = matches!(self.checkpoint.canary, Some(Canary::Passed));
        self.roller.spec.canary_s > 0 && !is_over
    }

    /// Returns the name of the canary if this step changes it (the canary is the first step's only node); otherwise
    /// None.
    pub(super) fn canary<'c>(
        &self,
        cluster: &'c Cluster,
        step: &BTreeSet<usize>,
    ) -> Option<&'c str> {
        let number = step.first().filter(|_| self.has_pending_canary())?;
        Some(&cluster.members[*number].access.name)
    }

    fn canary_time(&self) -> Duration {
        Duration::from_secs(self.roller.spec.canary_s)
    }

    /// Measures all nodes before the canary `name` changes, and saves the result in the job's checkpoint.
    pub(super) async fn measure_before(&mut self, name: &str) -> Result<()> {
        let what = format!("{name}: is compared with the others");
        let why = "it is the first node, and the roll goes on only if it is faster then";
        self.journal.note(&self.run.record().id, &what, why).await?;
        self.run.reporter().decision(what, why);
        let before = self.unless_stopped(measure_windows(
            &self.roller.file,
            name,
            self.canary_time(),
            false,
        ));
        let before = MeasuredWindows::of(&self.roller.file, &before.await?);
        self.checkpoint.canary = Some(Canary::Before(before));
        Ok(self.run.save(self.checkpoint.value()).await?)
    }

    /// Measures all nodes after the change of the canary `name`, and reverts the change if the canary is no faster;
    /// `step` has the canary's index.
    pub(super) async fn measure_after(
        &mut self,
        cluster: &Cluster,
        step: &BTreeSet<usize>,
        name: &str,
    ) -> Result<()> {
        let Some(Canary::Before(before)) = self.checkpoint.canary.clone() else { return Ok(()) };
        let looked = async {
            self.set_compactions(cluster, step, true).await?;
            measure_windows(&self.roller.file, name, self.canary_time(), true).await
        };
        let finding = match self.unless_stopped(looked).await {
            Ok(after) => compared(&self.roller.file, name, &before, &after),
            Err(stopped @ Error::Stopped(_)) => return Err(stopped),
            Err(error) => Finding::NotBetter(chain(&error)),
        };
        let why = match finding {
            Finding::Better(comparison) => {
                self.checkpoint.canary = Some(Canary::Passed);
                self.run.save(self.checkpoint.value()).await?;
                let what = format!("{name}: is faster than before, and the roll goes on");
                let why = format!(
                    "{}; effects that need the change on all nodes were not measured",
                    describe(&comparison)
                );
                self.journal.note(&self.run.record().id, &what, &why).await?;
                self.run.reporter().decision(what, why);
                return Ok(());
            }
            Finding::NotBetter(why) => why,
        };
        self.checkpoint.canary = Some(Canary::Refused(why.clone()));
        self.run.save_final(self.checkpoint.value()).await?;
        Err(self.revert(cluster, step.clone(), &why).await)
    }

    /// Reverts the nodes with these indices to their old configuration for the reason `why`, and returns the error
    /// that reports the reason.
    pub(super) async fn revert(
        &mut self,
        cluster: &Cluster,
        numbers: BTreeSet<usize>,
        why: &str,
    ) -> Error {
        let names: Vec<&str> =
            numbers.iter().map(|number| &*cluster.members[*number].access.name).collect();
        let name = names.join(", ");
        let mut back = Vec::new();
        for number in &numbers {
            let before = self.checkpoint.before.get(&cluster.members[*number].id);
            for (setting, value) in before.into_iter().flatten() {
                let Ok(knob) = knobs::find(setting) else { continue };
                let parsed =
                    |text: &String| knob.value(text).unwrap_or_else(|_| Value::as_written(text));
                let value = value.as_ref().map(parsed);
                back.push(Change { knob, value });
            }
        }
        let what = format!("{name}: gets its old configuration back");
        let _ = self.journal.note(&self.run.record().id, &what, why).await;
        self.run.reporter().decision(what, why);
        let taken = async {
            self.take(cluster, &numbers, Some(&back)).await?;
            self.set_compactions(cluster, &numbers, false).await
        };
        match taken.await {
            Ok(()) => Error::failed(
                format!(
                    "{name} is no faster with the new configuration, and was reverted to the old \
                     one: {why}"
                ),
                "a canary shows only its own work; where the gain needs all nodes, roll without one",
            ),
            Err(error) => Error::failed(
                format!(
                    "{name} is no faster with the new configuration ({why}), and could not be \
                     reverted: {}",
                    chain(&error)
                ),
                "resume the job (`imago tune roll --resume`): it reverts the node first",
            ),
        }
    }

    /// Sets compactions on the nodes with these indices only: the roll's new ones if `is_new`, and otherwise those
    /// that the tables have.
    async fn set_compactions(
        &self,
        cluster: &Cluster,
        numbers: &BTreeSet<usize>,
        is_new: bool,
    ) -> Result<()> {
        for (table, to) in &self.roller.spec.compaction {
            let present = compaction::present(&self.roller.session, table).await?;
            if to.is_in(&present) {
                continue;
            }
            for number in numbers {
                let (node, to) =
                    (&cluster.members[*number].access, if is_new { to } else { &present });
                let what =
                    format!("{}: {table} has the compaction {to} in this node alone", node.name);
                let why = "a canary is compared before the table is altered";
                self.journal.note(&self.run.record().id, &what, why).await?;
                compaction::set_in_node(node, table, to).await?;
                self.run.reporter().decision(what, why);
            }
        }
        Ok(())
    }

    /// Waits for `work` and returns its result; returns early with an error if the job is to stop.
    async fn unless_stopped<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return done,
                stopped = self.run.control().sleep(LOOK_EVERY) => stopped.map_err(Error::Stopped)?,
            }
        }
    }
}
