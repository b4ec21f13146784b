//! Every command that the documents show exists, and takes the flags that it is shown with.
//!
//! A block marked `console` holds commands after `$ `, each followed by its output; in a block
//! without any `$ `, every line is a command. Only those that begin with `imago` or `make` are
//! checked: the first against the built program's own `--help`, the second against the Makefile.
//! So are commands that a page, a message of the program or a comment names between backquotes.

use std::collections::BTreeMap;
use std::process::Command;

use crate::finding::{Finding, assert_clean};
use crate::tree::{Text, text, texts};
use crate::wording::contains_word;

/// The commands of a page, each with the index of its first line.
fn shown(page: &str) -> Vec<(usize, String)> {
    let lines: Vec<_> = page.lines().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while at < lines.len() {
        if lines[at].trim() != "```console" {
            at += 1;
            continue;
        }
        let start = at + 1;
        let length = lines[start..].iter().take_while(|line| line.trim() != "```").count();
        found.extend(shown_in_block(&lines[start..start + length], start));
        at = start + length + 1;
    }
    found
}

fn shown_in_block(lines: &[&str], first: usize) -> Vec<(usize, String)> {
    let prompted = lines.iter().any(|line| line.trim_start().starts_with("$ "));
    let mut found = Vec::new();
    let mut rest = lines.iter().enumerate();
    while let Some((index, line)) = rest.next() {
        let line = line.trim();
        let Some(start) = (if prompted { line.strip_prefix("$ ") } else { Some(line) }) else {
            continue;
        };
        let mut command = start.to_owned();
        while let Some(unbroken) = command.strip_suffix('\\') {
            let next = rest.next().map_or("", |(_, next)| next.trim());
            command = format!("{} {next}", unbroken.trim_end());
        }
        found.push((first + index, command));
    }
    found
}

/// The commands that sentences name between backquotes, each with the index of its line.
fn named(body: &str) -> Vec<(usize, String)> {
    let commands = |line: &str| -> Vec<String> {
        let quoted = line.split('`').skip(1).step_by(2);
        // A comment by which a job names its phases is no command.
        let is_command =
            |text: &&str| text.starts_with("imago ") && !text.starts_with("imago phase");
        quoted.filter(is_command).map(str::to_owned).collect()
    };
    let lines = body.lines().enumerate();
    lines.flat_map(|(at, line)| commands(line).into_iter().map(move |one| (at, one))).collect()
}

/// The words of each simple command on a line: without what a shell puts around and between them.
fn simple_commands(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    for word in words(line) {
        match word.as_str() {
            "#" => break,
            "|" | "&&" | "||" | ";" | "&" => commands.push(Vec::new()),
            _ => commands.last_mut().expect("never empty").push(word),
        }
    }
    for command in &mut commands {
        let set = |word: &String| word.contains('=') && !word.starts_with('-');
        let variables = command.iter().take_while(|word| set(word)).count();
        command.drain(..variables);
    }
    commands
}

/// Splits at blanks outside quotes, as a shell does, so that a flag's quoted value is one word.
fn words(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    for c in line.chars() {
        match quote {
            Some(q) if c == q => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c.is_whitespace() => {
                if !word.is_empty() {
                    found.push(std::mem::take(&mut word));
                }
            }
            _ => word.push(c),
        }
    }
    if !word.is_empty() {
        found.push(word);
    }
    found
}

/// The verbs that a help page lists under `Commands:`.
fn verbs(help: &str) -> Vec<&str> {
    help.lines()
        .skip_while(|line| line.trim() != "Commands:")
        .skip(1)
        .take_while(|line| !line.trim().is_empty())
        // A name stands two columns in; its explanation, when it wraps, further.
        .filter_map(|line| line.strip_prefix("  ").filter(|rest| !rest.starts_with(' ')))
        .filter_map(|line| line.split_whitespace().next())
        .collect()
}

