//! The rows of one partition: an ordered map with snapshots. Nodes that no snapshot shares are changed in place;
//! shared ones are copied along the path from the root to the change.
//!
//! The map is a B+ tree of reference-counted nodes. A snapshot is another reference to the root. A later change
//! copies the nodes on its path that the snapshot still has, and no others. So every version of a partition that
//! still has a reader is complete, can be read from any thread without a lock, and is freed with its last reader
//! (MorphoSys, §4.1: several versions separate reads from writes; §4.4.1: a snapshot for a new replica, without
//! locks). A map is cut in two, and two maps are joined, along one path of nodes: in O(log n), however many rows a
//! partition has (§4.4.2 calls both changes of metadata).
//!
//! Invariants:
//! 1. All leaves are equally deep.
//! 2. A node has at most [`FANOUT`] entries, and at least [`FILL_MIN`] unless it is the root; an inner root
//!    has at least two.
//! 3. The separator of a node in its parent (`from`) is at most its least key, and more than every key of the
//!    nodes before it.
//! 4. The sizes above a node are the sums of its contents.

use std::hint::black_box;
use std::mem;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::key::{Key, KeyRange};
pub use crate::record::Row;

mod bytes;
mod count;
mod entries;
mod join;
#[cfg(test)]
mod tests;

use entries::{Entries, Keyed};
use join::{evened, joined};

/// Maximum number of entries in a node of the tree: rows of a leaf, or children of an inner node.
const FANOUT: usize = 32;
/// Minimum number of entries in a node other than the root. A node with fewer entries is merged or balanced with a
/// neighbour.
const FILL_MIN: usize = FANOUT / 4;

/// Estimated memory of one row in bytes, in addition to the bytes of its key and value: its place in a node, and the
/// overhead of the allocator. Measured values are 108 to 161 bytes, depending on the length of keys and the order of
/// insertion.
pub const ROW_BYTES: u64 = 140;

/// Number of rows in a set of rows, and the size of their keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    /// Number of rows in the set.
    pub rows: u64,
    /// Size of the rows' keys and values, in bytes.
    pub bytes: u64,
}

/// The rows of a partition, as an ordered map. Cloning it copies one reference: the clone is a snapshot.
#[derive(Clone, Debug, Default)]
pub struct Rows(Option<Tree>);

/// A B+ tree of rows that is not empty.
#[derive(Clone, Debug)]
struct Tree {
    /// Number of levels of inner nodes above the leaves; 0 if the root is a leaf.
    height: usize,
    /// The root node.
    root: Child,
}

/// A reference to a node of the tree, with the data about it that its parent needs.
#[derive(Clone, Debug)]
struct Child {
    /// The separator of the node in its parent: at most the node's least key, and more than every key of the nodes
    /// before it.
    from: Key,
    /// Number and size of the rows below the node.
    size: Size,
    /// The node that the child refers to, which snapshots may share.
    node: Arc<Node>,
}

/// A node of the tree: a leaf with rows, or an inner node with children.
#[derive(Clone, Debug)]
enum Node {
    /// The rows of a leaf, in key order.
    Leaf(Entries<(Key, Row)>),
    /// The children of an inner node, in key order.
    Inner(Entries<Child>),
}

impl Node {
    /// Reads the cache lines that a search in the node needs first. The result has no meaning; it prevents the
    /// compiler from removing the reads.
    fn prefetch(&self) -> u64 {
        match self {
            Self::Leaf(rows) => rows.prefetch(),
            Self::Inner(children) => children.prefetch(),
        }
    }
}

impl Keyed for (Key, Row) {
    fn key(&self) -> &Key {
        &self.0
    }
}

impl Keyed for Child {
    fn key(&self) -> &Key {
        &self.from
    }
}

impl Size {
    /// Returns the size of the row with this key.
    fn of(key: &Key, row: &Row) -> Self {
        Self { rows: 1, bytes: (key.as_bytes().len() + row.value.len()) as u64 }
    }

    /// Returns the sum of two sizes.
    fn plus(self, other: Self) -> Self {
        Self { rows: self.rows + other.rows, bytes: self.bytes + other.bytes }
    }

