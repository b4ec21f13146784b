//! Cells occupied by random draws: the number of distinct values of uniform hashes.
//!
//! `draws` balls fall into `cells` cells, each with equal probability. The number of occupied cells of a given set has
//! mean `set · (1 − q^draws)` with `q = 1 − 1/cells`. Its variance, and its covariance with that of another set, are
//! differences of almost equal numbers; the formulas here preserve precision for billions of cells (Johnson and Kotz,
//! "Urn Models and Their Application", 1977, chapter 3). The number of draws may be fractional, as an expectation.

/// The mean and variance of a random number, such as a number of hits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The mean of the random number.
    pub mean: f64,
    /// The variance of the random number.
    pub variance: f64,
}

impl Estimate {
    /// Returns the standard deviation of the random number.
    #[must_use]
    pub fn deviation(&self) -> f64 {
        self.variance.max(0.0).sqrt()
    }

    /// Returns by how many standard deviations `observed` is above the mean; infinite if there is no deviation and the
    /// two differ.
    #[must_use]
    pub fn off(&self, observed: f64) -> f64 {
        let difference = observed - self.mean;
        if difference == 0.0 { 0.0 } else { difference / self.deviation() }
    }
}

/// Returns the number of distinct values among `draws` uniform draws from `cells` values: the size of the result when
/// a reduce deduplicates the hashes modulo `cells`. The mean is `cells · (1 − (1 − 1/cells)^draws)`.
#[must_use]
pub fn unique(draws: f64, cells: f64) -> Estimate {
    of(cells, draws, cells)
}

/// Returns the number of occupied cells in a set of `set` cells, after `draws` draws from `cells` cells.
#[must_use]
pub fn of(set: f64, draws: f64, cells: f64) -> Estimate {
    let share = share(draws, cells);
    let alone = set * share * (1.0 - share);
    let variance = alone + set * (set - 1.0) * pair(draws, cells);
    Estimate { mean: set * share, variance: variance.max(0.0) }
}

/// Returns the covariance of the numbers of occupied cells in two disjoint sets of `one` and `other` cells.
pub(super) fn covariance(one: f64, other: f64, draws: f64, cells: f64) -> f64 {
    one * other * pair(draws, cells)
}

/// Returns the probability that a given cell is occupied after `draws` draws from `cells` cells.
pub(super) fn share(draws: f64, cells: f64) -> f64 {
    -(draws * (-1.0 / cells).ln_1p()).exp_m1()
}

/// Returns the derivative of [`share`] by the number of draws.
pub(super) fn share_by_draw(draws: f64, cells: f64) -> f64 {
    let log = (-1.0 / cells).ln_1p();
    -log * (draws * log).exp()
}

/// Returns the derivative of the mean of [`unique`] by the number of draws.
pub(super) fn unique_by_draw(draws: f64, cells: f64) -> f64 {
    cells * share_by_draw(draws, cells)
}

/// Returns the covariance of two cells being occupied: `(1 − 2/cells)^draws − q^(2 draws)`.
fn pair(draws: f64, cells: f64) -> f64 {
    let empty = (2.0 * draws * (-1.0 / cells).ln_1p()).exp();
    empty * (draws * (-1.0 / (cells - 1.0).powi(2)).ln_1p()).exp_m1()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Means and variances by counting all ways in which balls fall.
    fn counted(set: usize, draws: u32, cells: usize) -> (f64, f64, f64) {
        let ways = cells.pow(draws);
        let (mut sum, mut squares, mut products) = (0.0, 0.0, 0.0);
        for way in 0..ways {
            let mut occupied = vec![false; cells];
            let mut rest = way;
            for _ in 0..draws {
                occupied[rest % cells] = true;
                rest /= cells;
            }
            let inside = occupied[..set].iter().filter(|one| **one).count() as f64;
            let outside = occupied[set..].iter().filter(|one| **one).count() as f64;
            sum += inside;
            squares += inside * inside;
            products += inside * outside;
        }
        let ways = ways as f64;
        (sum / ways, squares / ways - (sum / ways).powi(2), products / ways)
    }

    #[test]
    fn occupied_cells_are_those_of_all_ways_counted() {
        for (set, draws, cells) in [(2, 3, 5), (3, 4, 4), (1, 5, 3), (5, 2, 6), (6, 6, 6)] {
            let (mean, variance, product) = counted(set, draws, cells);
            let (draws, all) = (f64::from(draws), cells as f64);
            let told = of(set as f64, draws, all);
            assert!((told.mean - mean).abs() < 1e-9, "{told:?}");
            assert!((told.variance - variance).abs() < 1e-9, "{told:?} beside {variance}");
            let other = (cells - set) as f64;
            let expected = product - mean * of(other, draws, all).mean;
            let told = covariance(set as f64, other, draws, all);
            assert!((told - expected).abs() < 1e-9, "{told} beside {expected}");
        }
    }

    #[test]
    fn digits_are_kept_for_billions_of_cells() {
        // Twenty thousand values of four billion: n²/2N pairs coincide, a Poisson number.
        let unique = unique(20_000.0, 4e9);
        let coincide = 20_000.0 * 19_999.0 / 8e9;
        assert!((20_000.0 - unique.mean - coincide).abs() < 1e-4, "{unique:?}");
        assert!((unique.variance / coincide - 1.0).abs() < 1e-2, "{unique:?}");
    }

    #[test]
    fn a_slope_is_that_of_its_curve() {
        for (draws, cells) in [(0.0, 10.0), (50.0, 100.0), (20_000.0, 1e8)] {
            let step = 1e-2;
            let slope = (unique(draws + step, cells).mean - unique(draws, cells).mean) / step;
            let told = unique_by_draw(draws, cells);
            assert!((slope / told - 1.0).abs() < 1e-2, "{slope} beside {told}");
        }
    }
}
