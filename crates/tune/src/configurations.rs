//! The candidate configurations: a TOML file that defines each by its name and its settings.
//!
//! ```toml
//! [[configuration]]
//! name = "default"
//!
//! [[configuration]]
//! name = "reads"
//! settings = { concurrent_reads = 64, memtable_heap_space = "256MiB" }
//! compaction = { class = "UnifiedCompactionStrategy", scaling_parameters = "L10" }
//! ```
//!
//! A setting that another configuration has, and this one does not, has its default value here.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use imago_plan::tune::roll::CostClass;
use serde::Deserialize;

use crate::cluster::compaction::Compaction;
use crate::cluster::{Error, Result, Settings};
use crate::measurements::Measurements;

/// Content of a file of configurations, before validation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default, rename = "configuration")]
    configurations: Vec<WrittenOne>,
}

/// One table `[[configuration]]` of the file, before validation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenOne {
    name: String,
    #[serde(default)]
    settings: BTreeMap<String, toml::Value>,
    compaction: Option<Compaction>,
}

/// A candidate configuration: values of some of a database's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    /// Name of the configuration, unique in its file.
    pub name: String,
    /// Values of this configuration's settings as text, by the setting's name; an absent setting has its default.
    pub settings: BTreeMap<String, String>,
    /// Compaction of the tuned table; either all configurations of a file have one, or none has.
    pub compaction: Option<Compaction>,
}

/// Reads a file of configurations, and validates them against the settings of the database `D`.
///
/// # Errors
/// Fails if the file cannot be read or is invalid.
pub fn read<D: Settings>(path: &Path) -> Result<Vec<Configuration>> {
    let shown = path.display();
    let text = std::fs::read_to_string(path)
        .map_err(|cause| Error::Usage(format!("cannot read {shown}: {cause}")))?;
    parse::<D>(&text).map_err(|error| match error {
        Error::Usage(why) => Error::Usage(format!("{shown}: {why}")),
        other => other,
    })
}

/// Parses the text of a file of configurations, and validates them against the settings of the database `D`.
///
/// # Errors
/// Fails if the text is invalid.
pub fn parse<D: Settings>(text: &str) -> Result<Vec<Configuration>> {
    let written: Written = toml::from_str(text)
        .map_err(|error| Error::Usage(error.to_string().trim_end().to_owned()))?;
    let mut all: Vec<Configuration> = Vec::new();
    for WrittenOne { name, settings, compaction } in written.configurations {
        if name.is_empty() || name.contains([',', '"', '\n']) {
            return Err(Error::Usage(format!("\"{name}\" cannot name a configuration")));
        }
        if all.iter().any(|one| one.name == name) {
            return Err(Error::Usage(format!("the configuration {name} is there twice")));
        }
        let plain = |(name, value): (String, toml::Value)| match value {
            toml::Value::String(text) => (name, text),
            other => (name, other.to_string()),
        };
        all.push(Configuration {
            name,
            settings: settings.into_iter().map(plain).collect(),
            compaction,
        });
    }
    if all.is_empty() {
        return Err(Error::Usage("it has no [[configuration]]".into()));
    }
    if !D::HAS_COMPACTION
        && let Some(one) = all.iter().find(|one| one.compaction.is_some())
    {
        let what = format!("{} names a compaction, which this database does not have", one.name);
        return Err(Error::Usage(what));
    }
    let with = all.iter().filter(|one| one.compaction.is_some()).count();
    if with > 0 && with < all.len() {
        let why = "the compaction of a table cannot be reset to its default";
        return Err(Error::Usage(format!(
            "some configurations name a compaction, and some not: {why}"
        )));
    }
    for number in 0..all.len() {
        check::<D>(&settings(&all, number))?;
        for other in 0..number {
            let (one, two) = (&all[other], &all[number]);
            if one.compaction == two.compaction && differences::<D>(one, two)?.is_empty() {
                let what = format!("{} and {} are the same", one.name, two.name);
                return Err(Error::Usage(what));
            }
        }
    }
    Ok(all)
}

/// Checks new values of settings, by the setting's name; None stands for the setting's default.
///
/// # Errors
/// Fails if a setting is unknown, if it does not take the value, or if its default cannot be set on a running node.
pub(crate) fn check<D: Settings>(changes: &BTreeMap<String, Option<String>>) -> Result<()> {
    for (name, text) in changes {
        let setting = D::find(name)?;
        let Some(text) = text else {
            if setting.default.is_none() && setting.class == CostClass::Live {
                let why = "its default follows the machine: name a value";
                return Err(Error::Usage(format!(
                    "{name} cannot be set to its default live; {why}"
                )));
            }
            continue;
        };
        setting.value(text)?;
    }
    Ok(())
}

