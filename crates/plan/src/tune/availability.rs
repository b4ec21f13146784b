//! Availability: which nodes of a cluster, and how many, may be down at once (SOPHIA, §4.5).
//!
//! A consistency level needs some replicas of each range of tokens. So a set of nodes may be down together if each
//! range keeps as many replicas as it needs, plus as many as may fail meanwhile. The paper takes R = N_s − N_s·CL/RF
//! nodes, which holds if each node has one token and the nodes are chosen accordingly; with virtual nodes, any two
//! nodes may share a range. So every range is checked.
//!
//! Invariants:
//! - A planned step takes down no replica that a range needs.
//! - The steps cover all nodes, each once.

use std::collections::{BTreeMap, BTreeSet};

/// Index of a node in the cluster's list of nodes.
pub type Node = usize;

/// The number of replicas that one consistency level needs of one range of tokens. A level that counts per data centre
/// has one demand for each data centre.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Name of the keyspace and the token range, for reports.
    pub name: String,
    /// Nodes that have a replica of the range.
    pub replicas: Vec<Node>,
    /// Number of the range's replicas that have to reply at this consistency level.
    pub needed: usize,
}

/// A snapshot of a cluster: its nodes, and the replicas that must stay up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Rack of each node, in the order of the nodes.
    pub racks: Vec<String>,
    /// Nodes that are down already.
    pub away: BTreeSet<Node>,
    /// The demands on all token ranges.
    pub demands: Vec<Demand>,
    /// Number of further node failures that have to be tolerated while nodes are down.
    pub tolerate: usize,
}

/// The reason why a node may not be taken down: a token range would keep too few replicas.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{name} needs {needed} of its {replicas} replicas{}, and would have {left}",
    if *tolerate > 0 { format!(" and {tolerate} more in case of failures") } else { String::new() }
)]
pub struct Unsafe {
    /// The node that was to be taken down.
    pub node: Node,
    /// Name of the keyspace and the token range that would keep too few replicas.
    pub name: String,
    /// Number of the range's replicas that have to reply.
    pub needed: usize,
    /// Number of replicas of the range.
    pub replicas: usize,
    /// Number of the range's replicas that would remain up without the node.
    pub left: usize,
    /// Number of further node failures that have to be tolerated.
    pub tolerate: usize,
}

/// A largest set of nodes that may be down together, as far as a search found one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Largest {
    /// The nodes of the set.
    pub nodes: BTreeSet<Node>,
    /// True if no larger set exists; false if the search ended before it had checked all sets.
    pub is_proven: bool,
}

/// Limit on the number of sets that a search checks.
const SETS_CHECKED_MAX: usize = 200_000;

impl Ring {
    /// Returns the first demand on a token range that would keep too few replicas without `nodes`; `None` if all
    /// ranges keep enough.
    #[must_use]
    pub fn broken_by(&self, nodes: &BTreeSet<Node>) -> Option<&Demand> {
        self.demands.iter().find(|demand| self.left(demand, nodes) < demand.needed + self.tolerate)
    }

    /// Returns the number of a range's replicas that are up without `nodes`.
    fn left(&self, demand: &Demand, nodes: &BTreeSet<Node>) -> usize {
        let is_there = |node: &&Node| !nodes.contains(node) && !self.away.contains(node);
        demand.replicas.iter().filter(is_there).count()
    }

    /// Checks that one node may be taken down with those that are down already.
    ///
    /// # Errors
    /// The range that would keep too few replicas.
    pub fn check(&self, node: Node) -> Result<(), Unsafe> {
        let without = BTreeSet::from([node]);
        match self.broken_by(&without) {
            None => Ok(()),
            Some(demand) => Err(Unsafe {
                node,
                name: demand.name.clone(),
                needed: demand.needed,
                replicas: demand.replicas.len(),
                left: self.left(demand, &without),
                tolerate: self.tolerate,
            }),
        }
    }

    /// Creates a ring of tokens from the node of each token, in order. Each range has one demand, with `replicas`
    /// replicas of which `needed` have to reply. Replicas are placed as Cassandra 5 places them in a data centre
    /// (`NetworkTopologyStrategy`): going along the ring, the next node of each rack without a replica, and as many
    /// other nodes as there are more replicas than racks. No node is down, and no failure is tolerated.
    ///
    /// # Panics
    /// If a token's node has no rack.
    #[must_use]
    pub fn placed(owners: &[Node], racks: &[&str], replicas: usize, needed: usize) -> Self {
        let all: BTreeSet<&str> = owners.iter().map(|node| racks[*node]).collect();
        let demand = |first: usize| {
            let mut others = replicas.saturating_sub(all.len());
            let (mut chosen, mut has): (Vec<Node>, BTreeSet<&str>) = (Vec::new(), BTreeSet::new());
            for node in (0..owners.len()).map(|next| owners[(first + next) % owners.len()]) {
                if chosen.len() == replicas || chosen.contains(&node) {
                    continue;
                }
                if has.insert(racks[node]) {
                    chosen.push(node);
                } else if others > 0 {
                    others -= 1;
                    chosen.push(node);
                }
            }
            Demand { name: format!("range {first}"), replicas: chosen, needed }
        };
        Self {
            racks: racks.iter().map(|rack| (*rack).to_owned()).collect(),
            away: BTreeSet::new(),
            demands: (0..owners.len()).map(demand).collect(),
            tolerate: 0,
        }
    }

