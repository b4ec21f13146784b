//! The fit of the cost of a request and of a key, from windows of two or more batch sizes.
//!
//! By the utilisation law, a server's busy time divided by its requests is the service time of one request. Over
//! windows with different numbers of keys per request, the service time is a line: `request_s + key_s × keys`. The line
//! is fitted by weighted least squares, since the error of a window is roughly proportional to its value. A cost cannot
//! be negative: a negative coefficient is set to 0, and the other one is fitted alone.

use serde::{Deserialize, Serialize};

/// A measured cost of requests at one station, and its errors, in seconds of one processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Processor time of one request, apart from its keys, in seconds.
    pub request_s: f64,
    /// Standard error of `request_s`, in seconds.
    pub request_error_s: f64,
    /// Processor time of each key of a request, in seconds.
    pub key_s: f64,
    /// Standard error of `key_s`, in seconds.
    pub key_error_s: f64,
    /// Standard error of the cost of a request of [`MIDDLING`] (128) keys, relative to that cost.
    pub relative_error: f64,
}

/// The number of keys in a request for which relative errors are computed: between the batch sizes of the windows.
const MIDDLING: f64 = 128.0;

/// One measurement window, as a point of the fitted line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    /// Mean number of keys per request in the window.
    pub(super) keys: f64,
    /// Mean processor time per request in the window, in seconds.
    pub(super) request_s: f64,
}

/// Fits the line `request_s + key_s × keys` to windows by weighted least squares. Returns `None` for fewer than three
/// windows, or if the largest batch has less than 1.5 times the keys of the smallest.
pub(super) fn line(points: &[Point]) -> Option<Measured> {
    let least = points.iter().map(|point| point.keys).fold(f64::INFINITY, f64::min);
    let most = points.iter().map(|point| point.keys).fold(0.0, f64::max);
    if points.len() < 3 || most < least * 1.5 {
        return None;
    }
    let weighted: Vec<(Point, f64)> =
        points.iter().map(|point| (*point, weight(points, point.keys))).collect();
    let sum = |of: &dyn Fn(&Point) -> f64| -> f64 {
        weighted.iter().map(|(point, weight)| weight * of(point)).sum()
    };
    let (w, wx, wxx) = (sum(&|_| 1.0), sum(&|p| p.keys), sum(&|p| p.keys * p.keys));
    let (wy, wxy) = (sum(&|p| p.request_s), sum(&|p| p.keys * p.request_s));
    let determinant = w * wxx - wx * wx;
    let (mut request_s, mut key_s) =
        ((wxx * wy - wx * wxy) / determinant, (w * wxy - wx * wy) / determinant);
    if request_s < 0.0 {
        (request_s, key_s) = (0.0, (wxy / wxx).max(0.0));
    } else if key_s < 0.0 {
        (request_s, key_s) = ((wy / w).max(0.0), 0.0);
    }
    let residuals: f64 = weighted
        .iter()
        .map(|(point, weight)| weight * (point.request_s - request_s - key_s * point.keys).powi(2))
        .sum();
    let variance = residuals / (points.len() - 2) as f64;
    // The variance of request_s + key_s × MIDDLING, with the coefficients' covariance.
    let of_middling =
        variance * (wxx - 2.0 * MIDDLING * wx + MIDDLING * MIDDLING * w) / determinant;
    let cost = request_s + key_s * MIDDLING;
    Some(Measured {
        request_s,
        request_error_s: (variance * wxx / determinant).sqrt(),
        key_s,
        key_error_s: (variance * w / determinant).sqrt(),
        relative_error: if cost > 0.0 { of_middling.max(0.0).sqrt() / cost } else { 0.0 },
    })
}

/// Returns the weight of a window with `keys` keys per request in the fit: the inverse square of the mean cost of the
/// windows of about that size.
fn weight(points: &[Point], keys: f64) -> f64 {
    let near = points.iter().filter(|point| (0.8..1.25).contains(&(point.keys / keys)));
    let (count, total) =
        near.fold((0.0, 0.0), |(count, total), point| (count + 1.0, total + point.request_s));
    // The mean includes the point itself. The lower bound keeps a window without cost from taking all the weight.
    let mean: f64 = total / count;
    1.0 / mean.abs().max(1e-9).powi(2)
}

impl Measured {
    /// Returns this cost less that of `part`, which was measured separately; each coefficient is at least 0.
    pub(super) fn without(self, part: Self) -> Self {
        let root = |one: f64, other: f64| one.hypot(other);
        let whole = Self {
            request_s: (self.request_s - part.request_s).max(0.0),
            request_error_s: root(self.request_error_s, part.request_error_s),
            key_s: (self.key_s - part.key_s).max(0.0),
            key_error_s: root(self.key_error_s, part.key_error_s),
            relative_error: 0.0,
        };
        // The errors of both costs, relative to the difference.
        let error_s = |of: &Self| of.relative_error * of.middling_s();
        let left_s = whole.middling_s();
        let relative_error =
            if left_s > 0.0 { root(error_s(&self), error_s(&part)) / left_s } else { 0.0 };
        Self { relative_error, ..whole }
    }

    /// Returns the cost of a request of [`MIDDLING`] keys, in seconds.
    fn middling_s(&self) -> f64 {
        self.request_s + self.key_s * MIDDLING
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn points(request_s: f64, key_s: f64, noise: &[f64]) -> Vec<Point> {
        let sizes = [32.0, 512.0, 512.0, 32.0];
        let of = |(at, noise): (usize, &f64)| {
            let keys = sizes[at % 4];
            Point { keys, request_s: (request_s + key_s * keys) * (1.0 + noise) }
        };
        noise.iter().enumerate().map(of).collect()
    }

    proptest! {
        #[test]
        fn a_line_without_noise_is_found(request_us in 1.0..500.0f64, key_us in 0.01..50.0f64) {
            let (request_s, key_s) = (request_us / 1e6, key_us / 1e6);
            let found = line(&points(request_s, key_s, &[0.0; 8])).unwrap();
            prop_assert!((found.request_s / request_s - 1.0).abs() < 1e-6);
            prop_assert!((found.key_s / key_s - 1.0).abs() < 1e-6);
            prop_assert!(found.relative_error < 1e-6);
        }

        #[test]
        fn a_noisy_line_is_found_within_its_errors(
            noise in proptest::collection::vec(-0.1..0.1f64, 40),
        ) {
            let found = line(&points(200e-6, 5e-6, &noise)).unwrap();
            // Six standard errors: a bound that chance does not break in any run of this test.
            prop_assert!((found.request_s - 200e-6).abs() < 6.0 * found.request_error_s);
            prop_assert!((found.key_s - 5e-6).abs() < 6.0 * found.key_error_s);
            prop_assert!((0.001..0.05).contains(&found.relative_error), "{}", found.relative_error);
        }

        #[test]
        fn no_cost_is_negative(noise in proptest::collection::vec(-0.9..3.0f64, 8)) {
            let found = line(&points(0.0, 1e-6, &noise)).unwrap();
            prop_assert!(found.request_s >= 0.0 && found.key_s >= 0.0);
        }
    }

    #[test]
    fn one_size_tells_no_line() {
        let same = Point { keys: 32.0, request_s: 1e-4 };
        assert_eq!(line(&[same; 8]), None);
        assert_eq!(line(&points(1e-4, 1e-6, &[0.0; 2])), None);
    }
}
