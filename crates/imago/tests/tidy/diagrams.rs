//! Diagrams in the documents: each participant is a module that exists.

use crate::finding::{Finding, assert_clean};
use crate::tree::{Text, text, texts};

/// True if `path`, such as `mongo::copy::preflight`, is a module of a crate.
fn is_module(path: &str, exists: &dyn Fn(&str) -> bool) -> bool {
    let Some((crate_name, module)) = path.split_once("::") else { return false };
    let file = format!("crates/{crate_name}/src/{}", module.replace("::", "/"));
    exists(&format!("{file}.rs")) || exists(&format!("{file}/mod.rs"))
}

fn unknown_participants(page: &Text, exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    if !page.is_markdown() {
        return Vec::new();
    }
    let lines = page.body.lines().enumerate();
    let participants = lines.filter_map(|(index, line)| {
        let (_, path) = line.trim().strip_prefix("participant ")?.split_once(" as ")?;
        Some((index, path))
    });
    let unknown = participants.filter(|(_, path)| !is_module(path, exists));
    unknown
        .map(|(index, path)| Finding::at(&page.path, index, format!("{path} is no module")))
        .collect()
}

#[test]
fn participants_of_diagrams_are_modules() {
    let exists = |path: &str| text(path).is_some();
    let found = texts().iter().flat_map(|page| unknown_participants(page, &exists)).collect();
    assert_clean(found, "name a module as crate::module, from its place below crates/CRATE/src.");
}

#[test]
fn a_participant_that_is_no_module_is_found() {
    let exists = |path: &str| path == "crates/mongo/src/copy.rs";
    let page = |path: &str| Text::new("a.md", format!("    participant x as {path}\n"));
    let found = |path: &str| unknown_participants(&page(path), &exists).len();
    assert_eq!(found("mongo::copy"), 0);
    assert_eq!(found("mongo::moved"), 1);
    assert_eq!(found("copy"), 1);
}
