//! The settings in which configurations differ, as axes of the space that the static tuner searches
//! (`imago tune search`).
//!
//! A size, a rate, a duration or a count is a number in its unit. A word, and a compaction with its options, is
//! categorical. A setting that follows the machine has no number unless the file sets it: such a configuration has no
//! point.

use std::collections::BTreeSet;

use imago_plan::tune::roll::CostClass;
use imago_plan::tune::space::{Axis, Point};

use crate::cluster::compaction::Compaction;
use crate::cluster::values::Values;
use crate::cluster::{Result, Setting, Settings};
use crate::configurations::Configuration;

/// Name that the dimension of the table's compaction has among those of the settings.
pub const COMPACTION: &str = "compaction";

/// A setting in which configurations differ, or the compaction if they differ in it, as an axis of the search space.
#[derive(Clone, Debug, PartialEq)]
pub struct Dimension {
    /// Name of the setting, or [`COMPACTION`].
    pub name: String,
    /// Cost class of a change of the setting, such as a restart of each node.
    pub class: CostClass,
    /// Axis of the setting in the search space: the range of its numbers, or the number of its words.
    pub axis: Axis,
    of: Of,
}

/// The varied setting or compaction, with its words if it is categorical.
#[derive(Clone, Debug, PartialEq)]
enum Of {
    Number(Setting),
    Word(Setting, Vec<String>),
    Compaction(Vec<Compaction>),
}

/// Returns true if a setting is categorical: its values have no order.
#[must_use]
pub fn are_words(setting: &Setting) -> bool {
    matches!(setting.values, Values::Word(_) | Values::Pairs)
}

/// Parses a value of a setting, and returns the number in the setting's unit; None if the setting is categorical.
///
/// # Errors
/// Fails if the setting does not take this value.
pub fn number(setting: &Setting, text: &str) -> Result<Option<f64>> {
    let value = setting.value(text)?;
    Ok(if are_words(setting) { None } else { value.number.parse().ok() })
}

/// Returns true if a setting takes whole numbers only.
fn is_whole(setting: &Setting) -> bool {
    !matches!(setting.values, Values::Share(..)) && !are_words(setting)
}

/// Formats a number (in the setting's unit) as a value of the setting.
fn text(setting: &Setting, number: f64) -> String {
    match setting.values {
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

impl Dimension {
    /// Builds the dimension of a setting whose numbers, in the setting's unit, range from `least` to `most`.
    #[must_use]
    pub fn of_numbers(setting: Setting, least: f64, most: f64) -> Self {
        let (name, axis) = (setting.name.to_owned(), Axis::number(least, most));
        Self { name, class: setting.class, axis, of: Of::Number(setting) }
    }

    /// Builds the dimension of a categorical setting with these values; each is in the form of [`Setting::value`].
    #[must_use]
    pub fn of_words(setting: Setting, words: Vec<String>) -> Self {
        let (name, axis) = (setting.name.to_owned(), Axis::Words(words.len()));
        Self { name, class: setting.class, axis, of: Of::Word(setting, words) }
    }

    /// Builds the dimension of the tuned table's compaction, which takes one of these values.
    #[must_use]
    pub fn of_compactions(all: Vec<Compaction>) -> Self {
        let (name, axis) = (COMPACTION.to_owned(), Axis::Words(all.len()));
        Self { name, class: CostClass::Alter, axis, of: Of::Compaction(all) }
    }

    /// Formats a coordinate of this dimension (a number in the setting's unit, or the index of a word) as the value
    /// in a file of configurations.
    #[must_use]
    pub fn format_value(&self, value: f64) -> String {
        match &self.of {
            Of::Number(setting) => text(setting, value),
            Of::Word(_, words) => words[value as usize].clone(),
            Of::Compaction(all) => all[value as usize].to_string(),
        }
    }

    /// Returns true if the dimension's setting takes whole numbers only; false for a categorical one.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(&self.of, Of::Number(setting) if is_whole(setting))
    }

    /// Returns the coordinate of a configuration in this dimension: a number in the setting's unit, or the index of a
    /// word. None if the setting follows the machine in that configuration.
    ///
    /// # Errors
    /// Fails if the setting does not take the configuration's value.
    pub fn value(&self, of: &Configuration) -> Result<Option<f64>> {
        let place = |place: Option<usize>| place.map(|place| place as f64);
        Ok(match &self.of {
            Of::Number(setting) => match written(of, setting) {
                Some(text) => number(setting, text)?,
                None => None,
            },
            Of::Word(setting, words) => match written(of, setting) {
                Some(text) => {
                    let own = setting.value(text)?.to_string();
                    place(words.iter().position(|word| *word == own))
                }
                None => None,
            },
            Of::Compaction(all) => {
                place(all.iter().position(|one| Some(one) == of.compaction.as_ref()))
            }
        })
    }

    /// Sets this dimension's setting in a configuration to the coordinate `value`.
    fn set(&self, of: &mut Configuration, value: f64) {
        match &self.of {
            Of::Number(_) | Of::Word(..) => {
                of.settings.insert(self.name.clone(), self.format_value(value));
            }
            Of::Compaction(all) => of.compaction = Some(all[value as usize].clone()),
        }
    }
}

/// Returns the value of a setting in a configuration, or else its default; None if the default follows the machine.
fn written<'c>(of: &'c Configuration, setting: &Setting) -> Option<&'c str> {
    of.settings.get(setting.name).map(String::as_str).or(setting.default)
}

