//! Settings of a database's nodes: the properties that tuning needs, independently of how a setting is applied.

use imago_plan::tune::roll::CostClass;

use super::error::{Error, Result};
use super::values::{Value, Values};

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Name of the setting.
    pub name: &'static str,
    /// Value if a node's file does not contain the setting; None: it depends on the machine.
    pub default: Option<&'static str>,
    /// Valid values.
    pub values: Values,
    /// Cost class of a change.
    pub class: CostClass,
}

impl Setting {
    /// Parses and checks a value.
    ///
    /// # Errors
    /// Fails if the setting does not take this value.
    pub fn value(&self, text: &str) -> Result<Value> {
        let wrong =
            || Error::Usage(format!("{} is \"{text}\", and it must be {}", self.name, self.values));
        self.values.value(text).ok_or_else(wrong)
    }
}

/// A database with known settings.
pub trait Settings {
    /// True if tables have a compaction, which a configuration may set.
    const HAS_COMPACTION: bool;

    /// Returns all settings.
    fn all() -> Vec<Setting>;

    /// Returns the setting with this name.
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
