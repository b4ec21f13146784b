//! The load of a measurement: a closed one, which keeps a number of operations in flight, measured window by window.

use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_plan::tune::judge::Window;
use imago_plan::tune::sampling::is_plateau;
use imago_plan::tune::workload::{KINDS, Mix as Shares};
use imago_tune::cluster::{Error, Result};
use imago_workload::driver::{self, Arrival, Control, DriverError, Options, Report, Running};
use imago_workload::history::Recorder;
use imago_workload::mix::Mix;
use imago_workload::target::Target;
use imago_workload::timeline::{Part, Slot, Tally};
use tokio_util::sync::CancellationToken;

use super::{Request, Sampled};

/// A measurement fails if more than one in this many reads finds no record. A record may be absent for a moment.
const MISSED_SHARE: u64 = 100;
/// Time between two looks at the load's time line, which keeps the intervals of the last second.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Indices of reads and writes in a window: scans count as reads, and inserts as updates.
const READS: usize = 0;
const WRITES: usize = 1;

/// Result of warming up.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Warmth {
    /// Time that it took, in seconds.
    pub(super) warm_s: f64,
    /// Reason why the database is not warm although the maximum time has passed; `None` if it is warm.
    pub(super) not_warm: Option<String>,
}

/// A running load, which ends when this is dropped.
pub(super) struct Load<T: Target> {
    /// `None` once it was ended.
    running: Option<Running<T>>,
    control: Control<T>,
    mix: Mix,
    /// End of the last interval of the time line that was seen, in milliseconds since the start of the load.
    seen_ms: u64,
}

fn wrong(error: DriverError) -> Error {
    Error::Failed {
        what: error.to_string(),
        help: "the same command makes the measurements that are missing".into(),
    }
}

impl<T: Target> Load<T> {
    /// Starts a load of this mix on the database; `seed` is that of its random choices.
    pub(super) async fn start<D: Sampled<Target = T>>(
        database: &D,
        request: &Request,
        mix: Mix,
        seed: u64,
    ) -> Result<Self> {
        let target = Arc::new(database.target(request).await?);
        let options = Options {
            mix,
            arrival: Arrival::Closed,
            duration: None,
            in_flight_max: request.clients,
            preloaded: request.documents,
            reviews: request.reviews(),
            seed,
            ..Options::default()
        };
        let running = driver::start(options, target, Recorder::nothing()).map_err(wrong)?;
        let control = running.control();
        Ok(Self { running: Some(running), control, mix, seen_ms: 0 })
    }

    /// Returns the number of operations that have ended since the load began.
    pub(super) fn ended(&self) -> u64 {
        let now = self.control.snapshot();
        now.reads.total() + now.writes.total()
    }

    /// Waits for `length`, the length of a window, and returns what the load saw within it.
    pub(super) async fn window(&mut self, length: Duration) -> Window {
        let tallies = |control: &Control<T>| {
            let now = control.snapshot();
            (now.reads.total(), now.writes.total())
        };
        let (began, before) = (Instant::now(), tallies(&self.control));
        let mut slots = Slots::default();
        self.new_slots();
        loop {
            let left = length.saturating_sub(began.elapsed());
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
            self.new_slots().iter().for_each(|slot| slots.add(slot));
            if began.elapsed() >= length {
                break;
            }
        }
        let behind = tallies(&self.control);
        let [reads, writes] = [behind.0 - before.0, behind.1 - before.1].map(|count| count as f64);
        let seconds = began.elapsed().as_secs_f64();
        let mut mix = [0.0; KINDS];
        (mix[READS], mix[WRITES]) = (reads, writes);
        let of_load = || {
            let Mix { read, update, insert, scan, .. } = self.mix;
            [read + scan, update + insert, 0.0, 0.0]
        };
        let mix = Shares::of(mix).or_else(|| Shares::of(of_load()));
        let mix = mix.expect("the load has operations");
        let (median, slowest) = slots.latencies();
        Window { mix, rate_s: (reads + writes) / seconds, median, slowest, memory: None }
    }

    /// Returns the finished intervals of the time line since the last call.
    fn new_slots(&mut self) -> Vec<Slot> {
        let mut slots = self.control.snapshot().recent;
        slots.retain(|slot| slot.at_ms >= self.seen_ms);
        if let Some(last) = slots.last() {
            self.seen_ms = last.at_ms + 1;
        }
        slots
    }

    /// Loads the database until throughput is on a plateau and no work goes on in the background, for the requested maximum
    /// time at the most, or until `cancel` is cancelled.
    pub(super) async fn warm<D: Sampled<Target = T>>(
        &mut self,
        database: &mut D,
        request: &Request,
        cancel: &CancellationToken,
    ) -> Result<Warmth> {
        let began = Instant::now();
        let mut rates = Vec::new();
        let mut not_warm = Some("throughput still changes".to_owned());
        // A load that writes causes work on stored data again and again.
        let counts_data = self.mix.update + self.mix.insert == 0.0;
        while not_warm.is_some() && began.elapsed() < request.warm_max && !cancel.is_cancelled() {
            rates.push(self.window(request.window).await.rate_s);
            if is_plateau(&rates) {
                not_warm = database.background(counts_data).await?;
            }
        }
        Ok(Warmth { warm_s: began.elapsed().as_secs_f64(), not_warm })
    }

    /// Ends the load.
    ///
    /// # Errors
    /// Returns an error if operations failed under `configuration`, or too many reads found nothing: what was measured was
    /// not service.
    pub(super) async fn stop(mut self, configuration: &str) -> Result<()> {
        self.control.stop();
        let running = self.running.take().expect("it is ended once");
        let (report, _): (Report, _) = running.finish().await.map_err(wrong)?;
        let failed = report.reads.tally.failed + report.writes.tally.failed;
        if failed > 0 {
            let why = report.failures.first().map_or("", |failure| &failure.message);
            return Err(Error::Failed {
                what: format!("{failed} operations failed under {configuration}: {why}"),
                help: "use fewer --clients: what is measured must be service and not refusal"
                    .into(),
            });
        }
        let Tally { not_found, .. } = report.reads.tally;
        if not_found > report.reads.tally.total() / MISSED_SHARE {
            return Err(Error::Failed {
                what: format!("{not_found} reads under {configuration} found nothing"),
                help: "are all records there? A database that evicts them serves nothing that can be compared".into(),
            });
        }
        Ok(())
    }
}

impl<T: Target> Drop for Load<T> {
    fn drop(&mut self) {
        self.control.stop();
    }
}

/// Sums of the intervals of a window: of reads and of writes, the number, and the percentiles weighted by it.
#[derive(Default)]
struct Slots([(f64, f64, f64); 2]);

impl Slots {
    fn add(&mut self, slot: &Slot) {
        for (sums, part) in self.0.iter_mut().zip([slot.reads, slot.writes]) {
            let Part { tally, p50_us, p99_us, .. } = part;
            let count = tally.total() as f64;
            sums.0 += count;
            sums.1 += count * p50_us as f64;
            sums.2 += count * p99_us as f64;
        }
    }

    /// Returns the median and the 99th percentile of the latency of each kind of operations, in µs: means over the intervals.
    fn latencies(&self) -> ([Option<f64>; KINDS], [Option<f64>; KINDS]) {
        let mean = |part: usize, of: fn(&(f64, f64, f64)) -> f64| {
            let sums = &self.0[part];
            (sums.0 > 0.0).then(|| of(sums) / sums.0)
        };
        let both = |of: fn(&(f64, f64, f64)) -> f64| [mean(0, of), mean(1, of), None, None];
        (both(|sums| sums.1), both(|sums| sums.2))
    }
}
