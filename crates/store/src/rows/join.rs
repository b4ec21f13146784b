//! Splits and joins trees of rows along one path of nodes.

use std::cmp::Ordering;
use std::mem;
use std::sync::Arc;

use super::entries::{Entries, Keyed};
use super::{Child, FANOUT, FILL_MIN, Node, Tree, sum};
use crate::key::Key;

impl Child {
    /// Joins a lower tree to the end of this node, which is `height` levels above the leaves. Returns the node's new
    /// right neighbour if the node was split.
    fn push(&mut self, height: usize, behind: Tree) -> Option<Self> {
        self.hang(|children| {
            let mut last = children.pop().expect("a node has entries");
            let beside = if behind.height + 1 == height {
                let (even, beside) = evened(last, behind.root);
                last = even;
                beside
            } else {
                last.push(height - 1, behind)
            };
            children.push(last);
            children.extend(beside);
        })
    }

    /// Joins a lower tree to the front of this node, which is `height` levels above the leaves, as [`Child::push`]
    /// does to the end.
    fn push_front(&mut self, height: usize, before: Tree) -> Option<Self> {
        self.hang(|children| {
            let mut first = children.remove(0);
            let beside = if before.height + 1 == height {
                let (even, beside) = evened(before.root, first);
                first = even;
                beside
            } else {
                first.push_front(height - 1, before)
            };
            children.splice(0..0, std::iter::once(first).chain(beside));
        })
    }

    /// Applies `change` to the children of this inner node. Returns the node's new right neighbour if the node was
    /// split.
    fn hang(&mut self, change: impl FnOnce(&mut Vec<Self>)) -> Option<Self> {
        let Node::Inner(children) = Arc::make_mut(&mut self.node) else {
            unreachable!("what is higher than another tree has inner nodes")
        };
        let mut entries = mem::replace(children, Entries::of(Vec::new())).into_entries();
        change(&mut entries);
        *children = Entries::of(entries);
        (self.from, self.size) = (children[0].from.clone(), sum(children));
        self.halved()
    }
}

/// Distributes sorted entries evenly to as few nodes as leave each of them room for more, so that each has at least
/// the minimum of entries.
fn shelves<T: Keyed>(entries: Vec<T>) -> Vec<Entries<T>> {
    let many = entries.len().div_ceil(FANOUT - FILL_MIN);
    let mut entries = entries.into_iter();
    // As evenly as possible, so that no node has fewer than the minimum.
    let sizes = (0..many).map(|n| (entries.len() * (n + 1)) / many - (entries.len() * n) / many);
    let sizes: Vec<usize> = sizes.collect();
    sizes.into_iter().map(|size| Entries::of(entries.by_ref().take(size).collect())).collect()
}

impl Tree {
    /// Returns the tree of these sorted rows, or `None` if there are none.
    pub(super) fn of_sorted(rows: Vec<(Key, super::Row)>) -> Option<Self> {
        let leaves = shelves(rows).into_iter().map(Node::Leaf);
        let mut children: Vec<Child> = leaves.map(Child::of).collect();
        let mut height = 0;
        while children.len() > 1 {
            children = shelves(children).into_iter().map(Node::Inner).map(Child::of).collect();
            height += 1;
        }
        children.pop().map(|root| Self { height, root })
    }

    /// Returns the tree with a new root above its root and `beside`, the neighbour from a split of the root; returns
    /// the tree itself if `beside` is `None`.
    pub(super) fn grown(self, beside: Option<Child>) -> Self {
        let Some(beside) = beside else { return self };
        Self {
            height: self.height + 1,
            root: Child::of(Node::Inner(Entries::of(vec![self.root, beside]))),
        }
    }

    /// Returns the tree without inner roots that have a single child, or `None` if the tree is empty.
    pub(super) fn without_needless_nodes(mut self) -> Option<Self> {
        while let Node::Inner(children) = &*self.root.node
            && let [only] = &children[..]
        {
            self = Self { height: self.height - 1, root: only.clone() };
        }
        (self.root.len() > 0).then_some(self)
    }

