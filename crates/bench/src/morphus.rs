//! The evaluation of Morphus (Ghosh et al., "Morphus: Supporting Online Reconfigurations in Sharded NoSQL Systems",
//! §5), repeated with Imago instead of Morphus: its tables and figures, drawn as in the paper.
//!
//! [`availability`] is Table 1 and Figs. 4 to 6, which come from the same runs; [`placing`] is Fig. 7; [`scaling`] is
//! Fig. 8. Figs. 3 and 9 and Table 2 are in [`crate::flows`]; the decisions of Fig. 7 alone are in
//! [`crate::placement`]. Data, keys, mix and rate are the paper's unless an option changes them; sizes are limited to
//! those that one machine can serve. Where the paper prints a figure, the report contains it too.

pub mod availability;
pub mod placing;
pub mod scaling;

use imago_mongo::reshard::plan::Placing;

use crate::error::Result;
use crate::sharded_cluster::{Cut, ShardedCluster};
use crate::subject::Commands;

/// Returns the paper's name for Morphus with a placement.
fn name(placing: Placing) -> &'static str {
    match placing {
        Placing::Random => "random (R)",
        Placing::Greedy => "greedy (G)",
        Placing::Balanced => "balanced (H)",
    }
}

/// A change of the shard key that was planned and executed.
struct Change {
    /// Time of planning and of executing, in seconds.
    seconds: f64,
    /// The phases with their durations in seconds: `plan`, then those of the job.
    phases: Vec<(String, f64)>,
    /// Number of new chunks.
    chunks: usize,
    /// The fullest shard's load after the change, as a ratio to its share.
    imbalance: f64,
}

async fn change(cluster: &ShardedCluster, cut: Cut, commands: &Commands) -> Result<Change> {
    let (plan, plan_s) = cluster.plan(cut, commands).await?;
    let changed = cluster.change(&plan, commands).await?;
    let phases = std::iter::once(("plan".to_owned(), plan_s)).chain(changed.phases).collect();
    let (chunks, imbalance) = (plan.chunks.len(), plan.imbalance.1);
    Ok(Change { seconds: plan_s + changed.wall_s, phases, chunks, imbalance })
}
