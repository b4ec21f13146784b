//! Quality of the advice: for several deadlines, the cost of the advised shape compared with that of the cheapest
//! measured shape that met the deadline.

use serde::Serialize;

use super::cell::{CacheAt, Reads};
use super::compare::{Compared, Predictor};

/// Ranks of the measured job times that serve as deadlines: the share of the measured cells that meet the deadline.
const MET_BY: [f64; 4] = [0.25, 0.5, 0.75, 0.95];
/// Maximum ratio of a job's time to its deadline at which the deadline counts as met: a smaller excess is within the
/// noise of the measurements.
const LATE: f64 = 1.05;

/// The advice for one deadline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advised {
    /// The deadline, in seconds.
    pub deadline_s: f64,
    /// The advised shape, in words.
    pub shape: String,
    /// Measured time of the job on the advised shape, in seconds.
    pub measured_s: f64,
    /// True if the job met the deadline on the advised shape, or missed it by at most 5 %.
    pub is_in_time: bool,
    /// The cheapest measured shape on which the job met the deadline, in words.
    pub best: String,
    /// Ratio of the processors of the advised shape to those of [`Self::best`]. Without prices, processors are the
    /// cost.
    pub cost_ratio: f64,
    /// Explanation of the advice, in one sentence.
    pub because: String,
}

/// Returns the advice for the longest chain, for deadlines that some of the measured cells met, among even shapes.
pub(crate) fn advised(compared: &[Compared], predictor: &Predictor) -> Vec<Advised> {
    let longest = compared.iter().map(|cell| cell.measured.length).max().unwrap_or(0);
    let cells: Vec<&Compared> = compared
        .iter()
        .filter(|cell| cell.measured.length == longest && cell.measured.cell.is_even())
        .collect();
    let is_usual = |cell: &&&Compared| {
        let cell = &cell.measured.cell;
        cell.reads == Reads::Primary && cell.cache_at == CacheAt::Worker
    };
    let usual = cells.iter().filter(is_usual).map(|cell| &cell.measured.cell);
    let Some(grid) = predictor.grid(usual) else { return Vec::new() };
    let mut times: Vec<f64> = cells.iter().map(|cell| cell.measured.job_s.mean).collect();
    times.sort_by(f64::total_cmp);
    let mut all = Vec::new();
    for part in MET_BY {
        let at = ((times.len() - 1) as f64 * part).round() as usize;
        // Two percent above a measured time, so that the cell with this time meets the deadline.
        let deadline_s = times[at] * 1.02;
        let plan = predictor.plan(&grid, longest, deadline_s);
        let measured = |shape_wanted: imago_plan::provision::Shape| {
            cells
                .iter()
                .find(|cell| predictor.shape(&cell.measured.cell).canonical() == shape_wanted)
        };
        let advice = plan.advised();
        // The grid is the product of all measured dimensions: not all of its shapes were measured.
        let Some(own) = measured(advice.prediction.shape) else { continue };
        let in_time = plan.candidates.iter().filter_map(|candidate| {
            let cell = measured(candidate.prediction.shape)?;
            (cell.measured.job_s.mean <= deadline_s).then_some((candidate, cell))
        });
        let cost = |candidate: &imago_plan::provision::Candidate| {
            (candidate.processors, candidate.memory_bytes)
        };
        let best = in_time.min_by(|one, other| {
            let (one, other) = (cost(one.0), cost(other.0));
            one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
        });
        let Some((cheapest, best)) = best else { continue };
        all.push(Advised {
            deadline_s,
            shape: own.measured.cell.to_string(),
            measured_s: own.measured.job_s.mean,
            is_in_time: own.measured.job_s.mean <= LATE * deadline_s,
            best: best.measured.cell.to_string(),
            cost_ratio: advice.processors / cheapest.processors,
            because: plan.because.clone(),
        });
    }
    all
}
