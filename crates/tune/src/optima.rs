//! The static tuner (SOPHIA, §4.3; there Rafiki): ranks settings by their effect, predicts the throughput of
//! configurations that were never measured, and searches the best configuration for each mix.
//!
//! All results are derived from measurements of configurations that differ in some settings. An optimum is a
//! prediction: it comes with the error of predictions for held-out configurations, and has to be measured before it is
//! trusted.

mod answer;

use std::collections::BTreeMap;

use imago_plan::tune::anova::{AnovaError, Observation, analyse};
use imago_plan::tune::search::{SHARED_OPTIMUM_DISTANCE, best, nearest, values};
use imago_plan::tune::space::{Axis, Point};
use imago_plan::tune::surrogate::{Cell, Surrogate, validate};
use imago_plan::tune::workload::Mix;
use rand::SeedableRng as _;
use rand::rngs::StdRng;

use crate::cluster::{Error, Result, Settings};
use crate::configurations::{Configuration, differences};
use crate::dimensions::{Dimension, configuration, point, varied};
use crate::measurements::Measurements;
use answer::{ranking, validation_report};

pub use answer::{
    Answer, LookUp, Optimum, Ranked, Ranking, Tried, ValidationReport, VarianceDrop, percent,
};

/// Ratio of the reported error of a prediction to the root mean square error of predictions for held-out
/// configurations.
const ERRORS: f64 = 2.0;
/// Distance below which two mixes of operations are equal.
const SAME: f64 = 1e-9;

/// Input of [`answer`](fn@answer): measured configurations, and the mixes whose optimum is requested.
#[derive(Clone, Copy, Debug)]
pub struct Question<'q> {
    /// Configurations that the file of configurations defines, the default one first.
    pub configurations: &'q [Configuration],
    /// Measurements of some of [`Self::configurations`].
    pub measurements: &'q Measurements,
    /// Maximum number of settings that the search varies: those that explain most of the variance.
    pub knobs_max: usize,
    /// Mixes of operations whose optimum is requested, in addition to the measured mixes.
    pub asked: &'q [Mix],
    /// Seed of the random number generator of the random forest and of the search.
    pub seed: u64,
}

/// Formats a mix of operations in the syntax of `imago tune sample --mix`, such as `read=50,update=50`.
#[must_use]
pub fn format_mix(mix: Mix) -> String {
    let kinds = ["read", "update", "insert", "scan"].into_iter().zip(mix.shares());
    let part = |(kind, share): (&str, f64)| {
        let percent = (share * 1_000.0).round() / 10.0;
        (percent > 0.0).then(|| format!("{kind}={percent}"))
    };
    kinds.filter_map(part).collect::<Vec<_>>().join(",")
}

/// The measurements, by the indices of configurations and mixes.
struct Measured<'q> {
    question: Question<'q>,
    /// Measured configurations, in the order of the measurements.
    configurations: Vec<&'q Configuration>,
    /// Measured mixes of operations, each once.
    mixes: Vec<Mix>,
    /// Mean throughput in operations per second, by the indices of configuration and mix.
    means: BTreeMap<(usize, usize), f64>,
}

impl<'q> Measured<'q> {
    fn new(question: Question<'q>) -> Result<Self> {
        let names = &question.measurements.names;
        let find = |name: &String| {
            let found = question.configurations.iter().find(|one| one.name == *name);
            found.ok_or_else(|| {
                let known: Vec<&str> =
                    question.configurations.iter().map(|one| &*one.name).collect();
                Error::Usage(format!(
                    "the measurements are of {name} too, and the file of configurations has {}",
                    known.join(", ")
                ))
            })
        };
        let configurations: Vec<&Configuration> = names.iter().map(find).collect::<Result<_>>()?;
        let mut mixes: Vec<Mix> = Vec::new();
        let mut sums: BTreeMap<(usize, usize), (f64, f64)> = BTreeMap::new();
        for sample in &question.measurements.samples {
            let of = sample.measured;
            if of.rate_s <= 0.0 {
                return Err(Error::Usage(format!(
                    "{} served nothing of {}: leave out a configuration that does not work",
                    names[of.configuration],
                    format_mix(of.mix)
                )));
            }
            let sum = sums.entry((of.configuration, place(&mut mixes, of.mix))).or_default();
            *sum = (sum.0 + of.rate_s, sum.1 + 1.0);
        }
        let means = sums.into_iter().map(|(key, (sum, count))| (key, sum / count)).collect();
        Ok(Self { question, configurations, mixes, means })
    }

