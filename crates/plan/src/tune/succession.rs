//! The order in which the nodes of a Redis Cluster are restarted: replicas first, and a master only after an in-sync
//! replica has taken its place.
//!
//! Each decision is for the next step alone, from a fresh snapshot: the roles of nodes may have changed since the last
//! one.
//! Invariants, which the tests check by simulated rolls:
//! - A node that serves slots is never stopped, unless [`Allowed::unserved`] permits it.
//! - A master's place is handed over only to a replica that is up, in sync, and has the new configuration.
//! - At most one node is down at a time, and its shard keeps as many in-sync replicas as failures have to be tolerated.
//! - Every node is restarted once, and each master's place is handed over at most once.

/// The role of a node in a Redis Cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The node serves slots, or all keys if it is a single server.
    Master,
    /// The node serves no slots, and replicates no master.
    Idle,
    /// The node replicates the master of this index.
    Replica(usize),
}

/// The observed state of a node in a Redis Cluster, during a roll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Role that the node has now.
    pub part: Part,
    /// True if the node is up and, if it is a replica, has all data of its master.
    pub is_in_step: bool,
    /// True if the node already runs with the new configuration.
    pub is_done: bool,
}

/// The permissions of a roll, a restart of all nodes with a new configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowed {
    /// Number of further failures that a shard has to tolerate while one of its nodes is down.
    pub tolerate: usize,
    /// True if a master without a replica may be stopped, although its keys are not served meanwhile.
    pub unserved: bool,
}

/// The next step of a roll of a Redis Cluster; nodes are given by their indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Restart this node, which serves no slots, or is permitted to stop serving them.
    Restart(usize),
    /// Fail over from the master `from` to its replica `to`.
    FailOver {
        /// Index of the master that hands its place over.
        from: usize,
        /// Index of the master's replica, the new master.
        to: usize,
    },
}

/// The reason why a roll has no possible step now; nodes are given by their indexes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This node is down, or is a replica that is not in sync; the state may be temporary.
    OutOfStep(usize),
    /// This master has no replica, so its keys would not be served.
    NoReplica(usize),
    /// With a node down, the shard of this master could not tolerate the required failures.
    TooFew {
        /// Index of the master.
        master: usize,
        /// Number of the master's replicas.
        replicas: usize,
    },
}

/// Returns the next step of a roll over `nodes`; `None` if every node has the new configuration.
///
/// # Errors
/// No step is possible now; [`Refusal::OutOfStep`] may be temporary.
pub fn next(nodes: &[Node], allowed: Allowed) -> Result<Option<Step>, Refusal> {
    if nodes.iter().all(|node| node.is_done) {
        return Ok(None);
    }
    if let Some(refusal) = refusal(nodes, allowed) {
        return Err(refusal);
    }
    if let Some(number) = nodes.iter().position(|node| !node.is_in_step) {
        return Err(Refusal::OutOfStep(number));
    }
    let serves = |node: &Node| node.part == Part::Master;
    if let Some(number) = nodes.iter().position(|node| !node.is_done && !serves(node)) {
        return Ok(Some(Step::Restart(number)));
    }
    let Some(from) = nodes.iter().position(|node| !node.is_done) else { return Ok(None) };
    Ok(Some(match replicas(nodes, from).next() {
        Some(to) => Step::FailOver { from, to },
        None => Step::Restart(from),
    }))
}

/// Returns a refusal that holds in any further state of the nodes, so that it is known before the first step; `None`
/// if there is none.
#[must_use]
pub fn refusal(nodes: &[Node], allowed: Allowed) -> Option<Refusal> {
    let masters = (0..nodes.len()).filter(|number| nodes[*number].part == Part::Master);
    masters.into_iter().find_map(|master| {
        let replicas = replicas(nodes, master).count();
        let is_left = nodes[master].is_done && replicas_are_done(nodes, master);
        match replicas {
            _ if is_left => None,
            0 if allowed.unserved => None,
            0 => Some(Refusal::NoReplica(master)),
            few if few <= allowed.tolerate => Some(Refusal::TooFew { master, replicas: few }),
            _ => None,
        }
    })
}

/// Iterates over the indexes of the replicas of the master with this index.
fn replicas(nodes: &[Node], master: usize) -> impl Iterator<Item = usize> + '_ {
    let follows = move |number: &usize| nodes[*number].part == Part::Replica(master);
    (0..nodes.len()).filter(follows)
}

