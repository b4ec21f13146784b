//! Namespaces (full names of collections), and the selectors by which a user names one or many collections.

use std::fmt;
use std::str::FromStr;

use regex::Regex;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Full name of a collection, `database.collection`, as MongoDB defines a namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Namespace {
    /// Name of the database.
    pub db: String,
    /// Name of the collection in the database; it may contain dots.
    pub coll: String,
}

impl Namespace {
    /// Returns the namespace of the collection `coll` in the database `db`.
    pub fn new(db: impl Into<String>, coll: impl Into<String>) -> Self {
        Self { db: db.into(), coll: coll.into() }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.db, self.coll)
    }
}

impl FromStr for Namespace {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (db, coll) = text.split_once('.').unwrap_or((text, ""));
        let bad_db = db.is_empty() || db.contains(['/', '\\', ' ', '"', '$', '\0']);
        if bad_db || coll.is_empty() || coll.contains(['$', '\0']) || coll.starts_with('.') {
            return Err(Error::usage(
                format!("{text:?} does not name a collection"),
                "write it as database.collection",
            ));
        }
        Ok(Self::new(db, coll))
    }
}

impl TryFrom<String> for Namespace {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<Namespace> for String {
    fn from(ns: Namespace) -> Self {
        ns.to_string()
    }
}

/// Selection of the collections of a job: the argument of `--ns`.
#[derive(Clone, Debug)]
pub enum Selector {
    /// One collection, possibly with another name at the destination.
    One {
        /// The collection at the source.
        from: Namespace,
        /// The collection at the destination.
        to: Namespace,
    },
    /// Every collection whose full name matches the pattern, except those of servers and of Imago.
    Matching(Pattern),
    /// Every collection except those of servers and of Imago.
    All,
}

/// Pattern for full names of collections, such as `shop.*` or `*.reviews`; `*` matches any sequence of characters.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    regex: Regex,
}

impl FromStr for Selector {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "all" {
            return Ok(Self::All);
        }
        if text.contains('*') {
            if text.contains('=') {
                return Err(Error::usage(
                    format!("the pattern {text:?} cannot be renamed"),
                    "rename collections one by one: --ns a.b=c.d",
                ));
            }
            let quoted: Vec<String> = text.split('*').map(regex::escape).collect();
            // Names may contain any character but NUL, including line breaks, so the dot matches all characters.
            let regex = Regex::new(&format!("(?s)^{}$", quoted.join(".*")))
                .map_err(|error| Error::usage(error.to_string(), "use * for any characters"))?;
            return Ok(Self::Matching(Pattern { text: text.to_owned(), regex }));
        }
        let (from, to) = text.split_once('=').unwrap_or((text, text));
        Ok(Self::One { from: from.parse()?, to: to.parse()? })
    }
}

impl Selector {
    /// Returns true if this selector is a pattern or `all` and matches `ns`, even if `ns` is a collection of a server
    /// or of Imago.
    #[must_use]
    pub fn covers(&self, ns: &Namespace) -> bool {
        match self {
            Self::One { .. } => false,
            Self::Matching(pattern) => pattern.regex.is_match(&ns.to_string()),
            Self::All => true,
        }
    }

    /// Returns the full name that the source's collection `ns` has at the destination, or `None` if `ns` is not
    /// selected.
    #[must_use]
    pub fn select(&self, ns: &Namespace) -> Option<Namespace> {
        match self {
            Self::One { from, to } => (from == ns).then(|| to.clone()),
            Self::Matching(pattern) => {
                (pattern.regex.is_match(&ns.to_string()) && !is_servers_own(ns)).then(|| ns.clone())
            }
            Self::All => (!is_servers_own(ns)).then(|| ns.clone()),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One { from, to } if from == to => write!(f, "{from}"),
            Self::One { from, to } => write!(f, "{from}={to}"),
            Self::Matching(pattern) => f.write_str(&pattern.text),
            Self::All => f.write_str("all"),
        }
    }
}

/// Prefix of the names of all shadow collections, which a reshard fills and then renames.
pub const SHADOW_PREFIX: &str = "imago.shadow.";

/// Returns true if the collection `ns` belongs to a server or to Imago rather than to an application. That includes
/// shadow collections: a shadow is renamed to the name of another collection, or dropped.
#[must_use]
pub fn is_servers_own(ns: &Namespace) -> bool {
    is_servers_own_database(&ns.db)
        || ns.coll.starts_with("system.")
        || ns.coll.starts_with(SHADOW_PREFIX)
}

/// Returns true if the database `db` belongs to a server or to Imago rather than to an application.
#[must_use]
pub fn is_servers_own_database(db: &str) -> bool {
    matches!(db, "admin" | "config" | "local" | crate::STATE_DB)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(selector: &str, ns: &str) -> Option<String> {
        let selector: Selector = selector.parse().expect("a selector");
        selector.select(&ns.parse().expect("a namespace")).map(|ns| ns.to_string())
    }

    #[test]
    fn a_name_may_be_changed_on_the_way() {
        assert_eq!(select("a.b=c.d.e", "a.b").as_deref(), Some("c.d.e"));
        assert_eq!(select("a.b", "a.b").as_deref(), Some("a.b"));
        assert_eq!(select("a.b", "a.bc"), None);
    }

    #[test]
    fn a_star_matches_any_characters_and_nothing_else_is_special() {
        assert_eq!(select("shop.*", "shop.reviews.2026").as_deref(), Some("shop.reviews.2026"));
        assert_eq!(select("shop.*", "shop.two\nlines").as_deref(), Some("shop.two\nlines"));
        assert_eq!(select("shop.*", "shopping.x"), None);
        assert_eq!(select("*.re+views", "a.re+views").as_deref(), Some("a.re+views"));
        assert_eq!(select("*", "config.chunks"), None);
        assert_eq!(select("all", "imago.jobs"), None);
        assert_eq!(select("all", "a.system.views"), None);
        for pattern in ["all", "shop.*", "shop.imago.*"] {
            assert_eq!(select(pattern, "shop.imago.shadow.1m7ya6gyq-24np"), None, "{pattern}");
        }
        assert_eq!(select("all", "shop.imago.shadows").as_deref(), Some("shop.imago.shadows"));
    }

    #[test]
    fn what_names_no_collection_is_refused() {
        for bad in ["", "a", "a.", ".b", "a b.c", "a$.b", "a.$cmd"] {
            assert!(bad.parse::<Namespace>().is_err(), "{bad:?}");
        }
        assert!("a.*=b.*".parse::<Selector>().is_err());
    }
}
