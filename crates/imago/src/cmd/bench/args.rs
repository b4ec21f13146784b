//! The options of `imago bench run`: each benchmark accepts those that apply to it.

use imago_bench::morphus::{availability, placing, scaling};
use imago_bench::{Size, flows, reshard, store};

use super::drawn::Drawn;
use super::flows_real;
use super::tuning::{BUSES, JOBS};

const QUICK: &str = "Figures of a debug build, or with --quick, say only that the benchmark works. \
                     A busy machine disturbs floors and figures alike, but not equally: look at \
                     `spread`.";

/// A benchmark with its options.
#[derive(Debug, clap::Subcommand)]
pub enum Benchmark {
    /// A copy until it has caught up.
    #[command(after_help = QUICK)]
    Copy(Documents),
    /// Catching up with changes, and the lag while following.
    #[command(after_help = QUICK)]
    Replay(Documents),
    /// A full verification.
    #[command(after_help = QUICK)]
    Verify(Documents),
    /// A change of the shard key, beside the server's own; and what clients notice of it.
    #[command(after_help = QUICK)]
    Reshard(Resharding),
    /// What copies of several sizes and plans of a store predicted, beside what came of it.
    #[command(after_help = QUICK)]
    Foresight(Foretold),
    /// Fetching of a chained job, beside a loop of `find_one`.
    #[command(after_help = QUICK)]
    ChainFetch(super::fetching::Fetching),
    /// Deciding where new chunks go; starts no cluster.
    #[command(after_help = QUICK)]
    Placement(Chunks),
    /// Figs. 3 and 9 and Table 2 of Morphus: strategies of sockets, and members by their tags, in
    /// simulated networks; starts no cluster.
    #[command(visible_aliases = ["morphus-fig3", "morphus-fig9", "morphus-table2"])]
    #[command(after_help = QUICK)]
    Flows(Networks),
    /// The same with real processes in network namespaces; needs root, and starts no cluster.
    #[command(after_help = QUICK)]
    FlowsReal(flows_real::Args),
    /// The adaptive store: transactions for each second of processor time, beside Redis's own.
    #[command(after_help = QUICK)]
    Store(Stores),
    /// Stored procedures of the adaptive store, beside those of PostgreSQL and a script of Redis, for each second of
    /// processor time.
    #[command(after_help = QUICK)]
    StorePostgres(Procedures),
    /// A store that chooses its own design, beside fixed designs, and beside itself left alone.
    #[command(after_help = QUICK)]
    Adapt(super::adapting::Adapting),
    /// Fig. 3 of MorphoSys: YCSB, skewed and uniform, on its design and on those of five other systems, in one engine.
    #[command(after_help = QUICK)]
    MorphosysFig3(super::designs::Designs),
    /// Fig. 4 of MorphoSys: its partitions and replicas by how hot rows are, shifts, simulated sites, and predicted costs.
    #[command(after_help = QUICK)]
    MorphosysFig4(super::designs::Learned),
    /// Fig. 5 of MorphoSys: TPC-C and SmallBank on the same designs.
    #[command(after_help = QUICK)]
    MorphosysFig5(super::designs::Designs),
    /// Fig. 6 of MorphoSys: Twitter on the same designs.
    #[command(after_help = QUICK)]
    MorphosysFig6(super::designs::Designs),
    /// Deciding when a configuration should change, beside the paper's genetic search; starts no cluster.
    #[command(after_help = QUICK)]
    TuneSchedule(super::tuning::Schedules),
    /// Ten shard keys under five loads on a real sharded cluster: the shards that answer, as predicted and as received.
    #[command(after_help = QUICK)]
    ShardKeys(ShardKeys),
    /// Hits of a real Redis under seven loads, with three policies and five sizes each, beside those that a plan predicts.
    #[command(after_help = QUICK)]
    CacheHits(super::reuse::Loads),
    /// Miss-ratio curves of a drawn trace: exact, from a sample of keys, and simulated; starts no cluster.
    #[command(after_help = QUICK)]
    Reuse(super::reuse::References),
    /// The workloads of SOPHIA, lived through by the tuner on measurements of real nodes; starts no cluster.
    #[command(after_help = QUICK)]
    SophiaTraces(super::tuning::Traces),
    /// Figs. 3 and 5 to 9 of SOPHIA: kinds of days, jobs at a time, numbers of nodes, replicas, data, and noise, replayed on
    /// measurements of real nodes and on what the paper prints; starts no cluster.
    #[command(visible_aliases = ["sophia-fig3", "sophia-fig5", "sophia-fig6", "sophia-fig7", "sophia-fig8", "sophia-fig9"])]
    #[command(after_help = super::tuning::SCENARIOS)]
    SophiaScenarios(super::tuning::Scenarios),
    /// Buses of SOPHIA on real Cassandra nodes: each configuration left alone, and the tuner, in turns.
    #[command(after_help = BUSES)]
    SophiaBuses(super::tuning::Buses),
    /// A change of configuration on real Cassandra nodes under load: node by node, and all at once.
    #[command(after_help = QUICK)]
    SophiaRoll(super::tuning::Rolls),
    /// Jobs of several sizes on a real Redis with little memory: the default, compact, and the tuner.
    #[command(after_help = JOBS)]
    SophiaRedis(super::tuning::Jobs),
    /// Figs. 3 and 4 of the study of chained MapReduce: shards, members and caches for a chain of jobs, with predictions.
    #[command(after_help = super::chained::CHAINED)]
    ChainedMr(super::chained::Chained),
    /// Table 1 and Figs. 4 to 6 of Morphus: what succeeds while the shard key changes, and how fast.
    #[command(name = "morphus-table1", visible_aliases = ["morphus-fig4", "morphus-fig5", "morphus-fig6"])]
    #[command(after_help = QUICK)]
    MorphusTable1(Availability),
    /// Fig. 7 of Morphus: a change's time, and what it moves, by how chunks are placed.
    #[command(name = "morphus-fig7", after_help = QUICK)]
    MorphusFig7(Placings),
    /// Figs. 8a to 8d of Morphus: a change's time against data, load, replica sets and members.
    #[command(name = "morphus-fig8", after_help = QUICK)]
    MorphusFig8(Scales),
}

