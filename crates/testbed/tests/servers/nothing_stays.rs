//! However the process that started servers ends, its servers end with it.
//!
//! A test runs this very program again, with itself as the only test and a place to tell its
//! servers in: there it is the process that starts them and ends.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use imago_testbed::process::{Liveness, ProcessId};
use imago_testbed::{Cluster, ClusterSpec, wait};

const TOLD: &str = "IMAGO_TEST_TOLD";

/// In the process that is to end: starts a cluster and tells of its servers.
async fn start_and_tell(name: &str) -> Option<Cluster> {
    let told = PathBuf::from(std::env::var_os(TOLD)?);
    let folder = told.parent().map(Path::to_path_buf);
    let spec = ClusterSpec { folder, ..ClusterSpec::replica_set(name, 1) };
    let cluster = Cluster::start(spec).await.unwrap();
    let new = told.with_extension("new");
    std::fs::write(&new, serde_json::to_vec(&processes(&cluster)).unwrap()).unwrap();
    std::fs::rename(new, told).unwrap();
    Some(cluster)
}

fn processes(cluster: &Cluster) -> Vec<ProcessId> {
    cluster.nodes().iter().map(|node| node.process.unwrap()).collect()
}

struct Run {
    folder: tempfile::TempDir,
    child: std::process::Child,
}

impl Run {
    fn start(test: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("nothing_stays::{test}")])
            .env(TOLD, folder.path().join("told"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { folder, child }
    }

    /// The servers that the child has started.
    fn servers(&self) -> Vec<ProcessId> {
        let told = self.folder.path().join("told");
        wait("the child to tell of its servers", || told.exists());
        serde_json::from_slice(&std::fs::read(told).unwrap()).unwrap()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait(what: &str, done: impl Fn() -> bool) {
    wait::until_blocking(what, done);
}

fn gone(servers: &[ProcessId]) -> bool {
    servers.iter().all(|server| server.liveness() == Liveness::Gone)
}

fn testbed_folders(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.contains("imago-testbed")).collect()
}

#[tokio::test]
async fn a_test_that_panics_leaves_neither_servers_nor_data() {
    if let Some(_cluster) = start_and_tell("panics").await {
        panic!("on purpose, with a cluster up");
    }
    let mut run = Run::start("a_test_that_panics_leaves_neither_servers_nor_data");
    let servers = run.servers();
    assert!(!run.child.wait().unwrap().success());
    wait("the servers to end", || gone(&servers));
    assert_eq!(testbed_folders(run.folder.path()), Vec::<String>::new());
}

#[tokio::test]
async fn a_killed_process_leaves_no_servers_and_its_data_goes_with_the_next_start() {
    if let Some(_cluster) = start_and_tell("killed").await {
        return wait::lasts(Duration::from_secs(300)).await;
    }
    let mut run =
        Run::start("a_killed_process_leaves_no_servers_and_its_data_goes_with_the_next_start");
    let servers = run.servers();
    assert!(servers.iter().all(|server| server.liveness() == Liveness::Running));
    run.child.kill().unwrap();
    run.child.wait().unwrap();
    wait("the servers to end", || gone(&servers));

    assert_eq!(testbed_folders(run.folder.path()).len(), 1);
    let next = imago_testbed::scratch::Scratch::new("next", Some(run.folder.path())).unwrap();
    assert_eq!(testbed_folders(run.folder.path()).len(), 1);
    drop(next);
    assert_eq!(testbed_folders(run.folder.path()), Vec::<String>::new());
}

#[tokio::test]
async fn a_dropped_cluster_leaves_neither_servers_nor_data() {
    let folder = tempfile::tempdir().unwrap();
    let place = Some(folder.path().to_path_buf());
    let spec = ClusterSpec { folder: place, ..ClusterSpec::replica_set("dropped", 1) };
    let cluster = Cluster::start(spec).await.unwrap();
    let servers = processes(&cluster);
    drop(cluster);
    assert!(gone(&servers));
    assert_eq!(testbed_folders(folder.path()), Vec::<String>::new());
}