    /// Returns the tree whose root has these children and is `height` levels above the leaves; with one child the
    /// tree below it, and with none `None`.
    fn from_children(children: Vec<Child>, height: usize) -> Option<Self> {
        match children.len() {
            0 => None,
            1 => children.into_iter().next().map(|root| Self { height: height - 1, root }),
            _ => Some(Self { height, root: Child::of(Node::Inner(Entries::of(children))) }),
        }
    }

    /// Splits the tree into the rows before the key `from`, and those from it on; each is `None` if there are no such
    /// rows.
    pub(super) fn cut(self, from: &Key) -> (Option<Self>, Option<Self>) {
        let Self { height, root } = self;
        match Arc::unwrap_or_clone(root.node) {
            Node::Leaf(rows) => {
                let (Ok(at) | Err(at)) = rows.place(from);
                let mut rows = rows.into_entries();
                let behind = rows.split_off(at);
                let leaf = |rows: Vec<_>| {
                    let is_empty = rows.is_empty();
                    let root = || Child::of(Node::Leaf(Entries::of(rows)));
                    (!is_empty).then(|| Self { height, root: root() })
                };
                (leaf(rows), leaf(behind))
            }
            Node::Inner(children) => {
                let at = children.way(from);
                let mut children = children.into_entries();
                let behind = children.split_off(at + 1);
                let middle = children.pop().expect("a node has entries");
                let (left, right) = Self { height: height - 1, root: middle }.cut(from);
                (
                    joined(Self::from_children(children, height), left),
                    joined(right, Self::from_children(behind, height)),
                )
            }
        }
    }
}

/// Joins two trees, where `None` has no rows; all keys of the second tree must be greater than those of the first.
pub(super) fn joined(before: Option<Tree>, behind: Option<Tree>) -> Option<Tree> {
    let (mut before, mut behind) = match (before, behind) {
        (Some(before), Some(behind)) => (before, behind),
        (one, other) => return one.or(other),
    };
    Some(match before.height.cmp(&behind.height) {
        Ordering::Equal => {
            let (root, beside) = evened(before.root, behind.root);
            Tree { height: before.height, root }.grown(beside)
        }
        Ordering::Greater => {
            let beside = before.root.push(before.height, behind);
            before.grown(beside)
        }
        Ordering::Less => {
            let beside = behind.root.push_front(behind.height, before);
            behind.grown(beside)
        }
    })
}

/// Balances two neighbours of one height: they stay unchanged if both have the minimum of entries, are merged if
/// their entries fit in one node, and otherwise get half of the entries each.
pub(super) fn evened(left: Child, right: Child) -> (Child, Option<Child>) {
    if left.len() >= FILL_MIN && right.len() >= FILL_MIN {
        return (left, Some(right));
    }
    match (Arc::unwrap_or_clone(left.node), Arc::unwrap_or_clone(right.node)) {
        (Node::Leaf(rows), Node::Leaf(behind)) => evened_shelves(rows, behind, Node::Leaf),
        (Node::Inner(children), Node::Inner(behind)) => {
            evened_shelves(children, behind, Node::Inner)
        }
        _ => unreachable!("leaves are equally deep"),
    }
}

/// Merges the entries of two nodes in one node if they fit, or gives each node half of them. `node` makes a node of
/// entries.
fn evened_shelves<T: Keyed>(
    left: Entries<T>,
    right: Entries<T>,
    node: impl Fn(Entries<T>) -> Node,
) -> (Child, Option<Child>) {
    let mut entries = left.into_entries();
    entries.extend(right.into_entries());
    let too_many = entries.len() > FANOUT;
    let behind = too_many.then(|| entries.split_off(entries.len() / 2));
    let child = |entries| Child::of(node(Entries::of(entries)));
    (child(entries), behind.map(child))
}
