//! The token of the admin address: a client without it sees and changes nothing.

use std::path::{Path, PathBuf};

use crate::store::misuse::{fails, run, serve, text};
use crate::store::served::{Served, anywhere, imago};

fn file(folder: &Path, name: &str, content: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).unwrap();
    path
}

fn start(folder: &Path, admin: &str) -> Served {
    let token = file(folder, "token", "open-sesame\n");
    let more = ["--admin-token-file", token.to_str().unwrap()];
    Served::start_with(&folder.join("data"), 1, anywhere(), admin.parse().unwrap(), &more)
}

#[test]
fn an_address_that_others_can_reach_is_refused_without_a_token() {
    for admin in ["0.0.0.0:0", "[::]:0"] {
        let error = fails(&["serve", "--listen", "127.0.0.1:0", "--admin", admin], 2);
        assert!(text(&error).contains(admin) && text(&error).contains("no token"), "{error}");
        assert!(error["help"].as_str().unwrap().contains("--admin-token-file"), "{error}");
    }
    for listen in ["0.0.0.0:0", "[::]:0", "[::ffff:10.0.0.1]:0"] {
        let error = fails(&["serve", "--listen", listen, "--admin", "127.0.0.1:0"], 2);
        assert!(
            text(&error).contains("--listen") && text(&error).contains("no password"),
            "{error}"
        );
        assert!(error["help"].as_str().unwrap().contains("--password-file"), "{error}");
    }
    let folder = tempfile::tempdir().unwrap();
    drop(start(folder.path(), "0.0.0.0:0"));
}

#[test]
fn without_the_token_nothing_is_seen_or_done() {
    let folder = tempfile::tempdir().unwrap();
    let served = start(folder.path(), "127.0.0.1:0");
    let admin = served.admin.to_string();
    let wrong = file(folder.path(), "wrong", "open-sesama");
    let (wrong, right) = (wrong.to_str().unwrap(), folder.path().join("token"));
    let right = right.to_str().unwrap();
    let error = fails(&["split", "0:k", "--admin", &admin], 4);
    assert!(text(&error).contains("a token is required"), "{error}");
    assert!(error["help"].as_str().unwrap().contains("--token-file"), "{error}");
    let error = fails(&["design", "--admin", &admin, "--token-file", wrong], 4);
    assert!(text(&error).contains("the token is not that of this store"), "{error}");
    let design = run(&["design", "--admin", &admin, "--token-file", right]);
    assert!(design.status.success(), "{design:?}");
    let report: serde_json::Value = serde_json::from_slice(&design.stdout).unwrap();
    assert_eq!(report["partitions"].as_array().unwrap().len(), 1, "nothing was split");
    let mut by_environment = imago(&["store", "split", "0:k", "--admin", &admin]);
    let done = by_environment.env("IMAGO_STORE_TOKEN_FILE", right).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn only_the_metrics_are_for_everybody() {
    let folder = tempfile::tempdir().unwrap();
    let served = start(folder.path(), "127.0.0.1:0");
    let get = |path: &str, said: Option<&str>| {
        let config = ureq::Agent::config_builder().http_status_as_error(false).proxy(None).build();
        let request =
            ureq::Agent::new_with_config(config).get(format!("http://{}{path}", served.admin));
        let request = match said {
            Some(said) => request.header("authorization", said),
            None => request,
        };
        let mut answer = request.call().unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    };
    assert!(
        matches!(get("/metrics", None), (200, text) if text.contains("imago_store_partitions"))
    );
    let wrong =
        ["", "Bearer", "Bearer ", "Bearer open-sesame2", "Basic open-sesame", "open-sesame"];
    for path in ["/design", "/nowhere", "/metrics/", "/split"] {
        for said in [None].into_iter().chain(wrong.map(Some)) {
            let (status, body) = get(path, said);
            assert_eq!(status, 401, "{path} {said:?}: {body}");
            assert!(body.starts_with("{\"error\":"), "{body}");
        }
    }
    assert_eq!(get("/design", Some("bearer open-sesame")).0, 200);
    assert_eq!(get("/nowhere", Some("Bearer open-sesame")).0, 404);
}

#[test]
fn a_file_without_a_token_is_a_usage_error() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let empty = file(folder.path(), "empty", "\n");
    let words = file(folder.path(), "words", "two words\n");
    for (path, why) in [(missing, "cannot read"), (empty, "no token"), (words, "not a valid token")]
    {
        let path = path.to_str().unwrap();
        for words in [
            serve("127.0.0.1:0", &["--admin-token-file", path]),
            vec!["design", "--token-file", path],
        ] {
            let error = fails(&words, 2);
            assert!(text(&error).contains(path) && text(&error).contains(why), "{error}");
        }
    }
}