    /// Returns a largest subset of the nodes `among` that may be down together. Each subset of such a set may be down
    /// too, so the search extends sets node by node.
    #[must_use]
    pub fn largest(&self, among: &BTreeSet<Node>) -> Largest {
        if self.broken_by(&BTreeSet::new()).is_some() {
            return Largest { nodes: BTreeSet::new(), is_proven: true };
        }
        let among: Vec<Node> = among.iter().copied().collect();
        let mut search = Search::of(self, &among);
        search.grow(&among);
        let Search { best, sets_checked, .. } = search;
        Largest { nodes: best.into_iter().collect(), is_proven: sets_checked < SETS_CHECKED_MAX }
    }

    /// Returns the steps of a roll (a restart of all nodes that are up), in order; the nodes of one step may be down
    /// together. The steps are whole racks, if each rack may be down; otherwise repeatedly a largest set of the
    /// remaining nodes, whichever has fewer steps.
    ///
    /// # Errors
    /// The first node that may not be down even alone, and the range that would keep too few replicas.
    pub fn steps(&self) -> Result<Vec<BTreeSet<Node>>, Unsafe> {
        let mut left: BTreeSet<Node> =
            (0..self.racks.len()).filter(|node| !self.away.contains(node)).collect();
        left.iter().try_for_each(|node| self.check(*node))?;
        let mut racks: BTreeMap<&str, BTreeSet<Node>> = BTreeMap::new();
        for node in &left {
            racks.entry(&self.racks[*node]).or_default().insert(*node);
        }
        let by_rack: Vec<BTreeSet<Node>> = racks.into_values().collect();
        let mut steps = Vec::new();
        while !left.is_empty() {
            let step = self.largest(&left).nodes;
            left.retain(|node| !step.contains(node));
            steps.push(step);
        }
        let may_be_racks = by_rack.iter().all(|rack| self.broken_by(rack).is_none());
        Ok(if may_be_racks && by_rack.len() <= steps.len() { by_rack } else { steps })
    }
}

/// A search for a largest set of nodes: it enumerates sets, and counts the spare replicas of each token range.
struct Search {
    /// For each node, the indexes of the demands on ranges of which the node has replicas; empty for nodes that are
    /// down already.
    demands_of: Vec<Vec<usize>>,
    /// For each demand, the number of spare replicas without the nodes in `taken`; negative if too many are taken.
    spare: Vec<isize>,
    /// The nodes of the current set.
    taken: Vec<Node>,
    /// The largest set so far.
    best: Vec<Node>,
    /// Number of sets checked so far.
    sets_checked: usize,
}

impl Search {
    /// Prepares a search among these nodes, which must be in rising order.
    fn of(ring: &Ring, among: &[Node]) -> Self {
        let mut demands_of = vec![Vec::new(); among.last().map_or(0, |last| last + 1)];
        let mut spare = Vec::new();
        for (number, demand) in ring.demands.iter().enumerate() {
            let left = ring.left(demand, &BTreeSet::new());
            spare.push(left as isize - (demand.needed + ring.tolerate) as isize);
            for node in demand.replicas.iter().filter(|node| !ring.away.contains(node)) {
                if let Some(demands) = demands_of.get_mut(*node) {
                    demands.push(number);
                }
            }
        }
        Self { demands_of, spare, taken: Vec::new(), best: Vec::new(), sets_checked: 0 }
    }

    /// Tries all extensions of the current set by the nodes of `rest`.
    fn grow(&mut self, rest: &[Node]) {
        self.sets_checked += 1;
        if self.taken.len() > self.best.len() {
            self.best.clone_from(&self.taken);
        }
        let Some((first, behind)) = rest.split_first() else { return };
        if self.taken.len() + rest.len() <= self.best.len() || self.sets_checked >= SETS_CHECKED_MAX
        {
            return;
        }
        self.take(*first, 1);
        if self.demands_of[*first].iter().all(|demand| self.spare[*demand] >= 0) {
            self.taken.push(*first);
            self.grow(behind);
            self.taken.pop();
        }
        self.take(*first, -1);
        self.grow(behind);
    }

    /// Subtracts a node's replicas from the spare ones of its ranges (`replicas` is 1), or adds them back (-1).
    fn take(&mut self, node: Node, replicas: isize) {
        self.demands_of[node].iter().for_each(|demand| self.spare[*demand] -= replicas);
    }
}

