//! Designs of experiments: which configurations to measure, drawn from the settings that a user wants to vary.

use std::collections::BTreeMap;

use imago_plan::tune::design::{Column, correlation, draw};
use imago_plan::tune::space::{Axis, Point};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Serialize;

use crate::cluster::compaction::Compaction;
use crate::cluster::{Error, Result, Settings};
use crate::configurations::{self, Configuration};
use crate::dimensions::{Dimension, are_words, configuration, number, point};
use crate::transition_costs;

/// Name of the first configuration of a design, in which no setting is changed.
const DEFAULT: &str = "default";

/// Input of [`design`]: the settings to vary, and the number of configurations to draw.
#[derive(Clone, Copy, Debug)]
pub struct Request<'r> {
    /// Settings to vary, each with its values: a range, as in `concurrent_reads=16..64`, or a list, as in
    /// `memtable_heap_space=32MiB,64MiB`.
    pub knobs: &'r [String],
    /// Compactions of the tuned table to vary, in JSON, the default one first; see [`Compaction::parse`].
    pub compactions: &'r [String],
    /// Number of configurations to draw, in addition to the default configuration.
    pub runs: usize,
    /// Seed of the random number generator that draws the configurations.
    pub seed: u64,
}

/// A design of experiments: the varied settings, and the configurations to measure.
#[derive(Clone, Debug, Serialize)]
pub struct Design {
    /// Seed of the random number generator that drew the configurations.
    pub seed: u64,
    /// The varied settings and, if it is varied, the compaction.
    pub knobs: Vec<Varied>,
    /// Largest absolute correlation of two varied settings over the drawn configurations, from 0 to 1.
    pub correlation: f64,
    /// Names of the configurations to measure, the default one first.
    pub configurations: Vec<String>,
    /// Text of the file that defines these configurations, as [`configurations::parse`] reads it.
    #[serde(skip)]
    pub text: String,
}

/// A setting that a design of experiments varies.
#[derive(Clone, Debug, Serialize)]
pub struct Varied {
    /// Name of the varied setting, or `compaction`.
    pub name: String,
    /// Name of the cost class of a change of this setting, such as `live` or `restart`.
    pub class: &'static str,
    /// Distinct values of this setting among the drawn configurations; numbers are in ascending order.
    pub values: Vec<String>,
}

/// Draws configurations of the database `D` to measure, in addition to the default one, with the request's seed.
///
/// # Errors
/// Fails if a setting is invalid, if the database has no compactions but the request has, or if there are fewer
/// configurations than requested.
pub fn design<D: Settings>(request: &Request<'_>) -> Result<Design> {
    if !D::HAS_COMPACTION && !request.compactions.is_empty() {
        let what = "a compaction is named, and tables of Cassandra alone have one";
        return Err(Error::Usage(what.into()));
    }
    let mut all: Vec<(Dimension, Column)> = Vec::new();
    for text in request.knobs {
        let next = setting::<D>(text)?;
        if all.iter().any(|(one, _)| one.name == next.0.name) {
            return Err(Error::Usage(format!("{} is named twice", next.0.name)));
        }
        all.push(next);
    }
    let compactions: Vec<Compaction> =
        request.compactions.iter().map(|text| Compaction::parse(text)).collect::<Result<_>>()?;
    if compactions.len() > 1 {
        all.push((Dimension::of_compactions(compactions.clone()), words(compactions.len())));
    }
    if all.is_empty() {
        let or = if D::HAS_COMPACTION { ", or two compactions" } else { "" };
        let what = format!("nothing is varied: name a setting with its values{or}");
        return Err(Error::Usage(what));
    }
    let (dimensions, columns): (Vec<Dimension>, Vec<Column>) = all.into_iter().unzip();
    let default = Configuration {
        name: DEFAULT.into(),
        settings: BTreeMap::new(),
        compaction: compactions.first().cloned(),
    };
    let known: Vec<Point> = point(&dimensions, &default)?.into_iter().collect();
    let mut dice = StdRng::seed_from_u64(request.seed);
    let points = draw(&columns, &known, request.runs, &mut dice)
        .map_err(|error| Error::Usage(error.to_string()))?;
    let axes: Vec<Axis> = dimensions.iter().map(|one| one.axis).collect();
    let mut drawn = vec![default.clone()];
    drawn.extend(points.iter().enumerate().map(|(number, point)| {
        configuration(&dimensions, point, &default, &format!("run-{:02}", number + 1))
    }));
    let knobs: Vec<Varied> =
        dimensions.iter().enumerate().map(|(place, one)| varied(one, place, &points)).collect();
    let told = |one: &Varied| format!("\n  {} ({})", one.name, one.class);
    let head = format!(
        "Configurations to measure by `imago tune sample`, drawn by `imago tune design` (seed {}). Varied:{}",
        request.seed,
        knobs.iter().map(told).collect::<String>()
    );
    let text = configurations::write(&head, &drawn, &[]);
    // The text must be a valid file of configurations.
    configurations::parse::<D>(&text)?;
    Ok(Design {
        seed: request.seed,
        knobs,
        correlation: correlation(&axes, &points),
        configurations: drawn.into_iter().map(|one| one.name).collect(),
        text,
    })
}

