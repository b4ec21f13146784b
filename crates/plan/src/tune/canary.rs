//! The canary test: whether a node whose configuration was changed serves operations faster than its peers, which have
//! the old one.
//!
//! In each window, the mean time of an operation at the changed node is divided by that at its peers. A window's times
//! come from counters that only grow, so windows do not share operations. The change is the ratio of the mean after the
//! change to the mean before it, so a node that was slower than the others before does not distort it.
//!
//! Two errors are estimated, and the larger one is the noise:
//! - that of the windows, by Student's t distribution, with the number of independent windows that follows from the
//!   correlation of consecutive ones (a node that compacts is slow for several windows);
//! - that of nodes: the same comparison for each peer with the other peers, whose configuration did not change. The
//!   changed node may have drifted as far as those.

use statrs::distribution::{ContinuousCDF as _, StudentsT};

use super::judge::Estimate;

/// Minimum number of windows before the change, and after it, for a comparison.
pub const WINDOWS_MIN: usize = 3;
/// Upper bound of the estimated correlation of consecutive windows; a higher one would leave no independent windows.
const CORRELATION_MAX: f64 = 0.9;
/// Quantile of the t distribution for the noise: a result beyond its noise is chance once in twenty times.
const CONFIDENCE: f64 = 0.975;

/// The operations of one kind that one node served within a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Number of operations served.
    pub count: u64,
    /// Total time that these operations took, in microseconds.
    pub total_us: u64,
}

/// The counters of one window of time: for each node, the operations of each kind. The order of nodes and kinds is the
/// same in all windows.
pub type Window = Vec<Vec<Work>>;

/// The outcome of comparing a changed node with its peers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Change of the changed node's time per operation, relative to that of its peers, as a share of the time before;
    /// negative is better. Its noise is the larger of the two that follow.
    pub change: Estimate,
    /// Noise from the variation between windows, as a share of the time before.
    pub windows_noise: f64,
    /// Noise from the variation between nodes, as a share of the time before: twice the root mean square of the
    /// changes of unchanged nodes; `None` if there is only one peer.
    pub nodes_noise: Option<f64>,
}

/// Returns the mean time per operation of the node with index `node`, as a multiple of that of the nodes `others`: the
/// mean over kinds, weighted by the node's operations of each kind. Returns `None` if no kind of operation occurred at
/// both.
#[must_use]
pub fn multiple(window: &Window, node: usize, others: &[usize]) -> Option<f64> {
    let (mut sum, mut weights) = (0.0, 0.0);
    for (kind, own) in window[node].iter().enumerate().filter(|(_, own)| own.count > 0) {
        let of = |work: &Work| work.total_us as f64 / work.count as f64;
        let busy: Vec<f64> = others
            .iter()
            .map(|other| &window[*other][kind])
            .filter(|work| work.count > 0)
            .map(of)
            .collect();
        let mean = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
        if mean > 0.0 {
            sum += own.count as f64 * of(own) / mean;
            weights += own.count as f64;
        }
    }
    (weights > 0.0).then(|| sum / weights)
}

/// Compares the node with index `node` before and after the change of its configuration, relative to its peers;
/// `behind` are the windows after the change. Returns `None` if fewer than [`WINDOWS_MIN`] windows on either side
/// allow a comparison.
#[must_use]
pub fn compare(before: &[Window], behind: &[Window], node: usize) -> Option<Comparison> {
    let nodes = before.first()?.len();
    let others: Vec<usize> = (0..nodes).filter(|other| *other != node).collect();
    let own = change(before, behind, node, &others)?;
    let drifted: Vec<f64> = others
        .iter()
        .filter_map(|peer| {
            let rest: Vec<usize> = others.iter().copied().filter(|one| one != peer).collect();
            (!rest.is_empty()).then(|| change(before, behind, *peer, &rest))?
        })
        .map(|change| change.mean)
        .collect();
    let nodes_noise = (!drifted.is_empty()).then(|| {
        2.0 * (drifted.iter().map(|change| change.powi(2)).sum::<f64>() / drifted.len() as f64)
            .sqrt()
    });
    let noise = nodes_noise.map_or(own.noise, |nodes| own.noise.max(nodes));
    Some(Comparison {
        change: Estimate { mean: own.mean, noise },
        windows_noise: own.noise,
        nodes_noise,
    })
}

/// Returns the change of a node's time per operation relative to `others`, with the noise of the windows.
fn change(before: &[Window], behind: &[Window], node: usize, others: &[usize]) -> Option<Estimate> {
    let side = |windows: &[Window]| {
        let values: Vec<f64> =
            windows.iter().filter_map(|window| multiple(window, node, others)).collect();
        (values.len() >= WINDOWS_MIN).then_some(values)
    };
    let (before, behind) = (side(before)?, side(behind)?);
    let correlation = correlation(&[&before, &behind]);
    let independent = (1.0 - correlation) / (1.0 + correlation);
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let error = |values: &[f64]| {
        let (count, mean) = (values.len() as f64, mean(values));
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        (squares / (count - 1.0) / (count * independent)).sqrt()
    };
    let freedom = ((before.len() + behind.len()) as f64 * independent - 2.0).max(1.0);
    let wide = StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf(CONFIDENCE);
    let of = |values: &[f64]| Estimate { mean: mean(values), noise: wide * error(values) };
    of(&behind).gain_over(of(&before))
}

