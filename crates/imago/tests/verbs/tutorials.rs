//! The tutorials, as a newcomer follows them: all commands of a page in one shell, in their order, and what they print has
//! the shape that the page shows.
//!
//! Lines are compared without figures: of each line that a page shows, the words without a digit are those of a line that
//! was printed, and the lines come in the page's order. Others may stand between them, because outputs are shortened.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use imago_testbed::{find_redis, require};

/// Bound of a page, in seconds.
const PAGE_BOUND_S: &str = "1200";

/// Commands that are not run with their page.
const ELSEWHERE: [(&str, &str); 1] =
    [("imago demo adapt", "it takes two minutes of two cores; `demo::` runs it with less")];

/// Pages with commands that no test follows line by line, each with the reason. That their commands exist, with these options,
/// is a layout rule.
const NOT_FOLLOWED: [(&str, &str); 24] = [
    ("README.md", "one command of each tutorial, and `make install`, which builds for minutes"),
    ("CONTRIBUTING.md", "the tests themselves"),
    (
        "docs/adapt.md",
        "stores on several machines; `store::adapt*` and `store::drain` run each verb",
    ),
    ("docs/benchmarks.md", "hours; `bench::` runs each with --quick"),
    ("docs/chain.md", "Hadoop and Spark; `chain::drivers` runs them"),
    ("docs/evaluation/morphosys.md", "hours; `bench::` runs each with --quick"),
    ("docs/evaluation/morphus.md", "hours; `bench::` runs each with --quick"),
    ("docs/evaluation/sophia.md", "hours"),
    ("docs/foresight.md", "a job of the reader's; `foresight::` runs both verbs"),
    ("docs/how-to/back.md", "a hook of the reader's; `cutover::back` runs the way"),
    ("docs/how-to/backup.md", "folders of the reader's; `store::backup` runs the way"),
    ("docs/how-to/metrics.md", "a job and an address of the reader's"),
    ("docs/how-to/services.md", "a package that is installed, and systemd"),
    ("docs/how-to/tls.md", "certificates of the reader's; `connection::` makes some"),
    ("docs/how-to/users.md", "users of the reader's; `refusals::` lacks each right"),
    ("docs/how-to/workers.md", "several machines; `faults::sharing` has several processes"),
    ("docs/provision.md", "the tutorial has the same on servers of the testbed"),
    ("docs/reference/command-line.md", "a completion script in the reader's home"),
    ("docs/reference/json.md", "filters for jobs of the reader's"),
    ("docs/reshard-advise.md", "clients of the reader's; `reshard_advise::` runs each source"),
    ("docs/reshard-plan.md", "a cluster of the reader's; `reshard_plan::` runs each plan"),
    ("docs/reshard.md", "the tutorial has the same on servers of the testbed"),
    ("docs/store.md", "sites on several machines; `store::replicas` runs them"),
    (
        "docs/tune.md",
        "Cassandra for an hour; the tutorial, `tune::roll` and `tune::run` have the parts",
    ),
];

/// Lines that another machine prints otherwise, by their beginnings.
const VARY: [(&str, &str); 7] = [
    ("writes/s, 240 ranges", "a quick machine has written all within one column of ten seconds"),
    ("site 1: 0 copies left", "a drain reports each second, and may end within one"),
    ("site 1: 1 copies left", "the same"),
    ("54.0 s: remove-replica", "whether that is decided by then depends on the load"),
    ("predicted latency", "the same"),
    (
        "Provision 1 shard, a cache of",
        "which shape meets 60 ms depends on the machine that was probed",
    ),
    ("Provision 4 shards, no cache", "the same for 50 ms"),
];

/// A command of a page, and the lines that it prints there.
struct Shown {
    command: String,
    lines: Vec<String>,
}

/// The commands of a page's blocks.
fn commands(page: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let (mut is_block, mut is_continued) = (false, false);
    for line in page.lines() {
        match line.trim_end() {
            "```console" => is_block = true,
            "```" => is_block = false,
            _ if !is_block => {}
            line if is_continued => {
                let last = found.last_mut().unwrap();
                last.command = format!("{}\n{line}", last.command);
                is_continued = line.ends_with('\\');
            }
            line => match (line.strip_prefix("$ "), found.last_mut()) {
                (Some(command), _) => {
                    is_continued = command.ends_with('\\');
                    found.push(Shown { command: command.to_owned(), lines: Vec::new() });
                }
                (None, Some(last)) => last.lines.push(line.to_owned()),
                (None, None) => panic!("output before a command: {line}"),
            },
        }
    }
    found
}

/// What a line says, without figures, their units, identifiers, and what is drawn.
fn words(line: &str) -> Vec<&str> {
    const UNITS: [&str; 12] =
        ["s", "ms", "µs", "min", "h", "B", "KB", "MB", "GB", "KiB", "MiB", "GiB"];
    let words = line.split_whitespace();
    let words = words.map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
    words
        .filter(|word| {
            !word.is_empty()
                && !word.contains(|c: char| c.is_ascii_digit())
                && !UNITS.contains(word)
        })
        .collect()
}