    fn default(&self) -> &'q Configuration {
        &self.question.configurations[0]
    }

    /// Returns the mean throughput of a configuration for the measured mix of index `mix`, in operations per second;
    /// None if the configuration was not measured for that mix.
    fn mean(&self, of: &Configuration, mix: usize) -> Option<f64> {
        let number = self.configurations.iter().position(|one| one.name == of.name)?;
        self.means.get(&(number, mix)).copied()
    }

    /// Returns the measurements of the configurations that have a point, as input of the analysis of variance.
    fn observations(&self, points: &[Option<Point>]) -> Vec<Observation> {
        let samples = self.question.measurements.samples.iter();
        let samples = samples.filter(|one| points[one.measured.configuration].is_some());
        let mut mixes = self.mixes.clone();
        let of = |one: &crate::measurements::Sample| Observation {
            configuration: one.measured.configuration,
            mix: place(&mut mixes, one.measured.mix),
            round: one.round,
            // Logarithms: the effect of a setting is then a share of each mix's throughput.
            response: one.measured.rate_s.ln(),
        };
        samples.map(of).collect()
    }

    /// Returns the coordinates of each measured configuration in these dimensions; None if one of the settings
    /// follows the machine in that configuration.
    fn points(&self, along: &[Dimension]) -> Result<Vec<Option<Point>>> {
        self.configurations.iter().map(|one| point(along, one)).collect()
    }
}

/// Returns the index of a mix in the list `mixes`; the mix is added if it is new.
fn place(mixes: &mut Vec<Mix>, mix: Mix) -> usize {
    mixes.iter().position(|one| one.distance(mix) < SAME).unwrap_or_else(|| {
        mixes.push(mix);
        mixes.len() - 1
    })
}

/// A surrogate (a model that predicts throughput from settings and mix), and the search space in which it is valid.
struct Searcher<'s, 'q> {
    measured: &'s Measured<'q>,
    /// Settings that the search varies.
    dimensions: Vec<Dimension>,
    /// Coordinates of each measured configuration; None if one of the settings follows the machine.
    points: Vec<Option<Point>>,
    /// For each dimension, the coordinates that the search tries.
    values: Vec<Vec<f64>>,
    surrogate: Surrogate,
    /// Relative error of a predicted throughput, as a share.
    error: f64,
}

/// Ranks the settings of the measured configurations by their effect, fits a surrogate (a model that predicts
/// throughput from settings and mix), and searches the best configuration for each mix.
///
/// # Errors
/// Fails if the files do not match, or if there are too few measurements.
pub fn answer<D: Settings>(question: Question<'_>) -> Result<Answer> {
    let measured = Measured::new(question)?;
    let owned: Vec<Configuration> =
        measured.configurations.iter().map(|one| (*one).clone()).collect();
    let dimensions = varied::<D>(&owned)?;
    let points = measured.points(&dimensions)?;
    let axes: Vec<Axis> = dimensions.iter().map(|one| one.axis).collect();
    let plain: Vec<Point> = points.iter().map(|one| one.clone().unwrap_or_default()).collect();
    let anova = analyse(&axes, &plain, &measured.observations(&points))
        .map_err(|error| untold(&error, &dimensions))?;
    let kept = anova.kept.min(question.knobs_max);
    let left_out = points.iter().zip(&owned).filter(|(point, _)| point.is_none());
    let mut answer = Answer {
        configurations: points.iter().flatten().count(),
        left_out: left_out.map(|(_, one)| one.name.clone()).collect(),
        mixes: measured.mixes.iter().map(|mix| format_mix(*mix)).collect(),
        ranking: ranking(&dimensions, &anova, kept, measured.mixes.len()),
        surrogate: None,
        optima: Vec::new(),
        asked: Vec::new(),
    };
    if kept == 0 {
        return Ok(answer);
    }
    let mut along: Vec<usize> = anova.ranked[..kept].to_vec();
    along.sort_unstable();
    let dimensions: Vec<Dimension> = along.iter().map(|one| dimensions[*one].clone()).collect();
    let axes: Vec<Axis> = dimensions.iter().map(|one| one.axis).collect();
    let points = measured.points(&dimensions)?;
    let cells = cells(&measured, &points);
    let validation =
        validate(&axes, &cells, question.seed).map_err(|error| Error::Usage(error.to_string()))?;
    let error = (ERRORS * validation.configurations.root_mean_square).exp_m1();
    let surrogate = Surrogate::fit(validation.chosen, &axes, &cells, question.seed);
    answer.surrogate = Some(validation_report(&validation, error));
    let tried = |number: usize, dimension: &Dimension| {
        let of: Vec<f64> = points.iter().flatten().map(|point| point[number]).collect();
        values(dimension.axis, &of, dimension.is_whole())
    };
    let values = dimensions.iter().enumerate().map(|(n, one)| tried(n, one)).collect();
    let searcher = Searcher { measured: &measured, dimensions, points, values, surrogate, error };
    for (number, mix) in measured.mixes.iter().enumerate() {
        answer.optima.push(searcher.optimum::<D>(*mix, Some(number))?);
    }
    name::<D>(&mut answer.optima)?;
    for mix in question.asked {
        let (number, distance) = nearest(&measured.mixes, *mix).expect("a mix was measured");
        let is_near = distance <= SHARED_OPTIMUM_DISTANCE;
        let optimum = if is_near {
            answer.optima[number].clone()
        } else {
            searcher.optimum::<D>(*mix, None)?
        };
        let (mix, nearest) = (format_mix(*mix), answer.mixes[number].clone());
        answer.asked.push(LookUp { mix, nearest, distance, is_near, optimum });
    }
    Ok(answer)
}

