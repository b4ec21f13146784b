//! Statistics over several runs: medians with their extremes, percentiles, and CPU time.

use std::collections::BTreeMap;

use imago_plan::statistics::median;
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
        let (min, max) = (values[0], values[values.len() - 1]);
        Self { median: median(values).unwrap_or(min), min, max }
    }
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
    use super::Figure;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(Figure::of([3.0, 1.0, 2.0]), Figure { median: 2.0, min: 1.0, max: 3.0 });
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(Figure::of([8.0, 1.0, 2.0, 4.0]).median.to_bits(), 3.0_f64.to_bits());
    }
}
