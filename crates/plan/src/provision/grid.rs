//! The grid of shapes: every combination of the values of six dimensions of a cluster.
//!
//! Invariants: each dimension's values are in rising order; [`Grid::shapes`] has no duplicates; a neighbour differs
//! from its shape in one dimension, by one step of the grid.

use super::shape::{CacheAt, Reads, Shape};

/// The values that are compared for each dimension of a [`Shape`].
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// Numbers of shards, ascending.
    shards: Vec<u32>,
    /// Numbers of members per shard, ascending.
    replicas: Vec<u32>,
    /// Sizes of the storage cache of each member, in bytes, ascending; `None` means as large as its data.
    storage_bytes: Vec<Option<u64>>,
    /// Sizes of the cache, in bytes, ascending; 0 means no cache.
    cache_bytes: Vec<u64>,
    /// Read preferences that are compared.
    reads: Vec<Reads>,
    /// Locations of the cache that are compared.
    cache_at: Vec<CacheAt>,
}

/// A dimension of the grid, which is a field of [`Shape`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dimension {
    Shards,
    Replicas,
    Storage,
    Cache,
    Reads,
    CacheAt,
}

/// All dimensions, in the order in which neighbours are listed.
const DIMENSIONS: [Dimension; 6] = [
    Dimension::Shards,
    Dimension::Replicas,
    Dimension::Storage,
    Dimension::Cache,
    Dimension::Reads,
    Dimension::CacheAt,
];

impl Grid {
    /// Creates a grid of these values, in any order. Returns `None` if a dimension has no value, or a number of shards
    /// or replicas is 0.
    #[must_use]
    pub fn new(
        mut shards: Vec<u32>,
        mut replicas: Vec<u32>,
        mut storage_bytes: Vec<Option<u64>>,
        mut cache_bytes: Vec<u64>,
        mut reads: Vec<Reads>,
        mut cache_at: Vec<CacheAt>,
    ) -> Option<Self> {
        tidy(&mut shards);
        tidy(&mut replicas);
        tidy(&mut storage_bytes);
        tidy(&mut cache_bytes);
        tidy(&mut reads);
        tidy(&mut cache_at);
        let none = storage_bytes.is_empty()
            || cache_bytes.is_empty()
            || reads.is_empty()
            || cache_at.is_empty();
        let zero = |values: &[u32]| values.first().is_none_or(|least| *least == 0);
        let bad = none || zero(&shards) || zero(&replicas);
        (!bad).then_some(Self { shards, replicas, storage_bytes, cache_bytes, reads, cache_at })
    }

    /// Returns true if some shapes have storage caches of a given size.
    #[must_use]
    pub fn has_storage_caches(&self) -> bool {
        self.storage_bytes.iter().any(Option::is_some)
    }

    /// Returns all shapes of the grid, each once, in the order of [`Shape`].
    #[must_use]
    pub fn shapes(&self) -> Vec<Shape> {
        let mut shapes = Vec::new();
        for shards in self.shards.iter().copied() {
            for replicas in self.replicas.iter().copied() {
                for storage_bytes in self.storage_bytes.iter().copied() {
                    for cache_bytes in self.cache_bytes.iter().copied() {
                        for cache_at in self.cache_at.iter().copied() {
                            let of = |reads: &Reads| {
                                let reads = *reads;
                                Shape {
                                    shards,
                                    replicas,
                                    storage_bytes,
                                    cache_bytes,
                                    cache_at,
                                    reads,
                                }
                            };
                            shapes.extend(self.reads.iter().map(of).map(Shape::canonical));
                        }
                    }
                }
            }
        }
        tidy(&mut shapes);
        shapes
    }

