//! `imago store pin` and `unpin`, and what `design` shows of them.

use serde_json::Value;

use crate::store::misuse::{fails, run, text};
use crate::store::served::{Served, anywhere};

fn design(admin: &str) -> (Value, String) {
    let words = ["design", "--admin", admin];
    let report = run(&words);
    assert!(report.status.success(), "{report:?}");
    let shown = crate::store::served::imago(&["store"]).args(words).output().unwrap();
    (serde_json::from_slice(&report.stdout).unwrap(), String::from_utf8(shown.stdout).unwrap())
}

#[test]
fn a_partition_is_pinned_until_it_is_unpinned_also_over_a_death() {
    let folder = tempfile::tempdir().unwrap();
    let mut served = Served::start(folder.path(), 3, anywhere(), anywhere());
    let done = |served: &Served, words: &[&str]| {
        let output = run(&[words, &["--admin", &served.admin.to_string()]].concat());
        assert!(output.status.success(), "{words:?}: {output:?}");
    };
    let refused = |served: &Served, words: &[&str], why: &str| {
        let error = fails(&[words, &["--admin", &served.admin.to_string()]].concat(), 4);
        assert!(text(&error).contains(why), "{error}");
    };
    done(&served, &["split", "0:k"]);
    done(&served, &["pin", "0:user", "--site", "2"]);
    refused(&served, &["pin", "0:user", "--site", "3"], "3 sites");
    refused(&served, &["merge", "0:a"], "same master");
    served.kill();
    let served = Served::start(folder.path(), 3, anywhere(), anywhere());
    let admin = served.admin.to_string();
    let (report, shown) = design(&admin);
    let pins: Vec<&Value> =
        report["partitions"].as_array().unwrap().iter().map(|it| &it["pin"]).collect();
    assert_eq!(pins, [&Value::Null, &Value::from(2)]);
    assert_eq!(report["partitions"][1]["master"], 2);
    assert_eq!(report["checkpoints"], serde_json::json!({ "newest": 0, "failure": null }));
    let rows: Vec<Vec<&str>> =
        shown.lines().map(|line| line.split_whitespace().take(4).collect()).collect();
    assert_eq!(rows[0], ["from", "master", "pin", "replicas"]);
    assert_eq!(rows[1..3], [["(first)", "0", "-", "-"], ["0:k", "2", "2", "0"]], "{shown}");
    assert!(shown.contains("checkpoints: none yet"), "{shown}");
    refused(&served, &["remaster", "0:user", "--site", "0"], "pinned to site 2");
    done(&served, &["unpin", "0:user"]);
    refused(&served, &["unpin", "0:user"], "not pinned");
    done(&served, &["remaster", "0:user", "--site", "0"]);
    done(&served, &["pin", "0:user", "--site", "0"]);
    // The same master, and the same replicas: only the pin differs.
    done(&served, &["add-replica", "0:a", "--site", "2"]);
    refused(&served, &["merge", "0:a"], "pinned to the same site");
    done(&served, &["pin", "0:a", "--site", "0"]);
    done(&served, &["merge", "0:a"]);
}
