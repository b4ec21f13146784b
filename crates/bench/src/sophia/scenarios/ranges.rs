//! Number of nodes that may restart together, by the token ranges of a cluster (SOPHIA, §4.5).
//!
//! The paper takes R = N_s − N_s·CL/RF, so a roll has RF/(RF − CL) steps for any number of nodes. This holds for one
//! token per node. Here the steps are computed from generated token ranges.

use imago_plan::tune::availability::{Ring, Unsafe, published};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use serde::Serialize;

/// Numbers of nodes in Fig. 6.
pub(crate) const NODES: [usize; 4] = [4, 8, 16, 32];
/// Number of tokens of a node with virtual nodes, as in Imago's testbeds.
pub(crate) const VIRTUAL: usize = 8;
const RACKS: [&str; 3] = ["r1", "r2", "r3"];

/// A cluster: its nodes, tokens and replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Layout {
    /// N_s: number of nodes.
    pub nodes: usize,
    /// Number of tokens of each node.
    pub tokens: usize,
    /// Number of racks; their numbers of nodes differ by at most one.
    pub racks: usize,
    /// RF: number of replicas.
    pub replicas: usize,
    /// CL: number of replicas that must reply.
    pub needed: usize,
}

/// Rolls of a cluster, by the paper's formula and by its token ranges.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// The cluster.
    #[serde(flatten)]
    pub layout: Layout,
    /// R by the paper's formula: number of nodes that may restart together.
    pub published_at_once: usize,
    /// Number of steps of a roll by the paper's formula; null if R is 0.
    pub published_steps: Option<usize>,
    /// Maximum number of nodes in a step, by the token ranges; null if no node may restart.
    pub at_once: Option<usize>,
    /// Number of steps of a roll, by the token ranges; null if no node may restart.
    pub steps: Option<usize>,
    /// Reason why no node may restart; null if one may.
    pub refused: Option<String>,
}

/// Returns the number of nodes in each step of a roll.
///
/// # Errors
/// Returns the range because of which no node may restart.
pub(crate) fn steps(layout: Layout, seed: u64) -> Result<Vec<usize>, Unsafe> {
    let Layout { nodes, tokens, racks, replicas, needed } = layout;
    let mut owners: Vec<usize> = (0..nodes * tokens).map(|token| token % nodes).collect();
    if tokens > 1 {
        owners.shuffle(&mut StdRng::seed_from_u64(seed));
    }
    let rack = |node: usize| RACKS[node * racks.min(RACKS.len()) / nodes];
    let racks: Vec<&str> = (0..nodes).map(rack).collect();
    let steps = Ring::placed(&owners, &racks, replicas, needed).steps()?;
    Ok(steps.iter().map(std::collections::BTreeSet::len).collect())
}

pub(crate) fn row(layout: Layout, seed: u64) -> Row {
    let published_at_once = published(layout.nodes, layout.replicas, layout.needed);
    let found = steps(layout, seed);
    Row {
        layout,
        published_at_once,
        published_steps: (published_at_once > 0).then(|| layout.nodes.div_ceil(published_at_once)),
        at_once: found.as_ref().ok().and_then(|steps| steps.iter().copied().max()),
        steps: found.as_ref().ok().map(Vec::len),
        refused: found.err().map(|refusal| refusal.to_string()),
    }
}

/// Returns rows for clusters of 4 to 32 nodes with three replicas, of which one or two must reply: with one token per
/// node as in the paper, with virtual nodes, and with virtual nodes in three racks.
pub(crate) fn rows(seed: u64) -> Vec<Row> {
    let mut rows = Vec::new();
    for needed in [1, 2] {
        for (tokens, racks) in [(1, 1), (VIRTUAL, 1), (VIRTUAL, 3)] {
            let of = |nodes| Layout { nodes, tokens, racks, replicas: 3, needed };
            rows.extend(NODES.map(|nodes| row(of(nodes), seed)));
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(tokens: usize, racks: usize, needed: usize) -> [usize; 4] {
        NODES.map(|nodes| {
            let steps = steps(Layout { nodes, tokens, racks, replicas: 3, needed }, 1).unwrap();
            assert_eq!(steps.iter().sum::<usize>(), nodes);
            steps.len()
        })
    }

    #[test]
    fn the_steps_of_a_roll_stay_as_many_with_racks_and_grow_with_virtual_nodes_alone() {
        assert!(found(VIRTUAL, 3, 2).iter().all(|steps| *steps == 3), "a rack at a time");
        let alone = found(VIRTUAL, 1, 2);
        assert!(alone.windows(2).all(|pair| pair[0] < pair[1]), "{alone:?}");
        assert_eq!(found(1, 1, 1)[1..], [2, 2, 2], "as published");
    }

    #[test]
    fn where_all_replicas_have_to_answer_none_may_restart() {
        let row = row(Layout { nodes: 8, tokens: 1, racks: 1, replicas: 1, needed: 1 }, 1);
        assert_eq!((row.published_at_once, row.published_steps, row.steps), (0, None, None));
        assert!(row.refused.unwrap().contains("needs 1 of its 1 replicas"));
    }
}
