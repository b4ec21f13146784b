//! What may be typed behind `imago bench run`: each benchmark takes the options that concern it.

use std::path::PathBuf;

use imago_bench::morphus::availability;
use imago_bench::{Size, flows, reshard};

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
    /// Deciding where new chunks go; starts no cluster.
    #[command(after_help = QUICK)]
    Placement(Chunks),
    /// Strategies of sockets in simulated networks; starts no cluster.
    #[command(after_help = QUICK)]
    Flows(Networks),
    /// Table 1 and Figs. 4 to 6 of Morphus: what succeeds while the shard key changes, and how fast.
    #[command(name = "morphus-table1", visible_aliases = ["morphus-fig4", "morphus-fig5", "morphus-fig6"])]
    #[command(after_help = QUICK)]
    MorphusTable1(Availability),
}

/// How large a benchmark of copies is.
#[derive(Debug, clap::Args)]
pub struct Documents {
    /// Documents; a replay takes three tenths of them, and makes as many changes.
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(10..))]
    pub documents: u64,
    /// The size of a document as stored.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    pub size_bytes: u32,
    /// How often everything is measured; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Only show that the benchmark works: 20,000 documents, one run.
    #[arg(long, conflicts_with_all = ["documents", "runs"])]
    pub quick: bool,
}

impl Documents {
    pub fn size(&self) -> Size {
        let documents = if self.quick { 20_000 } else { self.documents };
        let runs = if self.quick { 1 } else { self.runs };
        Size { documents, size_bytes: self.size_bytes, runs }
    }
}

/// How large a change of the shard key is.
#[derive(Debug, clap::Args)]
pub struct Resharding {
    /// Documents; the clients' loads take a twentieth and a fifth of them.
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
    /// How often both are measured; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Changes of the key, there and back, under a load of 500 writes/s.
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub cutovers: u32,
    /// Leave out the server's own as it is shipped, which takes five minutes at least.
    #[arg(long)]
    pub no_shipped: bool,
    /// Only show that the benchmark works: 20,000 documents, one run, two cut-overs, not as shipped.
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
            idle_s: 15,
            as_shipped: !self.no_shipped,
        };
        if !self.quick {
            return asked;
        }
        reshard::Size {
            documents: 20_000,
            runs: 1,
            cutovers: 2,
            idle_s: 3,
            as_shipped: false,
            ..asked
        }
    }
}

/// How much is placed.
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
    /// How often everything is measured; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub runs: u32,
    /// Only show that the benchmark works: 2,000 chunks, 20 servers, a comparison with 200, one run.
    #[arg(long, conflicts_with_all = ["chunks", "servers", "hungarian_chunks", "runs"])]
    pub quick: bool,
}

/// What is simulated.
#[derive(Debug, clap::Args)]
pub struct Networks {
    /// How often members and data are drawn; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub runs: u32,
    /// Leave out the networks with more servers; there are two with 9, one with 30, one with 300.
    #[arg(long, value_name = "N", default_value_t = flows::SERVERS_MAX, value_parser = clap::value_parser!(u32).range(9..))]
    pub servers_max: u32,
    /// The largest windows of a simulated connection.
    #[arg(long, value_name = "KIB", value_delimiter = ',', default_values_t = [16, 64])]
    pub window_kib: Vec<u32>,
    /// Only show that the benchmark works: the networks with 9 servers, two runs.
    #[arg(long, conflicts_with_all = ["runs", "servers_max"])]
    pub quick: bool,
}

/// Table 1 and Figs. 4 to 6.
#[derive(Debug, clap::Args)]
pub struct Availability {
    /// Documents.
    #[arg(long, value_name = "N", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1_000..))]
    pub documents: u64,
    /// The size of a document as stored.
    #[arg(long, value_name = "BYTES", default_value_t = 1_000)]
    pub size_bytes: u32,
    /// Shards; the paper has 3.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=8))]
    pub shards: u32,
    /// Members of each shard; the paper has 3.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=5))]
    pub members: u32,
    /// Operations per second; the paper has 100.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub rate: u32,
    /// How long clients are watched before the change, and after it.
    #[arg(long, value_name = "S", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    pub around_s: u64,
    #[command(flatten)]
    pub drawn: Drawn,
    /// Only show that the benchmark works: 2,000 documents, 2 s before and after the change.
    #[arg(long, conflicts_with_all = ["documents", "around_s"])]
    pub quick: bool,
}

impl Availability {
    pub fn size(&self) -> availability::Size {
        let &Self { documents, size_bytes, shards, members, rate, around_s, quick, .. } = self;
        let asked = availability::Size {
            documents,
            size_bytes,
            shards,
            members,
            rate_per_s: rate,
            around_s,
        };
        if quick { availability::Size { documents: 2_000, around_s: 2, ..asked } } else { asked }
    }
}

/// Where figures are drawn.
#[derive(Debug, clap::Args)]
pub struct Drawn {
    /// Draw the figures into this folder, as SVG files named after them; the report names the files.
    #[arg(long, value_name = "DIR")]
    pub pictures: Option<PathBuf>,
}