/// Returns true if all replicas of the master with this index run with the new configuration.
fn replicas_are_done(nodes: &[Node], master: usize) -> bool {
    replicas(nodes, master).all(|number| nodes[number].is_done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A cluster of shards with so many replicas, and nodes that serve nothing; some have the configuration already.
    fn cluster() -> impl Strategy<Value = Vec<Node>> {
        let shard = (0..4_usize, proptest::collection::vec(any::<bool>(), 4));
        let shards = proptest::collection::vec(shard, 1..5);
        (shards, 0..2_usize).prop_map(|(shards, idle)| {
            let mut nodes = Vec::new();
            for (replicas, done) in shards {
                let master = nodes.len();
                for (number, is_done) in done.into_iter().take(1 + replicas).enumerate() {
                    let part = if number == 0 { Part::Master } else { Part::Replica(master) };
                    nodes.push(Node { part, is_in_step: true, is_done });
                }
            }
            let one = Node { part: Part::Idle, is_in_step: true, is_done: false };
            nodes.extend(std::iter::repeat_n(one, idle));
            nodes
        })
    }

    /// The effect of a step.
    fn play(nodes: &mut [Node], step: Step) {
        match step {
            Step::Restart(number) => nodes[number].is_done = true,
            Step::FailOver { from, to } => {
                for node in nodes.iter_mut().filter(|node| node.part == Part::Replica(from)) {
                    node.part = Part::Replica(to);
                }
                nodes[from].part = Part::Replica(to);
                nodes[to].part = Part::Master;
            }
        }
    }

    /// Whether any order of steps can restart all nodes without stopping one that serves: by trying all of them.
    fn is_possible(nodes: &[Node], tolerate: usize) -> bool {
        if nodes.iter().all(|node| node.is_done) {
            return true;
        }
        let replicas =
            |master| nodes.iter().filter(|node| node.part == Part::Replica(master)).count();
        (0..nodes.len()).any(|number| {
            let node = nodes[number];
            let mut after = nodes.to_vec();
            let shard = match node.part {
                _ if node.is_done => return false,
                Part::Idle => None,
                Part::Replica(of) => Some(of),
                Part::Master => {
                    let to = (0..nodes.len())
                        .find(|to| nodes[*to].part == Part::Replica(number) && nodes[*to].is_done);
                    let Some(to) = to else { return false };
                    play(&mut after, Step::FailOver { from: number, to });
                    Some(number)
                }
            };
            if shard.is_some_and(|master| replicas(master) <= tolerate) {
                return false;
            }
            after[number].is_done = true;
            is_possible(&after, tolerate)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn a_roll_restarts_every_node_once_and_none_that_serves(
            nodes in cluster(),
            tolerate in 0..3_usize,
        ) {
            let (mut now, allowed) = (nodes.clone(), Allowed { tolerate, unserved: false });
            let mut restarts = vec![0; nodes.len()];
            let mut fail_overs = 0;
            while let Ok(Some(step)) = next(&now, allowed) {
                match step {
                    Step::Restart(number) => {
                        prop_assert_ne!(now[number].part, Part::Master);
                        if let Part::Replica(master) = now[number].part {
                            let left = replicas(&now, master).count() - 1;
                            prop_assert!(left >= tolerate);
                        }
                        restarts[number] += 1;
                    }
                    Step::FailOver { from, to } => {
                        prop_assert_eq!(now[from].part, Part::Master);
                        prop_assert_eq!(now[to].part, Part::Replica(from));
                        prop_assert!(now[to].is_done && !now[from].is_done);
                        fail_overs += 1;
                    }
                }
                play(&mut now, step);
                prop_assert!(restarts.iter().all(|times| *times <= 1));
                prop_assert!(fail_overs <= nodes.len());
            }
            let is_done = next(&now, allowed) == Ok(None);
            if is_done {
                for (before, times) in nodes.iter().zip(&restarts) {
                    prop_assert_eq!(*times, u32::from(!before.is_done));
                }
                let masters = nodes.iter().filter(|node| node.part == Part::Master && !node.is_done);
                prop_assert_eq!(fail_overs, masters.count());
            } else {
                // What is refused is refused before anything is done.
                prop_assert_eq!(&now, &nodes);
                prop_assert!(refusal(&nodes, allowed).is_some());
            }
        }

        #[test]
        fn what_is_refused_is_impossible(nodes in cluster(), tolerate in 0..3_usize) {
            prop_assume!(nodes.len() <= 8);
            // Of a shard with nothing left to do nothing is asked.
            let allowed = Allowed { tolerate, unserved: false };
            if next(&nodes, allowed).is_ok() {
                prop_assert!(is_possible(&nodes, tolerate));
            } else {
                prop_assert!(!is_possible(&nodes, tolerate));
            }
        }

        #[test]
        fn nothing_is_done_while_a_node_is_not_in_step(nodes in cluster(), which in 0..20_usize) {
            let mut nodes = nodes;
            let count = nodes.len();
            nodes[which % count].is_in_step = false;
            let step = next(&nodes, Allowed { tolerate: 0, unserved: true });
            prop_assert!(step == Ok(None) || step == Err(Refusal::OutOfStep(which % count)));
        }
    }

    #[test]
    fn a_server_that_stands_alone_is_stopped_only_if_that_is_allowed() {
        let nodes = [Node { part: Part::Master, is_in_step: true, is_done: false }];
        assert_eq!(next(&nodes, Allowed::default()), Err(Refusal::NoReplica(0)));
        let allowed = Allowed { tolerate: 0, unserved: true };
        assert_eq!(next(&nodes, allowed), Ok(Some(Step::Restart(0))));
    }
}
