//! A pool of clusters for tests, each leased to one test after the other.
//!
//! A `mongod` costs a second of processor time to start, and half of that is a loop by which its storage engine
//! measures the processor's clock: no option shortens it. Clusters are therefore reused. The invariant is that a
//! test cannot distinguish a used cluster from a new one:
//!
//! - one test at a time has the cluster, from [`lease`] until its [`Leased`] is dropped;
//! - the cluster returns to the pool only if the test did not panic, injected no fault into the config server (one
//!   that was elected a moment ago still refuses to move chunks), and did not call [`Leased::end_with_this_test`];
//! - before the next test gets it, servers that were killed or suspended are restored and every member has caught
//!   up ([`Cluster::heal`]), the commands that the last test passed to [`Leased::undo`] are run, write blocks are
//!   lifted and databases dropped. Then its [`ClusterSnapshot`] (parameters, members, users, roles, shards, zones,
//!   settings, databases) must equal that of the new cluster; otherwise the cluster is ended and another started.
//!
//! The pool also limits the number of servers at work in this process ([`SERVERS_AT_ONCE`]): on two cores more of
//! them miss each other's heartbeats and hold unexpected elections. Idle clusters are ended when the process exits,
//! and the oldest when they have more servers than [`IDLE_SERVERS_MAX`].

mod snapshot;

use std::collections::VecDeque;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::Instant;

use bson::Document;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::cluster::{Cluster, ClusterSpec, Role};
use crate::error::Result;
use crate::times;
use snapshot::ClusterSnapshot;

/// Limit of the number of servers, over all clusters that the tests of this process have leased.
pub const SERVERS_AT_ONCE: u32 = 20;
/// Limit of the number of servers in idle clusters of this process. Each takes 150 MB of memory, 200 MB for its
/// files, and 0.6 % of a processor.
const IDLE_SERVERS_MAX: u32 = 16;
/// Path of the file system whose files are in memory.
const MEMORY: &str = "/dev/shm";
/// Least free space in [`MEMORY`], in bytes, for which clusters store their data there; the servers of the test suite
/// need a third of that.
const MEMORY_FREE_MIN: u64 = 6 << 30;

static AT_WORK: Semaphore = Semaphore::const_new(SERVERS_AT_ONCE as usize);
static IDLE: Mutex<VecDeque<Idle>> = Mutex::new(VecDeque::new());

#[derive(Debug)]
struct Idle {
    cluster: Cluster,
    new: ClusterSnapshot,
    undo: Mutex<Vec<(Role, Document)>>,
}

/// A cluster leased to one test; the cluster returns to the pool when this value is dropped.
#[derive(Debug)]
pub struct Leased {
    idle: Option<Idle>,
    is_reusable: AtomicBool,
    _permit: Option<SemaphorePermit<'static>>,
}

/// Returns the specification of a replica set of `members` members, to be passed to [`lease`].
#[must_use]
pub fn replica_set(members: u32) -> ClusterSpec {
    ClusterSpec::replica_set("pool", members)
}

/// Returns the specification of a sharded cluster of `shards` shards with one member each, to be passed to [`lease`].
#[must_use]
pub fn sharded(shards: u32) -> ClusterSpec {
    ClusterSpec::sharded("pool", shards)
}

/// Leases a cluster that matches `spec` except for its name. The pool chooses the name, so the names of replica sets
/// and nodes must be read from the returned cluster.
#[crate::boxed]
pub async fn lease(spec: ClusterSpec) -> Result<Leased> {
    let [leased] = lease_all([spec]).await?;
    Ok(leased)
}

/// Leases one cluster for each of `specs`, all at once. Two tests that leased several one by one could deadlock.
pub async fn lease_all<const N: usize>(specs: [ClusterSpec; N]) -> Result<[Leased; N]> {
    let servers = specs.iter().map(servers).sum::<u32>().min(SERVERS_AT_ONCE);
    let began = Instant::now();
    let permit = AT_WORK.acquire_many(servers).await.expect("the semaphore is never closed");
    let mut permit = Some(permit);
    times::note("wait for a lease", &format!("{servers} servers"), began);
    let starts = specs.map(|spec| Box::pin(reuse_or_start(spec)));
    let idle = futures_util::future::try_join_all(starts).await?;
    let leased = idle.into_iter().map(|idle| Leased {
        idle: Some(idle),
        is_reusable: AtomicBool::new(true),
        _permit: permit.take(),
    });
    let leased: Vec<Leased> = leased.collect();
    Ok(leased.try_into().expect("as many clusters as specifications"))
}

