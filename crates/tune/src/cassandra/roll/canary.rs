//! The canary of a roll: its first node, compared with the others at the same time and under the same load, before
//! and after its change.
//!
//! The canary gets all changes of the roll: the settings, with a restart if they need one, and the tables' compactions,
//! on this node only. The other nodes are changed and the tables altered only after the comparison.
//!
//! The metric is the service time of an operation on a node's own data, by counters of the node ([`work_counters`]), as
//! a multiple of the other nodes' service time. The multiple after the change is compared with the multiple before it
//! (`imago_plan::tune::canary`). A canary does not show effects that need the new configuration on the whole cluster:
//! coordinators still wait for replicas with the old one.

mod work_counters;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use imago_plan::tune::canary::{self, Comparison, Window, multiple};
use imago_plan::tune::sampling::is_warm;
use serde::{Deserialize, Serialize};

use super::super::ClusterFile;
use super::super::compaction;
use super::super::error::{Error, Result};
use super::super::knobs::{self, Class, Value};
use super::super::ring::{Cluster, chain};
use super::work::{LOOK_EVERY, Work};
use super::{Change, Preview, Roller};
use work_counters::Reader;

/// Number of windows in which the canary is compared, before and after its change each, and maximum number of windows
/// skipped while the canary warms up. With half as many windows, their correlation is estimated so badly that hardly
/// any gain exceeds the noise.
const WINDOWS: u32 = 12;
const WARM_MAX: usize = 12;
/// Minimum length of a window of a comparison: in a shorter one the cost of reading the counters would dominate.
const WINDOW_MIN: Duration = Duration::from_secs(2);
/// Maximum number of consecutive windows in which the canary or all others execute no operations.
const IDLE_MAX: u32 = 6;

/// Progress of a roll's canary, stored in the job's checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Canary {
    /// The canary was measured, but is not known to be changed; contains the work of all nodes before its change.
    Before(MeasuredWindows),
    /// The canary is faster with the new configuration, and the roll goes on.
    Passed,
    /// The canary is not faster, for this reason, and gets its old configuration back.
    Refused(String),
}

/// Windows of a comparison, before or after the canary's change, with the work of all nodes in each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MeasuredWindows {
    /// Names of the nodes, in the order of [`Self::windows`].
    nodes: Vec<String>,
    /// By window, node and kind of work: number of operations, and their total service time in µs.
    windows: Vec<Vec<Vec<(u64, u64)>>>,
}

impl MeasuredWindows {
    fn of(file: &ClusterFile, windows: &[Window]) -> Self {
        let pair = |work: &canary::Work| (work.count, work.total_us);
        let node = |kinds: &Vec<canary::Work>| kinds.iter().map(pair).collect();
        Self {
            nodes: names(file),
            windows: windows.iter().map(|window| window.iter().map(node).collect()).collect(),
        }
    }

    fn windows(&self) -> Vec<Window> {
        let work =
            |(count, total_us): &(u64, u64)| canary::Work { count: *count, total_us: *total_us };
        let node = |kinds: &Vec<(u64, u64)>| kinds.iter().map(work).collect();
        self.windows.iter().map(|window| window.iter().map(node).collect()).collect()
    }
}

/// Returns the names of the nodes in the order of the cluster file.
fn names(file: &ClusterFile) -> Vec<String> {
    file.nodes.iter().map(|node| node.name.clone()).collect()
}

/// Result of the comparison of a canary before and after its change.
enum Finding {
    /// The canary's service time has decreased by more than the noise.
    Better(Comparison),
    /// The canary's service time has not decreased by more than the noise, or cannot be compared, for this reason.
    NotBetter(String),
}

