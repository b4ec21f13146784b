//! Medians and percentiles of measured values, as every plan and every report computes them.

/// Returns the median, the mean of both middle values if their number is even; `None` if there are no values.
#[must_use]
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let sorted = sorted(values);
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    Some(if sorted.len() % 2 == 1 { upper } else { f64::midpoint(sorted[middle - 1], upper) })
}

/// Returns the smallest value that `percent` percent (1 to 100) of the values do not exceed; `None` if there are no
/// values.
#[must_use]
pub fn percentile(values: impl IntoIterator<Item = f64>, percent: usize) -> Option<f64> {
    let sorted = sorted(values);
    let at = (sorted.len() * percent).div_ceil(100).checked_sub(1)?;
    sorted.get(at).copied()
}

fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = values.into_iter().collect();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_is_between_both_middle_values() {
        assert_eq!(median([]), None);
        assert_eq!(median([411.0]), Some(411.0));
        assert_eq!(median([8_137.0, 402.0, 411.0]), Some(411.0));
        assert_eq!(median([8_137.0, 402.0, 411.0, 419.0]), Some(415.0));
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        assert_eq!(percentile([], 99), None);
        let waits_ms = || (1..=200).map(f64::from);
        assert_eq!(percentile(waits_ms(), 50), Some(100.0));
        assert_eq!(percentile(waits_ms(), 99), Some(198.0));
        assert_eq!(percentile(waits_ms(), 100), Some(200.0));
        assert_eq!(percentile([17.5], 1), Some(17.5));
    }
}