/// Returns a folder in memory, for data that need not survive a loss of power; `None` if there is none with enough
/// free space.
#[must_use]
pub fn folder() -> Option<PathBuf> {
    let room = rustix::fs::statvfs(MEMORY).ok()?;
    let free = available_memory()?.min(room.f_bavail * room.f_frsize);
    (free >= MEMORY_FREE_MIN).then(|| Path::new(MEMORY).to_path_buf())
}

/// Returns the memory that is available without swapping, in bytes; `None` if the kernel does not report it. A file
/// system in memory may be larger than this.
fn available_memory() -> Option<u64> {
    let told = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Returns the number of `mongod` servers of a cluster of this specification, the config server included.
fn servers(spec: &ClusterSpec) -> u32 {
    spec.shards.map_or(spec.members, |shards| shards * spec.members + 1)
}

async fn reuse_or_start(mut spec: ClusterSpec) -> Result<Idle> {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    spec.folder = spec.folder.or_else(folder);
    loop {
        let found = {
            let mut idle = idle();
            let index = idle.iter().position(|idle| is_interchangeable(idle.cluster.spec(), &spec));
            index.and_then(|index| idle.remove(index))
        };
        let Some(found) = found else { break };
        let began = Instant::now();
        let undo = std::mem::take(&mut *locked(&found.undo));
        match snapshot::restore(&found.cluster, &found.new, &undo).await {
            Ok(()) => {
                times::note("reuse", &times::kind(&spec), began);
                return Ok(found);
            }
            Err(why) => times::note("end", &why, began),
        }
    }
    spec.name = format!("pool-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let cluster = Cluster::start(spec).await?;
    let new = ClusterSnapshot::of(&cluster).await?;
    Ok(Idle { cluster, new, undo: Mutex::default() })
}

/// Returns true if the two specifications differ at most in the name.
fn is_interchangeable(one: &ClusterSpec, other: &ClusterSpec) -> bool {
    ClusterSpec { name: other.name.clone(), ..one.clone() } == *other
}

impl Leased {
    /// Registers `command` to be run before another test gets this cluster, as the administrator, on every server of
    /// the role `on`.
    pub fn undo(&self, on: Role, command: Document) {
        locked(&self.inner().undo).push((on, command));
    }

    /// Makes the pool end the cluster when this lease is dropped. It is for tests that change something that no
    /// command undoes.
    pub fn end_with_this_test(&self) {
        self.is_reusable.store(false, Ordering::Relaxed);
    }

    fn inner(&self) -> &Idle {
        self.idle.as_ref().expect("there until it is dropped")
    }
}

impl Deref for Leased {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.inner().cluster
    }
}

impl Drop for Leased {
    fn drop(&mut self) {
        let Some(idle) = self.idle.take() else { return };
        let is_reusable = self.is_reusable.load(Ordering::Relaxed);
        if !is_reusable || idle.cluster.has_config_fault() || std::thread::panicking() {
            return;
        }
        end_at_exit();
        let mut oldest = Vec::new();
        let mut all = self::idle();
        all.push_back(idle);
        while all.iter().map(|idle| servers(idle.cluster.spec())).sum::<u32>() > IDLE_SERVERS_MAX {
            oldest.extend(all.pop_front());
        }
        // Ending servers takes a while, and other tests need not wait for it.
        drop(all);
        drop(oldest);
    }
}

fn idle() -> MutexGuard<'static, VecDeque<Idle>> {
    locked(&IDLE)
}

/// Locks a mutex, poisoned or not. A value that a panicking test held is valid, because that test's cluster is
/// discarded.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers, once, a function that ends the idle clusters and removes their folders when this process exits; statics
/// are not dropped. If the function does not run, because the process is killed, the kernel ends the servers and the
/// next testbed removes the folders.
#[allow(unsafe_code, reason = "the standard library has no way to act at exit")]
fn end_at_exit() {
    extern "C" fn end() {
        // A panic must not cross into C. After one, the same remains as after a kill.
        let _ = std::panic::catch_unwind(|| drop(std::mem::take(&mut *idle())));
    }
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| {
        // SAFETY: `end` is a function of this program, does not unwind, and needs no thread-local.
        let _ = unsafe { libc::atexit(end) };
    });
}
