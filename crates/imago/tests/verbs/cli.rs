//! The command line as a script sees it: exit codes, what goes where, and where options come from.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// Runs imago in `directory`, without the environment of the test run.
fn imago(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_imago"));
    command.current_dir(directory).env_clear();
    command
}

fn run(args: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    imago(directory.path()).args(args).output().unwrap()
}

fn run_with_file(file: &str, args: &[&str]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("imago.toml"), file).unwrap();
    imago(directory.path()).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Checks the output of `completions bash`.
fn assert_completions(output: &Output) {
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("complete -F _imago"));
}

fn assert_usage(output: &Output, names: &[&str]) {
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty(), "an error is on stdout");
    // The report is wrapped for a person.
    let flat = stderr.split_whitespace().filter(|word| *word != "│").collect::<Vec<_>>().join(" ");
    for name in names {
        assert!(flat.contains(name), "{name} is not named in: {stderr}");
    }
}

#[test]
fn completions_are_data_on_stdout() {
    let output = run(&["completions", "bash"]);
    assert_completions(&output);
    assert!(output.stderr.is_empty());
}

#[test]
fn help_is_no_error() {
    let output = run(&["--help"]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).contains("Exit codes: 0 done"));
}

#[test]
fn the_version_names_the_commit_and_the_build() {
    let version = text(&run(&["--version"]).stdout);
    assert!(
        version.starts_with(concat!("imago ", env!("CARGO_PKG_VERSION"), " (commit ")),
        "{version}"
    );
    assert!(version.trim_end().ends_with(" build)"), "{version}");
}

#[test]
fn what_makes_no_sense_is_a_usage_error() {
    assert_usage(&run(&["move-it"]), &["move-it"]);
    assert_usage(&run(&[]), &["Usage: imago"]);
    assert_usage(&run(&["demo", "--picture", "cut-over.png"]), &["--picture", ".svg"]);
    assert_usage(&run(&["--progress", "loud", "completions", "bash"]), &["loud", "--progress"]);
}

#[test]
fn for_a_program_an_error_is_one_json_object_on_stderr() {
    let output = run(&["--json", "move-it"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(output.stdout.is_empty());
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["code"], "usage");
    assert_eq!(error["error"]["exit"], 2);
    assert!(error["error"]["message"].as_str().unwrap().contains("move-it"));
}

#[test]
fn an_unwatched_error_has_no_colour() {
    let output = run(&["--log-filter", "imago=[", "completions", "bash"]);
    assert_usage(&output, &["log filter", "info"]);
    assert!(!output.stderr.contains(&0x1b), "escape codes");
}

#[test]
fn the_environment_sets_options() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = imago(directory.path());
    let output = command.args(["completions", "bash"]).env("IMAGO_PROGRESS", "loud").output();
    assert_usage(&output.unwrap(), &["loud"]);
}

#[test]
fn what_is_typed_is_over_the_environment() {
    for typed in [
        ["--log-filter", "warn", "completions", "bash"],
        ["completions", "bash", "--log-filter", "warn"],
    ] {
        let directory = tempfile::tempdir().unwrap();
        let mut command = imago(directory.path());
        assert_completions(
            &command.args(typed).env("IMAGO_LOG_FILTER", "imago=[").output().unwrap(),
        );
    }
}

#[test]
fn the_environment_is_over_the_file() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("imago.toml"), "log-filter = 'imago=['").unwrap();
    let mut command = imago(directory.path());
    command.args(["completions", "bash"]).env("IMAGO_LOG_FILTER", "warn");
    assert_completions(&command.output().unwrap());
}

#[test]
fn the_file_sets_options() {
    let output = run_with_file("json = true\nlog-filter = 'imago=['", &["completions", "bash"]);
    assert_eq!(output.status.code(), Some(2));
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["code"], "log_filter");
}

#[test]
fn a_wrong_value_in_the_file_is_blamed_on_the_file() {
    let output = run_with_file("progress = 'loud'", &["completions", "bash"]);
    assert_usage(&output, &["configuration file imago.toml", "loud"]);
    let output =
        run_with_file("log-filter = 'info'", &["--progress", "loud", "completions", "bash"]);
    assert!(!text(&output.stderr).contains("imago.toml"), "typed, not in the file");
}

#[test]
fn a_misspelt_key_of_the_file_is_not_ignored() {
    let args = ["completions", "bash"];
    assert_usage(&run_with_file("progres = 'none'", &args), &["`progres`"]);
    assert_usage(&run_with_file("[copi]\nfrom = 'x'", &args), &["`copi`"]);
    assert_usage(&run_with_file("[completions]\nfrom = 'x'", &args), &["`completions.from`"]);
    assert_usage(&run_with_file("log-filter = ['a', 'b']", &args), &["`log-filter` is a list"]);
    assert_usage(&run_with_file("log = ", &args), &["imago.toml", "not valid"]);
}

#[test]
fn a_named_file_must_be_there() {
    let output = run(&["--config", "absent.toml", "completions", "bash"]);
    assert_usage(&output, &["absent.toml"]);
}

#[test]
fn a_metrics_address_that_is_taken_is_an_unmet_precondition() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["--metrics", &address, "completions", "bash"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(text(&output.stderr).contains(&address));
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let directory = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = imago(directory.path());
    command.args(["completions", "bash"]).stdout(writer).stderr(Stdio::piped());
    let output = command.spawn().unwrap().wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}
