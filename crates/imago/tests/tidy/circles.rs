//! No circle between the files of a crate: what a file uses is written in files that do not use it in turn.
//!
//! A file uses each file that a path of its code leads to, by `crate`, `super`, `self` or the name of a module that it
//! declares. A file may use the files that enclose it, as a child module uses its parent's types: those edges do not
//! count. Tests are left out: they may use what they like.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::{Finding, assert_clean};
use crate::tree::{Text, texts};

/// The path of a module in its crate, from the root; empty for the root itself.
type Module = Vec<String>;

/// Returns the crate and the module that a file holds, or `None` for a file that holds tests, or none of a crate.
fn module_of(text: &Text) -> Option<(&str, Module)> {
    let (crate_name, path) = text.path.strip_prefix("crates/")?.split_once("/src/")?;
    let mut module: Module = path.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if module.iter().any(|part| part == "tests") {
        return None;
    }
    if module.len() == 1 && matches!(&*module[0], "lib" | "main") {
        module.clear();
    }
    Some((crate_name, module))
}

/// Returns a file's code without comments, texts and the tests at its end.
fn code_of(body: &str) -> String {
    let lines = body.lines().take_while(|line| line.trim() != "mod tests {");
    let mut code = String::new();
    for line in lines {
        let mut is_text = false;
        let mut before = ' ';
        for (at, c) in line.char_indices() {
            if !is_text && line[at..].starts_with("//") {
                break;
            }
            // Of characters, only the quotation mark itself looks like the start of a text.
            if c == '"' && before != '\\' && before != '\'' {
                is_text = !is_text;
            } else if !is_text {
                code.push(c);
            }
            before = if before == '\\' { ' ' } else { c };
        }
        code.push('\n');
    }
    code
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Reads the path at the start of `code`, with the branches of a `use`, and adds each whole path to `found`. Returns
/// the code after it.
fn read_path<'c>(code: &'c str, prefix: &[String], found: &mut Vec<Module>) -> &'c str {
    let end = code.find(|c| !is_word(c)).unwrap_or(code.len());
    let mut path = prefix.to_vec();
    if end > 0 {
        path.push(code[..end].to_owned());
    }
    let rest = &code[end..];
    let Some(after) = rest.strip_prefix("::") else {
        found.push(path);
        return rest;
    };
    if after.starts_with(is_word) {
        return read_path(after, &path, found);
    }
    let Some(mut branches) = after.strip_prefix('{') else {
        found.push(path);
        return after;
    };
    loop {
        branches = branches.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        if branches.is_empty() || branches.starts_with('}') {
            return branches.strip_prefix('}').unwrap_or(branches);
        }
        branches = read_path(branches, &path, found);
        // A new name (`as other`), or a star.
        branches = branches.trim_start_matches(|c| c != ',' && c != '}');
    }
}

/// Returns the paths in a file's code that lead to modules of its crate.
fn paths(code: &str) -> Vec<Module> {
    let declares = |line: &str| {
        let name = line.trim().strip_suffix(';')?;
        let (before, name) = name.rsplit_once("mod ")?;
        (before.is_empty() || before.starts_with("pub")).then(|| name.to_owned())
    };
    let declared: BTreeSet<String> = code.lines().filter_map(declares).collect();
    let (mut found, mut rest, mut before) = (Vec::new(), code, ' ');
    while let Some(c) = rest.chars().next() {
        let word = &rest[..rest.find(|c| !is_word(c)).unwrap_or(rest.len())];
        let is_start = !word.is_empty() && !is_word(before) && before != ':';
        if is_start && (matches!(word, "crate" | "super" | "self") || declared.contains(word)) {
            let start = if declared.contains(word) { vec!["self".to_owned()] } else { Vec::new() };
            rest = read_path(rest, &start, &mut found);
            before = ' ';
        } else {
            let step = if word.is_empty() { c.len_utf8() } else { word.len() };
            before = rest[..step].chars().next_back().unwrap_or(' ');
            rest = &rest[step..];
        }
    }
    found
}