    /// Returns the difference of two sizes.
    fn minus(self, other: Self) -> Self {
        Self { rows: self.rows - other.rows, bytes: self.bytes - other.bytes }
    }
}

impl Rows {
    /// Returns the number of rows, and the size of their keys and values.
    #[must_use]
    pub fn size(&self) -> Size {
        self.0.as_ref().map_or_else(Size::default, |tree| tree.root.size)
    }

    /// Returns the map of these rows, which must be sorted by key.
    ///
    /// # Panics
    /// Panics unless the keys are in strictly ascending order.
    #[must_use]
    pub fn from_sorted(rows: Vec<(Key, Row)>) -> Self {
        assert!(rows.is_sorted_by(|one, next| one.0 < next.0), "the keys are in their order");
        Self(Tree::of_sorted(rows))
    }

    /// Returns the row of a key, or `None` if there is none.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Row> {
        let mut node = &*self.0.as_ref()?.root.node;
        loop {
            match node {
                Node::Leaf(rows) => {
                    return rows.place(key).ok().map(|at| &rows[at].1);
                }
                Node::Inner(children) => node = &children[children.way(key)].node,
            }
        }
    }

    /// Returns the row of each key, as [`Self::get`] does for one.
    ///
    /// The lookups descend the tree together, one level at a time. Most of a lookup's time is waiting for nodes
    /// that are not in the caches, and the waits of one level overlap.
    #[must_use]
    pub fn get_each(&self, keys: &[Key]) -> Vec<Option<&Row>> {
        let Some(tree) = &self.0 else { return vec![None; keys.len()] };
        let mut nodes = vec![&*tree.root.node; keys.len()];
        let mut places = vec![0; keys.len()];
        for _ in 0..tree.height {
            black_box(nodes.iter().fold(0, |all, node| all ^ node.prefetch()));
            for ((node, key), place) in nodes.iter().zip(keys).zip(&mut places) {
                let Node::Inner(children) = node else { unreachable!("it is above the leaves") };
                *place = children.way(key);
            }
            for (node, place) in nodes.iter_mut().zip(&places) {
                let Node::Inner(children) = *node else { unreachable!("it is above the leaves") };
                *node = &children[*place].node;
            }
        }
        black_box(nodes.iter().fold(0, |all, node| all ^ node.prefetch()));
        let found = nodes.iter().zip(keys).map(|(node, key)| {
            let Node::Leaf(rows) = *node else { unreachable!("it is as high as it says") };
            rows.place(key).ok().map(|at| &rows[at].1)
        });
        found.collect()
    }

    /// Inserts or replaces the row of a key, and returns the old row.
    pub fn insert(&mut self, key: Key, row: Row) -> Option<Row> {
        let Some(mut tree) = self.0.take() else {
            let root = Child::of(Node::Leaf(Entries::of(vec![(key, row)])));
            self.0 = Some(Tree { height: 0, root });
            return None;
        };
        let (old, beside) = tree.root.insert(key, row);
        self.0 = Some(tree.grown(beside));
        old
    }

    /// Removes the row of a key, and returns the row, or `None` if there was none.
    pub fn remove(&mut self, key: &Key) -> Option<Row> {
        let tree = self.0.as_mut()?;
        // A key without a row causes no copying.
        let old = tree.root.get(key).cloned()?;
        tree.root.remove(key);
        self.0 = self.0.take().and_then(Tree::without_needless_nodes);
        Some(old)
    }

    /// Returns an iterator of the rows in the range, in key order.
    pub fn range<'a>(
        &'a self,
        range: &KeyRange,
    ) -> impl Iterator<Item = (&'a Key, &'a Row)> + use<'a> {
        let (path, leaf) = (Vec::new(), [].iter());
        let mut ascent = Ascent { path, leaf, end: range.end.clone() };
        if let Some(tree) = &self.0 {
            let mut node = &*tree.root.node;
            loop {
                match node {
                    Node::Leaf(rows) => {
                        let (Ok(at) | Err(at)) = rows.place(&range.start);
                        ascent.enter(rows, at);
                        break;
                    }
                    Node::Inner(children) => {
                        let at = children.way(&range.start);
                        ascent.path.push((children, at + 1));
                        node = &children[at].node;
                    }
                }
            }
        }
        ascent
    }

    /// Returns all rows, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&Key, &Row)> {
        self.range(&KeyRange::everything())
    }

    /// Removes the rows with the key `from` or a greater one, and returns them.
    #[must_use]
    pub fn split_off(&mut self, from: &Key) -> Self {
        let Some(tree) = self.0.take() else { return Self(None) };
        let (before, behind) = tree.cut(from);
        self.0 = before;
        Self(behind)
    }

    /// Appends the rows of another map, whose keys must all be greater than those of this map.
    ///
    /// # Panics
    /// Panics if a key of the other map is not greater than all keys of this map.
    pub fn append(&mut self, other: Self) {
        let last = self.0.as_ref().map(|tree| tree.root.last());
        let first = other.iter().next();
        assert!(
            last.zip(first).is_none_or(|(last, (first, _))| last < first),
            "what is appended lies behind",
        );
        self.0 = joined(self.0.take(), other.0);
    }

    /// Returns the key that halves the rows: as many rows are before it as from it on, or one fewer. Returns `None`
    /// if there are fewer than two rows.
    #[must_use]
    pub fn middle(&self) -> Option<&Key> {
        let mut wanted = self.size().rows / 2;
        let mut node = &*self.0.as_ref().filter(|_| wanted > 0)?.root.node;
        loop {
            match node {
                Node::Leaf(rows) => {
                    let at = usize::try_from(wanted).expect("rows are in memory");
                    return Some(&rows[at].0);
                }
                Node::Inner(children) => {
                    let mut at = 0;
                    while at + 1 < children.len() && wanted >= children[at].size.rows {
                        wanted -= children[at].size.rows;
                        at += 1;
                    }
                    node = &children[at].node;
                }
            }
        }
    }
}