/// Size of the benchmark of shard keys.
#[derive(Debug, clap::Args)]
pub struct ShardKeys {
    /// Documents of the collection.
    #[arg(long, value_name = "N", default_value_t = 60_000, value_parser = clap::value_parser!(u64).range(1_000..=10_000_000))]
    pub documents: u64,
    /// Operations of each load.
    #[arg(long, value_name = "N", default_value_t = 4_000, value_parser = clap::value_parser!(u64).range(100..=10_000_000))]
    pub operations: u64,
    /// Only show that the benchmark works: 2,000 documents, 400 operations, two keys.
    #[arg(long, conflicts_with_all = ["documents", "operations"])]
    pub quick: bool,
}

/// Size of a benchmark of copies.
#[derive(Debug, clap::Args)]
pub struct Documents {
    /// Documents; a replay takes three tenths of them, and makes as many changes.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10..))]
    pub documents: u64,
    /// The size of a document as stored.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    pub size_bytes: u32,
    /// Runs of each measurement; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Only show that the benchmark works: 20,000 documents, two runs.
    #[arg(long, conflicts_with_all = ["documents", "runs"])]
    pub quick: bool,
}

impl Documents {
    pub fn size(&self) -> Size {
        let documents = if self.quick { 20_000 } else { self.documents };
        let runs = if self.quick { 2 } else { self.runs };
        Size { documents, size_bytes: self.size_bytes, runs }
    }
}

/// Size of the benchmark of predictions, and its picture.
#[derive(Debug, clap::Args)]
pub struct Foretold {
    #[command(flatten)]
    pub documents: Documents,
    #[command(flatten)]
    pub drawn: Drawn,
}

/// Size of the comparison with PostgreSQL and Redis.
#[derive(Debug, clap::Args)]
pub struct Procedures {
    /// Users, each with three rows of 100 bytes.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
    pub users: u32,
    /// Duration of each measurement.
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3_600))]
    pub seconds: u32,
    /// Sessions of the store, each with one transaction in progress.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub sessions: u32,
    /// Sessions of PostgreSQL.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=150))]
    pub postgres_sessions: u32,
    /// Connections to Redis.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub redis_sessions: u32,
    /// Runs of each measurement; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Only show that the benchmark works: 1,000 users, two runs of two seconds.
    #[arg(long, conflicts_with_all = ["users", "seconds", "runs"])]
    pub quick: bool,
}

impl Procedures {
    pub fn size(&self) -> store::postgres::Size {
        let Self { users, seconds, sessions, postgres_sessions, redis_sessions, runs, quick } =
            *self;
        let (users, seconds, runs) = if quick { (1_000, 2, 2) } else { (users, seconds, runs) };
        store::postgres::Size { users, seconds, sessions, postgres_sessions, redis_sessions, runs }
    }
}

