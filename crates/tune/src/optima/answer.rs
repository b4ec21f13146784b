//! What the static tuner answers, and how it is told.

use std::collections::BTreeMap;

use imago_plan::tune::anova::{Anova, Cut, Noise, Test};
use imago_plan::tune::surrogate::{Candidate, HeldOut, Validation};
use serde::Serialize;

use crate::classes;
use crate::configurations::Configuration;
use crate::dimensions::Dimension;

/// The answer.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// Configurations that settings are ranked by.
    pub configurations: usize,
    /// Configurations that were measured, but have a setting that follows the machine, so that they have no place among the
    /// others. Where that setting is not searched over they are learned from all the same.
    pub left_out: Vec<String>,
    /// The mixes.
    pub mixes: Vec<String>,
    /// The settings.
    pub ranking: Ranking,
    /// How far predictions are to be believed; none if no setting counts.
    pub surrogate: Option<Belief>,
    /// The best predicted configuration for each mix.
    pub optima: Vec<Optimum>,
    /// What was looked up.
    pub asked: Vec<LookUp>,
}

/// The settings by what they explain.
#[derive(Clone, Debug, Serialize)]
pub struct Ranking {
    /// The settings, those that count first, and of these those with the largest shares.
    pub knobs: Vec<Ranked>,
    /// Those that are searched over come first: so many.
    pub kept: usize,
    /// The shares between which the list is cut: of the last setting that is kept, and of what comes next. None if no
    /// setting counts, or fewer are kept than count.
    pub cut: Option<Fall>,
    /// The share of all variance that mixes explain.
    pub mixes_share: f64,
    /// The standard deviation of all that is measured behind one roll, as a share of what is served.
    pub between_rolls: f64,
    /// The standard deviation of single measurements behind it.
    pub within_rolls: f64,
    /// Degrees of freedom that effects in the mean are told from.
    pub freedom: usize,
    /// True if nothing was measured twice, so that the error is what settings do not explain.
    pub is_without_replicates: bool,
    /// The probability by chance of what configurations differ by beyond the sum of their settings.
    pub lack_of_fit_p: Option<f64>,
}

/// A fall of the share of variance.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Fall {
    /// The share of the last setting that is kept.
    pub from: f64,
    /// The share of the next one that counts, or what chance alone explains.
    pub to: f64,
    /// True if the next one is chance.
    pub is_to_chance: bool,
}

/// A setting.
#[derive(Clone, Debug, Serialize)]
pub struct Ranked {
    /// Its name.
    pub name: String,
    /// What a change of it costs.
    pub class: &'static str,
    /// What it explains of the variance that mixes and rounds leave.
    pub share: f64,
    /// What a setting without any effect would explain of it.
    pub share_by_chance: f64,
    /// F in the mean of all mixes, with its degrees of freedom and its probability by chance.
    pub f: f64,
    /// See [`Self::f`].
    pub freedom: usize,
    /// See [`Self::f`].
    pub p: f64,
    /// The same for its change from mix to mix; none with one mix.
    pub f_by_mix: Option<f64>,
    /// See [`Self::f_by_mix`].
    pub p_by_mix: Option<f64>,
    /// The probability that it is chance, by both, and by how many settings there are.
    pub p_in_all: f64,
}

/// How far predictions are to be believed.
#[derive(Clone, Debug, Serialize)]
pub struct Belief {
    /// The way to learn that is used.
    pub chosen: &'static str,
    /// All ways that were tried.
    pub tried: Vec<Tried>,
    /// The mean error at mixes that neither learning nor the choice had seen; none with fewer than three mixes.
    pub error_at_mixes: Option<f64>,
    /// The same at configurations.
    pub error_at_configurations: f64,
    /// The mean error if each configuration were taken to serve what the others do.
    pub error_without_settings: f64,
    /// Twice the root of the mean square of errors at configurations: the error of a predicted gain.
    pub error: f64,
}

