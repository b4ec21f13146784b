//! Chooses the slice that a worker copies next, so that workers do not contend with each other.
//!
//! Adjacent slices share pages of the destination's `_id` index while it is small, where writers
//! may wait for each other (the measured cost was within noise). So a worker continues with the
//! slice after the one that it copied last, where its own pages are. A worker without a previous
//! slice starts as far away from the others as possible: in the middle of the longest run of free
//! slices, or at its start if the run begins the collection.

/// Returns the next slice that a worker should copy, or `None` if no slice is free. Slices are numbered in their order
/// within a collection.
///
/// `free` has the slices that no worker has leased or copied, as (collection, slice), strictly increasing. `last` is
/// the slice that the requesting worker copied before; `None` if it has copied none.
#[must_use]
pub fn next(free: &[(usize, usize)], last: Option<(usize, usize)>) -> Option<(usize, usize)> {
    let behind = last.map(|(collection, slice)| (collection, slice + 1));
    if let Some(behind) = behind
        && free.binary_search(&behind).is_ok()
    {
        return Some(behind);
    }
    let runs = free.chunk_by(|one, other| one.0 == other.0 && one.1 + 1 == other.1);
    // Collections are copied in their order: only the first one with a free slice counts.
    let first = free.first()?.0;
    let runs = runs.take_while(|run| run[0].0 == first);
    let longest = runs.reduce(|best, run| if run.len() > best.len() { run } else { best })?;
    let is_start = longest[0].1 == 0;
    Some(longest[if is_start { 0 } else { longest.len() / 2 }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Workers that take turns; returns the worker and the slice of each copy, in the order in
    /// which it was begun.
    fn all(slices: usize, workers: usize) -> Vec<(usize, usize)> {
        let mut free: Vec<(usize, usize)> = (0..slices).map(|slice| (0, slice)).collect();
        let mut last = vec![None; workers];
        let mut taken = Vec::new();
        for worker in (0..workers).cycle() {
            let Some(slice) = next(&free, last[worker]) else { return taken };
            free.retain(|one| *one != slice);
            last[worker] = Some(slice);
            taken.push((worker, slice.1));
        }
        unreachable!("a cycle does not end")
    }

    #[test]
    fn the_first_ones_lie_far_apart_and_each_goes_on_behind_its_own() {
        let taken = all(32, 4);
        let slices: Vec<usize> = taken[..4].iter().map(|(_, slice)| *slice).collect();
        assert_eq!(slices, [0, 16, 8, 24]);
        assert_eq!(taken[4..8], [(0, 1), (1, 17), (2, 9), (3, 25)]);
    }

    #[test]
    fn one_worker_goes_from_start_to_end() {
        let slices: Vec<usize> = all(9, 1).into_iter().map(|(_, slice)| slice).collect();
        assert_eq!(slices, (0..9).collect::<Vec<_>>());
    }

    #[test]
    fn collections_are_taken_one_after_the_other() {
        let free = [(0, 5), (1, 0), (1, 1), (1, 2)];
        assert_eq!(next(&free, None), Some((0, 5)));
        assert_eq!(next(&free, Some((1, 0))), Some((1, 1)), "a worker is not called back");
        assert_eq!(next(&[], Some((0, 0))), None);
    }

    proptest! {
        #[test]
        fn every_slice_is_taken_once(slices in 1_usize..80, workers in 1_usize..9) {
            let mut taken: Vec<usize> =
                all(slices, workers).into_iter().map(|(_, slice)| slice).collect();
            taken.sort_unstable();
            prop_assert_eq!(taken, (0..slices).collect::<Vec<_>>());
        }
    }
}