/// Formats a file of configurations that begins with the comment `head`; the remark with a configuration's index is
/// written as a comment before that configuration.
///
/// # Panics
/// If there are more remarks than configurations.
#[must_use]
pub fn write(head: &str, all: &[Configuration], remarks: &[String]) -> String {
    assert!(remarks.len() <= all.len(), "a remark about nothing");
    let mut text = remark(head);
    for (number, one) in all.iter().enumerate() {
        text.push('\n');
        if let Some(about) = remarks.get(number) {
            text.push_str(&remark(about));
        }
        _ = writeln!(text, "[[configuration]]\nname = {}", quoted(&one.name));
        if !one.settings.is_empty() {
            // Integers need no quotes.
            let value =
                |text: &str| text.parse::<u32>().map_or_else(|_| quoted(text), |n| n.to_string());
            let setting = |(name, text): (&String, &String)| format!("{name} = {}", value(text));
            let settings: Vec<String> = one.settings.iter().map(setting).collect();
            _ = writeln!(text, "settings = {{ {} }}", settings.join(", "));
        }
        if let Some(compaction) = &one.compaction {
            let options: BTreeMap<String, String> = compaction.clone().into();
            let option =
                |(name, text): (&String, &String)| format!("{} = {}", key(name), quoted(text));
            let options: Vec<String> = options.iter().map(option).collect();
            _ = writeln!(text, "compaction = {{ {} }}", options.join(", "));
        }
    }
    text
}

/// Formats a text as comment lines of TOML.
fn remark(text: &str) -> String {
    text.lines().map(|line| format!("# {line}\n")).collect()
}

/// Quotes a text as a TOML string; JSON's syntax is valid there.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string().replace('\u{7f}', "\\u007f")
}

/// Formats a key of TOML, in quotes if necessary.
fn key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(is_bare) { name.to_owned() } else { quoted(name) }
}

/// Returns the values that one configuration (of index `number`) has for all settings that any configuration has, by
/// the setting's name; None stands for the setting's default.
#[must_use]
pub fn settings(all: &[Configuration], number: usize) -> BTreeMap<String, Option<String>> {
    let names: BTreeSet<&String> = all.iter().flat_map(|one| one.settings.keys()).collect();
    let own = &all[number].settings;
    names.into_iter().map(|name| (name.clone(), own.get(name).cloned())).collect()
}

/// Returns the names of the settings in which two configurations differ. An explicit default equals an absent
/// setting.
///
/// # Errors
/// Fails if a setting is unknown, or if it does not take the value.
pub fn differences<D: Settings>(
    from: &Configuration,
    to: &Configuration,
) -> Result<BTreeSet<String>> {
    let names: BTreeSet<&String> = from.settings.keys().chain(to.settings.keys()).collect();
    let mut found = BTreeSet::new();
    for name in names {
        let setting = D::find(name)?;
        let value = |of: &Configuration| {
            let text = of.settings.get(name).map(String::as_str).or(setting.default);
            text.map(|text| setting.value(text)).transpose()
        };
        if value(from)? != value(to)? {
            found.insert(name.clone());
        }
    }
    Ok(found)
}

/// Returns the settings that differ between the configurations with the indices `from` and `to`, with their values in
/// `to`; None stands for the setting's default.
///
/// # Errors
/// Fails in the same cases as [`differences`].
pub fn change<D: Settings>(
    all: &[Configuration],
    (from, to): (usize, usize),
) -> Result<BTreeMap<String, Option<String>>> {
    let mut changes = settings(all, to);
    let differ = differences::<D>(&all[from], &all[to])?;
    changes.retain(|name, _| differ.contains(name));
    Ok(changes)
}

