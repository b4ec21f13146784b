//! The quality of adaptation's decisions: their outcomes, and the accuracy of the predictions.

use imago_store::adapt::{AdaptReport, Verdict};
use serde::Serialize;

/// Figures for the quality of decisions.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// Number of changes of the design.
    pub changes: u64,
    /// Fraction of the executed plans that were undone.
    pub undone_share: f64,
    /// Number of plans whose effect was measured.
    pub measured: usize,
    /// Fraction of the measured plans after which the mean latency was lower.
    pub gained_share: f64,
    /// Number of measured plans after which the mean latency differed by more than chance explains, which is twice
    /// the standard error.
    pub told_apart: usize,
    /// Fraction of these plans after which the mean latency was lower; `None` if there are no such plans.
    pub gained_share_told_apart: Option<f64>,
    /// R² of the predicted total times of transactions; `None` while there are too few.
    pub r_squared_transactions: Option<f64>,
    /// R² of the predicted total times of operators; `None` while there are too few.
    pub r_squared_operators: Option<f64>,
    /// R² of each function on held-out samples, by name; `None` while there are too few samples.
    pub r_squared: Vec<(String, Option<f64>)>,
    /// Name, constant and weights of each function. The constant is in the unit of the output; a weight is the
    /// increase of the output per unit of an input.
    pub weights: Vec<(String, f64, Vec<f64>)>,
}

impl Quality {
    /// Computes the figures from the final report of a store that has adapted.
    pub fn of(report: &AdaptReport) -> Self {
        let (measured, gained, done, undone) = counted(report);
        let (told_apart, quicker) = count_significant(report);
        let functions = || report.functions.iter();
        Self {
            changes: report.changes,
            undone_share: undone as f64 / done.max(1) as f64,
            measured,
            gained_share: gained as f64 / measured.max(1) as f64,
            told_apart,
            gained_share_told_apart: (told_apart > 0).then(|| quicker as f64 / told_apart as f64),
            r_squared_transactions: report.r_squared_transactions,
            r_squared_operators: report.r_squared_operators,
            r_squared: functions().map(|of| (of.name.clone(), of.r_squared)).collect(),
            weights: functions()
                .map(|of| (of.name.clone(), of.constant, of.weights.clone()))
                .collect(),
        }
    }
}

/// Returns the numbers of plans that were measured, that lowered the latency, that were executed, and that were
/// undone.
fn counted(report: &AdaptReport) -> (usize, usize, usize, usize) {
    let is =
        |verdict: &Verdict| report.decisions.iter().filter(|one| one.verdict == *verdict).count();
    let measured = || report.decisions.iter().filter_map(|one| one.measured_us);
    let gained = measured().filter(|(before, after)| after < before).count();
    let undone = is(&Verdict::Undone);
    (measured().count(), gained, is(&Verdict::Done) + undone, undone)
}

/// Returns the number of plans after which the latency differed by more than chance explains, and how many of these
/// lowered it.
fn count_significant(report: &AdaptReport) -> (usize, usize) {
    let measured =
        report.decisions.iter().filter_map(|one| one.measured_us.zip(one.measured_error_us));
    let beyond = measured.filter(|((before, after), error)| (after - before).abs() > 2.0 * error);
    let quicker: Vec<bool> = beyond.map(|((before, after), _)| after < before).collect();
    (quicker.len(), quicker.iter().filter(|is_quicker| **is_quicker).count())
}