/// True if a help page's first usage needs a verb. A verb that has others below it may also do
/// something by itself, as `imago load` does: then a word behind a flag is that flag's value.
fn needs_verb(help: &str) -> bool {
    let usage = help.lines().find_map(|line| line.trim().strip_prefix("Usage:"));
    usage.is_none_or(|usage| usage.trim_end().ends_with("<COMMAND>"))
}

/// The fault of `imago ARGS…`, given the help page of each verb.
fn wrong_imago(args: &[String], help: &mut dyn FnMut(&[&str]) -> String) -> Option<String> {
    let mut path: Vec<&str> = Vec::new();
    let mut flags = Vec::new();
    let mut page = help(&path);
    let mut behind_flag = false;
    for arg in args
        .iter()
        .map(String::as_str)
        .take_while(|arg| !["--", "…", "\\", "VERB", "[OPTIONS]", "<COMMAND>"].contains(arg))
    {
        if arg.starts_with('-') && arg.len() > 1 {
            flags.push(arg.split('=').next().unwrap_or(arg));
            behind_flag = !arg.contains('=');
            continue;
        }
        let is_value = std::mem::take(&mut behind_flag) && !needs_verb(&page);
        let known = verbs(&page);
        if known.is_empty() || is_value {
            continue; // a value or a positional argument of the last verb
        }
        if !known.contains(&arg) {
            return Some(format!("`imago {}` has no verb {arg:?}", path.join(" ")));
        }
        path.push(arg);
        page = help(&path);
    }
    let mut unknown = flags.into_iter().filter(|flag| !takes(&page, flag));
    unknown.next().map(|flag| format!("`imago {}` does not take {flag}", path.join(" ")))
}

fn takes(help: &str, flag: &str) -> bool {
    let entries = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    // Two blanks end the option's names; what follows explains it, and may name others.
    let names = entries.map(|line| line.split("  ").next().unwrap_or(line));
    let ends = |c: char| c.is_whitespace() || matches!(c, ',' | '=' | '[' | '<' | '.');
    names.flat_map(|line| line.split(ends)).any(|word| word == flag)
}

fn wrong_make(args: &[String], makefile: &str) -> Option<String> {
    let is_target = |name: &str| makefile.lines().any(|l| l.starts_with(&format!("{name}:")));
    let is_variable = |name: &str| contains_word(makefile, name);
    args.iter().find_map(|arg| match arg.split_once('=') {
        Some((name, _)) if is_variable(name) => None,
        Some((name, _)) => Some(format!("the Makefile does not use {name}")),
        None if is_target(arg) => None,
        None => Some(format!("the Makefile has no target {arg:?}")),
    })
}

fn wrong_commands(
    page: &Text,
    makefile: &str,
    help: &mut dyn FnMut(&[&str]) -> String,
) -> Vec<Finding> {
    let mut found = Vec::new();
    let lines = if page.is_markdown() { shown(&page.body) } else { Vec::new() };
    for (index, line) in lines.into_iter().chain(named(&page.body)) {
        for command in simple_commands(&line) {
            let wrong = match command.split_first() {
                Some((program, args)) if program == "imago" => wrong_imago(args, help),
                Some((program, args)) if program == "make" => wrong_make(args, makefile),
                _ => None,
            };
            found.extend(wrong.map(|what| Finding::at(&page.path, index, what)));
        }
    }
    found
}

/// The built program's help page for a verb.
fn ask(path: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_imago"))
        .args(path)
        .arg("--help")
        .env("NO_COLOR", "1")
        .output()
        .expect("the program that cargo built can be started");
    assert!(output.status.success(), "imago {} --help failed", path.join(" "));
    String::from_utf8(output.stdout).expect("help is UTF-8")
}