/// Size of a benchmark of the store.
#[derive(Debug, clap::Args)]
pub struct Stores {
    /// Rows of 100 bytes.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..=20_000_000))]
    pub rows: u64,
    /// Transactions of each measurement in process; requests over RESP are twice as many.
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1_000..=20_000_000))]
    pub transactions: u64,
    /// Runs of each measurement; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Only show that the benchmark works: 20,000 rows, two runs.
    #[arg(long, conflicts_with_all = ["rows", "transactions", "runs"])]
    pub quick: bool,
}

impl Stores {
    pub fn size(&self) -> store::Size {
        let Self { rows, transactions, runs, quick } = *self;
        match quick {
            true => store::Size {
                rows: 20_000,
                transactions: 10_000,
                requests: 20_000,
                operators_s: 1,
                runs: 2,
            },
            false => {
                store::Size { rows, transactions, requests: 2 * transactions, operators_s: 5, runs }
            }
        }
    }
}

/// Size of a change of the shard key.
#[derive(Debug, clap::Args)]
pub struct Resharding {
    /// Documents; the clients' loads take a hundredth and a tenth of them.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub documents: u64,
    /// The size of a document as stored.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    pub size_bytes: u32,
    /// Shards, of one member each.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=8))]
    pub shards: u32,
    /// The share of documents whose new key follows from the old one, in reverse order.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    pub correlation: f64,
    /// Runs of both measurements; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Changes of the key, there and back, under a load of 500 writes/s.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub cutovers: u32,
    /// Leave out the server's own as it is shipped, which takes five minutes at least.
    #[arg(long)]
    pub no_shipped: bool,
    /// Only show that the benchmark works: 5,000 documents, a fifth of the clients' rates, two runs,
    /// two cut-overs, not as shipped.
    #[arg(long, conflicts_with_all = ["documents", "runs", "cutovers"])]
    pub quick: bool,
}

impl Resharding {
    pub fn size(&self) -> reshard::Size {
        let asked = reshard::Size {
            documents: self.documents,
            size_bytes: self.size_bytes,
            shards: self.shards,
            correlation: self.correlation,
            runs: self.runs,
            cutovers: self.cutovers,
            idle_s: 75,
            rate_percent: 100,
            as_shipped: !self.no_shipped,
        };
        if !self.quick {
            return asked;
        }
        reshard::Size {
            documents: 5_000,
            runs: 2,
            cutovers: 2,
            idle_s: 2,
            // A debug build on a busy machine cannot sustain a higher rate.
            rate_percent: 20,
            as_shipped: false,
            ..asked
        }
    }
}

/// Size of a benchmark of placements.
#[derive(Debug, clap::Args)]
pub struct Chunks {
    /// New chunks to be placed.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub chunks: u32,
    /// Servers on which they lie and are placed.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub servers: u32,
    /// Chunks with which the textbook's Hungarian algorithm is compared; its time grows as their
    /// third power.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [500, 1_000, 2_000])]
    pub hungarian_chunks: Vec<u32>,
    /// Runs of each measurement; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Only show that the benchmark works: 2,000 chunks, 20 servers, a comparison with 200, two runs.
    #[arg(long, conflicts_with_all = ["chunks", "servers", "hungarian_chunks", "runs"])]
    pub quick: bool,
}

/// The size of the simulation.
#[derive(Debug, clap::Args)]
pub struct Networks {
    /// Runs, each with its own draw of members and data; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub runs: u32,
    /// Leave out the networks with more servers; there are two with 9, one with 30, one with 300.
    #[arg(long, value_name = "N", default_value_t = flows::SERVERS_MAX, value_parser = clap::value_parser!(u32).range(9..))]
    pub servers_max: u32,
    /// The largest windows of a simulated connection.
    #[arg(long, value_name = "KIB", value_delimiter = ',', default_values_t = [16, 64])]
    pub window_kib: Vec<u32>,
    #[command(flatten)]
    pub drawn: Drawn,
    /// Only show that the benchmark works: the networks with 9 servers, two runs.
    #[arg(long, conflicts_with_all = ["runs", "servers_max"])]
    pub quick: bool,
}

/// Table 1 and Figs. 4 to 6.
#[derive(Debug, clap::Args)]
pub struct Availability {
    /// Documents.
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    documents: u64,
    #[command(flatten)]
    servers: Servers,
    /// Operations per second; the paper has 100.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// Time for which clients are watched before the change, and after it, in s.
    #[arg(long, value_name = "S", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    around_s: u64,
    #[command(flatten)]
    pub drawn: Drawn,
    /// Only show that the benchmark works: 2,000 documents, 2 s before and after the change, two of the four loads.
    #[arg(long, conflicts_with_all = ["documents", "around_s"])]
    quick: bool,
}