/// An iterator of the rows of a range, in key order. The end of the range is looked up once in each leaf, not compared
/// with each row.
struct Ascent<'a> {
    /// Inner nodes from the root to the present leaf, each with the index of its next child.
    path: Vec<(&'a Entries<Child>, usize)>,
    /// Rows of the present leaf that are still to be returned.
    leaf: std::slice::Iter<'a, (Key, Row)>,
    /// End of the range, which is excluded; `None` if the range has no end.
    end: Option<Key>,
}

impl<'a> Ascent<'a> {
    /// Continues in a leaf, at the row with index `from`.
    fn enter(&mut self, rows: &'a Entries<(Key, Row)>, from: usize) {
        let mut stop = rows.len();
        let has_end = |end: &&Key| rows.last().is_some_and(|(last, _)| last >= *end);
        if let Some(end) = self.end.as_ref().filter(has_end) {
            stop = rows.place(end).unwrap_or_else(|at| at);
            self.path.clear();
        }
        self.leaf = rows[from.min(stop)..stop].iter();
    }
}

impl<'a> Iterator for Ascent<'a> {
    type Item = (&'a Key, &'a Row);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((key, row)) = self.leaf.next() {
                return Some((key, row));
            }
            let (children, next) = self.path.last_mut()?;
            let child = children.get(*next);
            *next += 1;
            match child.map(|child| &*child.node) {
                Some(Node::Leaf(rows)) => self.enter(rows, 0),
                Some(Node::Inner(children)) => self.path.push((children, 0)),
                None => _ = self.path.pop(),
            }
        }
    }
}

impl Child {
    /// Returns the reference to a new node, which must have at least one entry.
    fn of(node: Node) -> Self {
        let (from, size) = match &node {
            Node::Leaf(rows) => (
                rows[0].0.clone(),
                rows.iter().fold(Size::default(), |sum, (key, row)| sum.plus(Size::of(key, row))),
            ),
            Node::Inner(children) => (children[0].from.clone(), sum(children)),
        };
        Self { from, size, node: Arc::new(node) }
    }

