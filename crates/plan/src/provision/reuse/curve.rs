//! A curve of cache hits by capacity: a step function for each phase.
//!
//! A step lies at the smallest capacity from which its hits count; the curve is constant between two steps. The curve
//! of a simulation has its steps at the simulated capacities: below the first the hits are unknown, and reported as 0.

/// Hits by the capacity of a cache in bytes, for each phase of a chain.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    phases: Vec<Phase>,
    /// Bytes in use at the end of the trace, as (capacity in bytes, bytes in use), by ascending capacity.
    held: Vec<(u64, u64)>,
    distinct_bytes: u64,
}

/// The miss ratio of a whole trace for a cache of one capacity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Capacity of the cache, in bytes.
    pub capacity_bytes: u64,
    /// Share of the trace's references that miss, from 0 to 1.
    pub miss_ratio: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Phase {
    pub(super) references: u64,
    pub(super) hits: Steps,
}

/// A step function: the cumulative number of hits from each capacity on, by ascending capacity in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Steps {
    capacities: Vec<u64>,
    hits: Vec<f64>,
}

impl Steps {
    /// Creates the steps from the stack distances of hits, in bytes, one hit for each distance.
    pub(super) fn from_distances(mut distances: Vec<u64>) -> Self {
        distances.sort_unstable();
        let mut steps = Self::default();
        for (hits, distance) in (1u64..).zip(distances) {
            steps.step(distance, hits as f64);
        }
        steps
    }

    /// Adds a step at `capacity` bytes with the cumulative number of hits, or replaces the last one if it has the same
    /// capacity.
    ///
    /// Invariant: capacities ascend.
    pub(super) fn step(&mut self, capacity: u64, hits: f64) {
        match self.capacities.last() {
            Some(last) if *last == capacity => *self.hits.last_mut().expect("as many") = hits,
            last => {
                debug_assert!(last.is_none_or(|last| *last < capacity), "steps ascend");
                self.capacities.push(capacity);
                self.hits.push(hits);
            }
        }
    }

    fn at(&self, capacity: u64) -> f64 {
        let steps = self.capacities.partition_point(|step| *step <= capacity);
        steps.checked_sub(1).map_or(0.0, |last| self.hits[last])
    }
}

impl Curve {
    pub(super) fn new(phases: Vec<Phase>, held: Vec<(u64, u64)>, distinct_bytes: u64) -> Self {
        Self { phases, held, distinct_bytes }
    }

    /// Returns the number of phases of the chain of jobs.
    #[must_use]
    pub fn phases(&self) -> usize {
        self.phases.len()
    }

    /// Returns the hits of the phase with this index in a cache of `capacity_bytes` bytes; fractional if the curve was
    /// sampled.
    ///
    /// # Panics
    /// If the chain has no such phase; phases are numbered from 0.
    #[must_use]
    pub fn hits(&self, phase: usize, capacity_bytes: u64) -> f64 {
        if capacity_bytes == 0 { 0.0 } else { self.phases[phase].hits.at(capacity_bytes) }
    }

    /// Returns the number of references of the phase with this index.
    ///
    /// # Panics
    /// If the chain has no such phase.
    #[must_use]
    pub fn references(&self, phase: usize) -> u64 {
        self.phases[phase].references
    }

    /// Returns the share of all references that miss in a cache of `capacity_bytes` bytes, from 0 to 1; 0 if there is
    /// no reference.
    #[must_use]
    pub fn miss_ratio(&self, capacity_bytes: u64) -> f64 {
        let references: u64 = self.phases.iter().map(|phase| phase.references).sum();
        let hits: f64 = (0..self.phases.len()).map(|phase| self.hits(phase, capacity_bytes)).sum();
        if references == 0 { 0.0 } else { (1.0 - hits / references as f64).clamp(0.0, 1.0) }
    }

