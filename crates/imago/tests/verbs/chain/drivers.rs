//! Three engines run the same chain: plain pipes, Hadoop Streaming, PySpark. Their output is the same, byte for byte.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use imago_testbed::{Single, require};

use super::scene::{
    MESSAGES, NS, ORDERS, ORDERS_NS, Scene, hex, lines, message, order, order_key, output, printed,
    rank, reference, root, said,
};

/// A program that runs a chain.
struct Driver {
    name: &'static str,
    program: PathBuf,
    script: Option<PathBuf>,
    /// The folder of Python's packages that it needs.
    packages: Option<PathBuf>,
}

fn cached(name: &str) -> PathBuf {
    let absolute =
        std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let folder =
        absolute.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache"));
    folder.join("imago").join(name)
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/chain").join(name)
}

fn java() -> PathBuf {
    std::env::var_os("IMAGO_JAVA").map_or_else(|| "java".into(), PathBuf::from)
}

fn runs(program: &Path, argument: &str) -> bool {
    Command::new(program).arg(argument).output().is_ok_and(|output| output.status.success())
}

fn pipes() -> Driver {
    Driver::of("pipes", script("chain.sh"), None)
}

/// Hadoop's, if it is here.
fn hadoop() -> Option<Driver> {
    let named = std::env::var_os("IMAGO_HADOOP").map(PathBuf::from);
    let jars = named.unwrap_or_else(|| cached("hadoop-3.4.2"));
    let is_here = jars.is_dir() && runs(&java(), "-version");
    let missing = || format!("Hadoop Streaming is not in {}, or there is no Java", jars.display());
    require(is_here.then_some(()).ok_or_else(missing))?;
    Some(Driver::of("hadoop", script("hadoop.sh"), None))
}

/// Spark's, if it is here.
fn spark() -> Option<Driver> {
    let named = std::env::var_os("IMAGO_PYSPARK").map(PathBuf::from);
    let packages = named.unwrap_or_else(|| cached("pyspark-4.3.0"));
    let is_here = packages.join("pyspark").is_dir()
        && runs(Path::new("python3"), "--version")
        && runs(&java(), "-version");
    let missing = || format!("PySpark is not in {}, or there is no Java", packages.display());
    require(is_here.then_some(()).ok_or_else(missing))?;
    let script = Some(script("spark.py"));
    Some(Driver { packages: Some(packages), ..Driver::of("spark", "python3".into(), script) })
}

impl Driver {
    fn of(name: &'static str, program: PathBuf, script: Option<PathBuf>) -> Self {
        Self { name, program, script, packages: None }
    }

    /// A chain of this length (or `merkle`) over a file of keys; what it writes.
    fn command(
        &self,
        scene: &Scene,
        length: &str,
        keys: &str,
        options: &[&str],
    ) -> (Command, PathBuf) {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let out = scene.path(&format!("{}-{}", self.name, NUMBER.fetch_add(1, Ordering::Relaxed)));
        let mut command = Command::new(&self.program);
        command.args(&self.script).args([length, keys]).arg(&out).args(options);
        command.env("IMAGO", env!("CARGO_BIN_EXE_imago")).env("TMPDIR", scene.path(""));
        command.envs(self.packages.as_ref().map(|packages| ("PYTHONPATH", packages)));
        (command, out)
    }

    #[track_caller]
    fn run(&self, scene: &Scene, length: &str, keys: &str, options: &[&str]) -> String {
        let (command, out) = self.command(scene, length, keys, options);
        let began = Instant::now();
        printed(command, "");
        eprintln!("{} {length}: {:.1} s", self.name, began.elapsed().as_secs_f64());
        std::fs::read_to_string(out).unwrap()
    }

    /// A chain one of whose keys has no document fails as a whole.
    #[track_caller]
    fn fails(&self, scene: &Scene, keys: &str, options: &[&str]) {
        let (command, out) = self.command(scene, "1", keys, options);
        let ended = output(command, "");
        assert!(!ended.status.success(), "{}: {}", self.name, said(&ended));
        assert!(said(&ended).contains("no document of the _id"), "{}: {}", self.name, said(&ended));
        assert!(!out.exists(), "{} left half a result", self.name);
    }
}

/// The chains that each driver has to run: with a cache and without, over integers and ObjectIds, with one reducer and
/// several; a tree; and one that fails.
async fn proves(driver: Driver) {
    let scene = Scene::start().await;
    let (uri, modulo) = (scene.cluster.uri(), MESSAGES.to_string());
    let options = ["--uri", &uri, "--ns", NS, "--modulo", &modulo];
    let keys = scene.file("keys", &lines((0..MESSAGES).step_by(9)));
    let expected = reference((0..MESSAGES).step_by(9), 2);
    assert_eq!(driver.run(&scene, "2", &keys, &options), expected);

    let all = scene.file("orders", &lines((0..ORDERS).map(order_key)));
    let some = scene.file("some", &lines((0..60).map(order_key)));
    let listed = ["--uri", &uri, "--ns", ORDERS_NS, "--key-list", &all];
    let next = (0..60).map(|number| order_key(rank(&order(number), ORDERS as u64) as usize));
    let expected = lines(next.collect::<BTreeSet<String>>());
    let cache = scene.cache.as_ref().map(Single::uri).unwrap_or_default();
    let cached: Vec<&str> = match &scene.cache {
        Some(_) => vec!["--cache", &cache, "--batch", "16", "--workers", "2"],
        None => Vec::new(),
    };
    assert_eq!(driver.run(&scene, "1", &some, &[&listed[..], &cached].concat()), expected);

    let leaves = scene.file("leaves", &lines(0..3));
    let tree: Vec<_> = (0..3).map(message).collect();
    let expected = format!("000000000000\t{}\n", hex(&root(&tree)));
    let uncounted = ["--uri", &uri, "--ns", NS];
    assert_eq!(driver.run(&scene, "merkle", &leaves, &uncounted), expected);
    let missing = scene.file("missing", "1\n8888888\n");
    driver.fails(&scene, &missing, &options);
}

#[tokio::test]
async fn pipes_run_a_chain() {
    proves(pipes()).await;
}

#[tokio::test]
async fn hadoop_streaming_runs_a_chain() {
    if let Some(driver) = hadoop() {
        proves(driver).await;
    }
}

#[tokio::test]
async fn pyspark_runs_a_chain() {
    if let Some(driver) = spark() {
        proves(driver).await;
    }
}
