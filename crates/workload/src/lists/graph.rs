//! The graph of dependencies between transactions, and its cycles.
//!
//! Each transaction is two points: its snapshot, and its commit after that. Under strong-session snapshot
//! isolation (Daudjee and Salem, 2006; Adya, 1999, §4.3), if B overwrites or reads a write of A, or follows A
//! in its session, A commits before B's snapshot; if B overwrites a state that A read, A's snapshot is before
//! B's commit. These points can be ordered in time exactly if they have no cycle. That is equivalent to the
//! usual rule: each cycle of transactions has two adjacent edges of the last kind. Two such edges form no
//! path here, since no edge leads from a commit to its own snapshot. So a linear search finds exactly the
//! forbidden cycles.

use std::collections::{HashMap, HashSet, VecDeque};

use super::{Kind, List};

/// Limit of the number of snapshots of a component from which a shortest cycle is searched.
const STARTS_MAX: usize = 64;

/// The reason why one point (snapshot or commit) is before another, in the order in which reasons are added to the
/// search: a cycle of the earlier kinds is worse than one that needs the later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Link {
    /// A transaction's snapshot is before its commit.
    Within,
    /// The append of an element is before the append of the next element of the list (write-write dependency).
    Ww,
    /// The append of an element is before a read of it (write-read dependency).
    Wr,
    /// A read is before the append that it did not see (read-write dependency).
    Rw,
    /// A transaction is before a later one of its session.
    Session,
}

#[derive(Debug, Clone, Copy)]
struct Edge {
    to: usize,
    link: Link,
    list: Option<List>,
}

/// Dependencies between transactions. The snapshot of transaction n is point 2n, its commit point 2n + 1.
#[derive(Debug)]
pub(super) struct Graph {
    edges: Vec<Vec<Edge>>,
}

/// A step of a cycle of transactions, from the transaction `from` to that of the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hop {
    pub from: usize,
    pub link: Link,
    pub list: Option<List>,
}

impl Graph {
    pub fn new(transactions: usize) -> Self {
        let mut edges = vec![Vec::new(); 2 * transactions];
        for n in 0..transactions {
            edges[2 * n].push(Edge { to: 2 * n + 1, link: Link::Within, list: None });
        }
        Self { edges }
    }

    /// Adds an edge from the commit of transaction `one` to the snapshot of transaction `other`. `list` is the list
    /// that the reason `link` concerns, if any.
    pub fn add_dependency(&mut self, one: usize, other: usize, link: Link, list: Option<List>) {
        self.edges[2 * one + 1].push(Edge { to: 2 * other, link, list });
    }

    /// Adds an edge from the snapshot of transaction `one` to the commit of `other`, because `one` read `list`
    /// without an element that `other` appended.
    pub fn add_antidependency(&mut self, one: usize, other: usize, list: List) {
        self.edges[2 * one].push(Edge { to: 2 * other + 1, link: Link::Rw, list: Some(list) });
    }

    /// Returns a short cycle of each strongly connected component of points, with the kind of its anomaly. A
    /// component with cycles of several kinds is reported by the worst one.
    pub fn cycles(&self) -> Vec<(Kind, Vec<Hop>)> {
        let mut found = Vec::new();
        let mut known = HashSet::new();
        for until in [Link::Ww, Link::Wr, Link::Rw, Link::Session] {
            for component in self.components(until) {
                if component.iter().any(|point| known.contains(point)) {
                    continue;
                }
                let hops = self.smallest_cycle(&component, until);
                found.push((kind(until, &hops), hops));
                known.extend(component);
            }
        }
        found
    }