    /// Returns the number of bytes that an unlimited cache holds at the end of the trace.
    #[must_use]
    pub fn distinct_bytes(&self) -> u64 {
        self.distinct_bytes
    }

    /// Returns the number of bytes in use at the end of the trace in a cache of `capacity_bytes` bytes.
    #[must_use]
    pub fn held_bytes(&self, capacity_bytes: u64) -> u64 {
        let steps = self.held.partition_point(|(step, _)| *step <= capacity_bytes);
        steps.checked_sub(1).map_or(0, |last| self.held[last].1)
    }

    /// Returns at most `points_max` points of the curve of the whole trace, at steps in ascending order of capacity. If
    /// there are more steps, points are chosen such that each adds about the same number of hits. The last step is
    /// included.
    ///
    /// # Panics
    /// If `points_max` is 0.
    #[must_use]
    pub fn points(&self, points_max: usize) -> Vec<Point> {
        assert!(points_max > 0, "a curve has at least one point");
        let mut capacities: Vec<u64> = Vec::new();
        for Phase { hits, .. } in &self.phases {
            let steps = hits.capacities.len();
            let picked = steps.min(points_max);
            capacities.extend((1..=picked).map(|n| hits.capacities[n * steps / picked - 1]));
        }
        capacities.sort_unstable();
        capacities.dedup();
        let steps = capacities.len();
        let picked = steps.min(points_max);
        let picked = (1..=picked).map(|n| capacities[n * steps / picked - 1]);
        picked
            .map(|capacity_bytes| Point {
                capacity_bytes,
                miss_ratio: self.miss_ratio(capacity_bytes),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(distances: &[u64], references: u64) -> Phase {
        Phase { references, hits: Steps::from_distances(distances.to_vec()) }
    }

    #[test]
    fn hits_count_from_their_distance_on() {
        let curve = Curve::new(vec![phase(&[300, 100, 300], 4), phase(&[200], 4)], vec![], 0);
        let hits = [0, 99, 100, 299, 300, u64::MAX].map(|capacity| curve.hits(0, capacity));
        assert_eq!(hits, [0.0, 0.0, 1.0, 1.0, 3.0, 3.0]);
        assert_eq!((curve.hits(1, 200), curve.references(1), curve.phases()), (1.0, 4, 2));
        assert_eq!([0, 100, 200, 300].map(|c| curve.miss_ratio(c)), [1.0, 0.875, 0.75, 0.5]);
    }

    #[test]
    fn no_cache_has_no_hits() {
        let curve = Curve::new(vec![phase(&[0, 0], 3)], vec![], 0);
        assert_eq!((curve.hits(0, 0), curve.hits(0, 1), curve.miss_ratio(0)), (0.0, 2.0, 1.0));
        assert_eq!(Curve::new(vec![], vec![], 0).miss_ratio(100), 0.0);
    }

    #[test]
    fn points_are_few_and_end_where_the_curve_does() {
        let distances: Vec<u64> = (1..=10_000).map(|n| n * 100).collect();
        let curve = Curve::new(vec![phase(&distances, 20_000), phase(&[50], 1)], vec![], 0);
        assert_eq!(curve.points(20_000).len(), 10_001);
        for points_max in [1, 2, 7, 100] {
            let points = curve.points(points_max);
            assert_eq!(points.len(), points_max);
            assert!(points.windows(2).all(|two| two[0].capacity_bytes < two[1].capacity_bytes));
            assert!(points.windows(2).all(|two| two[0].miss_ratio >= two[1].miss_ratio));
            let last = points.last().unwrap();
            assert_eq!(last.capacity_bytes, 1_000_000);
            assert_eq!(last.miss_ratio, curve.miss_ratio(u64::MAX));
        }
        let points = curve.points(100);
        let fall = |two: &[Point]| two[0].miss_ratio - two[1].miss_ratio;
        assert!(points.windows(2).all(|two| fall(two) < 0.011), "steps are alike");
    }
}