    /// Returns the shapes of the grid that are one step away from `shape`, each with the dimension of the step.
    pub(super) fn neighbours(&self, shape: Shape) -> Vec<(Dimension, Shape)> {
        let mut found: Vec<(Dimension, Shape)> = Vec::new();
        for dimension in DIMENSIONS {
            let one_away: Vec<Shape> = match dimension {
                Dimension::Shards => beside(&self.shards, shape.shards)
                    .map(|shards| Shape { shards, ..shape })
                    .collect(),
                // The read preference matters only for shards with several members.
                Dimension::Replicas => beside(&self.replicas, shape.replicas)
                    .flat_map(|replicas| {
                        let all = self.reads.iter().map(move |reads| (replicas, *reads));
                        all.filter(|(_, reads)| shape.replicas == 1 || *reads == shape.reads)
                    })
                    .map(|(replicas, reads)| Shape { replicas, reads, ..shape })
                    .collect(),
                Dimension::Storage => beside(&self.storage_bytes, shape.storage_bytes)
                    .map(|storage_bytes| Shape { storage_bytes, ..shape })
                    .collect(),
                Dimension::Cache => beside(&self.cache_bytes, shape.cache_bytes)
                    .map(|cache_bytes| Shape { cache_bytes, ..shape })
                    .collect(),
                Dimension::Reads => {
                    self.reads.iter().map(|reads| Shape { reads: *reads, ..shape }).collect()
                }
                Dimension::CacheAt => self
                    .cache_at
                    .iter()
                    .map(|cache_at| Shape { cache_at: *cache_at, ..shape })
                    .collect(),
            };
            for neighbour in one_away.into_iter().map(Shape::canonical) {
                let known = found.iter().any(|(_, other)| *other == neighbour);
                if neighbour != shape.canonical() && !known {
                    found.push((dimension, neighbour));
                }
            }
        }
        found
    }
}

/// Sorts values and removes duplicates.
fn tidy<T: Ord>(values: &mut Vec<T>) {
    values.sort();
    values.dedup();
}

/// Returns the next smaller and the next greater value than `value` in a sorted list, as far as they exist.
fn beside<T: Copy + Ord>(values: &[T], value: T) -> impl Iterator<Item = T> {
    let at = values.partition_point(|other| *other < value);
    let before = at.checked_sub(1).and_then(|at| values.get(at)).copied();
    let behind = values[at..].iter().copied().find(|other| *other > value);
    before.into_iter().chain(behind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let reads = vec![Reads::Primary, Reads::Nearest];
        let cache_at = vec![CacheAt::Worker, CacheAt::Router];
        let storage = vec![Some(1 << 30), Some(1 << 28)];
        Grid::new(vec![4, 1, 2, 2], vec![1, 3], storage, vec![0, 1 << 27], reads, cache_at)
            .expect("a grid")
    }

    #[test]
    fn shapes_that_make_no_difference_are_one() {
        // Of one member both reads are the same, and a cache that is not there is nowhere: 3 × 2 × (1 × 1 + 1 × 2 + 2 × 1 + 2 × 2).
        assert_eq!(grid().shapes().len(), 3 * 2 * 9);
    }

    #[test]
    fn neighbours_are_one_step_away() {
        let shape = Shape {
            shards: 2,
            replicas: 1,
            storage_bytes: Some(1 << 28),
            cache_bytes: 1 << 27,
            cache_at: CacheAt::Worker,
            reads: Reads::Primary,
        };
        let neighbours = grid().neighbours(shape);
        let of = |dimension| neighbours.iter().filter(|(its, _)| *its == dimension).count();
        assert_eq!(of(Dimension::Shards), 2);
        // Three members, of which the primary is read or all.
        assert_eq!(of(Dimension::Replicas), 2);
        assert_eq!((of(Dimension::Storage), of(Dimension::Cache)), (1, 1));
        // The one member is the nearest.
        assert_eq!(of(Dimension::Reads), 0);
        assert_eq!(of(Dimension::CacheAt), 1);
    }

    #[test]
    fn a_grid_has_a_value_for_each_dimension() {
        let reads = vec![Reads::Primary];
        let at = vec![CacheAt::Worker];
        let of = |shards, storage, cache| {
            Grid::new(shards, vec![1], storage, cache, reads.clone(), at.clone())
        };
        assert_eq!(of(vec![0, 1], vec![None], vec![0]), None);
        assert_eq!(of(vec![1], vec![None], vec![]), None);
        assert_eq!(of(vec![1], vec![], vec![0]), None);
    }
}
