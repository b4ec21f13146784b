//! Benchmarks: one file for each published table or figure, and one for each comparison with a competitor. Each
//! figure is a ratio to a floor or to a competitor that is measured in the same run.
//!
//! A duration in seconds depends more on the machine than on the program. Each benchmark therefore starts real
//! clusters. It measures the time that the servers alone need for the work (the floor), and directly afterwards the
//! time that Imago needs for it. It reports the ratio of the two; of several such pairs, the median ratio. Imago is
//! measured as users run it: as a separate process, from its start to its end. Work that needs no server is measured
//! inside the benchmark's own process: [`placement`], [`flows`], [`schedule`] and [`reuse`].
//!
//! This crate must not know flags and terminals.

pub mod adapt;
pub mod cache_hits;
pub mod chain_fetch;
mod cluster_pair;
mod competitor;
pub mod copy;
pub mod error;
mod fill;
pub mod flows;
pub mod foresight;
pub mod key_trial;
mod lag;
pub mod migration;
pub mod morphosys;
pub mod morphus;
mod operations;
pub mod placement;
mod process;
pub mod provision;
pub mod replay;
pub mod reshard;
pub mod reuse;
mod scan;
pub mod schedule;
pub mod shard_keys;
pub mod shard_work;
mod sharded_cluster;
pub mod sophia;
pub mod statistics;
pub mod store;
pub mod subject;
mod traffic;
pub mod verify;

/// Boxes the future of an async function that other crates call, so that its body is compiled here, once, and not in each
/// crate that awaits it.
pub(crate) use async_recursion::async_recursion as boxed;

use serde::Serialize;

/// Size of a benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of documents in the copied or compared collection.
    pub documents: u64,
    /// Size of one document as stored, in bytes.
    pub size_bytes: u32,
    /// Number of runs of each measurement; figures are medians.
    pub runs: u32,
}

/// The first fields of each report: the benchmark, its size, and the machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Header<S> {
    /// The benchmark's name.
    pub benchmark: &'static str,
    /// The benchmark's size.
    #[serde(flatten)]
    pub size: S,
    /// The machine on which the benchmark ran.
    #[serde(flatten)]
    pub machine: Machine,
    /// Storage cache of each MongoDB server, in MiB; absent if the benchmark starts none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_mb: Option<u32>,
}

impl<S> Header<S> {
    fn of(benchmark: &'static str, size: S) -> Self {
        Self { benchmark, size, machine: Machine::here(), cache_mb: None }
    }

    fn with_servers(benchmark: &'static str, size: S, cache_mb: u32) -> Self {
        Self { cache_mb: Some(cache_mb), ..Self::of(benchmark, size) }
    }
}

/// The machine and the build that figures come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// Number of processor cores that this process may use. It shares them with the servers, if there are any.
    pub cores: usize,
    /// True for an optimised build. Figures of other builds do not describe the product.
    pub is_optimised: bool,
}

impl Machine {
    fn here() -> Self {
        Self {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            is_optimised: !cfg!(debug_assertions),
        }
    }
}

/// Name of each benchmark, and a description of the measured work.
pub const BENCHMARKS: [(&str, &str); 29] = [
    ("copy", "a copy until it has caught up, against inserting the same documents from memory"),
    ("replay", "catching up with changes, against applying them in bulk from memory; and the lag"),
    ("verify", "a full verification, against only reading both sides"),
    (
        "reshard",
        "a change of the shard key, against the server's own; what moves, what clients see",
    ),
    (
        "foresight",
        "what copies of several sizes and plans of a store predicted, beside what came of it",
    ),
    ("chain-fetch", "fetching by batches and through a cache, beside a loop of find_one"),
    ("placement", "deciding where chunks go, exactly, against the textbook's Hungarian algorithm"),
    (
        "flows",
        "Figs. 3 and 9, Table 2 of Morphus: strategies of sockets, and members by tags, simulated",
    ),
    ("flows-real", "the same with real processes in network namespaces, against the simulation"),
    ("store", "the adaptive store's transactions, beside Redis's; its changes, memory, recovery"),
    ("store-postgres", "the adaptive store's stored procedures, beside PostgreSQL's, both on disk"),
    ("adapt", "a store that chooses its design, beside fixed designs and itself left alone"),
    (
        "morphosys-fig3",
        "Fig. 3 of MorphoSys: YCSB on its design and on those of five other systems, in one engine",
    ),
    (
        "morphosys-fig4",
        "Fig. 4 of MorphoSys: its design by how hot rows are, shifts, simulated sites, predicted costs",
    ),
    ("morphosys-fig5", "Fig. 5 of MorphoSys: TPC-C and SmallBank on the same designs"),
    ("morphosys-fig6", "Fig. 6 of MorphoSys: Twitter on the same designs"),
    (
        "tune-schedule",
        "deciding when a configuration changes, exactly, against the paper's genetic search",
    ),
    ("shard-keys", "shard keys: what they are predicted to do, beside what shards received"),
    ("cache-hits", "hits of a real Redis by policy and size, beside those that a plan predicts"),
    ("reuse", "miss-ratio curves: exact, sampled and simulated, against one pass over the trace"),
    (
        "sophia-traces",
        "Table 1, Figs. 4 and 5 of SOPHIA in form: its workloads, replayed on measurements of real nodes",
    ),
    (
        "sophia-scenarios",
        "Figs. 3, 6, 7 and 9 of SOPHIA in form: kinds of days, nodes, replicas and noise, replayed likewise",
    ),
    (
        "sophia-buses",
        "Fig. 4 of SOPHIA in form, on real Cassandra: each configuration left alone, and the tuner",
    ),
    (
        "sophia-roll",
        "Fig. 2 of SOPHIA in form, on real Cassandra: a change node by node, and all at once",
    ),
    (
        "sophia-redis",
        "Fig. 10 of SOPHIA in form, on real Redis: jobs that fit by default, compact only, or not at all",
    ),
    (
        "chained-mr",
        "shards, members and caches for a chain of MapReduce jobs, measured beside what was predicted",
    ),
    (
        "morphus-table1",
        "Table 1, Figs. 4 to 6 of Morphus: what succeeds while the shard key changes, and how fast",
    ),
    ("morphus-fig7", "Fig. 7 of Morphus: a change's time, and what it moves, by placement"),
    (
        "morphus-fig8",
        "Fig. 8 of Morphus: a change's time against data, load, replica sets and members",
    ),
];
