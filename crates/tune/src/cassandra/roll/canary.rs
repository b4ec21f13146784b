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

use std::time::{Duration, Instant};

use imago_plan::tune::canary::{self, Comparison, Window, multiple};
use imago_plan::tune::sampling::is_warm;
use serde::{Deserialize, Serialize};

use super::super::ClusterFile;
use super::super::error::{Error, Result};
use super::super::knobs::Class;
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
    pub(super) fn of(file: &ClusterFile, windows: &[Window]) -> Self {
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
pub(super) enum Finding {
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
pub(super) async fn measure_windows(
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
pub(super) fn compared(
    file: &ClusterFile,
    name: &str,
    before: &MeasuredWindows,
    after: &[Window],
) -> Finding {
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
pub(super) fn describe(comparison: &Comparison) -> String {
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
