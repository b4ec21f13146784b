//! Rolls of a Redis server whose files would not give it at its next start what was asked for: each is refused before anything
//! is changed.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use imago_testbed::{find_redis, require, wait};

use super::redis::{ask, value};

/// A server that is started by its cluster file's own command, as an operator's script does.
struct Server {
    folder: tempfile::TempDir,
    node: String,
}

impl Server {
    /// Starts a server with these lines in its file, these files beside that, and these arguments behind it. None without a
    /// program; that is said.
    fn start(lines: &str, beside: &[(&str, &str)], arguments: &str) -> Option<Self> {
        let program = require(find_redis())?;
        let folder = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let path = folder.path().display().to_string();
        for (name, text) in beside {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let own = format!(
            "port {port}\nbind 127.0.0.1\ndir {path}\ndaemonize yes\npidfile {path}/redis.pid\nlogfile {path}/redis.log\n\
             save \"\"\nappendonly yes\n"
        );
        std::fs::write(folder.path().join("redis.conf"), own + &lines.replace("{folder}", &path))
            .unwrap();
        let start = format!("'{}' '{path}/redis.conf' {arguments}", program.display());
        let cluster = format!(
            "database = \"redis\"\nuri = \"redis://127.0.0.1:{port}\"\nconfiguration = \"{path}/redis.conf\"\n\
             stop = \"kill $(cat {path}/redis.pid)\"\nstart = \"{start}\"\n\n[[node]]\nname = \"cache-1\"\n\
             address = \"127.0.0.1:{port}\"\n"
        );
        std::fs::write(folder.path().join("cluster.toml"), cluster).unwrap();
        let server = Self { folder, node: format!("127.0.0.1:{port}") };
        let started =
            Command::new("sh").args(["-c", &start]).stdout(Stdio::null()).status().unwrap();
        assert!(started.success());
        server.is_up();
        Some(server)
    }

    fn is_up(&self) {
        wait::until_blocking("the server answers", || ask(&self.node, "PING").starts_with("+PONG"));
    }

    fn configuration(&self) -> PathBuf {
        self.folder.path().join("redis.conf")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.configuration()).unwrap()
    }