#[test]
fn shown_commands_exist() {
    let makefile = text("Makefile").expect("the Makefile lies in the root");
    let mut pages: BTreeMap<String, String> = BTreeMap::new();
    let mut help = |path: &[&str]| pages.entry(path.join(" ")).or_insert_with(|| ask(path)).clone();
    let is_read = |t: &&Text| t.is_markdown() || (t.is_rust() && t.path.contains("/src/"));
    let found = texts()
        .iter()
        .filter(is_read)
        .flat_map(|page| wrong_commands(page, &makefile.body, &mut help));
    let remedy = "correct the page or the message, or the program: what they name has to work.";
    assert_clean(found.collect(), remedy);
}

#[cfg(test)]
fn found_in(line: &str) -> Vec<String> {
    let mut help = |path: &[&str]| {
        match path {
            [] => {
                "Usage: imago [OPTIONS] <COMMAND>\n\nCommands:\n  copy  Copies\n          \
               on and on\n  job   Jobs\n  load  Loads\n\n\
               Options:\n      --json  One object\n"
            }
            ["copy"] => {
                "Options:\n      --ns <NS>  What, not --all\n  -n, --dry-run  Only the plan\n"
            }
            ["load"] => {
                "Usage: imago load --uri <URI>\n       imago load <COMMAND>\n\n\
             Commands:\n  stop  Stops\n\nOptions:\n      --uri <URI>  Where\n"
            }
            ["load", "stop"] => "Options:\n  -h, --help\n",
            ["job"] => "Commands:\n  list  Lists\n\nOptions:\n  -h, --help\n",
            ["job", "list"] => "Options:\n      --json  One object\n",
            other => panic!("no help of {other:?} should be asked for"),
        }
        .to_owned()
    };
    let page = Text::new("README.md", format!("```console\n$ {line}\noutput\n```\n"));
    let makefile = "ARGS ?=\ndemo: setup\n";
    wrong_commands(&page, makefile, &mut help).into_iter().map(|f| f.what).collect()
}

#[test]
fn a_command_that_does_not_exist_is_found() {
    for wrong in [
        "imago move",
        "imago job lost",
        "imago copy --all",
        "imago copy -x",
        "imago load halt",
        "imago load --uri=x halt",
        "imago load --url x",
        "imago on",
        "make love",
        "make demo SPEED=9",
        "cat x | imago move",
        "A=b imago move",
    ] {
        assert_eq!(found_in(wrong).len(), 1, "{wrong}");
    }
}

#[test]
fn a_command_that_exists_is_not_found() {
    for right in [
        "imago copy --ns 'a.b=c.d' --dry-run",
        "imago copy --ns=a.b -n && imago job list --json # why",
        "imago load --uri x & imago load stop",
        "cargo move",
        "make demo ARGS=--json",
        "IMAGO_LOG_FILTER=debug imago job list > file",
    ] {
        assert_eq!(found_in(right), [""; 0], "{right}");
    }
}

#[test]
fn commands_are_told_from_output() {
    let page = "```console\n$ make test\nmake: nothing\n$ imago copy \\\n    --ns a.b\n```\n\
                ```sh\nmake not\n```\n```console\nmake demo\n```\n";
    let commands: Vec<_> = shown(page).into_iter().map(|(_, line)| line).collect();
    assert_eq!(commands, ["make test", "imago copy --ns a.b", "make demo"]);
}

#[test]
fn a_command_that_a_message_names_is_found() {
    let message = |line: &str| {
        let mut help = |path: &[&str]| {
            match path {
                [] => "Usage: imago <COMMAND>\n\nCommands:\n  job   Jobs\n",
                ["job"] => "Commands:\n  list  Lists\n",
                _ => "Options:\n      --all  Ended ones, too\n",
            }
            .to_owned()
        };
        wrong_commands(&Text::new("crates/a/src/b.rs", line), "", &mut help).len()
    };
    assert_eq!(message("\"see `imago job list --all`, or `imago job …`, for {id}\""), 0);
    assert_eq!(message("\"see `imago job lost {id}`, or `imago job list --ended`\""), 2);
}
