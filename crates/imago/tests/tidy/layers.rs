//! Layers inside the crates: in the crates whose folders are layers, imports point downwards only.
//!
//! An import is a path that begins with `crate::`. Tests are not looked at: they may import what they like.

use crate::finding::{Finding, assert_clean};
use crate::tree::{Text, texts};

/// The layers of a crate, the uppermost first. Modules that are not named stand below all of them.
const LAYERS: [(&str, &[&str]); 2] = [
    ("mongo", &["reshard", "copy", "verify", "replicate", "state", "server", "bson"]),
    (
        "store",
        &[
            "admin",
            "adapt",
            "client",
            "engine",
            "checkpoint",
            "sequencer",
            "kafka",
            "log",
            "router",
            "site",
            "subscription",
            "resp",
            "design",
            "transaction",
        ],
    ),
];

/// The crate, its top module, and the modules that it imports, each with a line.
struct Imports<'t> {
    path: &'t str,
    crate_name: &'t str,
    module: &'t str,
    of: Vec<(usize, String)>,
}

fn imports(text: &Text) -> Option<Imports<'_>> {
    let (crate_name, path) = text.path.strip_prefix("crates/")?.split_once("/src/")?;
    let module = path.strip_suffix(".rs")?.split('/').next()?;
    let is_test = path.split('/').any(|part| part == "tests" || part == "tests.rs");
    if is_test || matches!(module, "lib" | "main") {
        return None;
    }
    let mut of = Vec::new();
    let code = text.body.lines().take_while(|line| line.trim() != "mod tests {");
    for (index, line) in code.enumerate() {
        let line = line.split("//").next().unwrap_or(line);
        for (start, prefix) in line.match_indices("crate::") {
            let name: String = line[start + prefix.len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            let is_module = name.starts_with(|c: char| c.is_ascii_lowercase());
            let is_own = line[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if is_module && !is_own && name != module {
                of.push((index, name));
            }
        }
    }
    Some(Imports { path: &text.path, crate_name, module, of })
}

fn upward(text: &Text) -> Vec<Finding> {
    let Some(imports) = imports(text) else { return Vec::new() };
    let layers = LAYERS.iter().find(|(of, _)| *of == imports.crate_name);
    let Some((_, layers)) = layers else { return Vec::new() };
    let rank =
        |module: &str| layers.iter().position(|layer| *layer == module).unwrap_or(layers.len());
    let own = rank(imports.module);
    let up = imports.of.iter().filter(|(_, to)| rank(to) < own);
    up.map(|(index, to)| {
        Finding::at(
            imports.path,
            *index,
            format!("{} is below {to}, and imports it", imports.module),
        )
    })
    .collect()
}

#[test]
fn imports_point_downwards() {
    let remedy = "move what both need down, or hand it in from above.";
    assert_clean(texts().iter().flat_map(upward).collect(), remedy);
}

#[test]
fn an_upward_import_is_found() {
    let found = |path, body: &str| upward(&Text::new(path, body)).len();
    let up = "use crate::copy::Clusters;\n";
    assert_eq!(found("crates/mongo/src/replicate/monitor.rs", up), 1);
    assert_eq!(found("crates/mongo/src/reshard.rs", up), 0);
    assert_eq!(found("crates/mongo/src/replicate/tests.rs", up), 0, "tests may");
    assert_eq!(found("crates/mongo/src/replicate.rs", "// crate::copy knows\n"), 0);
    assert_eq!(found("crates/mongo/src/error.rs", "use crate::bson::order::Id;\n"), 1);
}
