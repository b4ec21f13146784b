//! The tools that come with Redis, as they are. Where they are not on the path, nothing is tried.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::store::served::{Served, anywhere};

/// Deadline of a tool.
const WAIT: Duration = Duration::from_secs(60);

/// Runs a tool of Redis's on a store; nothing where there is no such tool.
fn tool(name: &str, served: &Served, words: &[&str], input: &str) -> Option<Output> {
    let seconds = WAIT.as_secs().to_string();
    if Command::new(name).arg("--version").stdout(Stdio::null()).status().is_err() {
        println!("there is no {name} here: it is not tried");
        return None;
    }
    let mut command = Command::new("timeout");
    command.args(["--kill-after=1", &seconds, name]);
    command.args(["-h", "127.0.0.1", "-p", &served.listen.port().to_string()]).args(words);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Some(child.wait_with_output().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A store with four partitions, each at a site of its own.
fn divided(folder: &std::path::Path) -> Served {
    let served = Served::start(folder, 4, anywhere(), anywhere());
    for (key, site) in [("0:g", 1), ("0:k", 2), ("0:r", 3)] {
        let before = site - 1;
        let changes = [
            ("split", site),
            ("add-replica", site),
            ("remaster", site),
            ("remove-replica", before),
        ];
        for (verb, site) in changes {
            let answer = served.post(verb, &serde_json::json!({ "key": key, "site": site }));
            assert_eq!(answer.as_ref().map(|it| it.0), Some(200), "{verb} {key}: {answer:?}");
        }
    }
    served
}

#[test]
fn redis_cli_works_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let served = divided(folder.path());
    let input = "SET apple 1\nSET plum 2\nMGET apple plum tree\nINCR plum\nAPPEND apple 0\n\
                 MULTI\nINCR apple\nGET plum\nEXEC\nMULTI\nSET apple 5\nDISCARD\nGET apple\n\
                 LPUSH list 1\nDEL apple plum\nEXISTS apple\n";
    let Some(output) = tool("redis-cli", &served, &[], input) else { return };
    assert!(output.status.success(), "{output:?}");
    let said = text(&output.stdout);
    let lines: Vec<&str> = said.lines().filter(|line| !line.is_empty()).collect();
    let (before, after) = lines.split_at(15);
    let expected = "OK OK 1 2 3 2 OK QUEUED QUEUED 11 3 OK QUEUED OK 11";
    assert_eq!(before.join(" "), expected, "{said}");
    assert!(after[0].starts_with("ERR") && after[0].contains("not supported"), "{said}");
    assert_eq!(after[1..], ["2", "0"], "{said}");
}

#[test]
fn redis_benchmark_works_unchanged() {
    let folder = tempfile::tempdir().unwrap();
    let served = divided(folder.path());
    let words = ["-q", "-n", "20000", "-P", "16", "-r", "1000", "-t", "set,get,mset,incr"];
    let Some(output) = tool("redis-benchmark", &served, &words, "") else { return };
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said} {}", text(&output.stderr));
    for test in ["SET: ", "GET: ", "INCR: ", "MSET (10 keys): "] {
        let last = said.split(['\r', '\n']).rfind(|line| line.starts_with(test));
        let last = last.unwrap_or_else(|| panic!("{test} in {said}"));
        assert!(last.contains("requests per second"), "{last}");
    }
    assert!(!said.to_lowercase().contains("error"), "{said}");
}

#[test]
fn connections_are_encrypted_and_ask_for_the_password() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (certificate, key, password) = (path("cert.pem"), path("key.pem"), path("password"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj"]);
    openssl.args(["/CN=localhost", "-keyout", &key, "-out", &certificate]);
    if !openssl.stderr(Stdio::null()).status().is_ok_and(|status| status.success()) {
        eprintln!("there is no openssl here: it is not tried");
        return;
    }
    std::fs::write(&password, "secret\n").unwrap();
    let more = ["--tls-cert", &certificate, "--tls-key", &key, "--password-file", &password];
    let data = folder.path().join("data");
    let served = Served::start_with(&data, 1, anywhere(), anywhere(), &more);
    let tls = ["--tls", "--cacert", &certificate, "--sni", "localhost", "--insecure"];
    let Some(stranger) = tool("redis-cli", &served, &tls, "GET a\n") else { return };
    assert!(text(&stranger.stdout).contains("NOAUTH"), "{stranger:?}");
    let known = [&tls[..], &["--no-auth-warning", "-a", "secret"]].concat();
    let known = tool("redis-cli", &served, &known, "SET a 1\nGET a\n").unwrap();
    assert_eq!(text(&known.stdout), "OK\n1\n", "{known:?}");
    let plain = tool("redis-cli", &served, &[], "GET a\n").unwrap();
    assert!(!text(&plain.stdout).contains("NOAUTH"), "what is not encrypted is no request");
}
