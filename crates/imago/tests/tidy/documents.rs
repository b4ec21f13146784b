//! The documents that every release needs, and links in them, all of which have a target.

use crate::dependencies::members;
use crate::finding::{Finding, assert_clean};
use crate::tree::{Text, root, text, texts};

const EVERY_PROJECT_HAS: [&str; 5] =
    ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"];

fn missing(exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let absent = EVERY_PROJECT_HAS.into_iter().filter(|name| !exists(name));
    absent.map(|name| Finding::whole(name, "is missing")).collect()
}

/// A section for unreleased changes, or for the version that the manifest names.
fn changelog_behind(changelog: &Text, version: &str) -> Vec<Finding> {
    let current = format!("## [{version}]");
    let is_section = |l: &str| l.starts_with("## [Unreleased]") || l.starts_with(&current);
    if changelog.body.lines().any(is_section) {
        return Vec::new();
    }
    vec![Finding::whole(&changelog.path, format!("has no section [Unreleased] or [{version}]"))]
}

/// Links to files of this repository that are not there.
fn dead_links(page: &Text, exists: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let folder = page.path.rsplit_once('/').map_or(String::new(), |(dir, _)| format!("{dir}/"));
    let dead = |target: &str| {
        let file = target.split('#').next().unwrap_or(target);
        let elsewhere = target.contains("://") || target.starts_with("mailto:");
        !(elsewhere || file.is_empty() || exists(&format!("{folder}{file}")))
    };
    let mut found = Vec::new();
    for (index, line) in page.body.lines().enumerate() {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        let dead = targets.filter(|target| dead(target));
        found.extend(
            dead.map(|target| Finding::at(&page.path, index, format!("links to {target}"))),
        );
    }
    found
}

/// The anchor of a heading, as the pages are shown.
fn anchor(heading: &str) -> String {
    let kept =
        heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

/// Documents that the program names to its users, with the section: `docs/operations.md#privileges`.
fn dead_pointers(source: &Text, page: &dyn Fn(&str) -> Option<String>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, line) in source.body.lines().enumerate() {
        if line.contains("the README") || line.contains("the docs") {
            let what = "names no document: write docs/PAGE.md#section";
            found.push(Finding::at(&source.path, index, what));
        }
        for (at, _) in line.match_indices("docs/") {
            let is_path = |c: char| c.is_ascii_alphanumeric() || "/-_.#".contains(c);
            let pointer = line[at..].split(|c| !is_path(c)).next().unwrap_or_default();
            let pointer = pointer.trim_end_matches('.');
            let (path, section) = pointer.split_once('#').unwrap_or((pointer, ""));
            let leads = page(path).is_some_and(|body| {
                let headings = body.lines().filter(|line| line.starts_with('#'));
                let mut anchors = headings.map(|heading| anchor(heading.trim_start_matches('#')));
                section.is_empty() || anchors.any(|anchor| anchor == section)
            });
            if path.ends_with(".md") && !leads {
                found.push(Finding::at(&source.path, index, format!("points to {pointer}")));
            }
        }
    }
    found
}

#[test]
fn documents_that_the_program_names_are_there() {
    let page = |path: &str| text(path).map(|page| page.body.clone());
    let is_program = |t: &&Text| t.is_rust() && t.path.contains("/src/");
    let found = texts().iter().filter(is_program).flat_map(|source| dead_pointers(source, &page));
    assert_clean(found.collect(), "name a page and a section that exist.");
}

#[test]
fn a_dead_pointer_is_found() {
    let page = |path: &str| {
        (path == "docs/operations.md").then(|| "# Operating\n\n## What to do when\n".to_owned())
    };
    let found = |line: &str| dead_pointers(&Text::new("crates/a/src/b.rs", line), &page).len();
    assert_eq!(found("\"see docs/operations.md, or docs/operations.md#what-to-do-when.\""), 0);
    assert_eq!(found("\"(see the README, Privileges)\""), 1);
    assert_eq!(found("\"docs/lost.md\" and \"docs/operations.md#privileges\""), 2);
}

#[test]
fn the_documents_are_there() {
    assert_clean(missing(|name| root().join(name).is_file()), "write it.");
}

#[test]
fn the_licence_is_the_one_the_manifest_names() {
    let named = members().all(|p| p.license.as_deref() == Some("Apache-2.0"));
    assert!(named, "a crate's manifest names another licence: use license.workspace = true");
    let licence = std::fs::read_to_string(root().join("LICENSE")).expect("LICENSE can be read");
    assert!(
        licence.contains("Apache License") && licence.contains("Version 2.0"),
        "LICENSE is not the text of Apache-2.0, which the manifests name"
    );
}

#[test]
fn the_changelog_is_current() {
    let changelog = text("CHANGELOG.md").expect("CHANGELOG.md lies in the root");
    let version = env!("CARGO_PKG_VERSION");
    let remedy = "add a section `## [Unreleased]` above the last release.";
    assert_clean(changelog_behind(changelog, version), remedy);
}

#[test]
fn links_lead_somewhere() {
    let exists = |path: &str| root().join(path).exists();
    let pages = texts().iter().filter(|t| t.is_markdown());
    let found = pages.flat_map(|page| dead_links(page, &exists)).collect();
    assert_clean(found, "correct the link; it is relative to the page.");
}

#[test]
fn a_missing_document_is_found() {
    assert_eq!(missing(|name| name != "LICENSE"), [Finding::whole("LICENSE", "is missing")]);
}

#[test]
fn a_changelog_that_is_behind_is_found() {
    let behind = |body| changelog_behind(&Text::new("CHANGELOG.md", body), "0.2.0").len();
    assert_eq!(behind("## [0.1.0] - 2026-01-01\n"), 1);
    assert_eq!(behind("## [0.2.0] - 2026-01-01\n"), 0);
    assert_eq!(behind("## [Unreleased]\n\n## [0.1.0]\n"), 0);
}

#[test]
fn a_dead_link_is_found() {
    let exists = |path: &str| path == "docs/copy.md";
    let found = |path, body| dead_links(&Text::new(path, body), &exists).len();
    assert_eq!(found("docs/a.md", "see [a](copy.md#x) and [b](https://example.org/)\n"), 0);
    assert_eq!(found("docs/a.md", "see [a](#here) and [b](lost.md)\n"), 1);
    assert_eq!(found("README.md", "see [a](docs/copy.md) [b](copy.md)\n"), 1);
}
