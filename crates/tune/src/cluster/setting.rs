//! Settings of a database's nodes, as configurations name them: what tuning has to know of each, however it is applied.

use imago_plan::tune::roll::CostClass;

use super::error::{Error, Result};
use super::values::{Value, Values};

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Its value unless a node's file has another one; nothing: it follows the machine.
    pub default: Option<&'static str>,
    /// The values that it takes.
    pub values: Values,
    /// What a change of it costs.
    pub class: CostClass,
}

impl Setting {
    /// The value as a node tells it, checked.
    ///
    /// # Errors
    /// It is none of the values that the setting takes.
    pub fn value(&self, text: &str) -> Result<Value> {
        let wrong =
            || Error::Usage(format!("{} is \"{text}\", and it must be {}", self.name, self.values));
        self.values.value(text).ok_or_else(wrong)
    }
}

/// A database whose settings are known.
pub trait Settings {
    /// True if its tables have a compaction, which a configuration may name.
    const HAS_COMPACTION: bool;

    /// All of them.
    fn all() -> Vec<Setting>;

    /// The setting of this name.
    ///
    /// # Errors
    /// There is none: the message lists those that there are.
    fn find(name: &str) -> Result<Setting> {
        let all = Self::all();
        all.iter().find(|setting| setting.name == name).copied().ok_or_else(|| {
            let known: Vec<&str> = all.iter().map(|setting| setting.name).collect();
            Error::Usage(format!("there is no setting {name}; there are {}", known.join(", ")))
        })
    }
}
