//! Rules about files as a whole: length, names, opening words.

use crate::finding::{Exception, Finding, assert_clean, excuse};
use crate::tree::{Text, texts};

const LINES_MAX: usize = 500;

/// Files that are better long than split: none so far.
const LONG_FILES: &[Exception] = &[];

/// Names that say nothing of what is inside, so that everything ends up inside.
const EMPTY_NAMES: [&str; 7] = ["utils", "util", "helpers", "helper", "manager", "common", "misc"];

fn too_long(text: &Text) -> Vec<Finding> {
    let lines = text.body.lines().count();
    if !text.is_rust() || lines <= LINES_MAX {
        return Vec::new();
    }
    vec![Finding::whole(&text.path, format!("{lines} lines, more than {LINES_MAX}"))]
}

/// Names of files, folders and of modules declared in the text.
fn empty_names(text: &Text) -> Vec<Finding> {
    let parts = text.path.split('/').map(|part| part.split('.').next().unwrap_or(part));
    let in_path = parts
        .filter(|part| EMPTY_NAMES.contains(part))
        .map(|part| Finding::whole(&text.path, format!("is named {part:?}")));
    let declared = text.body.lines().enumerate().filter_map(|(index, line)| {
        let name = declared_module(line).filter(|_| text.is_rust())?;
        EMPTY_NAMES
            .contains(&name)
            .then(|| Finding::at(&text.path, index, format!("declares a module {name:?}")))
    });
    in_path.chain(declared).collect()
}

fn declared_module(line: &str) -> Option<&str> {
    let words = line.trim_start();
    let words = words.strip_prefix("pub ").unwrap_or(words);
    let words = words.strip_prefix("pub(crate) ").unwrap_or(words);
    let name = words.strip_prefix("mod ")?;
    Some(name.trim_end_matches([';', '{', ' ', '}']))
}

fn no_module_doc(text: &Text) -> Vec<Finding> {
    if !text.is_rust() || text.body.starts_with("//!") {
        return Vec::new();
    }
    vec![Finding::whole(&text.path, "does not open with a module doc (//!)")]
}

fn is_crate_root(text: &Text) -> bool {
    let parts: Vec<_> = text.path.split('/').collect();
    matches!(parts[..], ["crates", _, "src", "lib.rs" | "main.rs"])
}

/// The opening doc of a file as one line, because the words may be broken over two.
fn opening_doc(body: &str) -> String {
    let lines = body.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

fn no_prohibition(text: &Text) -> Vec<Finding> {
    if !is_crate_root(text) || opening_doc(&text.body).contains("must not know") {
        return Vec::new();
    }
    vec![Finding::whole(&text.path, "does not say what the crate must not know")]
}

fn no_shared_lints(text: &Text) -> Vec<Finding> {
    let parts: Vec<_> = text.path.split('/').collect();
    let manifest = matches!(parts[..], ["crates", _, "Cargo.toml"]);
    if !manifest || text.body.contains("[lints]\nworkspace = true") {
        return Vec::new();
    }
    vec![Finding::whole(&text.path, "does not take the workspace's lints")]
}

fn everywhere(rule: fn(&Text) -> Vec<Finding>) -> Vec<Finding> {
    texts().iter().flat_map(rule).collect()
}

#[test]
fn rust_files_are_short() {
    let remedy = "split the file by concept, or add it to LONG_FILES in tests/tidy/files.rs with \
                  a reason.";
    assert_clean(excuse(everywhere(too_long), LONG_FILES), remedy);
}

#[test]
fn names_say_what_is_inside() {
    let remedy = "name the file after its concept (shared test code too: tests/servers, not \
                  tests/common).";
    assert_clean(everywhere(empty_names), remedy);
}

#[test]
fn rust_files_open_with_their_idea() {
    assert_clean(everywhere(no_module_doc), "open with //! and say the idea and the invariant.");
}

#[test]
fn crates_say_what_they_must_not_know() {
    let remedy = "add `What this crate must not know: …` to the doc that opens the crate.";
    assert_clean(everywhere(no_prohibition), remedy);
}

#[test]
fn crates_take_the_shared_lints() {
    assert_clean(everywhere(no_shared_lints), "add `[lints]` with `workspace = true`.");
}

#[test]
fn a_long_file_is_found() {
    let lines = |n: usize| Text::new("crates/plan/src/flow.rs", "//! x\n".repeat(n));
    assert_eq!(too_long(&lines(LINES_MAX)), []);
    assert_eq!(too_long(&lines(LINES_MAX + 1)).len(), 1);
}

#[test]
fn an_empty_name_is_found() {
    let found = |path, body| empty_names(&Text::new(path, body)).len();
    assert_eq!(found("crates/plan/src/utils.rs", ""), 1);
    assert_eq!(found("crates/plan/tests/common/mod.rs", ""), 1);
    assert_eq!(found("crates/plan/src/lib.rs", "pub mod helpers;\n"), 1);
    assert_eq!(found("crates/plan/src/lib.rs", "pub(crate) mod misc {\n"), 1);
    assert_eq!(found("crates/plan/src/commonality.rs", "mod manager_of_none;\n"), 0);
}

#[test]
fn a_file_without_an_idea_is_found() {
    assert_eq!(no_module_doc(&Text::new("crates/plan/src/flow.rs", "use std::fmt;\n")).len(), 1);
    assert_eq!(no_module_doc(&Text::new("crates/plan/src/flow.rs", "//! Flows.\n")), []);
}

#[test]
fn a_crate_that_may_know_everything_is_found() {
    let root = |body| no_prohibition(&Text::new("crates/plan/src/lib.rs", body)).len();
    assert_eq!(root("//! Decisions.\n"), 1);
    assert_eq!(root("//! Decisions.\nfn f() {} // must not know\n"), 1);
    assert_eq!(root("//! Decisions. It must not\n//! know clocks.\n"), 0);
}

#[test]
fn a_crate_without_the_shared_lints_is_found() {
    let manifest = |body| no_shared_lints(&Text::new("crates/plan/Cargo.toml", body)).len();
    assert_eq!(manifest("[package]\n"), 1);
    assert_eq!(manifest("[lints]\nworkspace = true\n"), 0);
}