/// Returns a dimension for each setting in which some of the configurations differ, by name; the compaction is last.
///
/// # Errors
/// Fails if a setting is unknown, or if it does not take a value.
pub fn varied<D: Settings>(all: &[Configuration]) -> Result<Vec<Dimension>> {
    let names: BTreeSet<&String> = all.iter().flat_map(|one| one.settings.keys()).collect();
    let mut found = Vec::new();
    for name in names {
        let setting = D::find(name)?;
        let texts: BTreeSet<&str> = all.iter().filter_map(|one| written(one, &setting)).collect();
        if are_words(&setting) {
            let words = texts.into_iter().map(|text| Ok(setting.value(text)?.to_string()));
            let words: BTreeSet<String> = words.collect::<Result<_>>()?;
            if words.len() > 1 {
                found.push(Dimension::of_words(setting, words.into_iter().collect()));
            }
            continue;
        }
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for text in texts {
            let number = number(&setting, text)?.expect("its values are numbers");
            (least, most) = (least.min(number), most.max(number));
        }
        if most > least {
            found.push(Dimension::of_numbers(setting, least, most));
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

/// Returns the coordinates of a configuration in these dimensions; None if one of the settings follows the machine in
/// that configuration.
///
/// # Errors
/// Fails if a setting does not take its value.
pub fn point(dimensions: &[Dimension], of: &Configuration) -> Result<Option<Point>> {
    dimensions.iter().map(|dimension| dimension.value(of)).collect()
}

/// Builds the configuration `name` with the coordinates `at` in these dimensions; everything else is copied from
/// `like`.
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
    use crate::redis::Redis;

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
        let varied = varied::<Cassandra>(&all).unwrap();
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
        let varied = varied::<Cassandra>(&all).unwrap();
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
        let setting = |name| Cassandra::find(name).unwrap();
        let share = Dimension::of_numbers(setting("memtable_cleanup_threshold"), 0.1, 0.9);
        assert_eq!((share.format_value(0.123_456), share.is_whole()), ("0.1235".into(), false));
        let rate = Dimension::of_numbers(setting("compaction_throughput"), 0.0, 64.0);
        assert_eq!((rate.format_value(16.0), rate.is_whole()), ("16MiB/s".into(), true));
    }

    #[test]
    fn settings_of_redis_are_axes_in_bytes_counts_and_words() {
        let file = r#"
[[configuration]]
name = "default"

[[configuration]]
name = "compact"
settings = { hash-max-listpack-entries = 1024, maxmemory = "64mb", save = "60  1", list-max-listpack-size = -1 }

[[configuration]]
name = "quick"
settings = { hash-max-listpack-entries = 8, maxmemory = 67108864, save = "60 1", appendfsync = "no" }
"#;
        let all = parse::<Redis>(file).unwrap();
        let varied = varied::<Redis>(&all).unwrap();
        let told: Vec<(&str, Axis)> = varied.iter().map(|one| (&*one.name, one.axis)).collect();
        assert_eq!(
            told,
            [
                ("appendfsync", Axis::Words(2)),
                ("hash-max-listpack-entries", Axis::number(8.0, 1_024.0)),
                ("list-max-listpack-size", Axis::number(-2.0, -1.0)),
                ("maxmemory", Axis::number(0.0, 67_108_864.0)),
                ("save", Axis::Words(2)),
            ]
        );
        let at = |number: usize| point(&varied, &all[number]).unwrap().unwrap();
        assert_eq!(at(0), [0.0, 512.0, -2.0, 0.0, 0.0], "every setting has its default");
        // The same pairs and the same size, however they are written.
        assert_eq!(at(1), [0.0, 1_024.0, -1.0, 67_108_864.0, 1.0]);
        assert_eq!(at(2), [1.0, 8.0, -2.0, 67_108_864.0, 1.0]);
        let made = configuration(&varied, &at(1), &all[0], "made");
        assert_eq!(made.settings["maxmemory"], "67108864");
        assert_eq!(made.settings["list-max-listpack-size"], "-1");
        assert_eq!(point(&varied, &made).unwrap(), Some(at(1)));
    }
}