/// Sorts the configurations into the order in which the measurements number them.
///
/// # Errors
/// Fails if a configuration was not measured, or if a measured one is not in the file.
pub fn in_order(
    mut configurations: Vec<Configuration>,
    measurements: &Measurements,
) -> Result<Vec<Configuration>> {
    let number = |one: &Configuration| measurements.names.iter().position(|name| *name == one.name);
    if let Some(one) = configurations.iter().find(|one| number(one).is_none()) {
        return Err(Error::Usage(format!(
            "{} was not measured; the measurements have {}",
            one.name,
            measurements.names.join(", ")
        )));
    }
    let is_there = |name: &&String| configurations.iter().any(|one| one.name == **name);
    if let Some(name) = measurements.names.iter().find(|name| !is_there(name)) {
        return Err(Error::Usage(format!(
            "{name} was measured, but is not in the file of configurations"
        )));
    }
    configurations.sort_by_key(|one| number(one));
    Ok(configurations)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cassandra::Cassandra;
    use crate::redis::Redis;

    const FILE: &str = r#"
[[configuration]]
name = "writes"
settings = { concurrent_writes = 64 }
compaction = { class = "UnifiedCompactionStrategy", scaling_parameters = "T8" }

[[configuration]]
name = "reads"
settings = { concurrent_reads = 64, memtable_heap_space = "256MiB" }
compaction = { class = "UnifiedCompactionStrategy", scaling_parameters = "L10" }
"#;

    #[test]
    fn what_others_name_has_its_default() {
        let all = parse::<Cassandra>(FILE).unwrap();
        let changes = settings(&all, 0);
        let changes: Vec<_> =
            changes.iter().map(|(name, value)| (&**name, value.as_deref())).collect();
        assert_eq!(
            changes,
            [
                ("concurrent_reads", None),
                ("concurrent_writes", Some("64")),
                ("memtable_heap_space", None)
            ]
        );
    }

    #[test]
    fn a_change_touches_only_what_differs() {
        let changed = |text: &str| -> Vec<String> {
            let all = parse::<Cassandra>(text).unwrap();
            change::<Cassandra>(&all, (0, 1)).unwrap().into_keys().collect()
        };
        assert_eq!(changed(FILE), ["concurrent_reads", "concurrent_writes", "memtable_heap_space"]);
        let same = FILE.replace("concurrent_writes = 64", "concurrent_reads = 64");
        assert_eq!(changed(&same), ["memtable_heap_space"]);
    }

    #[test]
    fn sizes_of_redis_are_the_same_in_any_unit_and_it_has_no_compaction() {
        let file = |limit: &str| {
            format!(
                "[[configuration]]\nname = \"compact\"\nsettings = {{ hash-max-listpack-entries = 1024, maxmemory = \"64mb\" }}\n\
                 [[configuration]]\nname = \"quick\"\nsettings = {{ maxmemory = {limit} }}\n"
            )
        };
        let all = parse::<Redis>(&file("67108864")).unwrap();
        let changed = change::<Redis>(&all, (0, 1)).unwrap();
        assert_eq!(changed, BTreeMap::from([("hash-max-listpack-entries".to_owned(), None)]));
        let error = parse::<Redis>(FILE).unwrap_err().to_string();
        assert!(error.contains("writes names a compaction"), "{error}");
    }

    #[test]
    fn what_is_written_is_read_as_it_was() {
        let odd = r#"settings = { trickle_fsync = true, memtable_cleanup_threshold = "0.25" }
compaction = { class = "LeveledCompactionStrategy", "an option" = "it's \"\\\t\u007F", x = 3 }"#;
        let more = format!("{FILE}\n[[configuration]]\nname = \"odd\"\n{odd}\n");
        let all = parse::<Cassandra>(&more).unwrap();
        let remarks = ["predicted\n12 % more".to_owned()];
        let text = write("Two lines\nof head.", &all, &remarks);
        assert!(
            text.starts_with("# Two lines\n# of head.\n\n# predicted\n# 12 % more\n[["),
            "{text}"
        );
        assert!(text.contains("concurrent_writes = 64 }"), "{text}");
        assert_eq!(parse::<Cassandra>(&text).unwrap(), all);
    }

    #[test]
    fn names_with_dashes_are_written_and_read() {
        let text = "[[configuration]]\nname = \"odd\"\nsettings = { hash-max-listpack-entries = 8, save = \"\", \
                    maxmemory = \"17179869184\", list-max-listpack-size = -1 }\n";
        let all = parse::<Redis>(text).unwrap();
        let written = write("", &all, &[]);
        assert!(written.contains("{ hash-max-listpack-entries = 8, "), "{written}");
        assert_eq!(parse::<Redis>(&written).unwrap(), all, "{written}");
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        let same = FILE
            .replace("L10", "T8")
            .replace("concurrent_writes = 64", "concurrent_reads = 32")
            .replace("concurrent_reads = 64, memtable_heap_space = \"256MiB\"", "");
        let no_compaction = FILE.replacen("compaction =", "# compaction =", 1);
        for (text, said) in [
            (String::new(), "no [[configuration]]"),
            (FILE.replace("\"reads\"", "\"writes\""), "is there twice"),
            (
                FILE.replace("concurrent_reads", "concurrent_reeds"),
                "there is no setting concurrent_reeds",
            ),
            (FILE.replace("64 }", "0 }"), "a whole number from 1"),
            (FILE.replace("settings", "setting"), "setting"),
            (FILE.replace("\"Unified", "\"Fast"), "must be one of"),
            (same, "writes and reads are the same"),
            (no_compaction, "some configurations name a compaction"),
        ] {
            let error = parse::<Cassandra>(&text).unwrap_err().to_string();
            assert!(error.contains(said), "{said}: {error}");
        }
    }
}