/// Converts an error of the analysis of variance to one that names the settings.
fn untold(error: &AnovaError, dimensions: &[Dimension]) -> Error {
    let AnovaError::Together(settings) = error else { return Error::Usage(error.to_string()) };
    let names: Vec<&str> = settings.iter().map(|one| &*dimensions[*one].name).collect();
    Error::Usage(format!(
        "{} vary only together, so their effects cannot be separated: draw configurations by \
         `imago tune design`, and more of them for more settings",
        names.join(", ")
    ))
}

/// Returns the mean throughputs of the configurations that have a point, as training data of the surrogate.
fn cells(measured: &Measured<'_>, points: &[Option<Point>]) -> Vec<Cell> {
    let of = |((configuration, mix_number), rate_s): (&(usize, usize), &f64)| {
        let point = points[*configuration].clone()?;
        Some(Cell {
            configuration: *configuration,
            point,
            mix_number: *mix_number,
            mix: measured.mixes[*mix_number],
            rate_s: *rate_s,
        })
    };
    measured.means.iter().filter_map(of).collect()
}

impl Searcher<'_, '_> {
    /// Searches the best configuration for a mix; `number` is the index of the mix among the measured ones, and None
    /// if it was not measured.
    fn optimum<D: Settings>(&self, mix: Mix, number: Option<usize>) -> Result<Optimum> {
        let question = self.measured.question;
        let rate = |at: &[f64]| self.surrogate.rate_s(at, mix);
        let found = best(&self.values, &rate, &mut StdRng::seed_from_u64(question.seed));
        let default = self.measured.default();
        let made = configuration(&self.dimensions, &found.point, default, &best_for(mix));
        let rated = |of: &Configuration, at: Option<&Point>| match number {
            Some(number) => self.measured.mean(of, number),
            None => at.map(|at| rate(at)),
        };
        let at_default = point(&self.dimensions, default)?;
        let default_s = rated(default, at_default.as_ref());
        let sampled = self.measured.configurations.iter().zip(&self.points);
        let sampled = sampled.filter_map(|(one, at)| Some((*one, rated(one, at.as_ref())?)));
        let best_sampled = sampled.max_by(|(_, one), (_, two)| one.total_cmp(two));
        let (best_sampled, best_sampled_s) = best_sampled.expect("a configuration was measured");
        // A configuration that was measured already retains its name.
        let mut name = made.name.clone();
        for one in question.configurations {
            if one.compaction == made.compaction && differences::<D>(one, &made)?.is_empty() {
                name.clone_from(&one.name);
                break;
            }
        }
        let values = self.dimensions.iter().zip(&found.point);
        let gain = |than: f64| found.rate / than - 1.0;
        let mut optimum = Optimum {
            mix: format_mix(mix),
            settings: values.map(|(one, at)| (one.name.clone(), one.format_value(*at))).collect(),
            predicted_s: found.rate,
            error: self.error,
            is_exhaustive: found.is_exhaustive,
            default_s,
            gain_over_default: default_s.map(gain),
            best_sampled: best_sampled.name.clone(),
            best_sampled_s,
            gain_over_sampled: gain(best_sampled_s),
            is_beside_measured: number.is_some(),
            verdict: String::new(),
            configuration: Configuration { name: name.clone(), ..made },
            name,
        };
        optimum.verdict = verdict(&optimum);
        Ok(optimum)
    }
}

/// Returns the name of a configuration that is the optimum for a mix.
fn best_for(mix: Mix) -> String {
    format!("best for {}", format_mix(mix).replace(',', " "))
}

/// Gives equal configurations that are optima of different mixes the same name.
fn name<D: Settings>(optima: &mut [Optimum]) -> Result<()> {
    for later in 1..optima.len() {
        let (before, after) = optima.split_at_mut(later);
        let own = &mut after[0];
        for one in before.iter() {
            let (made, other) = (&own.configuration, &one.configuration);
            if made.compaction == other.compaction && differences::<D>(made, other)?.is_empty() {
                own.name.clone_from(&one.name);
                own.configuration.name.clone_from(&one.name);
                break;
            }
        }
    }
    Ok(())
}

/// Explains in one sentence whether an optimum's predicted gain exceeds its error.
fn verdict(of: &Optimum) -> String {
    let error = percent(of.error);
    let best = &of.best_sampled;
    let how = if of.is_beside_measured { "was measured" } else { "is predicted" };
    if of.name == *best {
        let predicted = if of.is_beside_measured { "" } else { "predicted to be " };
        return format!("it is {best}, {predicted}the best of all that were measured");
    }
    if of.gain_over_sampled > of.error {
        return format!(
            "beyond the error of {error} it serves more than {best}, the best that {how}: measure it"
        );
    }
    match of.gain_over_default {
        Some(gain) if gain > of.error => format!(
            "beyond the error of {error} it serves more than the default, but not more than {best}, the best that {how}"
        ),
        Some(_) => format!(
            "its gain is within the error of {error}: nothing says that it serves more than the default"
        ),
        None => {
            format!("its gain over {best}, the best that {how}, is within the error of {error}")
        }
    }
}

#[cfg(test)]
mod tests;
