//! The dependency graph, as cargo resolved it, and the rule that each crate is in it once.
//!
//! Advisories are not checked here: their data base needs a network, and a test must not.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::OnceLock;

use serde::Deserialize;

use crate::finding::{Exception, Finding, assert_clean, excuse};
use crate::tree::root;

/// The platform that the policy is checked for: the one on which the tests run their servers.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// Crates that are in the build in more than one incompatible version, and the crates that keep the
/// older.
const TWICE: &[Exception] = &[
    ("base64", "0.22 by bson, mongodb and Imago, 0.23 by ureq"),
    ("block-buffer", "follows digest"),
    ("cpufeatures", "follows digest"),
    ("crypto-common", "follows digest"),
    ("digest", "0.10 by rsasl, 0.11 by Imago and mongodb"),
    ("embedded-io", "0.4 and 0.6, of which postcard uses neither: both are traits alone"),
    ("getrandom", "0.2 by ring, 0.3 by rand 0.9 (bson, mongodb), 0.4 by rand 0.10"),
    (
        "hashbrown",
        "0.14 by dashmap (stateright and scylla), 0.16 by metrics-util, 0.17 by indexmap",
    ),
    ("hmac", "follows digest"),
    ("pbkdf2", "follows digest"),
    (
        "rand",
        "0.8 by rsasl and shuttle, 0.9 by bson, mongodb and scylla, 0.10 by Imago and the driver's DNS resolver",
    ),
    ("rand_chacha", "follows rand"),
    ("rand_core", "follows rand"),
    ("rand_pcg", "follows rand"),
    ("sha2", "follows digest"),
    ("syn", "2 and 3, both at build time only: derive macros are moving from one to the other"),
    ("unicode-width", "0.1 by miette, 0.2 by indicatif and textwrap"),
];

/// A package of the graph, as far as the rules look at it.
#[derive(Debug, Clone, Deserialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// An SPDX expression.
    pub license: Option<String>,
    /// `None` for a crate of this workspace.
    pub source: Option<String>,
    pub dependencies: Vec<Dependency>,
}

/// A dependency as a manifest asks for it.
#[derive(Debug, Clone, Deserialize)]
pub struct Dependency {
    pub name: String,
    /// `None` for an ordinary dependency, else `dev` or `build`.
    pub kind: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

/// Every package that the build, its tests and its benchmarks may contain.
pub fn packages() -> &'static [Package] {
    static PACKAGES: OnceLock<Vec<Package>> = OnceLock::new();
    PACKAGES.get_or_init(|| {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version", "1", "--offline", "--locked"])
            .args(["--filter-platform", PLATFORM])
            .current_dir(root())
            .output()
            .expect("cargo, which built this test, can be started");
        assert!(
            output.status.success(),
            "cargo cannot read the dependency graph; `make setup` fetches what is missing.\n{}",
            String::from_utf8_lossy(&output.stderr),
        );
        let read: Metadata =
            serde_json::from_slice(&output.stdout).expect("cargo metadata writes format 1");
        read.packages
    })
}

/// The crates of this workspace.
pub fn members() -> impl Iterator<Item = &'static Package> {
    packages().iter().filter(|package| package.source.is_none())
}

/// The part that two versions share when cargo treats them as compatible: up to and including the
/// first number that is not zero.
fn compatible_part(version: &str) -> String {
    let core = version.split(['-', '+']).next().unwrap_or(version);
    let numbers: Vec<_> = core.split('.').collect();
    let end = numbers.iter().position(|n| *n != "0").unwrap_or(numbers.len() - 1);
    numbers[..=end].join(".")
}

fn twice(packages: &[Package]) -> Vec<Finding> {
    let mut versions: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().insert(compatible_part(&package.version));
    }
    versions.retain(|_, found| found.len() > 1);
    let list = |found: &BTreeSet<String>| found.iter().cloned().collect::<Vec<_>>().join(", ");
    versions
        .iter()
        .map(|(name, found)| Finding::whole(name, format!("is built as {}", list(found))))
        .collect()
}

#[test]
fn each_dependency_is_built_once() {
    let remedy = "align the versions (`cargo tree --duplicates` shows who asks), or add the crate \
                  to TWICE in tests/tidy/dependencies.rs with who keeps the older one.";
    assert_clean(excuse(twice(packages()), TWICE), remedy);
}

/// A package for the rules' own tests.
#[cfg(test)]
pub fn package(name: &str, version: &str, license: &str) -> Package {
    Package {
        name: name.to_owned(),
        version: version.to_owned(),
        license: Some(license.to_owned()),
        source: Some("registry".to_owned()),
        dependencies: Vec::new(),
    }
}

#[test]
fn a_crate_in_two_incompatible_versions_is_found() {
    let built = |versions: [&str; 2]| twice(&versions.map(|v| package("syn", v, "MIT"))).len();
    assert_eq!(built(["1.0.9", "2.0.0"]), 1);
    assert_eq!(built(["0.1.9", "0.2.0"]), 1);
    assert_eq!(built(["0.0.1", "0.0.2"]), 1);
    assert_eq!(built(["1.0.9", "1.4.0"]), 0);
    assert_eq!(built(["0.3.1", "0.3.2-rc.1+build"]), 0);
}
