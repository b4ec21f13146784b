//! The crates that each crate may use: the order of the table in ARCHITECTURE.md, from the top
//! down.
//!
//! The table is the only place where the order is written, so the page cannot fall behind the code.

use crate::dependencies::{Dependency, Package, members, package};
use crate::finding::{Finding, assert_clean};
use crate::tree::{Text, text, texts};
use crate::wording::contains_word;

const PAGE: &str = "ARCHITECTURE.md";

/// Dependencies by which a crate would come to know what its doc says it must not.
const MUST_NOT_USE: [(&str, &[&str]); 4] = [
    ("imago", &["mongodb", "bson"]),
    ("imago-job", &["mongodb", "bson", "clap", "indicatif"]),
    ("imago-workload", &["mongodb", "bson", "clap", "indicatif"]),
    ("imago-mongo", &["clap", "indicatif"]),
];

/// All that `plan` may use: it decides, and its caller acts. Random numbers come in as a
/// parameter of the `rand` traits. The others only calculate, and draw only from seeds that they are given.
const PLAN_MAY_USE: [&str; 6] = ["thiserror", "serde", "rand", "smartcore", "statrs", "stlrs"];

/// Names in code that would give `plan` a clock, a disk, a network, chance or waiting.
const PLAN_MUST_NOT_NAME: [&str; 11] = [
    "std::fs",
    "std::net",
    "std::io",
    "std::env",
    "std::process",
    "std::thread",
    "Instant",
    "SystemTime",
    "tokio",
    "async",
    "thread_rng",
];

/// The crates that the table names, the uppermost first; without the `imago-` of their packages.
fn order(page: &str) -> Vec<&str> {
    page.lines()
        .skip_while(|line| *line != "## Crates")
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name))
        .collect()
}

fn upward_arrows(order: &[&str], crates: &[Package]) -> Vec<Finding> {
    let rank = |package: &str| {
        let short = package.strip_prefix("imago-").unwrap_or(package);
        order.iter().position(|name| *name == short)
    };
    let mut found = Vec::new();
    for package in crates {
        let Some(own) = rank(&package.name) else {
            found.push(Finding::whole(&package.name, format!("is not in the table of {PAGE}")));
            continue;
        };
        let ours = package.dependencies.iter().filter(|d| d.name.starts_with("imago"));
        let upward = ours.filter(|d| rank(&d.name).is_none_or(|other| other <= own));
        found.extend(upward.map(|d| {
            Finding::whole(&package.name, format!("uses {}, which is not below it", d.name))
        }));
    }
    let named = |name: &&str| crates.iter().any(|p| p.name == format!("imago-{name}"));
    let missing = order.iter().filter(|name| **name != "imago" && !named(name));
    found.extend(missing.map(|name| Finding::whole(PAGE, format!("names no crate: {name}"))));
    found
}

fn ordinary(package: &Package) -> impl Iterator<Item = &Dependency> {
    package.dependencies.iter().filter(|d| d.kind.is_none())
}

fn forbidden_knowledge(package: &Package) -> Vec<Finding> {
    let forbidden = |name: &str| {
        let lists = MUST_NOT_USE.iter().filter(|(of, _)| *of == package.name);
        lists.flat_map(|(_, names)| names.iter()).any(|n| *n == name)
            || package.name == "imago-plan" && !PLAN_MAY_USE.contains(&name)
    };
    ordinary(package)
        .filter(|d| forbidden(&d.name))
        .map(|d| Finding::whole(&package.name, format!("uses {}", d.name)))
        .collect()
}

fn impure_plan(text: &Text) -> Vec<Finding> {
    if !text.path.starts_with("crates/plan/src/") {
        return Vec::new();
    }
    let code = text.body.lines().map(|line| line.split("//").next().unwrap_or(line));
    code.enumerate()
        .flat_map(|(index, line)| {
            let named = PLAN_MUST_NOT_NAME.into_iter().filter(|name| contains_word(line, name));
            named.map(move |name| Finding::at(&text.path, index, format!("names {name}")))
        })
        .collect()
}