/// Returns R, the number of nodes that may be down together, by the formula of the paper: N_s − N_s·CL/RF, where
/// `nodes` is N_s, `needed` is CL and `replicas` is RF.
///
/// # Panics
/// If there are no replicas.
#[must_use]
pub fn published(nodes: usize, replicas: usize, needed: usize) -> usize {
    assert!(replicas > 0, "data without a replica");
    nodes.saturating_sub((nodes * needed).div_ceil(replicas))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;
    use rand::seq::SliceRandom as _;

    use super::*;

    fn all(nodes: usize) -> BTreeSet<Node> {
        (0..nodes).collect()
    }

    #[test]
    fn with_one_token_each_as_many_may_be_away_as_published() {
        for (nodes, replicas, needed) in [(6, 3, 1), (6, 3, 2), (9, 3, 1), (8, 4, 2), (10, 5, 3)] {
            let owners: Vec<Node> = (0..nodes).collect();
            let racks = vec!["r1"; nodes];
            let largest = Ring::placed(&owners, &racks, replicas, needed).largest(&all(nodes));
            assert!(largest.is_proven);
            let published = published(nodes, replicas, needed);
            assert_eq!(largest.nodes.len(), published, "{nodes} {replicas} {needed}");
        }
    }

    #[test]
    fn as_many_as_published_are_not_safe_wherever_they_are() {
        let owners: Vec<Node> = (0..6).collect();
        let ring = Ring::placed(&owners, &["r1"; 6], 3, 2);
        assert_eq!(published(6, 3, 2), 2);
        let neighbours = ring.broken_by(&BTreeSet::from([2, 3]));
        assert_eq!(neighbours.map(|demand| demand.name.as_str()), Some("range 1"));
        assert_eq!(ring.broken_by(&BTreeSet::from([0, 3])), None);
    }

    #[test]
    fn with_virtual_nodes_two_of_six_have_a_range_in_common() {
        // Eight tokens for each node, as they are drawn.
        let mut owners: Vec<Node> = (0..48).map(|token| token % 6).collect();
        owners.shuffle(&mut StdRng::seed_from_u64(2));
        let ring = Ring::placed(&owners, &["r1"; 6], 3, 2);
        assert_eq!(published(6, 3, 2), 2);
        assert_eq!(ring.largest(&all(6)).nodes.len(), 1);
        assert_eq!(ring.steps().unwrap().len(), 6);
    }

    #[test]
    fn a_rack_may_go_as_a_whole_where_each_has_one_replica() {
        let owners = [0, 3, 1, 5, 2, 4, 5, 0, 4, 1, 3, 2];
        let racks = ["r1", "r2", "r3", "r1", "r2", "r3"];
        let ring = Ring::placed(&owners, &racks, 3, 2);
        let steps = ring.steps().unwrap();
        assert_eq!(steps, [BTreeSet::from([0, 3]), BTreeSet::from([1, 4]), BTreeSet::from([2, 5])]);
    }

    #[test]
    fn what_forbids_a_roll_is_named() {
        let owners = [0, 1, 2];
        let full = Ring::placed(&owners, &["r1"; 3], 3, 3);
        let refused = full.steps().unwrap_err();
        assert_eq!(refused.to_string(), "range 0 needs 3 of its 3 replicas, and would have 2");
        let mut quorum = Ring::placed(&owners, &["r1"; 3], 3, 2);
        assert_eq!(quorum.steps().unwrap().len(), 3);
        quorum.tolerate = 1;
        let refused = quorum.steps().unwrap_err();
        assert!(refused.to_string().contains("and 1 more in case of failures"), "{refused}");
        quorum.tolerate = 0;
        quorum.away.insert(2);
        assert_eq!(quorum.steps().unwrap_err().left, 1, "one is away already");
    }

    proptest! {
        #[test]
        fn no_larger_set_may_be_away_and_steps_keep_what_ranges_need(
            nodes in 1..8_usize, tokens in prop::collection::vec(any::<prop::sample::Index>(), 1..30),
            replicas in 1..5_usize, needed in 1..4_usize, tolerate in 0..2_usize, racks in 1..4_usize,
        ) {
            let owners: Vec<Node> = tokens.iter().map(|at| at.index(nodes)).collect();
            let names = ["r1", "r2", "r3"];
            let of: Vec<&str> = (0..nodes).map(|node| names[node % racks]).collect();
            let mut ring = Ring::placed(&owners, &of, replicas, needed);
            ring.tolerate = tolerate;
            let largest = ring.largest(&all(nodes));
            let subsets = (0..1_u32 << nodes).map(|bits| {
                (0..nodes).filter(|node| bits & 1 << node != 0).collect::<BTreeSet<Node>>()
            });
            let safe = subsets.filter(|set| ring.broken_by(set).is_none());
            prop_assert_eq!(largest.nodes.len(), safe.map(|set| set.len()).max().unwrap_or(0));
            prop_assert!(largest.is_proven);
            match ring.steps() {
                Ok(steps) => {
                    prop_assert!(steps.iter().all(|step| ring.broken_by(step).is_none()));
                    let covered: Vec<Node> = steps.iter().flatten().copied().collect();
                    prop_assert_eq!(covered.len(), nodes);
                    prop_assert_eq!(covered.into_iter().collect::<BTreeSet<_>>(), all(nodes));
                }
                Err(refused) => {
                    prop_assert!(ring.broken_by(&BTreeSet::from([refused.node])).is_some());
                }
            }
        }
    }
}
