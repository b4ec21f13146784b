//! The time that a recorded job takes on other shapes if it reads as it does: with its own requests, its own number of requests
//! at once, and its own time between them.
//!
//! In each phase the recording has n requests, of which up to N were under way at once, the sum W of the times that they took,
//! and the phase's time T. A job that sends its requests over N connections, each of which waits for a reply and then works for
//! Z before its next request, takes T = (W + (n − N) Z) / N: so Z = (N T − W) / (n − N) (the interactive response time law,
//! less the work after the last replies). On another shape the requests take another time, and Z stays the same. The time
//! between the phases stays the same, too.
//!
//! A request of the mean number of keys is served as a batch of a chained job is, without a cache and without a client, whose
//! work is in Z. What such a request costs may differ from what the probe measured: it returns other fields, or goes over the
//! recording's proxy. So all costs of servers and round trips are multiplied by the one factor with which the recorded time is
//! predicted for the shape on which the job was recorded ([`Recorded::cost_factor`]).
//!
//! Invariants: a time is at least the job's own part; it does not grow if costs fall.

use super::Hits;
use super::batch::{Batch, Served};
use super::costs::{Cost, Costs, Errors, Machine, PageCost};
use super::interval::NORMAL_90;
use super::phase::phase_timing;
use super::shape::{Shape, Shares};

/// The requests of one phase of a recorded job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordedPhase {
    /// Number of keys that the phase reads.
    pub keys: u64,
    /// Number of requests by which they are read.
    pub requests: u64,
    /// Greatest number of requests under way at once.
    pub at_once: u32,
    /// Sum of the times from each request to its reply, in seconds.
    pub waited_s: f64,
    /// Time of the phase, from its first request to its last reply, in seconds.
    pub time_s: f64,
}

/// A recorded job.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// The phases, in order.
    pub phases: Vec<RecordedPhase>,
    /// Time between the phases, in seconds.
    pub pauses_s: f64,
    /// Squared coefficient of variation of a request's processor time: see [`super::Job::variation`].
    pub variation: f64,
}

/// The servers on which a recorded job is to run.
#[derive(Clone, Copy)]
pub struct Servers<'a> {
    /// Their shape, of whose cache the job makes no use.
    pub shape: Shape,
    /// Processors of the stations.
    pub machine: &'a Machine,
    /// The shards' shares of the keys.
    pub shares: &'a Shares,
    /// The pages that shards read from disk.
    pub hits: &'a dyn Hits,
}

/// The predicted time of a recorded job on one shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordedTime {
    /// Time of the job, in seconds.
    pub job_s: f64,
    /// The 90 % interval of that time, in seconds.
    pub interval_s: [f64; 2],
}

/// Least and greatest factor of costs.
const FACTORS: (f64, f64) = (0.05, 20.0);
/// Number of halvings of the range of factors, on a logarithmic scale.
const HALVINGS: u32 = 40;
/// Relative standard error of the servers' part, besides the errors of the costs: the speed of machines drifts.
const DRIFT: f64 = 0.1;

impl RecordedPhase {
    /// Returns Z: the job's own time between a reply and the next request on the same connection, in seconds.
    fn own_s(&self) -> f64 {
        let at_once = f64::from(self.at_once);
        let further = self.requests as f64 - at_once;
        if further < 1.0 {
            return 0.0;
        }
        ((at_once * self.time_s - self.waited_s) / further).max(0.0)
    }

    /// Returns the part of the phase's time in which the job itself works between its requests, in seconds.
    fn own_part_s(&self) -> f64 {
        let further = self.requests as f64 - f64::from(self.at_once);
        (self.own_s() * further / f64::from(self.at_once.max(1))).clamp(0.0, self.time_s)
    }

