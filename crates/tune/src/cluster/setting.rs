//! Settings of a database's nodes: the properties that tuning needs, independently of how a setting is applied.

use imago_plan::tune::roll::CostClass;

use super::error::{Error, Result};
use super::values::{Value, Values};

/// A setting of a database that tuning may change, with its default and valid values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Name of the setting, as in the database's configuration file.
    pub name: &'static str,
    /// Value that applies if a node's file does not contain the setting; None: it depends on the machine.
    pub default: Option<&'static str>,
    /// Type, unit and bounds of the setting's values.
    pub values: Values,
    /// Cost class of a change of the setting: live, or by a restart.
    pub class: CostClass,
}

impl Setting {
    /// Parses a value of this setting, and checks that the setting accepts it.
    ///
    /// # Errors
    /// Fails if the setting does not take this value.
    pub fn value(&self, text: &str) -> Result<Value> {
        let wrong =
            || Error::Usage(format!("{} is \"{text}\", and it must be {}", self.name, self.values));
        self.values.value(text).ok_or_else(wrong)
    }
}

/// A database whose settings are known.
pub trait Settings {
    /// True if the database's tables have a compaction strategy, which a configuration may set.
    const HAS_COMPACTION: bool;

    /// Returns all settings of the database that tuning may change.
    fn all() -> Vec<Setting>;

    /// Returns the database's setting with this name.
    ///
    /// # Errors
    /// Fails if there is no such setting; the message lists all.
    fn find(name: &str) -> Result<Setting> {
        let all = Self::all();
        all.iter().find(|setting| setting.name == name).copied().ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|setting| setting.name).collect();
            Error::Usage(format!("there is no setting {name}; there are {}", known.join(", ")))
        })
    }
}