    /// Rolls these settings out: the exit code, and what is said.
    fn roll(&self, more: &[&str]) -> (Option<i32>, String) {
        let cluster = self.folder.path().join("cluster.toml");
        let roll = ["tune", "roll", "--json", "--cluster", cluster.to_str().unwrap()];
        let output = Command::new(env!("CARGO_BIN_EXE_imago"))
            .args([&roll[..], more].concat())
            .env("TMPDIR", self.folder.path())
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// A roll that is refused, with nothing changed: what is said.
    fn refuses(&self, more: &[&str], setting: &str) -> String {
        let (text, runs) = (self.text(), value(&self.node, setting));
        let (exit, said) = self.roll(more);
        assert_eq!(exit, Some(4), "{said}");
        assert_eq!((self.text(), value(&self.node, setting)), (text, runs), "{said}");
        assert!(ask(&self.node, "PING").starts_with("+PONG"), "{said}");
        said
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        ask(&self.node, "SHUTDOWN NOSAVE");
    }
}

const SAMPLES: [&str; 2] = ["--set", "maxmemory-samples=9"];

#[test]
fn a_roll_that_the_next_start_would_undo_or_not_outlive_is_refused_before_anything_is_changed() {
    // CONFIG REWRITE would copy the user into the server's own file (redis 11736).
    let users = [("users.conf", "user alice on nopass ~* +@all\n")];
    let Some(server) = Server::start("include {folder}/users.conf\n", &users, "") else { return };
    let said = server.refuses(&SAMPLES, "maxmemory-samples");
    assert!(said.contains("users.conf, line 1") && said.contains("CONFIG REWRITE"), "{said}");
    // A change of the file by Imago itself copies nothing.
    let (exit, said) = server.roll(&["--set", "io-threads=2", "--unserved"]);
    assert_eq!((exit, value(&server.node, "io-threads")), (Some(0), "2".into()), "{said}");

    // A line that no server starts with is found while the server runs.
    let good = server.text();
    std::fs::write(server.configuration(), format!("{good}hz ten\n")).unwrap();
    for more in
        [&["--set", "io-threads=3", "--unserved"][..], &["--set", "tcp-backlog=64", "--unserved"]]
    {
        let said = server.refuses(more, "io-threads");
        assert!(said.contains("would not start again") && said.contains("hz ten"), "{said}");
    }
    std::fs::write(server.configuration(), format!("{good}requirepass \"open\nhz 10\n")).unwrap();
    let said = server.refuses(&["--set", "io-threads=3", "--unserved"], "io-threads");
    assert!(said.contains("a quote is not closed"), "{said}");

    // A file behind the server's own lines sets it again (redis 8572), a file of a pattern, too.
    for include in ["{folder}/limits.conf", "{folder}/lim*.conf", "limits.conf"] {
        let limits = [("limits.conf", "# ours\nmaxmemory-samples 7\n")];
        let lines = format!("maxmemory-samples 6\ninclude {include}\n");
        let server = Server::start(&lines, &limits, "").unwrap();
        let said = server.refuses(&SAMPLES, "maxmemory-samples");
        assert!(said.contains("limits.conf, line 2"), "{said}");
        let said = server.refuses(&[&SAMPLES[..], &["--dry-run"]].concat(), "maxmemory-samples");
        assert!(said.contains("\\\"7\\\" after its next start"), "{said}");
    }
    // Before them it does not.
    let limits = [("limits.conf", "maxmemory-samples 7\n")];
    let server = Server::start("include {folder}/limits.conf\nhz 20\n", &limits, "").unwrap();
    let (exit, said) =
        server.roll(&[&SAMPLES[..], &["--set", "io-threads=2", "--unserved"]].concat());
    let runs = |setting: &str| value(&server.node, setting);
    assert_eq!(
        (exit, runs("maxmemory-samples"), runs("io-threads")),
        (Some(0), "9".into(), "2".into()),
        "{said}"
    );
    let beside: Vec<_> = std::fs::read_dir(server.folder.path())
        .unwrap()
        .map(|one| one.unwrap().file_name())
        .collect();
    assert!(beside.iter().all(|name| !name.to_string_lossy().contains("imago-new")), "{beside:?}");

    // Files with relative names lie in the server's own folder, and its data is not loaded for the trial.
    let users = [("users.acl", "user default on nopass ~* &* +@all\n")];
    let server = Server::start("aclfile users.acl\n", &users, "").unwrap();
    std::fs::write(server.folder.path().join("dump.rdb"), "no database").unwrap();
    let (exit, said) = server.roll(&["--set", "hz=20"]);
    assert_eq!((exit, value(&server.node, "hz")), (Some(0), "20".into()), "{said}");

    // Its command line holds over its file.
    let server = Server::start("", &[], "--maxmemory-samples 6").unwrap();
    let said = server.refuses(&SAMPLES, "maxmemory-samples");
    assert!(said.contains("its command line"), "{said}");
    let (exit, said) = server.roll(&["--set", "hz=20"]);
    assert_eq!((exit, value(&server.node, "hz")), (Some(0), "20".into()), "{said}");
    // A script hides it: then a value that no file explains is an obstacle.
    let server = Server::start("", &[], "--maxmemory-samples 6").unwrap();
    let cluster = server.folder.path().join("cluster.toml");
    let text = std::fs::read_to_string(&cluster).unwrap();
    let line = text.lines().find(|line| line.starts_with("start")).unwrap();
    std::fs::write(&cluster, text.replace(line, "start = \"/etc/init.d/redis start\"")).unwrap();
    let said = server.refuses(&SAMPLES, "maxmemory-samples");
    assert!(said.contains("stands on its command line, which cannot be read"), "{said}");
}

#[test]
fn a_server_that_cannot_write_its_file_gets_its_old_values_back() {
    let user = "user imago on >swordfish ~* &* +@all -config|rewrite\n";
    let Some(server) = Server::start(user, &[], "") else { return };
    let cluster = server.folder.path().join("cluster.toml");
    let text = std::fs::read_to_string(&cluster).unwrap();
    let text = text.replace("uri = \"redis://", "uri = \"redis://imago:swordfish@");
    std::fs::write(&cluster, text).unwrap();
    let names = || {
        let all = std::fs::read_dir(server.folder.path()).unwrap();
        let all = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        all.filter(|name| name.starts_with("redis.conf")).collect::<Vec<_>>()
    };
    let live = ["maxmemory-samples", "hz"];
    let before = live.map(|setting| value(&server.node, setting));
    let file = server.text();
    let (exit, said) = server.roll(&["--set", "maxmemory-samples=9", "--set", "hz=50"]);
    assert_eq!(exit, Some(1), "{said}");
    assert!(said.contains("cannot write its file"), "{said}");
    assert!(said.contains("it has its old values and its old file again"), "{said}");
    assert_eq!(live.map(|setting| value(&server.node, setting)), before, "{said}");
    assert_eq!((server.text(), names()), (file, vec!["redis.conf".to_owned()]), "{said}");

    // With that right the same roll is done.
    ask(&server.node, "ACL SETUSER imago +config|rewrite");
    let (exit, said) = server.roll(&SAMPLES);
    assert_eq!((exit, value(&server.node, live[0])), (Some(0), "9".into()), "{said}");
}
