//! How good the advice is: for several deadlines, what the advised shape costs beside the cheapest measured one that met
//! the deadline.

use imago_plan::provision::{CacheAt, Grid, Reads};
use serde::Serialize;

use super::compare::{Compared, Predictor, shape};

/// Deadlines that are tried: those which these parts of all measured cells met.
const MET_BY: [f64; 4] = [0.25, 0.5, 0.75, 0.95];
/// A job that is later than its deadline by so little has met it within the noise.
const LATE: f64 = 1.05;

/// The advice for one deadline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advised {
    /// The deadline, in seconds.
    pub deadline_s: f64,
    /// The advised shape.
    pub shape: String,
    /// Seconds that the job took there.
    pub measured_s: f64,
    /// True if that was in time, or a twentieth too late at most.
    pub is_in_time: bool,
    /// The cheapest measured shape that was in time.
    pub best: String,
    /// What the advised shape costs, over what that one does: processors, which no price was given for.
    pub cost_ratio: f64,
    /// The advice as a sentence.
    pub because: String,
}

/// The advice for deadlines that some of the measured cells met, among even shapes.
pub(crate) fn advised(compared: &[Compared], predictor: &Predictor) -> Vec<Advised> {
    let longest = compared.iter().map(|cell| cell.measured.length).max().unwrap_or(0);
    let cells: Vec<&Compared> = compared
        .iter()
        .filter(|cell| cell.measured.length == longest && cell.measured.cell.is_even())
        .collect();
    let mut shards = Vec::new();
    let mut members = Vec::new();
    let mut caches = Vec::new();
    for cell in &cells {
        let shape = shape(&cell.measured.cell);
        shards.push(shape.shards);
        members.push(shape.replicas);
        caches.push(shape.cache_bytes);
    }
    let grid = Grid::new(shards, members, caches, vec![Reads::Primary], vec![CacheAt::Worker]);
    let Some(grid) = grid else { return Vec::new() };
    let mut times: Vec<f64> = cells.iter().map(|cell| cell.measured.job_s.mean).collect();
    times.sort_by(f64::total_cmp);
    let mut all = Vec::new();
    for part in MET_BY {
        let at = ((times.len() - 1) as f64 * part).round() as usize;
        // A little above what was measured, so that the cell itself meets it.
        let deadline_s = times[at] * 1.02;
        let plan = predictor.plan(&grid, longest, deadline_s);
        let measured = |shape_wanted: imago_plan::provision::Shape| {
            cells.iter().find(|cell| shape(&cell.measured.cell).canonical() == shape_wanted)
        };
        let advice = plan.advised();
        // Not all of a grid need have been measured.
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