    /// Returns the strongly connected components of more than one point in the graph of the edges up to the reason
    /// `until` (Tarjan, 1972, without recursion).
    fn components(&self, until: Link) -> Vec<Vec<usize>> {
        const UNSEEN: usize = usize::MAX;
        let points = self.edges.len();
        let (mut order, mut low) = (vec![UNSEEN; points], vec![0; points]);
        let (mut is_open, mut open) = (vec![false; points], Vec::new());
        let (mut next, mut components) = (0, Vec::new());
        for root in 0..points {
            let mut path = if order[root] == UNSEEN { vec![(root, 0)] } else { Vec::new() };
            while let Some((point, at)) = path.pop() {
                if order[point] == UNSEEN {
                    (order[point], low[point]) = (next, next);
                    next += 1;
                    open.push(point);
                    is_open[point] = true;
                }
                let mut deeper = None;
                for (n, edge) in self.edges[point].iter().enumerate().skip(at) {
                    if edge.link > until {
                        continue;
                    }
                    if order[edge.to] == UNSEEN {
                        deeper = Some((n, edge.to));
                        break;
                    }
                    if is_open[edge.to] {
                        low[point] = low[point].min(low[edge.to]);
                    }
                }
                if let Some((n, to)) = deeper {
                    // The edge is visited again after the points beyond it.
                    path.extend([(point, n), (to, 0)]);
                } else if low[point] == order[point] {
                    let at = open.iter().rposition(|&other| other == point).unwrap_or(0);
                    let component = open.split_off(at);
                    component.iter().for_each(|&point| is_open[point] = false);
                    if component.len() > 1 {
                        components.push(component);
                    }
                }
            }
        }
        components
    }

    fn smallest_cycle(&self, component: &[usize], until: Link) -> Vec<Hop> {
        let inside: HashSet<usize> = component.iter().copied().collect();
        // Every cycle contains a snapshot, since all edges from a commit lead to snapshots.
        let starts = component.iter().filter(|point| **point % 2 == 0).take(STARTS_MAX);
        let cycles = starts.filter_map(|&start| self.cycle_from(start, &inside, until));
        let mut hops = cycles.min_by_key(Vec::len).unwrap_or_default();
        let first = hops.iter().enumerate().min_by_key(|(_, hop)| hop.from).map_or(0, |(at, _)| at);
        hops.rotate_left(first);
        hops
    }

    /// Returns a shortest cycle through the point `start` within the points `inside`, by edges up to the reason
    /// `until`, found by breadth-first search; `None` if there is none.
    fn cycle_from(&self, start: usize, inside: &HashSet<usize>, until: Link) -> Option<Vec<Hop>> {
        let mut came: HashMap<usize, (usize, Edge)> = HashMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(point) = queue.pop_front() {
            for &edge in self.edges[point].iter().filter(|edge| edge.link <= until) {
                if !inside.contains(&edge.to) || came.contains_key(&edge.to) {
                    continue;
                }
                came.insert(edge.to, (point, edge));
                if edge.to == start {
                    return Some(path_of(start, &came));
                }
                queue.push_back(edge.to);
            }
        }
        None
    }
}

fn path_of(start: usize, came: &HashMap<usize, (usize, Edge)>) -> Vec<Hop> {
    let mut hops = Vec::new();
    let mut at = start;
    for _ in 0..came.len() {
        let (from, Edge { link, list, .. }) = came[&at];
        if link != Link::Within {
            hops.push(Hop { from: from / 2, link, list });
        }
        at = from;
        if at == start {
            break;
        }
    }
    hops.reverse();
    hops
}

fn kind(until: Link, hops: &[Hop]) -> Kind {
    match until {
        Link::Within | Link::Ww => Kind::G0,
        Link::Wr => Kind::G1c,
        Link::Session => Kind::Session,
        Link::Rw => {
            let is_read = |hop: &&Hop| hop.link == Link::Rw;
            let is_of_one_list = hops.iter().all(|hop| hop.list == hops[0].list);
            match hops.iter().filter(is_read).count() {
                1 if is_of_one_list && hops.iter().all(|hop| hop.link != Link::Wr) => {
                    Kind::LostUpdate
                }
                1 => Kind::GSingle,
                _ => Kind::GNonadjacent,
            }
        }
    }
}
