//! The licences that the build may contain, and reading of SPDX expressions.

use crate::dependencies::{Package, package, packages};
use crate::finding::{Exception, Finding, assert_clean, excuse};

/// Licences under which a dependency may be linked into an Apache-2.0 program without a word.
const ALLOWED: [&str; 9] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Zlib",
    "CDLA-Permissive-2.0", // the list of certificate authorities: data, not code
];

/// Dependencies under another licence, and why that is all right.
const OTHER_LICENCES: &[Exception] = &[
    (
        "tiny-keccak",
        "CC0-1.0, which waives every right; runs at build time only, for constant hash seeds",
    ),
    ("xxhash-rust", "BSL-1.0, which asks nothing of who hands on a program; used by redis"),
];

/// True if an allowed licence fulfils the expression. `Err` names the part that cannot be read.
fn fulfilled(expression: &str) -> Result<bool, String> {
    // Before SPDX expressions, crates.io took `/` to mean a choice.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let tokens: Vec<_> = spaced.split_whitespace().collect();
    let mut reader = Reader { tokens: &tokens };
    let value = reader.choice()?;
    match reader.tokens.first() {
        None => Ok(value),
        Some(token) => Err(format!("{token:?} follows where the expression should end")),
    }
}

/// Recursive descent over the rest of the expression. `WITH` binds tightest, then `AND`, then `OR`.
struct Reader<'a> {
    tokens: &'a [&'a str],
}

impl<'a> Reader<'a> {
    fn take(&mut self) -> Option<&'a str> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    fn take_if(&mut self, word: &str) -> bool {
        let found = self.tokens.first() == Some(&word);
        if found {
            self.take();
        }
        found
    }

    fn choice(&mut self) -> Result<bool, String> {
        let mut value = self.conjunction()?;
        while self.take_if("OR") {
            value |= self.conjunction()?;
        }
        Ok(value)
    }

    fn conjunction(&mut self) -> Result<bool, String> {
        let mut value = self.licence()?;
        while self.take_if("AND") {
            value &= self.licence()?;
        }
        Ok(value)
    }

    fn licence(&mut self) -> Result<bool, String> {
        match self.take() {
            Some("(") => {
                let value = self.choice()?;
                if self.take_if(")") { Ok(value) } else { Err("a `)` is missing".to_owned()) }
            }
            Some(word @ (")" | "AND" | "OR" | "WITH")) => {
                Err(format!("{word:?} stands where a licence should"))
            }
            Some(name) => {
                // An exception only ever adds permissions.
                if self.take_if("WITH") && self.take().is_none() {
                    return Err("the exception after WITH is missing".to_owned());
                }
                Ok(ALLOWED.contains(&name))
            }
            None => Err("a licence is missing".to_owned()),
        }
    }
}

fn not_allowed(packages: &[Package]) -> Vec<Finding> {
    let check = |package: &Package| {
        let Some(expression) = &package.license else {
            return Some("names no licence".to_owned());
        };
        match fulfilled(expression) {
            Ok(true) => None,
            Ok(false) => Some(format!("is under {expression}, which is not on the list")),
            Err(why) => Some(format!("has a licence that cannot be read, {expression:?}: {why}")),
        }
    };
    packages.iter().filter_map(|p| Some(Finding::whole(&p.name, check(p)?))).collect()
}

#[test]
fn dependencies_are_under_allowed_licences() {
    let remedy = "use another crate, or add it to OTHER_LICENCES in tests/tidy/licence.rs with \
                  the reason why its licence fits an Apache-2.0 program.";
    assert_clean(excuse(not_allowed(packages()), OTHER_LICENCES), remedy);
}

#[test]
fn a_licence_that_is_not_allowed_is_found() {
    let found = |licence| not_allowed(&[package("x", "1.0.0", licence)]).len();
    assert_eq!(found("GPL-3.0-only"), 1);
    assert_eq!(found("MIT AND GPL-3.0-only"), 1);
    assert_eq!(found("MIT AND"), 1);
    assert_eq!(found("MIT OR GPL-3.0-only"), 0);
}

#[test]
fn a_dependency_without_a_licence_is_found() {
    let unlicensed = Package { license: None, ..package("x", "1.0.0", "") };
    assert_eq!(not_allowed(&[unlicensed]).len(), 1);
}

#[test]
fn expressions_bind_as_spdx_says() {
    let cases = [
        ("MIT/Apache-2.0", true),
        ("GPL-2.0 / MIT", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("GPL-2.0 WITH Classpath-exception-2.0", false),
        ("MIT OR GPL-2.0 AND GPL-3.0", true),
        ("(MIT OR GPL-2.0) AND GPL-3.0", false),
        ("(MIT OR GPL-2.0) AND Unicode-3.0", true),
    ];
    for (expression, expected) in cases {
        assert_eq!(fulfilled(expression), Ok(expected), "{expression}");
    }
}

#[test]
fn a_broken_expression_is_an_error() {
    for broken in ["", "MIT OR", "(MIT", "MIT)", "MIT Zlib", "AND MIT", "MIT WITH"] {
        assert!(fulfilled(broken).is_err(), "{broken:?}");
    }
}
