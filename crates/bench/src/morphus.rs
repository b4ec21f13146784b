//! The evaluation of Morphus (Ghosh et al., "Morphus: Supporting Online Reconfigurations in Sharded
//! NoSQL Systems", §5) with Imago in Morphus' place: its tables and figures, drawn as the paper
//! draws them.
//!
//! [`availability`] is Table 1 and Figs. 4 to 6, which are of the same runs; [`placing`] is Fig. 7;
//! [`scaling`] is Fig. 8. Figs. 3 and 9 and Table 2 are [`crate::flows`], and the decisions of Fig. 7
//! alone are [`crate::placement`]. Data, keys, mix and rate are the paper's unless an option changes them;
//! sizes are what one machine bears. The paper's own figures stand beside those that it prints.

pub mod availability;
pub mod placing;
pub mod scaling;

use imago_mongo::reshard::plan::Placing;

use crate::error::Result;
use crate::sharded_cluster::{Cut, ShardedCluster};
use crate::subject::Commands;

/// The paper's name for Morphus with a placement.
fn name(placing: Placing) -> &'static str {
    match placing {
        Placing::Random => "random (R)",
        Placing::Greedy => "greedy (G)",
        Placing::Balanced => "balanced (H)",
    }
}

/// A change of the shard key that was planned and done.
struct Change {
    /// Both.
    seconds: f64,
    /// The seconds of each phase: `plan`, then those of the job.
    phases: Vec<(String, f64)>,
    /// New chunks.
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
