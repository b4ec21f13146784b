//! Intervals of predicted times: of 90 %, from the errors of the costs and of the model.
//!
//! The errors of the costs are those of the probe. By the delta method each group of costs is changed by its standard error, and
//! the squares of the changes of the time's logarithm are added. The errors of the model are what is left between predicted and
//! measured times where the costs were probed on the same machine: on the 22 shapes of the evaluation, whose times were 7.6 %
//! off in the median and 22.8 % at most (`docs/evaluation/chained-mr.md`).
//!
//! Two shapes are compared by the interval of the *ratio* of their times: an error that both have in common does not matter.

use super::Workload;
use super::costs::{Cost, Costs, Errors, Job, Machine, PageCost};
use super::predict::predict;
use super::shape::{Shape, Shares};

/// Standard deviation of the logarithm of a measured time around the predicted one.
const MODEL: f64 = 0.12;
/// Standard deviation of the logarithm of the measured ratio of two times, around the predicted one, of shapes with the same number
/// of shards and members: their errors are nearly the same.
const MODEL_SAME_SERVERS: f64 = 0.03;
/// Quantile of the standard normal distribution for a 90 % interval.
pub(super) const NORMAL_90: f64 = 1.645;

/// The 90 % interval of a job's time, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end of the interval, in seconds.
    pub low_s: f64,
    /// Upper end of the interval, in seconds.
    pub high_s: f64,
}

/// What predictions rest on, with its errors.
#[derive(Clone, Copy)]
pub struct Basis<'a> {
    /// The reads of the job.
    pub workload: Workload<'a>,
    /// Costs of requests.
    pub costs: &'a Costs,
    /// Standard errors of the costs.
    pub errors: &'a Errors,
    /// Processors of the stations.
    pub machine: &'a Machine,
    /// Settings of the job.
    pub job: &'a Job,
    /// The shards' shares of the keys.
    pub shares: &'a Shares,
}

impl Basis<'_> {
    /// Returns the interval of the job's time on a shape.
    #[must_use]
    pub fn interval(&self, shape: Shape) -> Interval {
        let time_s = |costs: &Costs| self.time_s(costs, shape);
        let (mean_s, spread) = (time_s(self.costs), self.spread(MODEL, time_s));
        Interval { low_s: mean_s / spread, high_s: mean_s * spread }
    }

    /// Returns the interval of the time on `shape` divided by that on `other`: lower and upper end. If it contains 1, the times
    /// of the two cannot be told apart.
    #[must_use]
    pub fn ratio(&self, shape: Shape, other: Shape) -> [f64; 2] {
        let ratio = |costs: &Costs| {
            self.time_s(costs, shape) / self.time_s(costs, other).max(f64::MIN_POSITIVE)
        };
        let servers = |of: Shape| (of.shards, of.read_members());
        let same = servers(shape) == servers(other);
        let spread = self.spread(if same { MODEL_SAME_SERVERS } else { MODEL }, ratio);
        [ratio(self.costs) / spread, ratio(self.costs) * spread]
    }

    fn time_s(&self, costs: &Costs, shape: Shape) -> f64 {
        predict(self.workload, costs, self.machine, self.job, shape, self.shares).job_s
    }

    /// Returns the factor between the middle and the ends of the interval of a function of the costs.
    fn spread(&self, model: f64, of: impl Fn(&Costs) -> f64) -> f64 {
        let mean = of(self.costs);
        let change = |costs: &Costs| (of(costs).max(f64::MIN_POSITIVE) / mean).ln();
        let variance = match mean > 0.0 {
            true => self.changed().iter().map(|costs| change(costs).powi(2)).sum::<f64>(),
            false => 0.0,
        };
        (NORMAL_90 * (variance + model.powi(2)).sqrt()).exp()
    }

    /// Returns the costs with each group of them that has an error changed by that error.
    fn changed(&self) -> Vec<Costs> {
        let (costs, errors) = (self.costs, self.errors);
        let scaled = |cost: Cost, error: f64| Cost {
            request_s: cost.request_s * (1.0 + error),
            key_s: cost.key_s * (1.0 + error),
        };
        let client = |of: Costs, error| Costs {
            client: scaled(of.client, error),
            client_get: scaled(of.client_get, error),
            client_set: scaled(of.client_set, error),
            client_find: scaled(of.client_find, error),
            proxy: scaled(of.proxy, error),
            ..of
        };
        let cache = |of: Costs, error| Costs {
            cache_get: scaled(of.cache_get, error),
            cache_set: scaled(of.cache_set, error),
            ..of
        };
        let router = |of: Costs, error| Costs { router: scaled(of.router, error), ..of };
        let shard = |of: Costs, error| {
            let PageCost { processor_s, wait_s } = of.page;
            let page = PageCost {
                processor_s: processor_s * (1.0 + error),
                wait_s: wait_s * (1.0 + error),
            };
            Costs { shard: scaled(of.shard, error), page, ..of }
        };
        let trips = |of: Costs, error: f64| Costs {
            round_trip_cache_s: of.round_trip_cache_s * (1.0 + error),
            round_trip_router_s: of.round_trip_router_s * (1.0 + error),
            round_trip_shard_s: of.round_trip_shard_s * (1.0 + error),
            ..of
        };
        let all =
            |of, error| trips(shard(router(cache(client(of, error), error), error), error), error);
        let changed = [
            (errors.client, client(*costs, errors.client)),
            (errors.cache, cache(*costs, errors.cache)),
            (errors.router, router(*costs, errors.router)),
            (errors.shard, shard(*costs, errors.shard)),
            (errors.round_trips, trips(*costs, errors.round_trips)),
            (errors.all, all(*costs, errors.all)),
        ];
        changed.into_iter().filter(|(error, _)| *error > 0.0).map(|(_, costs)| costs).collect()
    }
}
