//! The mix: the shares of reads, updates, inserts, deletes and scans in the operations.
//!
//! The default is that of Morphus §5.1: 40 % reads, 40 % updates, 20 % inserts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The kind of an operation of a load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Reads one document by key.
    Read,
    /// Inserts a document under a key that has none.
    Insert,
    /// Updates the document under a key.
    Update,
    /// Deletes the document under a key.
    Delete,
    /// Reads several consecutive documents, in the order in which the database stores them.
    Scan,
}

impl Kind {
    /// All kinds, in the order in which reports list them.
    pub const ALL: [Self; 5] = [Self::Read, Self::Insert, Self::Update, Self::Delete, Self::Scan];

    /// Returns the name of the kind in lower case, for example `read`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Insert => "insert",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Scan => "scan",
        }
    }

    /// Returns true if operations of this kind change the database.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Self::Read | Self::Scan)
    }
}

/// Relative weights of the kinds of operation in a load, each at least 0. Their sum need not be 100.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Mix {
    /// Relative weight of reads.
    pub read: f64,
    /// Relative weight of updates.
    pub update: f64,
    /// Relative weight of inserts.
    pub insert: f64,
    /// Relative weight of deletes.
    pub delete: f64,
    /// Relative weight of scans; 0 if a stored mix does not contain it.
    #[serde(default)]
    pub scan: f64,
}

impl Default for Mix {
    fn default() -> Self {
        Self { read: 40.0, update: 40.0, insert: 20.0, delete: 0.0, scan: 0.0 }
    }
}

/// The reason why a mix is invalid.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MixError {
    /// A part of the text is not of the form `kind=weight`.
    #[error("`{0}` is not of the form kind=weight, such as read=40")]
    Form(String),
    /// The text contains this name, which is not a kind of operation.
    #[error("`{0}` is no kind of operation; the kinds are read, update, insert, delete, scan")]
    Kind(String),
    /// This weight is not a finite number of at least 0.
    #[error("the weight `{0}` is not a number of at least 0")]
    Weight(String),
    /// All weights are 0, so that no operation could be chosen.
    #[error("all weights are 0; at least one kind of operation needs a weight above 0")]
    Empty,
}

impl Mix {
    /// Checks that the weights are finite and not negative, and that not all are 0.
    ///
    /// # Errors
    /// Returns an error that names the invalid weight.
    pub fn validate(&self) -> Result<(), MixError> {
        let weights = [self.read, self.update, self.insert, self.delete, self.scan];
        if let Some(bad) = weights.iter().find(|weight| !weight.is_finite() || **weight < 0.0) {
            return Err(MixError::Weight(bad.to_string()));
        }
        if weights.iter().sum::<f64>() <= 0.0 {
            return Err(MixError::Empty);
        }
        Ok(())
    }

    /// Returns the kind of the next operation for `drawn`, a random number that is uniform in `0.0..1.0`.
    #[must_use]
    pub fn pick(&self, drawn: f64) -> Kind {
        let total = self.read + self.update + self.insert + self.delete + self.scan;
        let mut rest = drawn * total;
        let parts = [
            (Kind::Read, self.read),
            (Kind::Update, self.update),
            (Kind::Insert, self.insert),
            (Kind::Delete, self.delete),
            (Kind::Scan, self.scan),
        ];
        for (kind, weight) in parts {
            if rest < weight {
                return kind;
            }
            rest -= weight;
        }
        // Rounding may leave a tiny remainder, which counts for the last kind with a weight.
        parts.iter().rev().find(|(_, weight)| *weight > 0.0).map_or(Kind::Read, |(kind, _)| *kind)
    }
}

impl FromStr for Mix {
    type Err = MixError;

    /// Parses `read=40,update=40,insert=20,delete=0`; a kind that is not named gets the weight 0.
    fn from_str(text: &str) -> Result<Self, MixError> {
        let mut mix = Self { read: 0.0, update: 0.0, insert: 0.0, delete: 0.0, scan: 0.0 };
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (kind, weight) =
                part.split_once('=').ok_or_else(|| MixError::Form(part.to_owned()))?;
            let value: f64 =
                weight.trim().parse().map_err(|_| MixError::Weight(weight.trim().to_owned()))?;
            match kind.trim() {
                "read" => mix.read = value,
                "update" => mix.update = value,
                "insert" => mix.insert = value,
                "delete" => mix.delete = value,
                "scan" => mix.scan = value,
                other => return Err(MixError::Kind(other.to_owned())),
            }
        }
        mix.validate()?;
        Ok(mix)
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { read, update, insert, delete, scan } = self;
        write!(f, "read={read},update={update},insert={insert},delete={delete}")?;
        if *scan > 0.0 { write!(f, ",scan={scan}") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_papers() {
        assert_eq!(Mix::default(), "read=40,update=40,insert=20,delete=0".parse().unwrap());
    }

    #[test]
    fn shares_follow_the_weights() {
        let mix: Mix = "read=1,update=2,insert=3,delete=3,scan=1".parse().unwrap();
        let count = |kind| (0..1000).filter(|i| mix.pick(f64::from(*i) / 1000.0) == kind).count();
        let counts = [Kind::Read, Kind::Update, Kind::Insert, Kind::Delete, Kind::Scan].map(count);
        assert_eq!(counts, [100, 200, 300, 300, 100]);
        assert_eq!(mix.to_string().parse(), Ok(mix));
    }

    #[test]
    fn a_kind_without_weight_is_never_picked() {
        let mix: Mix = "read=1,update=1".parse().unwrap();
        assert_eq!(mix.pick(1.0), Kind::Update);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let parse = |text: &str| text.parse::<Mix>();
        assert_eq!(parse("read"), Err(MixError::Form("read".into())));
        assert_eq!(parse("rename=1"), Err(MixError::Kind("rename".into())));
        assert_eq!(parse("read=-1"), Err(MixError::Weight("-1".into())));
        assert_eq!(parse("read=NaN"), Err(MixError::Weight("NaN".into())));
        assert_eq!(parse("read=0"), Err(MixError::Empty));
    }
}
