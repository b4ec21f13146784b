//! Search for the server programs: an environment variable first, then `PATH`, then the cache folder that
//! `make setup` fills.

use std::env;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

const EXECUTABLE: &str = "an executable file";
/// Folder with a folder for each version of PostgreSQL that Debian's packages have installed.
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";
/// Prefix of the file name of the jar with Kafka's own classes; its dependencies are in the same folder.
const KAFKA_JAR: &str = "kafka_2.13-";
/// Path of the folder with Kafka's jars, relative to the user's cache folder.
const KAFKA_CACHED: &str = "imago/kafka-4.1.0";
/// Prefix of the file name of the jar with Cassandra's own classes; its dependencies are in the same folder.
const CASSANDRA_JAR: &str = "cassandra-all-";
/// Path of the folder with Cassandra's jars, relative to the user's cache folder.
const CASSANDRA_CACHED: &str = "imago/cassandra-5.0.9";

/// Returns the path of `mongod`: from the environment variable `IMAGO_MONGOD`, else `PATH`, else the user's cache
/// folder.
pub fn find_mongod() -> Result<PathBuf> {
    const VARIABLE: &str = "IMAGO_MONGOD";
    let cached = cache_dir().join("imago/bin/mongod");
    let found = named_by(VARIABLE)?.or_else(|| on_path("mongod"));
    found.or_else(|| is_executable(&cached).then(|| cached.clone())).ok_or_else(|| {
        let looked = format!("in PATH and at {}", cached.display());
        Error::NoProgram { program: "mongod", variable: VARIABLE, looked }
    })
}

/// Returns the path of a real `mongos` from the environment variable `IMAGO_MONGOS` or else `PATH`; `None` if this
/// machine has no `mongos`.
///
/// `None` is the usual case: package registries do not offer `mongos`, and [`imago_mongos`] replaces it.
pub fn find_mongos() -> Result<Option<PathBuf>> {
    Ok(named_by("IMAGO_MONGOS")?.or_else(|| on_path("mongos")))
}

/// Returns the path of `redis-server`: from the environment variable `IMAGO_REDIS`, else `PATH`.
pub fn find_redis() -> Result<PathBuf> {
    const VARIABLE: &str = "IMAGO_REDIS";
    named_by(VARIABLE)?.or_else(|| on_path("redis-server")).ok_or_else(|| Error::NoProgram {
        program: "redis-server",
        variable: VARIABLE,
        looked: "in PATH".into(),
    })
}

/// Returns the path of the program `postgres`, which has `initdb` next to it: from the environment variable
/// `IMAGO_POSTGRES`, else `PATH`, else the newest of Debian's packages.
pub fn find_postgres() -> Result<PathBuf> {
    const VARIABLE: &str = "IMAGO_POSTGRES";
    let found = named_by(VARIABLE)?.or_else(|| on_path("postgres")).or_else(newest_postgres);
    // A link on PATH may have no `initdb` next to it.
    found.map(|path| path.canonicalize().unwrap_or(path)).ok_or_else(|| {
        let looked = format!("in PATH and in {DEBIAN_POSTGRES}");
        Error::NoProgram { program: "postgres", variable: VARIABLE, looked }
    })
}

/// Returns `postgres` of the highest version in the folder of Debian's packages.
fn newest_postgres() -> Option<PathBuf> {
    let entries = Path::new(DEBIAN_POSTGRES).read_dir().ok()?.flatten();
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let versions = entries.filter_map(|entry| Some((version(&entry.path())?, entry.path())));
    let programs = versions.map(|(version, folder)| (version, folder.join("bin/postgres")));
    programs.filter(|(_, program)| is_executable(program)).max().map(|(_, program)| program)
}

/// Paths of the parts of a Kafka installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KafkaFiles {
    /// Path of the `java` program with which Kafka runs; version 17 or newer is required and not checked.
    pub java: PathBuf,
    /// Path of the folder with the jars of Kafka and its dependencies.
    pub jars: PathBuf,
}