/// Parses a setting with its values, as a user writes it (`name=16..64` or `name=A,B`); returns its axis, and the
/// values to draw from.
fn setting<D: Settings>(text: &str) -> Result<(Dimension, Column)> {
    let (name, values) = text.split_once('=').ok_or_else(|| {
        Error::Usage(format!("\"{text}\" is no setting with its values: write {text}=16..64"))
    })?;
    let setting = D::find(name.trim())?;
    let no_choice =
        || Error::Usage(format!("{text}: between one value there is nothing to choose"));
    if are_words(&setting) {
        let mut chosen: Vec<String> = Vec::new();
        for word in values.split(',') {
            let word = setting.value(word)?.to_string();
            if !chosen.contains(&word) {
                chosen.push(word);
            }
        }
        // In the order that a file of configurations gives them: with the default, sorted by name.
        chosen.sort();
        if chosen.len() < 2 {
            return Err(no_choice());
        }
        let column = words(chosen.len());
        return Ok((Dimension::of_words(setting, chosen), column));
    }
    let number = |text: &str| number(&setting, text).map(|of| of.expect("its values are numbers"));
    let (ends, values) = match values.split_once("..") {
        Some((least, most)) => {
            let (least, most) = (number(least)?, number(most)?);
            if least > most {
                return Err(Error::Usage(format!("{text}: the bounds are the wrong way round")));
            }
            ((least, most), None)
        }
        None => {
            let mut all: Vec<f64> = values.split(',').map(number).collect::<Result<_>>()?;
            all.sort_by(f64::total_cmp);
            all.dedup();
            ((all[0], all[all.len() - 1]), Some(all))
        }
    };
    if ends.0 >= ends.1 {
        return Err(no_choice());
    }
    let dimension = Dimension::of_numbers(setting, ends.0, ends.1);
    let column = Column { axis: dimension.axis, values, is_whole: dimension.is_whole() };
    Ok((dimension, column))
}

/// Returns the column of a categorical setting with `count` words, whose values are the words' indices.
fn words(count: usize) -> Column {
    let values = (0..count).map(|place| place as f64).collect();
    Column { axis: Axis::Words(count), values: Some(values), is_whole: true }
}

/// Describes one dimension of a design, with the values that it takes at these points; `place` is its index.
fn varied(of: &Dimension, place: usize, points: &[Point]) -> Varied {
    let mut values: Vec<f64> = points.iter().map(|point| point[place]).collect();
    values.sort_by(f64::total_cmp);
    let mut values: Vec<String> = values.into_iter().map(|value| of.format_value(value)).collect();
    values.dedup();
    Varied { name: of.name.clone(), class: transition_costs::name(of.class), values }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::Redis;

    #[test]
    fn a_design_says_what_a_database_does_not_have() {
        let said = |knobs: &[&str], compactions: &[&str]| {
            let owned = |all: &[&str]| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>();
            let (knobs, compactions) = (owned(knobs), owned(compactions));
            let request = Request { knobs: &knobs, compactions: &compactions, runs: 1, seed: 0 };
            design::<Redis>(&request).unwrap_err().to_string()
        };
        let compaction = r#"{"class": "UnifiedCompactionStrategy"}"#;
        assert!(said(&["hz=10,20"], &[compaction]).contains("tables of Cassandra alone have one"));
        assert!(
            said(&["concurrent_reads=16..64"], &[])
                .contains("there is no setting concurrent_reads")
        );
        assert!(said(&["hz"], &[]).contains("write hz=16..64"));
        assert!(said(&[], &[]).ends_with("name a setting with its values"), "{}", said(&[], &[]));
    }
}
