//! Queue lengths: the mean number of transactions at each site, from the demands of a transaction on each site.
//!
//! The store is modelled as a closed network of queues, one for each site: the number of concurrent transactions is the
//! measured one, and the design decides which sites each visits. The lengths are computed by mean-value analysis in
//! Schweitzer's approximation: a transaction that arrives at a site finds (N − 1)/N of the mean queue, so R = D · (1 +
//! Q · (N − 1)/N), X = N/ΣR, Q = X · R. So the site with the largest demand has nearly all transactions as soon as
//! there are some. A function of a site's CPU load alone cannot show that: the load is 1 with two waiting transactions,
//! and with two hundred.

/// Limit on the number of iterations.
const STEPS_MAX: usize = 200;
/// The iteration ends when each queue changes by less than this share of the population.
const CHANGE_MIN: f64 = 1e-4;

/// Returns the mean number of transactions at each site, for `population` concurrent transactions in all, of which
/// each needs the time `demands` (in any one unit) of each site.
#[must_use]
pub fn queues(demands: &[f64], population: f64) -> Vec<f64> {
    let all: f64 = demands.iter().sum();
    if all <= 0.0 || population <= 0.0 {
        return vec![0.0; demands.len()];
    }
    let finds = ((population - 1.0) / population).max(0.0);
    let mut queues: Vec<f64> = demands.iter().map(|demand| population * demand / all).collect();
    for _ in 0..STEPS_MAX {
        let responses: Vec<f64> = demands
            .iter()
            .zip(&queues)
            .map(|(demand, queue)| demand * (1.0 + queue * finds))
            .collect();
        let throughput = population / responses.iter().sum::<f64>();
        let mut changed: f64 = 0.0;
        for (queue, response) in queues.iter_mut().zip(&responses) {
            let next = throughput * response;
            changed = changed.max((next - *queue).abs());
            *queue = next;
        }
        if changed < CHANGE_MIN * population {
            break;
        }
    }
    queues
}

/// Returns the demands of a transaction on sites that have other work, too: `besides`, the demand of the updates that
/// each site applies for other masters. No transaction waits for these updates, but each queues after them. Both kinds
/// of work grow with the throughput, which the busiest site limits.
#[must_use]
pub fn slowed(demands: &[f64], besides: &[f64]) -> Vec<f64> {
    let both = || demands.iter().zip(besides);
    let busiest =
        both().map(|(demand, besides)| demand + besides).fold(f64::MIN_POSITIVE, f64::max);
    both().map(|(demand, besides)| demand / (1.0 - (besides / busiest).min(0.95))).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{queues, slowed};

    /// Returns the queues by exact mean-value analysis, for populations from one on.
    fn exact(demands: &[f64], population: usize) -> Vec<f64> {
        let mut queues = vec![0.0; demands.len()];
        for many in 1..=population {
            let responses: Vec<f64> =
                demands.iter().zip(&queues).map(|(demand, queue)| demand * (1.0 + queue)).collect();
            let throughput = many as f64 / responses.iter().sum::<f64>();
            queues = responses.iter().map(|response| throughput * response).collect();
        }
        queues
    }

    proptest! {
        #[test]
        fn queues_are_nearly_those_of_exact_analysis(
            demands in prop::collection::vec(1.0..200.0_f64, 1..8), population in 1..200_usize
        ) {
            let (near, exact) = (queues(&demands, population as f64), exact(&demands, population));
            prop_assert!((near.iter().sum::<f64>() - population as f64).abs() < 0.01 * population as f64);
            for (near, exact) in near.iter().zip(exact) {
                prop_assert!((near - exact).abs() <= 0.12 * population as f64, "{near} {exact}");
            }
        }
    }

    #[test]
    fn the_site_that_demands_most_has_nearly_all() {
        let all = queues(&[70.0, 10.0, 10.0, 10.0], 64.0);
        assert!(all[0] > 60.0, "{all:?}");
        assert_eq!(queues(&[0.0, 0.0], 64.0), [0.0, 0.0]);
    }

    #[test]
    fn transactions_wait_behind_updates_and_not_for_them() {
        let all = slowed(&[60.0, 20.0, 0.0], &[20.0, 40.0, 80.0]);
        assert_eq!(all[1..], [40.0, 0.0]);
        assert!((all[0] - 80.0).abs() < 1e-9, "the busiest has time for both: {all:?}");
    }
}
