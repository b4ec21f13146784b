//! The cost of a recording by profilers to clients: one load with and without `imago reshard advise --profile`, in turns.

use std::time::{Duration, Instant};

use bson::doc;
use serde::Serialize;

use super::loads::LOADS;
use super::{Bench, Size};
use crate::error::{Error, Result};
use crate::process::Measured;
use crate::subject::Subject;

/// Number of pairs of turns: without and with the profiler, and in the other order.
const PAIRS: usize = 10;
/// Length of a turn.
const TURN: Duration = Duration::from_secs(5);
/// Number of operations after which the time is looked at.
const STEP: u64 = 400;
/// Longest wait until profilers are on.
const ON_MAX: Duration = Duration::from_secs(20);
/// Exit code of a recording that is interrupted.
const INTERRUPTED: i32 = 5;
/// 95 % quantile of Student's distribution with nine degrees of freedom.
const STUDENT_95: f64 = 1.833;

/// The cost of profilers to clients.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProfilerCost {
    /// Part of the throughput that clients lose, in percent: the mean of the pairs, on a logarithmic scale.
    pub percent: f64,
    /// Bounds of its 90 % interval.
    pub interval: (f64, f64),
    /// The same of pairs of turns that both had no profiler.
    pub placebo_percent: f64,
    /// Bounds of the placebo's 90 % interval.
    pub placebo_interval: (f64, f64),
    /// Operations a second without the profiler, in the mean.
    pub operations_s: f64,
}

impl Bench<'_> {
    /// Measures the cost of profilers.
    pub(super) async fn profiler_cost(&self) -> Result<ProfilerCost> {
        let (mut with, mut placebos, mut rates) = (Vec::new(), Vec::new(), Vec::new());
        for pair in 0..PAIRS {
            // Each order as often as the other, so that an even drift counts for nothing.
            let is_first = pair % 2 == 0;
            let turn = async |is_on: bool| self.turn(is_on, pair as u64).await;
            let (on, off, other) = if is_first {
                let on = turn(true).await?;
                let off = turn(false).await?;
                (on, off, turn(false).await?)
            } else {
                let other = turn(false).await?;
                let off = turn(false).await?;
                (turn(true).await?, off, other)
            };
            with.push((on / off).ln());
            placebos.push((other / off).ln());
            rates.push(off);
        }
        let (percent, interval) = loss(&with);
        let (placebo_percent, placebo_interval) = loss(&placebos);
        let operations_s = rates.iter().sum::<f64>() / rates.len() as f64;
        Ok(ProfilerCost { percent, interval, placebo_percent, placebo_interval, operations_s })
    }

    /// Runs a load for one turn, with or without profilers, and returns its operations a second.
    async fn turn(&self, is_on: bool, number: u64) -> Result<f64> {
        let client = self.client().await?;
        let load = &LOADS[0];
        let size = Size { operations: STEP, ..self.size };
        let mut recording = None;
        if is_on {
            // The part that is recorded is chosen by what clients do.
            let mut starting = std::pin::pin!(self.profile());
            while recording.is_none() {
                tokio::select! {
                    started = &mut starting => recording = Some(started?),
                    done = load.run(&client, &self.ns, size, 3_000 + number) => done?,
                }
            }
        }
        // Connections are made, and plans of queries are cached.
        load.run(&client, &self.ns, size, 1_000 + number).await?;
        let (began, mut done) = (Instant::now(), 0);
        while began.elapsed() < TURN {
            load.run(&client, &self.ns, size, 2_000 + number).await?;
            done += STEP;
        }
        let rate = done as f64 / began.elapsed().as_secs_f64();
        if let Some(recording) = recording {
            recording.interrupt()?;
            Box::pin(recording.end(INTERRUPTED)).await?;
        }
        load.clean(&client, &self.ns, self.size).await?;
        Ok(rate)
    }

    /// Starts a recording by profilers, and waits until they are on.
    async fn profile(&self) -> Result<Measured> {
        let command = (self.commands)(&Subject::ProfileOperations, &self.ends());
        let recording = Measured::start("a recording by profilers", command)?;
        let began = Instant::now();
        for primary in self.work.primaries() {
            loop {
                let status = primary.run(&self.ns.db, doc! {"profile": -1}).await?;
                if status.get_i32("was").is_ok_and(|level| level == 1) {
                    break;
                }
                if began.elapsed() > ON_MAX {
                    let what = "profilers to be on".to_owned();
                    return Err(Error::TimedOut { what, bound_s: ON_MAX.as_secs() });
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(recording)
    }
}

/// Returns the loss that these logarithms of ratios of throughputs mean, in percent, and its 90 % interval.
fn loss(ratios: &[f64]) -> (f64, (f64, f64)) {
    let count = ratios.len() as f64;
    let mean = ratios.iter().sum::<f64>() / count;
    let squares = ratios.iter().map(|ratio| (ratio - mean).powi(2)).sum::<f64>();
    let error = (squares / (count - 1.0) / count).sqrt() * STUDENT_95;
    let percent = |ratio: f64| -100.0 * ratio.exp_m1();
    (percent(mean), (percent(mean + error), percent(mean - error)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_has_the_interval_of_its_mean() {
        let ratios: Vec<f64> =
            (0..10).map(|n| if n % 2 == 0 { 0.97 } else { 0.99 }).map(f64::ln).collect();
        let (percent, (low, high)) = loss(&ratios);
        assert!((percent - 2.0).abs() < 0.01 && low < 1.5 && low > 1.0 && high > 2.5 && high < 3.0);
    }
}