/// Returns the Kafka installation: the jars in the folder that `IMAGO_KAFKA` names, else in the cache folder, with
/// the Java program that `IMAGO_JAVA` names, else the one in `PATH`.
pub fn find_kafka() -> Result<KafkaFiles> {
    let wanted = "a folder with Kafka's jars (`libs` of its distribution)";
    let jars = find_jars("Kafka", "IMAGO_KAFKA", (KAFKA_JAR, KAFKA_CACHED), wanted)?;
    Ok(KafkaFiles { java: find_java()?, jars })
}

/// Paths of the parts of a Cassandra installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CassandraFiles {
    /// Path of the `java` program with which Cassandra runs; version 17 or newer is required and not checked.
    pub java: PathBuf,
    /// Path of the folder with the jars of Cassandra and its dependencies.
    pub jars: PathBuf,
}

/// Returns the Cassandra installation: the jars in the folder that `IMAGO_CASSANDRA` names, else in the cache folder,
/// with the Java program that `IMAGO_JAVA` names, else the one in `PATH`.
pub fn find_cassandra() -> Result<CassandraFiles> {
    let wanted = "a folder with Cassandra's jars (`lib` of its distribution)";
    let (own, cached) = (CASSANDRA_JAR, CASSANDRA_CACHED);
    let jars = find_jars("Cassandra", "IMAGO_CASSANDRA", (own, cached), wanted)?;
    Ok(CassandraFiles { java: find_java()?, jars })
}

fn find_java() -> Result<PathBuf> {
    const VARIABLE: &str = "IMAGO_JAVA";
    named_by(VARIABLE)?.or_else(|| on_path("java")).ok_or_else(|| Error::NoProgram {
        program: "java (17 or newer)",
        variable: VARIABLE,
        looked: "in PATH".into(),
    })
}

/// Returns the folder with the jars of `program`: the one that the environment variable `variable` names, else the
/// path `cached` in the cache folder. A folder is accepted if it has a jar whose file name begins with `own`.
fn find_jars(
    program: &'static str,
    variable: &'static str,
    (own, cached): (&str, &str),
    wanted: &'static str,
) -> Result<PathBuf> {
    let cached = cache_dir().join(cached);
    let is_right = |folder: &Path| has_jar(folder, own);
    let named = named(variable, is_right, wanted)?;
    named.or_else(|| is_right(&cached).then(|| cached.clone())).ok_or_else(|| {
        let looked = format!("at {}", cached.display());
        Error::NoProgram { program, variable, looked }
    })
}

fn has_jar(folder: &Path, own: &str) -> bool {
    let is_own = |name: &str| name.starts_with(own) && name.ends_with(".jar");
    let entries = folder.read_dir().into_iter().flatten().flatten();
    entries.into_iter().any(|entry| entry.file_name().to_str().is_some_and(is_own))
}

fn named_by(variable: &'static str) -> Result<Option<PathBuf>> {
    named(variable, is_executable, EXECUTABLE)
}

fn named(
    variable: &'static str,
    is_right: impl Fn(&Path) -> bool,
    wanted: &'static str,
) -> Result<Option<PathBuf>> {
    match env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from) {
        Some(path) if is_right(&path) => Ok(Some(path)),
        Some(path) => Err(Error::BadProgram { variable, path, wanted }),
        None => Ok(None),
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| is_executable(file))
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn cache_dir() -> PathBuf {
    dir_or_home("XDG_CACHE_HOME", ".cache")
}

/// Returns the absolute path that the environment variable `variable` contains, or `fallback` in the home folder if
/// it contains none (XDG base directories).
pub(crate) fn dir_or_home(variable: &str, fallback: &str) -> PathBuf {
    let absolute = env::var_os(variable).map(PathBuf::from).filter(|dir| dir.is_absolute());
    absolute.unwrap_or_else(|| {
        let home = env::var_os("HOME").unwrap_or_else(|| OsStr::new("/").to_owned());
        PathBuf::from(home).join(fallback)
    })
}