    /// Returns the number of entries in the node.
    fn len(&self) -> usize {
        match &*self.node {
            Node::Leaf(rows) => rows.len(),
            Node::Inner(children) => children.len(),
        }
    }

    /// Returns the row of a key below the node, or `None` if there is none.
    fn get(&self, key: &Key) -> Option<&Row> {
        match &*self.node {
            Node::Leaf(rows) => rows.place(key).ok().map(|at| &rows[at].1),
            Node::Inner(children) => children[children.way(key)].get(key),
        }
    }

    /// Returns the greatest key below the node.
    fn last(&self) -> &Key {
        match &*self.node {
            Node::Leaf(rows) => &rows[rows.len() - 1].0,
            Node::Inner(children) => children[children.len() - 1].last(),
        }
    }

    /// Inserts or replaces a row below the node. Returns the old row, and the node's new right neighbour if the node
    /// was split.
    fn insert(&mut self, key: Key, row: Row) -> (Option<Row>, Option<Self>) {
        let new = Size::of(&key, &row);
        if key < self.from {
            self.from = key.clone();
        }
        let old = match Arc::make_mut(&mut self.node) {
            Node::Leaf(rows) => match rows.place(&key) {
                Ok(at) => {
                    let old = mem::replace(&mut rows.entry(at).1, row);
                    self.size = self.size.minus(Size::of(&key, &old));
                    Some(old)
                }
                Err(at) => {
                    rows.insert(at, (key, row));
                    None
                }
            },
            Node::Inner(children) => {
                let at = children.way(&key);
                let before = children[at].size;
                if key < children[at].from {
                    children.rekey(at, |child| child.from = key.clone());
                }
                let (old, beside) = children.entry(at).insert(key, row);
                let grown = beside
                    .as_ref()
                    .map_or(children[at].size, |child| children[at].size.plus(child.size));
                if let Some(beside) = beside {
                    children.insert(at + 1, beside);
                }
                self.size = self.size.minus(before).plus(grown);
                return (old, self.halved());
            }
        };
        self.size = self.size.plus(new);
        (old, self.halved())
    }

    /// Removes the row of a key that is present below the node.
    fn remove(&mut self, key: &Key) {
        match Arc::make_mut(&mut self.node) {
            Node::Leaf(rows) => {
                let at = rows.place(key).expect("the key is there");
                let (key, row) = rows.remove(at);
                self.size = self.size.minus(Size::of(&key, &row));
            }
            Node::Inner(children) => {
                let at = children.way(key);
                self.size = self.size.minus(children[at].size);
                children.entry(at).remove(key);
                self.size = self.size.plus(children[at].size);
                if children[at].len() < FILL_MIN && children.len() > 1 {
                    let at = at.min(children.len() - 2);
                    let right = children.remove(at + 1);
                    let left = children.remove(at);
                    let (left, right) = evened(left, right);
                    children.insert(at, left);
                    if let Some(right) = right {
                        children.insert(at + 1, right);
                    }
                }
            }
        }
    }

    /// Moves the second half of the node's entries into a new node and returns it, if there are more than [`FANOUT`];
    /// otherwise returns `None`.
    fn halved(&mut self) -> Option<Self> {
        if self.len() <= FANOUT {
            return None;
        }
        fn halves<T: Keyed>(shelf: &mut Entries<T>) -> Entries<T> {
            let mut entries = mem::replace(shelf, Entries::of(Vec::new())).into_entries();
            let behind = entries.split_off(entries.len() / 2);
            *shelf = Entries::of(entries);
            Entries::of(behind)
        }
        let beside = Self::of(match Arc::make_mut(&mut self.node) {
            Node::Leaf(rows) => Node::Leaf(halves(rows)),
            Node::Inner(children) => Node::Inner(halves(children)),
        });
        self.size = self.size.minus(beside.size);
        Some(beside)
    }
}

/// Returns the sum of the sizes of these nodes.
fn sum(children: &[Child]) -> Size {
    children.iter().fold(Size::default(), |sum, child| sum.plus(child.size))
}
