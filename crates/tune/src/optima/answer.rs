//! The result of the static tuner, and its presentation.

use std::collections::BTreeMap;

use imago_plan::tune::anova::{Anova, Cut, Noise, Test};
use imago_plan::tune::surrogate::{Candidate, HeldOut, Validation};
use serde::Serialize;

use crate::configurations::Configuration;
use crate::dimensions::Dimension;
use crate::transition_costs;

/// Result of the static tuner.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// Number of configurations that the ranking uses.
    pub configurations: usize,
    /// Names of measured configurations that the ranking leaves out: one of their settings follows the machine and has
    /// no number. If that setting is not part of the search, the surrogate learns from them nevertheless.
    pub left_out: Vec<String>,
    /// The measured mixes, in the syntax of `imago tune sample --mix`.
    pub mixes: Vec<String>,
    /// Ranking of the settings.
    pub ranking: Ranking,
    /// Validation of the predictions; None if no setting is significant.
    pub surrogate: Option<ValidationReport>,
    /// Predicted optimum for each measured mix.
    pub optima: Vec<Optimum>,
    /// Results of the lookups.
    pub asked: Vec<LookUp>,
}

/// The settings, ranked by the variance that they explain.
#[derive(Clone, Debug, Serialize)]
pub struct Ranking {
    /// Settings in descending order: significant ones first, by their shares.
    pub knobs: Vec<Ranked>,
    /// Number of settings in the search: the first ones of the list.
    pub kept: usize,
    /// Drop of the share at which the list is cut. None if no setting is significant, or if fewer settings are used
    /// than are significant.
    pub cut: Option<VarianceDrop>,
    /// Share of the total variance that the mixes explain, 0 to 1.
    pub mixes_share: f64,
    /// Standard deviation between rolls, common to all measurements after one roll, as a share of the throughput.
    pub between_rolls: f64,
    /// Standard deviation of single measurements after one roll, as a share of the throughput.
    pub within_rolls: f64,
    /// Degrees of freedom of the error that mean effects are tested against.
    pub freedom: usize,
    /// True if there are no replicates, so that the error is the variance that the settings do not explain.
    pub is_without_replicates: bool,
    /// P-value of the lack of fit: differences between configurations beyond the sum of their settings' effects. None
    /// if it cannot be tested.
    pub lack_of_fit_p: Option<f64>,
}

/// Drop of the share of variance at which the ranking is cut.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct VarianceDrop {
    /// Share of the last setting before the cut, 0 to 1.
    pub from: f64,
    /// Share of the next significant setting, or the share that chance explains, 0 to 1.
    pub to: f64,
    /// True if the list is cut above the share that chance explains.
    pub is_to_chance: bool,
}

/// A ranked setting.
#[derive(Clone, Debug, Serialize)]
pub struct Ranked {
    /// Name of the setting.
    pub name: String,
    /// Cost class of a change.
    pub class: &'static str,
    /// Share (0 to 1) that the setting explains of the variance left by mixes and rounds.
    pub share: f64,
    /// Share (0 to 1) of the same variance that a setting without effect would explain.
    pub share_by_chance: f64,
    /// F statistic of the effect on the mean over all mixes.
    pub f: f64,
    /// Degrees of freedom of [`Self::f`].
    pub freedom: usize,
    /// P-value of [`Self::f`].
    pub p: f64,
    /// F statistic of the effect's change from mix to mix; None with a single mix.
    pub f_by_mix: Option<f64>,
    /// P-value of [`Self::f_by_mix`].
    pub p_by_mix: Option<f64>,
    /// Probability that either effect is as large by chance, corrected for the number of settings (Holm).
    pub p_in_all: f64,
}

/// Validation of the surrogate's predictions. All errors are relative, as a share of the measured throughput.
#[derive(Clone, Debug, Serialize)]
pub struct ValidationReport {
    /// Name of the selected surrogate.
    pub chosen: &'static str,
    /// All candidate surrogates.
    pub tried: Vec<Tried>,
    /// Mean error for mixes that were held out from training and from the selection; None with fewer than three mixes.
    pub error_at_mixes: Option<f64>,
    /// Mean error for configurations that were held out from training and from the selection.
    pub error_at_configurations: f64,
    /// Mean error of predictions by the mean of the other configurations, without regard to settings.
    pub error_without_settings: f64,
    /// Twice the root mean square error for held-out configurations: the error of a predicted gain.
    pub error: f64,
}

/// A candidate surrogate, with its mean relative errors for held-out mixes and configurations.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// Name of the surrogate.
    pub surrogate: &'static str,
    /// Mean error for held-out mixes; None with fewer than three mixes.
    pub error_at_mixes: Option<f64>,
    /// Mean error for held-out configurations; None with fewer than two configurations.
    pub error_at_configurations: Option<f64>,
}

/// Predicted optimum for a mix.
#[derive(Clone, Debug, Serialize)]
pub struct Optimum {
    /// Mix, in the syntax of `imago tune sample --mix`.
    pub mix: String,
    /// Name of the configuration; an equal measured one retains its name.
    pub name: String,
    /// Values of the settings in the search, by name.
    pub settings: BTreeMap<String, String>,
    /// Predicted throughput, in operations per second.
    pub predicted_s: f64,
    /// Error of [`Self::predicted_s`], as a share.
    pub error: f64,
    /// True if the search tried all combinations.
    pub is_exhaustive: bool,
    /// Throughput of the default configuration, in operations per second; None if unknown.
    pub default_s: Option<f64>,
    /// Predicted gain over the default configuration, as a share; None if that one's throughput is unknown.
    pub gain_over_default: Option<f64>,
    /// Name of the best measured configuration.
    pub best_sampled: String,
    /// Throughput of [`Self::best_sampled`], in operations per second.
    pub best_sampled_s: f64,
    /// Predicted gain over [`Self::best_sampled`], as a share.
    pub gain_over_sampled: f64,
    /// True if the throughputs of the default and of [`Self::best_sampled`] were measured for this mix, not predicted.
    pub is_beside_measured: bool,
    /// Explanation in one sentence.
    pub verdict: String,
    /// The configuration, to be measured.
    #[serde(skip)]
    pub configuration: Configuration,
}

/// Result of a lookup.
#[derive(Clone, Debug, Serialize)]
pub struct LookUp {
    /// Requested mix.
    pub mix: String,
    /// Nearest mix with an optimum.
    pub nearest: String,
    /// Distance between both mixes: the root mean square of the differences between shares.
    pub distance: f64,
    /// True if the nearest mix is close enough to use its optimum; otherwise the requested mix was searched.
    pub is_near: bool,
    /// Optimum for the requested mix.
    pub optimum: Optimum,
}

/// Formats a share as a percentage.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

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
    /// Returns the default and the distinct optima, with a remark about each: the next input of `imago tune sample`.
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