/// Returns the correlation of consecutive windows, at least 0; it is computed over both sides of the change, each
/// about its own mean. An estimate from few windows is too low by about the inverse of their number, which is added.
fn correlation(sides: &[&[f64]]) -> f64 {
    let (mut products, mut squares, mut count) = (0.0, 0.0, 0.0);
    for side in sides {
        let mean = side.iter().sum::<f64>() / side.len() as f64;
        squares += side.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        products += side.windows(2).map(|two| (two[0] - mean) * (two[1] - mean)).sum::<f64>();
        count += side.len() as f64 / sides.len() as f64;
    }
    if squares <= 0.0 {
        return 0.0;
    }
    (products / squares + 1.0 / count).clamp(0.0, CORRELATION_MAX)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};

    use super::*;

    /// A node that does so many reads and writes, each taking so many microseconds.
    fn node(reads: u64, read_us: f64, writes: u64, write_us: f64) -> Vec<Work> {
        let work = |count: u64, us: f64| Work { count, total_us: (count as f64 * us) as u64 };
        vec![work(reads, read_us), work(writes, write_us)]
    }

    /// Windows of three nodes: what each read takes, by node, is what `level` says of the window.
    fn windows(count: usize, mut level: impl FnMut(usize) -> [f64; 3]) -> Vec<Window> {
        (0..count)
            .map(|number| {
                level(number).map(|level| node(1_870, 412.0 * level, 240, 95.0 * level)).to_vec()
            })
            .collect()
    }

    #[test]
    fn a_node_that_was_slower_anyway_and_becomes_quicker_does_better() {
        let jitter = |number: usize| 1.0 + 0.01 * ((number * 7 % 5) as f64 - 2.0);
        let before = windows(6, |number| [1.3 * jitter(number), 1.0, 1.0]);
        let behind = windows(6, |number| [jitter(number + 3), 1.0, 1.0]);
        let found = compare(&before, &behind, 0).unwrap();
        assert!((found.change.mean + 0.23).abs() < 0.02, "{found:?}");
        assert!(found.change.is_negative(), "{found:?}");
        let same = compare(&before, &before, 0).unwrap();
        assert!(!same.change.is_negative() && same.change.mean.abs() < 1e-9, "{same:?}");
    }

    #[test]
    fn kinds_of_which_others_do_nothing_do_not_count() {
        let window = vec![node(900, 400.0, 300, 90.0), node(0, 0.0, 300, 60.0)];
        assert_eq!(multiple(&window, 0, &[1]), Some(1.5));
        let idle = vec![node(900, 400.0, 0, 0.0), node(0, 0.0, 300, 60.0)];
        assert_eq!(multiple(&idle, 0, &[1]), None);
    }

    #[test]
    fn fewer_windows_than_three_tell_nothing() {
        let some = windows(6, |_| [1.0; 3]);
        assert_eq!(compare(&some[..2], &some, 0), None);
        assert_eq!(compare(&some, &[], 0), None);
    }

    #[test]
    fn a_gain_within_the_drift_of_unchanged_nodes_is_none() {
        // The changed node becomes a tenth quicker, and so do its peers differ: one compacts, one has just ended that.
        let before = windows(6, |_| [1.0, 1.15, 1.0]);
        let behind = windows(6, |_| [0.9, 1.0, 1.1]);
        let found = compare(&before, &behind, 0).unwrap();
        assert!(found.nodes_noise.unwrap() > 0.2, "{found:?}");
        assert!(found.change.mean < -0.05 && !found.change.is_negative(), "{found:?}");
    }

    /// Of nodes on which nothing was changed, how many in a thousand are held to be better, where a window is so much like
    /// the one before.
    fn wrongly_better(correlation: f64, windows_each: usize) -> usize {
        let mut rng = StdRng::seed_from_u64(11);
        let mut levels = |count: usize| {
            let mut level = [0.0; 3];
            windows(count, |_| {
                let fresh = (1.0_f64 - correlation * correlation).sqrt();
                level = level.map(|one: f64| {
                    let normal = (0..12).map(|_| rng.random_range(0.0..1.0)).sum::<f64>() - 6.0;
                    correlation * one + fresh * normal
                });
                level.map(|one| (0.1 * one).exp())
            })
        };
        let is_better = |_: &usize| {
            let (before, behind) = (levels(windows_each), levels(windows_each));
            compare(&before, &behind, 0).unwrap().change.is_negative()
        };
        (0..1_000).filter(is_better).count()
    }

    #[test]
    fn a_gain_of_a_third_is_seen_through_noise_of_a_tenth() {
        let mut rng = StdRng::seed_from_u64(17);
        let mut levels = |gain: f64| {
            let mut noise =
                || (0.1 * ((0..12).map(|_| rng.random_range(0.0..1.0)).sum::<f64>() - 6.0)).exp();
            windows(12, |_| [(1.0 - gain) * noise(), noise(), noise()])
        };
        let is_seen = |_: &usize| {
            let (before, behind) = (levels(0.0), levels(1.0 / 3.0));
            compare(&before, &behind, 0).unwrap().change.is_negative()
        };
        let seen = (0..200).filter(is_seen).count();
        assert!(seen > 190, "{seen} of 200");
    }

    #[test]
    fn windows_that_are_alike_do_not_make_chance_look_like_a_gain() {
        for correlation in [0.0, 0.3, 0.6] {
            let wrong = wrongly_better(correlation, 12);
            // One in forty were expected of independent windows, if their number were known to be that of all.
            assert!(wrong < 50, "{wrong} of 1000 at a correlation of {correlation}");
        }
    }
}
