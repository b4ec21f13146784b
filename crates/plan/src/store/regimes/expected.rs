//! The expected workload: how long the present regime is expected to last, and which others are expected, by weight.
//!
//! - A regime whose visits ended after some time is expected to end after the same time again. One that has lasted 1.5
//!   times as long is expected to last half as long again as it has. Before any regime ended, the present one is
//!   expected to stay.
//! - The *chance of return* is the share of turns that led back to a known regime. Another regime counts with this
//!   chance, and by the length of its visits up to [`ADAPTS_MS`]: a change that harms it can be undone only some time
//!   after the visit has begun.
//! - A change is credited for the time that known regimes are expected to last, and not for the time of unknown ones.

use super::{Regime, Regimes};
use crate::store::layout::Key;
use crate::store::workload::Sample;

/// Longest time that adaptation to a regime may take, in ms: for so long a regime may have a design that is bad for
/// it.
const ADAPTS_MS: f64 = 60_000.0;
/// Longest expected time of the present regime that the weights of others are relative to, in ms.
const LASTS_MS_MAX: f64 = 300_000.0;
/// Least remaining time that is expected around the usual end of a regime's visit, as a share of its usual length.
const LASTS_SHARE_MIN: f64 = 0.25;
/// Time without a visit after which a regime counts half, in ms.
const HALF_LIFE_MS: f64 = 600_000.0;
/// Largest chance of return (0..1): the probability that a turn leads back to a known regime.
const RETURN_MAX: f64 = 0.98;
/// Limit on the number of samples of another regime by which plans are priced.
const SAMPLES_MAX: usize = 200;
/// Least weight of another regime; with less it is ignored.
const WEIGHT_MIN: f64 = 0.01;

/// A regime other than the present one that is expected to return.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherRegime<K> {
    /// Number of the regime.
    pub id: u64,
    /// Time that the regime is expected to take, as a multiple of that of the present regime.
    pub weight: f64,
    /// Transactions of the regime, each with its weight, by which designs are priced for it.
    pub samples: Vec<(f64, Sample<K>)>,
    /// Number of transactions per second in the regime, at all sites together.
    pub rate_s: f64,
    /// Mean number of concurrent transactions in the regime, at all sites together.
    pub population: f64,
}

/// The workload that is expected from the present moment on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected<'e, K> {
    /// Time from now on for which known regimes are expected to last, in seconds; infinite if no regime has ended yet.
    pub lasts_s: f64,
    /// Regimes that are expected in addition to the present one.
    pub others: &'e [OtherRegime<K>],
}

impl<K> Default for Expected<'_, K> {
    /// Returns the expectation that the present workload stays for good.
    fn default() -> Self {
        Self { lasts_s: f64::INFINITY, others: &[] }
    }
}

impl<K: Key> Regimes<K> {
    /// Returns the time from now on for which known regimes are expected to last, in seconds, and the regimes that are
    /// expected in addition to the present one.
    #[must_use]
    pub fn expected(&self) -> (f64, Vec<OtherRegime<K>>) {
        let Some(now) = self.present() else { return (0.0, Vec::new()) };
        let Some(lasts_ms) = self.lasts_ms(now) else { return (f64::INFINITY, Vec::new()) };
        let chance = (self.returns / self.turns.max(1.0)).min(RETURN_MAX);
        let (mut others, mut others_ms) = (Vec::new(), 0.0);
        for other in self.known.iter().filter(|other| other.id != now.id) {
            let often = (f64::from(other.visits) / f64::from(now.visits.max(1))).min(1.0);
            let age_ms = self.now_ms.saturating_sub(other.last_ms) as f64;
            let chance = chance * often * 0.5_f64.powf(age_ms / HALF_LIFE_MS);
            let visit_ms = other.visit_ms.unwrap_or(0.0);
            others_ms += chance * visit_ms;
            let weight = chance * visit_ms.min(ADAPTS_MS) / lasts_ms.clamp(1.0, LASTS_MS_MAX);
            if weight >= WEIGHT_MIN {
                others.push(OtherRegime {
                    id: other.id,
                    weight,
                    samples: other.newest(),
                    rate_s: other.rate_s(),
                    population: other.population.unwrap_or(0.0),
                });
            }
        }
        let lasts_s = (lasts_ms + others_ms) / 1_000.0 / (1.0 - chance);
        (lasts_s, others)
    }

    /// Returns the further time that the present regime `now` is expected to last, in ms; `None` if no regime has
    /// ended yet.
    fn lasts_ms(&self, now: &Regime<K>) -> Option<f64> {
        let ended = || self.known.iter().filter_map(|regime| regime.visit_ms);
        let usual_ms = now.visit_ms.or_else(|| {
            let many = ended().count();
            (many > 0).then(|| ended().sum::<f64>() / many as f64)
        })?;
        let passed_ms = self.now_ms.saturating_sub(now.since_ms) as f64;
        Some(match passed_ms {
            _ if passed_ms < usual_ms => (usual_ms - passed_ms).max(LASTS_SHARE_MIN * usual_ms),
            _ if passed_ms < 1.5 * usual_ms => LASTS_SHARE_MIN * usual_ms,
            _ => passed_ms / 2.0,
        })
    }
}

impl<K: Key> Regime<K> {
    /// Returns the newest samples of the regime, each with weight 1.
    fn newest(&self) -> Vec<(f64, Sample<K>)> {
        let mut samples: Vec<(u64, &Sample<K>)> = self.reservoir.samples().collect();
        samples.sort_by_key(|(at_ms, _)| std::cmp::Reverse(*at_ms));
        samples.into_iter().take(SAMPLES_MAX).map(|(_, sample)| (1.0, sample.clone())).collect()
    }
}
