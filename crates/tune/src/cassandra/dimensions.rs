//! The settings in which configurations differ, as the axes of a static tuner.
//!
//! A size, a rate, a time or a count is a number in its unit; a word, and a whole compaction with its options, is a word.
//! A setting that follows the heap unless the file has it has no number then: such a configuration has no point.

use std::collections::BTreeSet;

use imago_plan::tune::roll::CostClass;
use imago_plan::tune::space::{Axis, Point};

use super::compaction::Compaction;
use super::error::Result;
use super::knobs::{self, Class, Knob, Values};
use crate::configurations::Configuration;

/// The name of the compaction among settings.
pub const COMPACTION: &str = "compaction";

/// A setting that is varied.
#[derive(Clone, Debug, PartialEq)]
pub struct Dimension {
    /// Its name.
    pub name: String,
    /// What a change of it costs.
    pub class: CostClass,
    /// Its axis.
    pub axis: Axis,
    of: Of,
}

#[derive(Clone, Debug, PartialEq)]
enum Of {
    Number(&'static Knob),
    Word(&'static Knob, Vec<String>),
    Compaction(Vec<Compaction>),
}

/// The number of a setting's value, in the setting's unit; none if its values are words.
///
/// # Errors
/// It is no value of the setting.
pub fn number(knob: &Knob, text: &str) -> Result<Option<f64>> {
    let value = knob.value(text)?;
    Ok(match knob.values {
        Values::Word(_) | Values::Pairs => None,
        _ => value.number.parse().ok(),
    })
}

/// True if a setting's numbers are whole.
#[must_use]
pub fn is_whole(knob: &Knob) -> bool {
    !matches!(knob.values, Values::Share(..) | Values::Word(_) | Values::Pairs)
}

/// The text of a number of a setting.
fn text(knob: &Knob, number: f64) -> String {
    match knob.values {
        Values::Count(..)
        | Values::Integer(..)
        | Values::Bytes(..)
        | Values::Word(_)
        | Values::Pairs => format!("{number:.0}"),
        Values::Size(unit, ..) | Values::Rate(unit, ..) | Values::Time(unit, ..) => {
            format!("{number:.0}{unit}")
        }
        Values::Share(..) => format!("{}", (number * 1e4).round() / 1e4),
    }
}

fn class(knob: &Knob) -> CostClass {
    match knob.class {
        Class::Live { .. } => CostClass::Live,
        Class::Restart => CostClass::Restart,
    }
}

impl Dimension {
    /// A setting with numbers between two of them.
    #[must_use]
    pub fn of_numbers(knob: &'static Knob, least: f64, most: f64) -> Self {
        let (name, axis) = (knob.name.to_owned(), Axis::number(least, most));
        Self { name, class: class(knob), axis, of: Of::Number(knob) }
    }

    /// A setting with some words.
    #[must_use]
    pub fn of_words(knob: &'static Knob, words: Vec<String>) -> Self {
        let (name, axis) = (knob.name.to_owned(), Axis::Words(words.len()));
        Self { name, class: class(knob), axis, of: Of::Word(knob, words) }
    }

    /// The compaction of a table.
    #[must_use]
    pub fn of_compactions(all: Vec<Compaction>) -> Self {
        let (name, axis) = (COMPACTION.to_owned(), Axis::Words(all.len()));
        Self { name, class: CostClass::Alter, axis, of: Of::Compaction(all) }
    }

    /// A value, as the file has it.
    #[must_use]
    pub fn told(&self, value: f64) -> String {
        match &self.of {
            Of::Number(knob) => text(knob, value),
            Of::Word(_, words) => words[value as usize].clone(),
            Of::Compaction(all) => all[value as usize].to_string(),
        }
    }

    /// True if it has whole numbers.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(self.of, Of::Number(knob) if is_whole(knob))
    }

    /// The value in a configuration; none if it follows the heap there.
    ///
    /// # Errors
    /// It is no value of the setting.
    pub fn value(&self, of: &Configuration) -> Result<Option<f64>> {
        let place = |place: Option<usize>| place.map(|place| place as f64);
        Ok(match &self.of {
            Of::Number(knob) => match written(of, knob) {
                Some(text) => number(knob, text)?,
                None => None,
            },
            Of::Word(knob, words) => {
                place(words.iter().position(|word| Some(&**word) == written(of, knob)))
            }
            Of::Compaction(all) => {
                place(all.iter().position(|one| Some(one) == of.compaction.as_ref()))
            }
        })
    }

    /// Gives a configuration a value.
    fn set(&self, of: &mut Configuration, value: f64) {
        match &self.of {
            Of::Number(_) | Of::Word(..) => {
                of.settings.insert(self.name.clone(), self.told(value));
            }
            Of::Compaction(all) => of.compaction = Some(all[value as usize].clone()),
        }
    }
}

fn written<'c>(of: &'c Configuration, knob: &Knob) -> Option<&'c str> {
    of.settings.get(knob.name).map(String::as_str).or(knob.default)
}