/// Measures the work of all nodes for the time `lasts`, window by window, and returns the windows in which the canary
/// can be compared. With `warms_up`, the windows are skipped in which the canary's service time still decreases.
///
/// # Errors
/// Fails if there are too few operations, or if a node does not answer.
async fn measure_windows(
    file: &ClusterFile,
    canary: &str,
    lasts: Duration,
    warms_up: bool,
) -> Result<Vec<Window>> {
    let every = (lasts / WINDOWS).max(WINDOW_MIN);
    let names = names(file);
    let number = names.iter().position(|name| name == canary).ok_or_else(|| {
        Error::failed(format!("the cluster file names no {canary}"), "name all nodes there")
    })?;
    let others: Vec<usize> = (0..names.len()).filter(|other| *other != number).collect();
    let mut reader = Reader::begin(file).await?;
    let (mut rising, mut found, mut idle) = (Vec::new(), Vec::new(), 0);
    let mut is_warm_now = !warms_up;
    while found.len() < WINDOWS as usize {
        let next = Instant::now() + every;
        tokio::time::sleep_until(next.into()).await;
        let window = reader.window().await?;
        let Some(multiple) = multiple(&window, number, &others) else {
            idle += 1;
            if idle > IDLE_MAX {
                return Err(Error::failed(
                    format!("{canary} cannot be compared with the others: they have no load"),
                    "a canary needs a load; roll without one (--canary 0s)",
                ));
            }
            continue;
        };
        idle = 0;
        if is_warm_now {
            found.push(window);
            continue;
        }
        // The canary warms up while its service time decreases.
        rising.push(1.0 / multiple.max(1e-6));
        is_warm_now = is_warm(&rising) || rising.len() >= WARM_MAX;
    }
    Ok(found)
}

/// Compares the work of the canary `name`, relative to the other nodes, before and after its change.
fn compared(file: &ClusterFile, name: &str, before: &MeasuredWindows, after: &[Window]) -> Finding {
    let names = names(file);
    let number = names.iter().position(|node| node == name).filter(|_| names == before.nodes);
    let comparison = number.and_then(|number| canary::compare(&before.windows(), after, number));
    let Some(comparison) = comparison else {
        return Finding::NotBetter("too few of its operations were measured".into());
    };
    if comparison.change.is_negative() {
        return Finding::Better(comparison);
    }
    Finding::NotBetter(describe(&comparison))
}

/// Describes a comparison of the canary before and after its change in words.
fn describe(comparison: &Comparison) -> String {
    let percent = |share: f64| share * 100.0;
    let nodes = comparison.nodes_noise.map_or_else(String::new, |noise| {
        format!("; unchanged nodes differ by {:.1} %", percent(noise))
    });
    format!(
        "its time per operation changed by {:+.1} % (± {:.1} %) relative to the others{nodes}",
        percent(comparison.change.mean),
        percent(comparison.windows_noise),
    )
}

impl Roller {
    /// Checks, before any node is changed, that there are other nodes to compare the canary with, and that the
    /// canary's change can be reverted.
    pub(super) fn canary_can_be_compared(&self, preview: &Preview) -> Result<()> {
        if self.spec.canary_s == 0 {
            return Ok(());
        }
        if self.spec.is_at_once {
            let what = "a canary is compared with nodes that have the old configuration, and none has it with --at-once";
            return Err(Error::Usage(what.into()));
        }
        let [first, _, ..] = &preview.nodes[..] else {
            return Err(Error::precondition(
                "a canary is compared with other nodes, and there are none",
                "roll without one (--canary 0s)",
            ));
        };
        let has_no_way_back = |change: &&Change| {
            let is_unknown =
                |one: &super::ValueChange| one.setting == change.knob.name && one.from.is_none();
            let is_live = matches!(change.knob.class, Class::Live { .. });
            is_live && change.knob.default.is_none() && first.changes.iter().any(is_unknown)
        };
        match self.changes.iter().find(has_no_way_back) {
            None => Ok(()),
            Some(change) => Err(Error::precondition(
                format!(
                    "{} follows the machine on {}, so that a canary could not be put back",
                    change.knob.name, first.name
                ),
                "set it to a value first, or roll without a canary (--canary 0s)",
            )),
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkpoint_has_all_that_was_seen() {
        let work = |count, total_us| canary::Work { count, total_us };
        let window: Window = vec![
            vec![work(8_137, 6_058_715), work(0, 0)],
            vec![work(7_990, 5_412_007), work(3, 411)],
        ];
        let seen = MeasuredWindows {
            nodes: vec!["cassandra-1".into(), "cassandra-2".into()],
            windows: vec![
                window
                    .iter()
                    .map(|kinds| kinds.iter().map(|one| (one.count, one.total_us)).collect())
                    .collect(),
            ],
        };
        let stored = serde_json::to_value(Canary::Before(seen.clone())).unwrap();
        let Ok(Canary::Before(read)) = serde_json::from_value(stored) else {
            panic!("it is what was stored");
        };
        assert_eq!((read.windows(), &read), (vec![window], &seen));
        // What an older version stored is not taken for it.
        let older = serde_json::json!({ "before": [1.31, 1.28] });
        assert!(serde_json::from_value::<Canary>(older).is_err());
    }
}
