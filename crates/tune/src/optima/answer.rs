//! The result of the static tuner (`imago tune search`), and its presentation.

use std::collections::BTreeMap;

use imago_plan::tune::anova::{Anova, Cut, Noise, Test};
use imago_plan::tune::surrogate::{Candidate, HeldOut, Validation};
use serde::Serialize;

use crate::configurations::Configuration;
use crate::dimensions::Dimension;
use crate::transition_costs;

/// Result of the static tuner: the ranking of settings, and the best configuration for each mix.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// Number of measured configurations that the ranking of settings uses.
    pub configurations: usize,
    /// Names of measured configurations that the ranking leaves out: one of their settings follows the machine and
    /// has no number. If that setting is not part of the search, the surrogate learns from these configurations
    /// nevertheless.
    pub left_out: Vec<String>,
    /// The measured mixes of operations, in the syntax of `imago tune sample --mix`.
    pub mixes: Vec<String>,
    /// Ranking of the settings by the variance of the throughput that they explain.
    pub ranking: Ranking,
    /// Validation of the surrogate, which predicts throughputs; None if the search varies no setting.
    pub surrogate: Option<ValidationReport>,
    /// Predicted optimum for each measured mix, in the order of [`Self::mixes`]; empty if the search varies no
    /// setting.
    pub optima: Vec<Optimum>,
    /// Optimum for each requested mix; empty if the search varies no setting.
    pub asked: Vec<LookUp>,
}

/// The settings, ranked by the share of the throughput's variance that they explain.
#[derive(Clone, Debug, Serialize)]
pub struct Ranking {
    /// Ranked settings: the significant ones first, each group in descending order of its shares of the variance.
    pub knobs: Vec<Ranked>,
    /// Number of settings that the search varies: the first ones of [`Self::knobs`].
    pub kept: usize,
    /// Drop of the explained share of the variance, after which settings are not searched. None if no setting is
    /// significant, or if fewer settings are searched than the analysis keeps.
    pub cut: Option<VarianceDrop>,
    /// Share of the throughput's total variance that the mixes explain, from 0 to 1.
    pub mixes_share: f64,
    /// Standard deviation of the throughput between rolls of one configuration, common to all measurements after one
    /// roll, as a share of the throughput.
    pub between_rolls: f64,
    /// Standard deviation of the throughput in single measurements after one roll, as a share of the throughput.
    pub within_rolls: f64,
    /// Degrees of freedom of the error that the settings' mean effects are tested against.
    pub freedom: usize,
    /// True if no measurement was replicated, so that the error is the variance that the settings do not explain.
    pub is_without_replicates: bool,
    /// P-value of the lack of fit: differences between configurations beyond the sum of their settings' effects. None
    /// if it cannot be tested.
    pub lack_of_fit_p: Option<f64>,
}

/// Drop of the explained share of the variance between two ranked settings, at which the ranking is cut.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct VarianceDrop {
    /// Share of the variance that the last setting before the cut explains, from 0 to 1.
    pub from: f64,
    /// Share of the variance that the next significant setting explains, from 0 to 1; the share by chance if there is
    /// none.
    pub to: f64,
    /// True if [`Self::to`] is the share that chance explains, as no significant setting follows the cut.
    pub is_to_chance: bool,
}

/// A setting in the ranking, with the statistics of its effect on the throughput.
#[derive(Clone, Debug, Serialize)]
pub struct Ranked {
    /// Name of the ranked setting, or `compaction`.
    pub name: String,
    /// Name of the cost class of a change of this setting, such as `live` or `restart`.
    pub class: &'static str,
    /// Share (0 to 1) that this setting explains of the throughput's variance that mixes and rounds leave.
    pub share: f64,
    /// Share (0 to 1) of the same variance as [`Self::share`] that a setting without any effect would explain.
    pub share_by_chance: f64,
    /// F statistic of the setting's effect on the mean over all mixes.
    pub f: f64,
    /// Degrees of freedom of the effect that [`Self::f`] tests.
    pub freedom: usize,
    /// P-value of [`Self::f`]: the probability that such a large effect on the mean occurs by chance.
    pub p: f64,
    /// F statistic of the change of the setting's effect from mix to mix; None with a single mix.
    pub f_by_mix: Option<f64>,
    /// P-value of [`Self::f_by_mix`]; None with a single mix.
    pub p_by_mix: Option<f64>,
    /// Probability that either of the setting's two effects is as large by chance, corrected for the number of
    /// settings (Holm).
    pub p_in_all: f64,
}

/// Validation of the surrogate's predictions. All errors are relative, as a share of the measured throughput.
#[derive(Clone, Debug, Serialize)]
pub struct ValidationReport {
    /// Name of the surrogate (the model that predicts throughput) that was selected.
    pub chosen: &'static str,
    /// All candidate surrogates with their errors, the selected one included.
    pub tried: Vec<Tried>,
    /// Mean relative error for mixes that were held out from training and from the selection; None with fewer than
    /// three mixes.
    pub error_at_mixes: Option<f64>,
    /// Mean relative error for configurations that were held out from training and from the selection.
    pub error_at_configurations: f64,
    /// Mean relative error of predictions by the mean of the other configurations, without regard to settings.
    pub error_without_settings: f64,
    /// Twice the root mean square error for held-out configurations, as a share: the error of a predicted gain.
    pub error: f64,
}

/// A candidate surrogate, with its mean relative errors (as shares of the measured throughput) for held-out mixes and
/// configurations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// Name of the candidate surrogate.
    pub surrogate: &'static str,
    /// Mean relative error for held-out mixes; None with fewer than three mixes.
    pub error_at_mixes: Option<f64>,
    /// Mean relative error for held-out configurations; None with fewer than two configurations.
    pub error_at_configurations: Option<f64>,
}

