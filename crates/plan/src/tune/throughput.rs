//! The throughput of a configuration with a mix, from measurements: f_ops of Eq. 3 (SOPHIA, §4.3).
//!
//! Between measured mixes, a configuration's throughput is the mean of its measurements, weighted by the inverse square
//! of their distance (Shepard). It is exact at measured mixes, and always within the measured range: a plan does not
//! rely on a throughput that no measurement has shown.

use super::workload::Mix;

/// One measurement of a configuration's throughput under a mix of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Index of the measured configuration.
    pub configuration: usize,
    /// Mix of operations under which the configuration was measured.
    pub mix: Mix,
    /// Measured throughput, in operations per second.
    pub rate_s: f64,
}

/// The measurements of all configurations, from which throughputs under other mixes are interpolated.
#[derive(Clone, Debug, PartialEq)]
pub struct Throughputs {
    /// For each configuration, the measured mixes and their throughputs in operations per second.
    measured: Vec<Vec<(Mix, f64)>>,
}

/// Distance below which two mixes count as equal.
const DISTANCE_EPSILON: f64 = 1e-9;

impl Throughputs {
    /// Groups the measurements by configuration, of which there are `configurations`.
    ///
    /// # Errors
    /// Returns the index of the first configuration without a measurement, if there is one.
    pub fn new(configurations: usize, all: &[Measured]) -> Result<Self, usize> {
        let of = |number: usize| {
            let its = all.iter().filter(|one| one.configuration == number);
            let its: Vec<(Mix, f64)> = its.map(|one| (one.mix, one.rate_s)).collect();
            if its.is_empty() { Err(number) } else { Ok(its) }
        };
        (0..configurations).map(of).collect::<Result<_, _>>().map(|measured| Self { measured })
    }

    /// Returns the same measurements with the mix of each converted by the function `mix`.
    #[must_use]
    pub fn map(mut self, mix: impl Fn(Mix) -> Mix) -> Self {
        self.measured.iter_mut().flatten().for_each(|(at, _)| *at = mix(*at));
        self
    }

    /// Returns the throughput of each configuration under a mix, measured or interpolated, in operations per second.
    #[must_use]
    pub fn of(&self, mix: Mix) -> Vec<f64> {
        self.measured.iter().map(|its| interpolated(its, mix)).collect()
    }
}

/// Interpolates the measured throughputs of one configuration at a mix, in operations per second.
fn interpolated(measured: &[(Mix, f64)], mix: Mix) -> f64 {
    let same: Vec<f64> = measured
        .iter()
        .filter(|(at, _)| at.distance(mix) < DISTANCE_EPSILON)
        .map(|(_, rate)| *rate)
        .collect();
    if !same.is_empty() {
        return same.iter().sum::<f64>() / same.len() as f64;
    }
    let (mut sum, mut weights) = (0.0, 0.0);
    for (at, rate) in measured {
        let weight = at.distance(mix).powi(-2);
        (sum, weights) = (sum + weight * rate, weights + weight);
    }
    sum / weights
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn measured(configuration: usize, reads: f64, rate_s: f64) -> Measured {
        Measured { configuration, mix: Mix::of_reads(reads), rate_s }
    }

    #[test]
    fn it_is_exact_where_it_was_measured_and_between_it_in_between() {
        let all = [
            measured(0, 0.0, 48_000.0),
            measured(0, 1.0, 30_000.0),
            measured(1, 0.0, 36_000.0),
            measured(1, 0.0, 38_000.0),
            measured(1, 1.0, 41_000.0),
        ];
        let throughputs = Throughputs::new(2, &all).unwrap();
        assert_eq!(throughputs.of(Mix::of_reads(1.0)), [30_000.0, 41_000.0]);
        assert_eq!(throughputs.of(Mix::of_reads(0.0)), [48_000.0, 37_000.0], "the mean of two");
        let half = throughputs.of(Mix::of_reads(0.5));
        assert!((half[0] - 39_000.0).abs() < 1e-6, "{half:?}");
        let near = throughputs.of(Mix::of_reads(0.9));
        assert!(near[0] < 31_000.0, "the nearer one counts more: {near:?}");
        assert_eq!(Throughputs::new(3, &all), Err(2));
    }

    proptest! {
        #[test]
        fn it_stays_within_what_was_measured(
            all in prop::collection::vec((prop::array::uniform4(0.01..9_000.0_f64), 100.0..60_000.0_f64), 1..20),
            at in prop::array::uniform4(0.01..9_000.0_f64),
        ) {
            let of = |(counts, rate_s): &([f64; 4], f64)| {
                Measured { configuration: 0, mix: Mix::of(*counts).unwrap(), rate_s: *rate_s }
            };
            let all: Vec<Measured> = all.iter().map(of).collect();
            let rate = Throughputs::new(1, &all).unwrap().of(Mix::of(at).unwrap())[0];
            let rates = || all.iter().map(|one| one.rate_s);
            let (least, most) = (rates().fold(f64::MAX, f64::min), rates().fold(0.0, f64::max));
            prop_assert!(rate >= least - 1e-6 && rate <= most + 1e-6, "{rate} {least} {most}");
        }
    }
}