    /// Returns the predicted time of the phase on a shape without a cache, in seconds; the shards read `pages` pages from
    /// disk.
    fn predicted_s(
        &self,
        pages: f64,
        costs: &Costs,
        machine: &Machine,
        variation: f64,
        shape: Shape,
        shares: &[f64],
    ) -> f64 {
        if self.requests == 0 || self.keys == 0 || self.at_once == 0 {
            return self.time_s;
        }
        let phase = (self.keys, self.requests);
        let served = Served { hits: 0.0, pages };
        let mut batch = Batch::of(phase, served, costs, machine, variation, shape, shares);
        let own_s = self.own_s();
        batch.delay_s += own_s;
        // The work after the last replies is no part of the phase.
        (phase_timing(&batch, self.at_once).time_s - own_s).max(self.own_part_s())
    }
}

impl Recorded {
    /// Returns the time of the job as it was recorded, in seconds.
    #[must_use]
    pub fn job_s(&self) -> f64 {
        self.pauses_s + self.phases.iter().map(|phase| phase.time_s).sum::<f64>()
    }

    /// Returns the part of that time in which the job itself worked or paused between its requests, in seconds.
    #[must_use]
    pub fn own_s(&self) -> f64 {
        self.pauses_s + self.phases.iter().map(RecordedPhase::own_part_s).sum::<f64>()
    }

    /// Returns the factor of the costs of servers and round trips with which the recorded time is predicted for the shape on
    /// which the job was recorded, from 0.05 to 20.
    #[must_use]
    pub fn cost_factor(&self, costs: &Costs, servers: Servers<'_>) -> f64 {
        let (mut low, mut high) = FACTORS;
        let recorded_s = self.job_s();
        for _ in 0..HALVINGS {
            let middle = (low * high).sqrt();
            if self.predicted_s(&served(costs, middle), servers) < recorded_s {
                low = middle;
            } else {
                high = middle;
            }
        }
        (low * high).sqrt()
    }

    /// Predicts the time of the job on a shape, whose cache it does not use. `factor` is that of
    /// [`Recorded::cost_factor`]; `None` if the shape on which the job was recorded is not known.
    #[must_use]
    pub fn predict(
        &self,
        costs: &Costs,
        (factor, errors): (Option<f64>, &Errors),
        servers: Servers<'_>,
    ) -> RecordedTime {
        let costs = served(costs, factor.unwrap_or(1.0));
        let own_s = self.own_s();
        let job_s = self.predicted_s(&costs, servers).max(own_s);
        let Errors { router, shard, round_trips, all, .. } = *errors;
        let error = router.hypot(shard).hypot(round_trips).hypot(all).hypot(DRIFT);
        let spread = (NORMAL_90 * error).exp();
        let servers_s = job_s - own_s;
        RecordedTime { job_s, interval_s: [own_s + servers_s / spread, own_s + servers_s * spread] }
    }

    fn predicted_s(&self, costs: &Costs, servers: Servers<'_>) -> f64 {
        let Servers { shape, machine, shares, hits } = servers;
        let (shape, shares) = (Shape { cache_bytes: 0, ..shape }, shares.of(shape.shards));
        let of = |(number, phase): (usize, &RecordedPhase)| {
            let pages = hits.pages(number, shape);
            phase.predicted_s(pages, costs, machine, self.variation, shape, &shares)
        };
        self.pauses_s + self.phases.iter().enumerate().map(of).sum::<f64>()
    }
}

/// Returns the costs without a client, and with those of servers and round trips multiplied by `factor`.
fn served(costs: &Costs, factor: f64) -> Costs {
    let times =
        |cost: Cost| Cost { request_s: cost.request_s * factor, key_s: cost.key_s * factor };
    Costs {
        client: Cost::default(),
        client_find: Cost::default(),
        router: times(costs.router),
        shard: times(costs.shard),
        round_trip_router_s: costs.round_trip_router_s * factor,
        round_trip_shard_s: costs.round_trip_shard_s * factor,
        page: PageCost {
            processor_s: costs.page.processor_s * factor,
            wait_s: costs.page.wait_s * factor,
        },
        ..*costs
    }
}