/// Configuration with the highest predicted throughput for a mix.
#[derive(Clone, Debug, Serialize)]
pub struct Optimum {
    /// Mix for which the optimum was searched, in the syntax of `imago tune sample --mix`.
    pub mix: String,
    /// Name of the optimal configuration; if an equal one is defined already, that one's name.
    pub name: String,
    /// Values of the searched settings in the optimal configuration, by the setting's name.
    pub settings: BTreeMap<String, String>,
    /// Predicted throughput of the optimal configuration, in operations per second.
    pub predicted_s: f64,
    /// Relative error of [`Self::predicted_s`], as a share.
    pub error: f64,
    /// True if the search tried all combinations of the settings' values.
    pub is_exhaustive: bool,
    /// Throughput of the default configuration for the same mix, in operations per second; None if unknown.
    pub default_s: Option<f64>,
    /// Predicted gain over the default configuration, as a share; None if the default's throughput is unknown.
    pub gain_over_default: Option<f64>,
    /// Name of the measured configuration with the highest throughput for the same mix.
    pub best_sampled: String,
    /// Throughput of [`Self::best_sampled`], in operations per second.
    pub best_sampled_s: f64,
    /// Predicted gain over [`Self::best_sampled`], as a share.
    pub gain_over_sampled: f64,
    /// True if the throughputs of the default and of [`Self::best_sampled`] were measured for this mix; false if they
    /// are predicted.
    pub is_beside_measured: bool,
    /// Explanation, in one sentence, whether the predicted gain exceeds the error.
    pub verdict: String,
    /// The optimal configuration, complete with the settings that were not searched, to be measured.
    #[serde(skip)]
    pub configuration: Configuration,
}

/// Optimum for a mix that the user requested.
#[derive(Clone, Debug, Serialize)]
pub struct LookUp {
    /// Requested mix, in the syntax of `imago tune sample --mix`.
    pub mix: String,
    /// Measured mix that is nearest to the requested one, in the same syntax.
    pub nearest: String,
    /// Distance between the requested and the nearest mix: the root mean square of the differences between shares.
    pub distance: f64,
    /// True if the nearest mix is close enough to use its optimum; otherwise the optimum was searched for the
    /// requested mix.
    pub is_near: bool,
    /// Optimum for the requested mix: that of the nearest mix if [`Self::is_near`].
    pub optimum: Optimum,
}

/// Formats a share (1 is 100 %) as a percentage.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Describes an analysis of variance as a ranking; `kept` is the number of settings that the search varies, `mixes`
/// the number of measured mixes.
pub(super) fn ranking(
    dimensions: &[Dimension],
    anova: &Anova,
    kept: usize,
    mixes: usize,
) -> Ranking {
    let ranked = |setting: &usize| {
        let (of, effect) = (&dimensions[*setting], &anova.effects[*setting]);
        let Test { f, degrees_of_freedom: freedom, p, .. } = effect.main;
        Ranked {
            name: of.name.clone(),
            class: transition_costs::name(of.class),
            share: effect.share,
            share_by_chance: effect.share_by_chance,
            f,
            freedom,
            p,
            f_by_mix: effect.with_mix.map(|test| test.f),
            p_by_mix: effect.with_mix.map(|test| test.p),
            p_in_all: effect.p,
        }
    };
    let Noise { mean_square, degrees_of_freedom: freedom } = anova.between_rounds;
    let single = anova.within_rounds.mean_square;
    let cut = anova.cut.filter(|_| kept == anova.kept);
    Ranking {
        knobs: anova.ranked.iter().map(ranked).collect(),
        kept,
        cut: cut.map(|Cut { from, to, is_to_chance }| VarianceDrop { from, to, is_to_chance }),
        mixes_share: anova.mixes_share,
        // The variance between rolls is common to all mixes of a roll.
        between_rolls: ((mean_square - single) / mixes.max(1) as f64).max(0.0).sqrt(),
        within_rolls: single.sqrt(),
        freedom,
        is_without_replicates: anova.is_without_replicates,
        lack_of_fit_p: anova.lack_of_fit.map(|test| test.p),
    }
}

/// Describes the validation of the surrogate; `error` is the error of a predicted gain, as a share.
pub(super) fn validation_report(of: &Validation, error: f64) -> ValidationReport {
    let mean = |held: Option<HeldOut>| held.map(|held| held.mean);
    let tried = |one: &Candidate| Tried {
        surrogate: one.kind.name(),
        error_at_mixes: mean(one.mixes),
        error_at_configurations: mean(one.configurations),
    };
    ValidationReport {
        chosen: of.chosen.name(),
        tried: of.candidates.iter().map(tried).collect(),
        error_at_mixes: mean(of.mixes),
        error_at_configurations: of.configurations.mean,
        error_without_settings: of.without_settings.mean,
        error,
    }
}

impl Answer {
    /// Returns the default and the distinct optima with a remark about each, as the next input of
    /// `imago tune sample`; `unit` is the unit of throughputs in the remarks.
    #[must_use]
    pub fn to_measure(
        &self,
        default: &Configuration,
        unit: &str,
    ) -> (Vec<Configuration>, Vec<String>) {
        let mut all = vec![default.clone()];
        let mut remarks = vec!["The default, to compare with.".to_owned()];
        for one in &self.optima {
            let line = format!(
                "For {}: {:.0} {unit} predicted, with an error of {}.",
                one.mix,
                one.predicted_s,
                percent(one.error)
            );
            match all.iter().position(|other| other.name == one.name) {
                Some(number) => remarks[number] = format!("{}\n{line}", remarks[number]),
                None => {
                    all.push(one.configuration.clone());
                    remarks.push(line);
                }
            }
        }
        (all, remarks)
    }
}