impl Availability {
    pub fn size(&self) -> availability::Size {
        let Servers { size_bytes, shards, members } = self.servers;
        let (documents, around_s, loads) = match self.quick {
            true => (2_000, 2, 2),
            false => (self.documents, self.around_s, 4),
        };
        let rate_per_s = self.rate;
        availability::Size { documents, size_bytes, shards, members, rate_per_s, around_s, loads }
    }
}

/// Fig. 7.
#[derive(Debug, clap::Args)]
pub struct Placings {
    /// Documents.
    #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    documents: u64,
    #[command(flatten)]
    servers: Servers,
    #[command(flatten)]
    chunked: Chunked,
    /// Runs of each measurement; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    #[command(flatten)]
    pub drawn: Drawn,
    /// Only show that the benchmark works: 2,000 documents, two runs.
    #[arg(long, conflicts_with_all = ["documents", "runs"])]
    quick: bool,
}

impl Placings {
    pub fn size(&self) -> placing::Size {
        let Servers { size_bytes, shards, members } = self.servers;
        let (documents, runs) = if self.quick { (2_000, 2) } else { (self.documents, self.runs) };
        let chunk_mb = self.chunked.chunk_size_mb;
        placing::Size { documents, size_bytes, shards, members, chunk_mb, runs }
    }
}

/// Size of new chunks.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Chunked {
    /// Size of new chunks, in MiB; MongoDB's usual 128 would be few of them for so little data.
    #[arg(long, value_name = "MB", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    chunk_size_mb: u32,
}

/// The documents and servers.
#[derive(Clone, Copy, Debug, clap::Args)]
struct Servers {
    /// The size of a document as stored.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    size_bytes: u32,
    /// Shards; the paper has 3.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=8))]
    shards: u32,
    /// Members of each shard; the paper has 3.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=5))]
    members: u32,
}

/// Fig. 8.
#[derive(Debug, clap::Args)]
pub struct Scales {
    /// The parts of Fig. 8 to measure, of a to d.
    #[arg(long, value_enum, value_name = "PART", value_delimiter = ',', default_value = "a,b,c,d")]
    parts: Vec<Part>,
    /// Fig. 8a: documents.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [50_000, 100_000, 200_000, 400_000], value_parser = clap::value_parser!(u32).range(1_000..))]
    sizes: Vec<u32>,
    /// Fig. 8b: operations per second beside the change.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [0, 150, 300, 600], value_parser = clap::value_parser!(u32).range(..=10_000))]
    rates: Vec<u32>,
    /// Fig. 8c: shards, of one member each; 3 everywhere else.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [2, 3, 4, 5], value_parser = clap::value_parser!(u32).range(2..=8))]
    shards: Vec<u32>,
    /// Fig. 8d: members of each shard; 1 everywhere else.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 3, 5], value_parser = clap::value_parser!(u32).range(1..=5))]
    members: Vec<u32>,
    /// Documents in Figs. 8b to 8d.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    documents: u64,
    /// The size of a document as stored.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    size_bytes: u32,
    #[command(flatten)]
    chunked: Chunked,
    /// Runs of each measurement; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    #[command(flatten)]
    pub drawn: Drawn,
    /// Only show that the benchmark works: two small values of each part, two runs.
    #[arg(long, conflicts_with_all = ["sizes", "rates", "shards", "members", "documents", "runs"])]
    quick: bool,
}

/// One of Figs. 8a to 8d.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Part {
    /// Against the data.
    A,
    /// Against the rate of operations beside it.
    B,
    /// Against the number of replica sets.
    C,
    /// Against the members of each replica set.
    D,
}

impl Scales {
    pub fn size(&self) -> scaling::Size {
        let part = |part: &Part| {
            let (part, asked, quick) = match part {
                Part::A => (scaling::Part::A, &self.sizes, [1_000, 2_000]),
                Part::B => (scaling::Part::B, &self.rates, [0, 100]),
                Part::C => (scaling::Part::C, &self.shards, [2, 3]),
                Part::D => (scaling::Part::D, &self.members, [1, 3]),
            };
            let mut values = if self.quick { quick.to_vec() } else { asked.clone() };
            values.sort_unstable();
            values.dedup();
            (part, values)
        };
        let (documents, runs) = if self.quick { (2_000, 2) } else { (self.documents, self.runs) };
        let base = scaling::Setup { members: 1, shards: 3, documents, rate_per_s: 0 };
        let parts = self.parts.iter().map(part).collect();
        let (size_bytes, chunk_mb) = (self.size_bytes, self.chunked.chunk_size_mb);
        scaling::Size { base, parts, size_bytes, chunk_mb, runs }
    }
}