/// A way to learn, with its mean errors at mixes and at configurations that it had not seen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// Its name.
    pub surrogate: &'static str,
    /// None with fewer than three mixes.
    pub error_at_mixes: Option<f64>,
    /// None with fewer than two configurations.
    pub error_at_configurations: Option<f64>,
}

/// The best predicted configuration for a mix.
#[derive(Clone, Debug, Serialize)]
pub struct Optimum {
    /// The mix.
    pub mix: String,
    /// The configuration's name: that of one which was measured, if it is one.
    pub name: String,
    /// The settings that were searched over, with their values.
    pub settings: BTreeMap<String, String>,
    /// Operations a second, as predicted.
    pub predicted_s: f64,
    /// The error of that, as a share.
    pub error: f64,
    /// True if all combinations were tried.
    pub is_exhaustive: bool,
    /// What the default serves; none if it is not known.
    pub default_s: Option<f64>,
    /// The predicted gain over it, as a share.
    pub gain_over_default: Option<f64>,
    /// The best of the configurations that were measured.
    pub best_sampled: String,
    /// What that serves.
    pub best_sampled_s: f64,
    /// The predicted gain over it, as a share.
    pub gain_over_sampled: f64,
    /// True if what it is compared with was measured for this mix, and not predicted itself.
    pub is_beside_measured: bool,
    /// One sentence.
    pub verdict: String,
    /// The configuration.
    #[serde(skip)]
    pub configuration: Configuration,
}

/// An optimum that was looked up.
#[derive(Clone, Debug, Serialize)]
pub struct LookUp {
    /// The mix that was asked for.
    pub mix: String,
    /// The nearest one that has an optimum.
    pub nearest: String,
    /// How far it is: the root of the mean square of the differences between shares.
    pub distance: f64,
    /// True if it is near enough, so that its optimum is the answer; otherwise the mix itself was searched for.
    pub is_near: bool,
    /// The answer.
    pub optimum: Optimum,
}

/// A share, in percent.
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
        let Test { f, freedom, p, .. } = effect.main;
        Ranked {
            name: of.name.clone(),
            class: classes::name(of.class),
            share: effect.share,
            share_by_chance: effect.by_chance,
            f,
            freedom,
            p,
            f_by_mix: effect.with_mix.map(|test| test.f),
            p_by_mix: effect.with_mix.map(|test| test.p),
            p_in_all: effect.p,
        }
    };
    let Noise { mean_square, freedom } = anova.between_rounds;
    let single = anova.within_rounds.mean_square;
    let cut = anova.cut.filter(|_| kept == anova.kept);
    Ranking {
        knobs: anova.ranked.iter().map(ranked).collect(),
        kept,
        cut: cut.map(|Cut { from, to, is_to_chance }| Fall { from, to, is_to_chance }),
        mixes_share: anova.mixes_share,
        // What a roll adds is in each of its mixes.
        between_rolls: ((mean_square - single) / mixes.max(1) as f64).max(0.0).sqrt(),
        within_rolls: single.sqrt(),
        freedom,
        is_without_replicates: anova.is_without_replicates,
        lack_of_fit_p: anova.lack_of_fit.map(|test| test.p),
    }
}

pub(super) fn belief(of: &Validation, error: f64) -> Belief {
    let mean = |held: Option<HeldOut>| held.map(|held| held.mean);
    let tried = |one: &Candidate| Tried {
        surrogate: one.kind.name(),
        error_at_mixes: mean(one.mixes),
        error_at_configurations: mean(one.configurations),
    };
    Belief {
        chosen: of.chosen.name(),
        tried: of.candidates.iter().map(tried).collect(),
        error_at_mixes: mean(of.mixes),
        error_at_configurations: of.configurations.mean,
        error_without_settings: of.without_settings.mean,
        error,
    }
}

impl Answer {
    /// The default and the optima, each once, with a remark about each: what `imago tune sample` is to measure next.
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