#[test]
fn arrows_go_downwards() {
    let page = text(PAGE).expect("ARCHITECTURE.md lies in the root");
    let order = order(&page.body);
    assert!(!order.is_empty(), "{PAGE} has no table of crates under `## Crates`");
    let crates: Vec<_> = members().cloned().collect();
    let remedy = "turn the dependency round (a trait below, its implementation above), or change \
                  the table in ARCHITECTURE.md with the reason.";
    assert_clean(upward_arrows(&order, &crates), remedy);
}

#[test]
fn crates_do_not_use_what_they_must_not_know() {
    let remedy = "move the code to the crate that may know it (the table in ARCHITECTURE.md).";
    assert_clean(members().flat_map(forbidden_knowledge).collect(), remedy);
}

#[test]
fn plan_is_pure() {
    let remedy = "take the time, the sample or the random numbers as a parameter.";
    assert_clean(texts().iter().flat_map(impure_plan).collect(), remedy);
}

#[cfg(test)]
fn uses(name: &str, dependency: &str, kind: Option<&str>) -> Package {
    let kind = kind.map(str::to_owned);
    let dependencies = vec![Dependency { name: dependency.to_owned(), kind }];
    Package { dependencies, ..package(name, "0.1.0", "Apache-2.0") }
}

#[test]
fn an_upward_arrow_is_found() {
    let order = ["imago", "job", "plan"];
    let plan = || package("imago-plan", "0.1.0", "Apache-2.0");
    let found = |job: Package| upward_arrows(&order, &[job, plan()]).len();
    assert_eq!(found(uses("imago-job", "imago-plan", None)), 0);
    assert_eq!(found(uses("imago-job", "imago", None)), 1);
    assert_eq!(found(uses("imago-job", "imago", Some("dev"))), 1);
    assert_eq!(found(uses("imago-job", "imago-job", Some("dev"))), 1);
    assert_eq!(found(uses("imago-job", "imago-unknown", None)), 1);
}

#[test]
fn a_crate_and_the_table_name_each_other() {
    let crates = [package("imago-plan", "0.1.0", "Apache-2.0")];
    assert_eq!(upward_arrows(&["imago", "plan"], &crates), []);
    assert_eq!(upward_arrows(&["imago"], &crates).len(), 1);
    assert_eq!(upward_arrows(&["imago", "job", "plan"], &crates).len(), 1);
}

#[test]
fn the_table_is_read_from_the_page() {
    let page = "# A\n\n| `x` | no |\n\n## Crates\n\n| crate | what |\n|---|---|\n| `imago` | a |\n\
                | `plan` | b |\n\n## Next\n\n| `y` | no |\n";
    assert_eq!(order(page), ["imago", "plan"]);
}

#[test]
fn forbidden_knowledge_is_found() {
    let found = |name, dependency, kind| forbidden_knowledge(&uses(name, dependency, kind)).len();
    assert_eq!(found("imago-workload", "mongodb", None), 1);
    assert_eq!(found("imago-plan", "tokio", None), 1);
    assert_eq!(found("imago-plan", "proptest", Some("dev")), 0);
    assert_eq!(found("imago-mongo", "mongodb", None), 0);
}

#[test]
fn an_impure_plan_is_found() {
    let found = |path, body| impure_plan(&Text::new(path, body)).len();
    assert_eq!(found("crates/plan/src/a.rs", "use std::time::{Duration, Instant};\n"), 1);
    assert_eq!(found("crates/plan/src/a.rs", "pub async fn f() {}\n"), 1);
    assert_eq!(found("crates/plan/src/a.rs", "// no Instant here\nlet instantly = 1;\n"), 0);
    assert_eq!(found("crates/job/src/a.rs", "use std::time::Instant;\n"), 0);
}