/// Returns the module that a path in `own` leads to, among those of the crate.
fn target(path: &[String], own: &Module, all: &BTreeSet<&Module>) -> Module {
    let mut at = own.clone();
    let mut rest = path;
    while let Some((first, after)) = rest.split_first() {
        match &**first {
            "crate" => at.clear(),
            "super" => _ = at.pop(),
            "self" => {}
            name => {
                let mut below = at.clone();
                below.push(name.to_owned());
                if !all.contains(&below) {
                    break;
                }
                at = below;
            }
        }
        rest = after;
    }
    at
}

/// Returns one finding for each crate whose files form circles, with the files in them.
fn circles(all: &[Text]) -> Vec<Finding> {
    let mut crates: BTreeMap<&str, BTreeMap<Module, &Text>> = BTreeMap::new();
    for text in all {
        if let Some((name, module)) = module_of(text) {
            crates.entry(name).or_default().insert(module, text);
        }
    }
    let found = crates.into_iter().filter_map(|(name, files)| {
        let all: BTreeSet<&Module> = files.keys().collect();
        let used = |own: &Module, text: &Text| -> BTreeSet<Module> {
            let paths = paths(&code_of(&text.body)).into_iter();
            let used = paths.map(|path| target(&path, own, &all));
            used.filter(|used| !own.starts_with(used)).collect()
        };
        let mut graph: BTreeMap<&Module, BTreeSet<Module>> =
            files.iter().map(|(own, text)| (own, used(own, text))).collect();
        // A file that uses none of those that remain, or that none of them uses, is in no circle.
        loop {
            let before = graph.len();
            let left: BTreeSet<Module> = graph.keys().map(|file| (*file).clone()).collect();
            let wanted: BTreeSet<Module> = graph.values().flatten().cloned().collect();
            graph.retain(|own, used| {
                wanted.contains(*own) && used.iter().any(|used| left.contains(used))
            });
            if graph.len() == before {
                break;
            }
        }
        let names: Vec<String> = graph.keys().map(|file| file.join("::")).collect();
        let what = || format!("files use each other in a circle: {}", names.join(", "));
        (!names.is_empty()).then(|| Finding::whole(name, what()))
    });
    found.collect()
}

#[test]
fn files_form_no_circle() {
    let remedy = "move what both files need into one that uses neither, or hand it in from above.";
    assert_clean(circles(texts()), remedy);
}

#[test]
fn a_circle_is_found() {
    let text = |path: &str, body: &str| Text::new(&format!("crates/job/src/{path}.rs"), body);
    let found = |files: &[Text]| circles(files).len();
    let lib = text("lib", "mod journal;\nmod record;\n");
    let record = |body: &str| text("record", body);
    let journal = |body: &str| text("journal", body);
    let uses_record = "use crate::record::{Record, State};\n";
    let by_super = "use super::{\n    error::Error,\n    journal::Request as Asked,\n};\n";
    assert_eq!(found(&[lib.clone(), record(by_super), journal(uses_record)]), 1);
    let inline = "fn f() { super::journal::open(\"a // text\"); }\n";
    assert_eq!(found(&[lib.clone(), record(inline), journal(uses_record)]), 1);
    for harmless in [
        "use super::error::Error;\n",
        "// super::journal has the rest\n",
        "fn f() { g(\"super::journal::Request\"); }\n",
        "#[cfg(test)]\nmod tests {\n    use crate::journal::Journal;\n}\n",
    ] {
        assert_eq!(found(&[lib.clone(), record(harmless), journal(uses_record)]), 0, "{harmless}");
    }
}

#[test]
fn a_child_uses_what_encloses_it() {
    let text = |path: &str, body: &str| Text::new(&format!("crates/job/src/{path}.rs"), body);
    let parent = text("run", "mod child;\nmod other;\nfn f() { child::g() }\n");
    let child = text("run/child", "use super::Run;\nuse super::other::One;\n");
    let other = |body: &str| text("run/other", body);
    assert_eq!(circles(&[parent.clone(), child.clone(), other("use super::Run;\n")]), []);
    // Beside each other they form a circle, also through the file that encloses another.
    assert_eq!(circles(&[parent.clone(), child.clone(), other("use super::child::g;\n")]).len(), 1);
    let outside = text("state", "use crate::run::Run;\n");
    assert_eq!(circles(&[parent, outside, child, other("use crate::state::State;\n")]).len(), 1);
}
