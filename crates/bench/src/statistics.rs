//! Statistics over several runs: medians with their extremes, percentiles, and CPU time.

use std::collections::BTreeMap;

use serde::Serialize;

/// A figure over several runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The median; of an even number of runs, the mean of the two middle values.
    pub median: f64,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

impl Figure {
    /// Computes the figure of these values.
    ///
    /// # Panics
    /// If there are no values: a benchmark measures at least once.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        assert!(!values.is_empty(), "a figure has at least one value");
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 {
            values[middle]
        } else {
            f64::midpoint(values[middle - 1], values[middle])
        };
        Self { median, min: values[0], max: values[values.len() - 1] }
    }
}

/// Returns the smallest value that `percent` percent of the values do not exceed; `None` if there are no values.
pub(crate) fn percentile(values: impl IntoIterator<Item = f64>, percent: usize) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let at = (values.len() * percent).div_ceil(100).checked_sub(1)?;
    values.get(at).copied()
}

/// Returns the median of each name's values.
pub(crate) fn medians<'a>(
    values: impl IntoIterator<Item = &'a (String, f64)>,
) -> BTreeMap<String, f64> {
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, value) in values {
        all.entry(name.clone()).or_default().push(*value);
    }
    all.into_iter().map(|(name, values)| (name, Figure::of(values).median)).collect()
}

/// CPU time, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CpuSeconds {
    /// CPU time of both servers during the floor.
    pub floor_servers: f64,
    /// CPU time of both servers while the measured process ran.
    pub servers: f64,
    /// CPU time of the measured process.
    pub client: f64,
}

impl CpuSeconds {
    /// Returns the median of each field.
    ///
    /// # Panics
    /// If there is no run.
    #[must_use]
    pub fn median(runs: impl Iterator<Item = Self> + Clone) -> Self {
        let of = |part: fn(&Self) -> f64| Figure::of(runs.clone().map(|run| part(&run))).median;
        Self {
            floor_servers: of(|run| run.floor_servers),
            servers: of(|run| run.servers),
            client: of(|run| run.client),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Figure, percentile};

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Figure::of([3.0, 1.0, 2.0]), Figure { median: 2.0, min: 1.0, max: 3.0 });
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(Figure::of([8.0, 1.0, 2.0, 4.0]).median.to_bits(), 3.0_f64.to_bits());
    }

    #[test]
    fn a_percentile_is_a_value_that_so_many_do_not_exceed() {
        let hundred = || (1..=100).rev().map(f64::from);
        assert_eq!(percentile(hundred(), 99), Some(99.0));
        assert_eq!(percentile([7.0], 50), Some(7.0));
        assert_eq!(percentile([], 50), None);
    }
}