/// The first line of a page that was not printed in its place.
fn missing<'p>(shown: &'p [Shown], printed: &str) -> Option<&'p str> {
    let mut printed = printed.lines();
    let varies = |line: &str| VARY.iter().any(|(start, _)| line.trim_start().starts_with(start));
    let lines = shown.iter().flat_map(|one| &one.lines).map(String::as_str);
    let mut lines = lines.filter(|line| !varies(line) && !words(line).is_empty());
    lines.find(|line| !printed.any(|other| words(other) == words(line)))
}

/// Runs a page in a folder of its own.
fn follow(page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/tutorials").join(page);
    let folder = tempfile::tempdir().unwrap();
    let mut text = std::fs::read_to_string(path).unwrap();
    // The page's ports may be another test's.
    for fixed in ["7001", "7002"] {
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        text = text.replace(fixed, &free.to_string());
    }
    let mut shown = commands(&text);
    shown.retain(|one| !ELSEWHERE.iter().any(|(command, _)| one.command.starts_with(command)));
    assert!(shown.len() > 5, "{page} has {} commands", shown.len());

    let mut script =
        String::from("trap 'kill $(jobs -p) 2>/dev/null; imago testbed down --all' EXIT\n");
    for one in &shown {
        let quoted = one.command.replace('\'', r"'\''");
        script += &format!("printf '$ %s\\n' '{quoted}'\n{}\n", one.command);
        script += "ended=$?; [ $ended = 0 ] || { echo \"exit code $ended\"; exit 1; }\n";
    }
    let program = Path::new(env!("CARGO_BIN_EXE_imago")).parent().unwrap();
    let output = Command::new("timeout")
        .args(["--kill-after", "20", PAGE_BOUND_S, "bash", "-c", &format!("exec 2>&1\n{script}")])
        .current_dir(folder.path())
        .env("PATH", format!("{}:{}", program.display(), std::env::var("PATH").unwrap()))
        .env("XDG_STATE_HOME", folder.path().join("state"))
        .env("TMPDIR", folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{page}: {}\n{printed}", output.status);
    if let Some(line) = missing(&shown, &printed) {
        panic!("{page} shows this, which was not printed there:\n{line}\n\n{printed}");
    }
}

/// Follows a page that needs these programs.
fn follow_with(page: &str, programs: &[&str]) {
    for program in programs {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).status();
        assert!(found.is_ok(), "{page} needs {program}: `make setup` installs it");
    }
    follow(page);
}

#[test]
fn a_collection_is_copied_and_cut_over() {
    follow_with("copy.md", &["jq"]);
}

#[test]
#[ignore = "it takes three minutes, which make test-long has"]
fn a_shard_key_is_changed() {
    follow_with("reshard.md", &["jq"]);
}

#[test]
fn a_store_is_run() {
    let Some(_) = require(find_redis()) else { return };
    follow_with("store.md", &["redis-cli", "redis-benchmark"]);
}

#[test]
fn a_cluster_is_tuned() {
    let Some(_) = require(find_redis()) else { return };
    follow_with("tune.md", &["jq", "awk"]);
}

#[test]
#[ignore = "a probe takes a minute, which make test-long has"]
fn a_chained_job_is_provisioned_for() {
    let Some(_) = require(find_redis()) else { return };
    follow_with("provision.md", &["jq"]);
}

#[test]
fn each_page_with_commands_is_followed_or_named_with_the_reason() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut folders = vec![root.join("docs")];
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "md") {
                pages.push(path);
            }
        }
    }
    let has_commands = |path: &Path| std::fs::read_to_string(path).unwrap().contains("```console");
    let name = |path: &Path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
    let with_commands = pages.iter().filter(|path| has_commands(path)).map(|path| name(path));
    let mut others: Vec<String> =
        with_commands.filter(|page| !page.starts_with("docs/tutorials/")).collect();
    others.sort();
    let mut named: Vec<&str> = NOT_FOLLOWED.iter().map(|(page, _)| *page).collect();
    named.sort_unstable();
    assert_eq!(others, named);
}

#[test]
fn a_line_that_is_not_printed_in_its_place_is_found() {
    let page = "text\n```console\n$ imago copy \\\n    --ns a.b\nlag  0.0 s\nblocked   nothing\n$ imago x\nOK\n```\n";
    let shown = commands(page);
    assert_eq!(shown[0].command, "imago copy \\\n    --ns a.b");
    assert_eq!(shown[0].lines, ["lag  0.0 s", "blocked   nothing"]);
    assert_eq!(missing(&shown, "lag 17.1 ms\nblocked  nothing\nmore\nOK\n"), None);
    assert_eq!(missing(&shown, "lag 17.1 ms\nOK\nblocked  nothing\n"), Some("OK"));
    assert_eq!(missing(&shown, "lag 17.1 ms\nblocked by x\nOK\n"), Some("blocked   nothing"));
}
