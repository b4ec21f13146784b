//! The compaction of a table, as configurations describe it: one of Cassandra's strategies with options.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::error::{Error, Result};

/// Names of the compaction strategies of Cassandra 5.0.
const CLASSES: [&str; 4] = [
    "SizeTieredCompactionStrategy",
    "LeveledCompactionStrategy",
    "TimeWindowCompactionStrategy",
    "UnifiedCompactionStrategy",
];
/// Java package of the compaction strategies, an optional prefix of their names.
const PACKAGE: &str = "org.apache.cassandra.db.compaction.";

/// A compaction strategy of Cassandra with its options, by their names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, serde_json::Value>", into = "BTreeMap<String, String>")]
pub struct Compaction(BTreeMap<String, String>);

impl TryFrom<BTreeMap<String, serde_json::Value>> for Compaction {
    type Error = Error;

    fn try_from(options: BTreeMap<String, serde_json::Value>) -> Result<Self> {
        let mut plain = BTreeMap::new();
        for (name, value) in options {
            let value = match value {
                serde_json::Value::String(text) => text,
                serde_json::Value::Number(number) => number.to_string(),
                serde_json::Value::Bool(bool) => bool.to_string(),
                other => {
                    return Err(Error::Usage(format!(
                        "{name} is {other}, and it must be one value"
                    )));
                }
            };
            plain.insert(name, value);
        }
        let class = plain.get("class").map(|class| class.trim_start_matches(PACKAGE).to_owned());
        match class {
            Some(class) if CLASSES.contains(&&*class) => {
                plain.insert("class".into(), class);
                Ok(Self(plain))
            }
            other => Err(Error::Usage(format!(
                "the compaction's class is \"{}\", and it must be one of {}",
                other.unwrap_or_default(),
                CLASSES.join(", ")
            ))),
        }
    }
}

impl Compaction {
    /// Returns the name of the compaction strategy, without its Java package.
    #[must_use]
    pub fn class(&self) -> &str {
        &self.0["class"]
    }
}

impl From<Compaction> for BTreeMap<String, String> {
    fn from(compaction: Compaction) -> Self {
        compaction.0
    }
}

impl Compaction {
    /// Parses a compaction from JSON such as `{"class": "UnifiedCompactionStrategy", "scaling_parameters": "T8"}`.
    ///
    /// # Errors
    /// Fails if the text is not such an object, or names no known strategy.
    pub fn parse(text: &str) -> Result<Self> {
        let options: BTreeMap<String, serde_json::Value> = serde_json::from_str(text).map_err(|_| {
            Error::Usage(format!(
                "\"{text}\" is no compaction; write {{\"class\": \"UnifiedCompactionStrategy\", \
                 \"scaling_parameters\": \"T8\"}}"
            ))
        })?;
        options.try_into()
    }

    /// Returns the compaction as a map literal of CQL.
    pub(crate) fn literal(&self) -> String {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let mut literal = String::from("{");
        for (number, (name, value)) in self.0.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            _ = write!(literal, "{comma}{}: {}", quoted(name), quoted(value));
        }
        literal + "}"
    }

    /// Returns true if a table with the compaction `present` needs no change to have this one. A statement replaces
    /// all options, but Cassandra adds thresholds that the statement does not name.
    pub(crate) fn is_in(&self, present: &Self) -> bool {
        let is_added = |name: &str| ["min_threshold", "max_threshold"].contains(&name);
        let named =
            present.0.iter().filter(|(name, _)| self.0.contains_key(*name) || !is_added(name));
        named.eq(self.0.iter())
    }
}

impl std::fmt::Display for Compaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.literal())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_is_read_and_written_as_cql() {
        let read = Compaction::parse(
            r#"{"class": "UnifiedCompactionStrategy", "scaling_parameters": "T8, N", "min_sstable_size": 64}"#,
        );
        let read = read.unwrap();
        assert_eq!(
            read.to_string(),
            "{'class': 'UnifiedCompactionStrategy', 'min_sstable_size': '64', 'scaling_parameters': 'T8, N'}"
        );
        let json = serde_json::to_string(&read).unwrap();
        assert_eq!(serde_json::from_str::<Compaction>(&json).unwrap(), read);
        let quote = Compaction::parse(r#"{"class": "LeveledCompactionStrategy", "x": "it's"}"#);
        assert_eq!(
            quote.unwrap().to_string(),
            "{'class': 'LeveledCompactionStrategy', 'x': 'it''s'}"
        );
    }

    #[test]
    fn what_is_no_strategy_is_said() {
        for (text, said) in [
            ("T8", "is no compaction"),
            ("[]", "is no compaction"),
            ("{}", "must be one of SizeTieredCompactionStrategy"),
            (r#"{"class": "FastCompactionStrategy"}"#, "\"FastCompactionStrategy\""),
            (r#"{"class": "LeveledCompactionStrategy", "x": []}"#, "x is []"),
        ] {
            let error = Compaction::parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn thresholds_that_cassandra_adds_are_no_difference() {
        let parse = |text: &str| Compaction::parse(text).unwrap();
        let wanted =
            parse(r#"{"class": "UnifiedCompactionStrategy", "scaling_parameters": "L10"}"#);
        let present = r#"{"class": "org.apache.cassandra.db.compaction.UnifiedCompactionStrategy",
            "scaling_parameters": "L10", "max_threshold": "32"}"#;
        assert!(wanted.is_in(&parse(present)));
        assert!(!wanted.is_in(&parse(&present.replace("L10", "T8"))));
        let plain = parse(r#"{"class": "UnifiedCompactionStrategy"}"#);
        assert!(!plain.is_in(&parse(present)), "the statement would take scaling_parameters away");
    }
}
