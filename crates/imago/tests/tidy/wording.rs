//! Rules about lines: nothing unfinished, no skipped test, no path of one machine, clean blanks.

use crate::finding::{Finding, assert_clean};
use crate::tree::{Text, texts};

// The needles are put together from halves, so that this file does not find itself.
const UNFINISHED_WORDS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];
const UNFINISHED_MACROS: [&str; 3] =
    [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("dbg", "!(")];
const SKIPPED_TEST: &str = concat!("#[", "ignore");
const SKIPPED_WORD: &str = concat!("\"skip", "ped: ");
const SLEEP_CALL: &str = concat!("sl", "eep(");
const WAITING_CRATES: [&str; 4] = ["imago", "mongo", "store", "testbed"];
const HOMES: [&str; 3] = [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Us", "ers/")];

/// True if `line` contains `word` with no letter, digit or underscore on either side.
pub fn contains_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(start, _)| {
        let before = line[..start].chars().next_back();
        let after = line[start + word.len()..].chars().next();
        !before.is_some_and(part_of_word) && !after.is_some_and(part_of_word)
    })
}

fn lines_that(text: &Text, breaks: impl Fn(&str) -> Option<String>) -> Vec<Finding> {
    let lines = text.body.lines().enumerate();
    lines.filter_map(|(i, line)| Some(Finding::at(&text.path, i, breaks(line)?))).collect()
}

fn unfinished(text: &Text) -> Vec<Finding> {
    lines_that(text, |line| {
        let word = UNFINISHED_WORDS.into_iter().find(|word| contains_word(line, word));
        let call = UNFINISHED_MACROS.into_iter().find(|call| line.contains(call));
        word.or(call).map(|found| format!("is marked unfinished by {found:?}"))
    })
}

/// Tests that no command runs, and tests that end before they test: what a test needs is asked for by `require`.
fn skipped_tests(text: &Text) -> Vec<Finding> {
    let is_ignored =
        |line: &str| line.starts_with(SKIPPED_TEST) && !line.contains("make test-long");
    let skips = |line: &str| is_ignored(line) || line.contains(SKIPPED_WORD);
    let skips = |line: &str| text.is_rust() && skips(line.trim_start());
    lines_that(text, |line| skips(line).then(|| "skips a test".to_owned()))
}

/// Tests of the crates that have the testbed's ways to wait.
fn bare_sleeps(text: &Text) -> Vec<Finding> {
    let waits = WAITING_CRATES.iter().any(|of| text.path.contains(&format!("crates/{of}/tests/")));
    let sleeps = |line: &str| waits && line.contains(SLEEP_CALL);
    lines_that(text, |line| sleeps(line).then(|| "sleeps, and then hopes".to_owned()))
}

fn home_paths(text: &Text) -> Vec<Finding> {
    lines_that(text, |line| {
        let home = HOMES.into_iter().find(|home| line.contains(home))?;
        Some(format!("names a path below {home:?}"))
    })
}

fn stray_blanks(text: &Text) -> Vec<Finding> {
    let mut found = lines_that(text, |line| {
        if line.ends_with([' ', '\t', '\r']) {
            Some("ends in white space".to_owned())
        } else if text.is_rust() && line.contains('\t') {
            Some("contains a tab".to_owned())
        } else {
            None
        }
    });
    if !text.body.is_empty() && (!text.body.ends_with('\n') || text.body.ends_with("\n\n")) {
        found.push(Finding::whole(&text.path, "does not end with exactly one line break"));
    }
    found
}

fn everywhere(rule: fn(&Text) -> Vec<Finding>) -> Vec<Finding> {
    texts().iter().flat_map(rule).collect()
}

#[test]
fn nothing_is_marked_unfinished() {
    assert_clean(everywhere(unfinished), "finish it, or open an issue and remove the marker.");
}

#[test]
fn no_test_is_skipped() {
    let remedy = "make the test pass everywhere, or delete it: a skipped test proves nothing.";
    assert_clean(everywhere(skipped_tests), remedy);
}

#[test]
fn no_test_waits_by_the_clock() {
    let remedy = "wait for what is to happen (`imago_testbed::wait::until`); for a time that is itself \
                  what the test is about, `wait::lasts`.";
    assert_clean(everywhere(bare_sleeps), remedy);
}

#[test]
fn a_bare_sleep_is_found_in_tests_on_servers_alone() {
    let body = format!("tokio::time::{SLEEP_CALL}bound).await;\n");
    let found = |path: &str| bare_sleeps(&Text::new(path, body.clone())).len();
    assert_eq!(found("crates/mongo/tests/servers/copy/keys.rs"), 1);
    assert_eq!(found("crates/mongo/src/monitor.rs"), 0);
}

#[test]
fn no_path_of_one_machine() {
    assert_clean(everywhere(home_paths), "use a relative path, a temporary folder, or $HOME.");
}

#[test]
fn blanks_are_clean() {
    assert_clean(everywhere(stray_blanks), "run cargo fmt; let the editor read .editorconfig.");
}

#[test]
fn an_unfinished_line_is_found() {
    for marker in UNFINISHED_WORDS.into_iter().chain(UNFINISHED_MACROS) {
        let line = format!("let x = 1; // {marker}: later\n");
        assert_eq!(unfinished(&Text::new("a.rs", line)).len(), 1, "{marker}");
    }
    assert_eq!(
        unfinished(&Text::new("a.sh", format!("mktemp d.{0}{0}\n", UNFINISHED_WORDS[2]))),
        []
    );
}

#[test]
fn a_skipped_test_is_found() {
    let of = |reason: &str| format!("#[test]\n    {SKIPPED_TEST} = \"{reason}\"]\nfn t() {{}}\n");
    assert_eq!(skipped_tests(&Text::new("a.rs", of("slow")))[0].line, Some(2));
    assert_eq!(skipped_tests(&Text::new("a.rs", of("hours, which make test-long has"))), []);
    let early = format!("fn t() {{\n    return eprintln!({SKIPPED_WORD}no Java\");\n}}\n");
    assert_eq!(skipped_tests(&Text::new("a.rs", early))[0].line, Some(2));
}

#[test]
fn a_home_path_is_found() {
    for home in HOMES {
        assert_eq!(home_paths(&Text::new("a.md", format!("see {home}me\n"))).len(), 1, "{home}");
    }
    assert_eq!(home_paths(&Text::new("a.md", "see $HOME/me\n")), []);
}

#[test]
fn a_stray_blank_is_found() {
    let found = |path, body| stray_blanks(&Text::new(path, body)).len();
    assert_eq!(found("a.md", "words \n"), 1);
    assert_eq!(found("a.rs", "\tlet x = 1;\n"), 1);
    assert_eq!(found("Makefile", "all:\n\techo\n"), 0);
    assert_eq!(found("a.rs", "fn f() {}"), 1);
    assert_eq!(found("a.rs", "fn f() {}\n\n"), 1);
}