/// The settings in which some configurations differ, by name, and the compaction behind them.
///
/// # Errors
/// There is no such setting, or no such value.
pub fn varied(all: &[Configuration]) -> Result<Vec<Dimension>> {
    let names: BTreeSet<&String> = all.iter().flat_map(|one| one.settings.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        let knob = knobs::find(name)?;
        let texts: BTreeSet<&str> = all.iter().filter_map(|one| written(one, knob)).collect();
        if let Values::Word(_) = knob.values {
            if texts.len() > 1 {
                found.push(Dimension::of_words(
                    knob,
                    texts.into_iter().map(str::to_owned).collect(),
                ));
            }
            continue;
        }
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for text in texts {
            let number = number(knob, text)?.expect("its values are numbers");
            (least, most) = (least.min(number), most.max(number));
        }
        if most > least {
            found.push(Dimension::of_numbers(knob, least, most));
        }
    }
    let mut compactions: Vec<Compaction> = Vec::new();
    for compaction in all.iter().filter_map(|one| one.compaction.as_ref()) {
        if !compactions.contains(compaction) {
            compactions.push(compaction.clone());
        }
    }
    if compactions.len() > 1 {
        found.push(Dimension::of_compactions(compactions));
    }
    Ok(found)
}

/// The point of a configuration; none if one of the settings follows the heap there.
///
/// # Errors
/// A value is none of its setting's.
pub fn point(dimensions: &[Dimension], of: &Configuration) -> Result<Option<Point>> {
    dimensions.iter().map(|dimension| dimension.value(of)).collect()
}

/// The configuration at a point; in all else it is like another one.
#[must_use]
pub fn configuration(
    dimensions: &[Dimension],
    at: &[f64],
    like: &Configuration,
    name: &str,
) -> Configuration {
    let mut made = Configuration { name: name.to_owned(), ..like.clone() };
    for (dimension, value) in dimensions.iter().zip(at) {
        dimension.set(&mut made, *value);
    }
    made
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cassandra::Cassandra;
    use crate::configurations::parse;

    const FILE: &str = r#"
[[configuration]]
name = "default"
settings = { trickle_fsync = "true" }
compaction = { class = "UnifiedCompactionStrategy", scaling_parameters = "T8" }

[[configuration]]
name = "one"
settings = { trickle_fsync = "true", concurrent_reads = 64, memtable_heap_space = "48MiB", compaction_throughput = "16MiB/s" }
compaction = { class = "UnifiedCompactionStrategy", scaling_parameters = "L10" }

[[configuration]]
name = "two"
settings = { trickle_fsync = "true", concurrent_reads = 16, memtable_heap_space = "64MiB", memtable_allocation_type = "offheap_objects" }
compaction = { class = "UnifiedCompactionStrategy", scaling_parameters = "T8" }
"#;

    #[test]
    fn what_differs_is_an_axis_and_what_follows_the_heap_has_no_point() {
        let all = parse::<Cassandra>(FILE).unwrap();
        let varied = varied(&all).unwrap();
        let told: Vec<(&str, Axis, CostClass)> =
            varied.iter().map(|one| (&*one.name, one.axis, one.class)).collect();
        assert_eq!(
            told,
            [
                ("compaction_throughput", Axis::number(16.0, 64.0), CostClass::Live),
                ("concurrent_reads", Axis::number(16.0, 64.0), CostClass::Live),
                ("memtable_allocation_type", Axis::Words(2), CostClass::Restart),
                ("memtable_heap_space", Axis::number(48.0, 64.0), CostClass::Restart),
                ("compaction", Axis::Words(2), CostClass::Alter),
            ]
        );
        assert_eq!(point(&varied, &all[0]).unwrap(), None, "its memtables follow the heap");
        assert_eq!(point(&varied, &all[1]).unwrap().unwrap(), [16.0, 64.0, 0.0, 48.0, 1.0]);
        assert_eq!(point(&varied, &all[2]).unwrap().unwrap(), [64.0, 16.0, 1.0, 64.0, 0.0]);
    }

    #[test]
    fn a_configuration_and_its_point_are_one() {
        let all = parse::<Cassandra>(FILE).unwrap();
        let varied = varied(&all).unwrap();
        for of in &all[1..] {
            let at = point(&varied, of).unwrap().unwrap();
            let made = configuration(&varied, &at, &all[0], "made");
            assert_eq!(point(&varied, &made).unwrap(), Some(at));
            assert_eq!(made.settings["trickle_fsync"], "true", "as in the first one");
            assert_eq!(made.compaction, of.compaction);
            assert_eq!(made.settings["memtable_heap_space"], of.settings["memtable_heap_space"]);
        }
    }

    #[test]
    fn shares_are_rounded_and_numbers_have_their_unit() {
        let knob = knobs::find("memtable_cleanup_threshold").unwrap();
        let share = Dimension::of_numbers(knob, 0.1, 0.9);
        assert_eq!((share.told(0.123_456), share.is_whole()), ("0.1235".into(), false));
        let rate = Dimension::of_numbers(knobs::find("compaction_throughput").unwrap(), 0.0, 64.0);
        assert_eq!((rate.told(16.0), rate.is_whole()), ("16MiB/s".into(), true));
    }
}
