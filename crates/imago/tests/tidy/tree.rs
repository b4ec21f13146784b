//! The repository as a list of texts.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// One file that a person wrote. Paths are relative to the repository's root, with `/`.
#[derive(Debug, Clone)]
pub struct Text {
    pub path: String,
    pub body: String,
}

impl Text {
    pub fn new(path: &str, body: impl Into<String>) -> Self {
        Self { path: path.to_owned(), body: body.into() }
    }

    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub fn is_markdown(&self) -> bool {
        self.path.ends_with(".md")
    }
}

/// The repository's root.
pub fn root() -> PathBuf {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    crate_dir.ancestors().nth(2).expect("this crate lies in crates/imago").to_owned()
}

/// Every text of the repository, read once.
pub fn texts() -> &'static [Text] {
    static TEXTS: OnceLock<Vec<Text>> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let mut found = Vec::new();
        walk(&root(), "", &mut found);
        found.sort_by(|a, b| a.path.cmp(&b.path));
        assert!(found.iter().any(|t| t.path == "Cargo.toml"), "the tree was read from its root");
        found
    })
}

/// The text at `path`; a missing one is a finding of the rule that asks for it.
pub fn text(path: &str) -> Option<&'static Text> {
    texts().iter().find(|t| t.path == path)
}

/// Not walked: what builds and tools write, and what .gitignore names.
const NOT_OURS: [&str; 3] = [".git", "target", "tmp"];

const WRITTEN_BY_HAND: [&str; 9] =
    [".rs", ".md", ".toml", ".sh", ".yml", ".txt", ".py", "Makefile", ".editorconfig"];

fn walk(dir: &Path, prefix: &str, found: &mut Vec<Text>) {
    let entries = fs::read_dir(dir).unwrap_or_else(|e| panic!("cannot list {prefix:?}: {e}"));
    for entry in entries {
        let entry = entry.unwrap_or_else(|e| panic!("cannot list {prefix:?}: {e}"));
        let name = entry.file_name().into_string().expect("file names are UTF-8");
        if NOT_OURS.contains(&name.as_str()) {
            continue;
        }
        let path = format!("{prefix}{name}");
        let kind = entry.file_type().unwrap_or_else(|e| panic!("cannot read {path}: {e}"));
        if kind.is_dir() {
            walk(&entry.path(), &format!("{path}/"), found);
        } else if path == ".ci/run" || WRITTEN_BY_HAND.iter().any(|end| name.ends_with(end)) {
            let body = fs::read_to_string(entry.path())
                .unwrap_or_else(|e| panic!("cannot read {path}: {e}"));
            found.push(Text { path, body });
        }
    }
}
