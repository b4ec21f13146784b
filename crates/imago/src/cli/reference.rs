//! `docs/reference/options.md`: every option of every verb, generated from the definitions of the help.

use clap::CommandFactory as _;
use clap_markdown::MarkdownOptions;

use super::Cli;

/// Name of the environment variable that makes the test write the page, instead of comparing it.
const UPDATE: &str = "IMAGO_UPDATE_REFERENCE";
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/options.md");

/// Returns the text of the page, generated from the definitions of the options.
fn page() -> String {
    let options = MarkdownOptions::new().title("Options".into()).show_footer(false);
    let generated = clap_markdown::help_markdown_command_custom(&Cli::command(), &options);
    let lines: Vec<&str> = generated.lines().map(str::trim_end).collect();
    lines.join("\n").trim_end().to_owned() + "\n"
}

#[test]
fn the_reference_of_options_is_that_of_the_program() {
    let page = page();
    if std::env::var_os(UPDATE).is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let found = std::fs::read_to_string(PAGE).unwrap_or_default();
    let differs = page.lines().zip(found.lines()).position(|(made, found)| made != found);
    assert!(
        page == found,
        "docs/reference/options.md is not that of the program, from line {} on: make it anew by {UPDATE}=1 make quick",
        differs.map_or(page.lines().count().min(found.lines().count()), |line| line) + 1
    );
}
