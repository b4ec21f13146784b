//! The quality of adaptation's decisions: what came of them, and what was predicted.

use imago_store::adapt::{AdaptReport, Verdict};
use serde::Serialize;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Quality {
    /// Changes in all.
    pub changes: u64,
    /// Plans that were undone, of all.
    pub undone_share: f64,
    /// Plans that were measured.
    pub measured: usize,
    /// Plans after which transactions were quicker, of those that were measured.
    pub gained_share: f64,
    /// Plans after which transactions were quicker or slower by more than chance explains (twice the standard error),
    /// and the share of the quicker ones among these; none if there were no such plans.
    pub told_apart: usize,
    /// See [`Quality::told_apart`].
    pub gained_share_told_apart: Option<f64>,
    /// R² of what transactions and operators were predicted to take in all.
    pub r_squared_transactions: Option<f64>,
    /// See [`Quality::r_squared_transactions`].
    pub r_squared_operators: Option<f64>,
    /// R² of each function on samples that it was not learned from.
    pub r_squared: Vec<(String, Option<f64>)>,
    /// The constant of each function, in its unit of output, and what each of its inputs adds by unit.
    pub weights: Vec<(String, f64, Vec<f64>)>,
}

impl Quality {
    /// Of a store that has adapted.
    pub fn of(report: &AdaptReport) -> Self {
        let (measured, gained, done, undone) = counted(report);
        let (told_apart, quicker) = told_apart(report);
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

/// Plans that were measured, those after which transactions were quicker, those that were carried out, and undone.
fn counted(report: &AdaptReport) -> (usize, usize, usize, usize) {
    let is =
        |verdict: &Verdict| report.decisions.iter().filter(|one| one.verdict == *verdict).count();
    let measured = || report.decisions.iter().filter_map(|one| one.measured_us);
    let gained = measured().filter(|(before, after)| after < before).count();
    let undone = is(&Verdict::Undone);
    (measured().count(), gained, is(&Verdict::Done) + undone, undone)
}

/// Plans after which transactions were quicker or slower by more than chance explains, and the quicker of them.
fn told_apart(report: &AdaptReport) -> (usize, usize) {
    let measured =
        report.decisions.iter().filter_map(|one| one.measured_us.zip(one.measured_error_us));
    let beyond = measured.filter(|((before, after), error)| (after - before).abs() > 2.0 * error);
    let quicker: Vec<bool> = beyond.map(|((before, after), _)| after < before).collect();
    (quicker.len(), quicker.iter().filter(|is_quicker| **is_quicker).count())
}
