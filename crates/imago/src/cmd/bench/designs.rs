//! The options of `imago bench run morphosys-fig3` and its like.

use imago_bench::morphosys::{Design, Of, Outcome, Size, figure, figure4};
use serde_json::{Value, json};

use super::adapting::shifts_and_sites;
use super::drawn::Drawn;
use crate::exit::{Exit, Failure};

/// The size of a comparison of designs.
#[derive(Debug, clap::Args)]
pub struct Designs {
    /// Sites, each with a share of a core.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=16))]
    sites: u16,
    /// The share of a core that each site has.
    #[arg(long, value_name = "SHARE", default_value_t = 0.15)]
    site_cpu: f64,
    /// Simulated time that a message takes from a site to another one and back, in µs.
    #[arg(long, value_name = "MICROSECONDS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    round_trip_us: u64,
    /// Clients, each with one transaction under way.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    clients: u64,
    /// Partitions with which all designs begin; tables and warehouses begin partitions besides.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=800))]
    partitions: u32,
    /// Warehouses of TPC-C.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=100))]
    warehouses: u16,
    /// Users of YCSB, each with one row of 100 bytes; a fifth of it for Twitter.
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(2_000..=10_000_000))]
    users: u32,
    /// Time of each load before it is measured, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    warm_s: u64,
    /// Time for which each load is measured, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 6, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    seconds: u64,
    /// Rounds; each measures all designs, in the opposite order of the round before.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// The designs.
    #[arg(
        long,
        value_enum,
        value_name = "DESIGN",
        value_delimiter = ',',
        default_value = "morphosys,single-master,multi-master,dynamast,adr,clay"
    )]
    designs: Vec<Named>,
    /// The parts of the figure, such as a,b; all if none is given.
    #[arg(long, value_name = "PART", value_delimiter = ',')]
    parts: Vec<String>,
    /// Limit on the changes of the design a second that MorphoSys makes.
    #[arg(long, value_name = "N", default_value_t = 50.0)]
    changes_s_max: f64,
    #[command(flatten)]
    drawn: Drawn,
    /// Only show that the benchmark works: little data, one round of loads of a second.
    #[arg(long, conflicts_with_all = ["users", "warehouses", "warm_s", "seconds", "rounds"])]
    pub quick: bool,
}

/// The options of `imago bench run morphosys-fig4`.
#[derive(Debug, clap::Args)]
pub struct Learned {
    /// Leave out the shifts and the simulated sites, which take ten minutes.
    #[arg(long)]
    only_designs: bool,
    /// Time for which the store adapts, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    warm_s: u64,
    /// Only show that the benchmark works: little data, loads of a few seconds.
    #[arg(long, conflicts_with = "warm_s")]
    quick: bool,
}

/// A design by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Named {
    Morphosys,
    SingleMaster,
    MultiMaster,
    Dynamast,
    Adr,
    Clay,
}

/// Returns the size of a comparison without options.
fn default_size(quick: bool) -> Size {
    #[derive(clap::Parser)]
    struct Parsed {
        #[command(flatten)]
        designs: Designs,
    }
    let words = ["designs", "--quick"];
    let parsed: Parsed = clap::Parser::parse_from(&words[..1 + usize::from(quick)]);
    parsed.designs.size()
}

impl Designs {
    pub fn size(&self) -> Size {
        let design = |named: &Named| match named {
            Named::Morphosys => Design::Morphosys,
            Named::SingleMaster => Design::SingleMaster,
            Named::MultiMaster => Design::MultiMaster,
            Named::Dynamast => Design::Dynamast,
            Named::Adr => Design::Adr,
            Named::Clay => Design::Clay,
        };
        let size = Size {
            sites: self.sites,
            site_cpu: self.site_cpu,
            round_trip_us: self.round_trip_us,
            clients: self.clients,
            partitions: self.partitions as usize,
            users: self.users,
            warehouses: self.warehouses,
            items: 2_000,
            customers: 100,
            accounts: 200_000,
            warm_s: self.warm_s,
            lasts_s: self.seconds,
            rounds: self.rounds,
            designs: self.designs.iter().map(design).collect(),
            parts: self.parts.clone(),
            changes_s_max: self.changes_s_max,
        };
        match self.quick {
            true => Size {
                users: 2_000,
                warehouses: 2,
                items: 200,
                customers: 10,
                accounts: 2_000,
                partitions: 16,
                warm_s: 0,
                lasts_s: 1,
                rounds: 1,
                ..size
            },
            false => size,
        }
    }
}

/// Measures a figure, and writes a line to stderr after each load.
pub async fn measure(of: Of, asked: &Designs) -> Result<Value, Failure> {
    let (size, folder) = (asked.size(), asked.drawn.pictures.clone());
    let see = |part: &str, design: Design, outcome: &Outcome| {
        eprintln!("{part:5} {:14} {:8.0} transactions/s", design.name(), outcome.throughput_s);
        for contradiction in outcome.contradictions.iter().take(10) {
            eprintln!("      {contradiction}");
        }
    };
    let measured =
        tokio::task::spawn_blocking(move || figure(of, &size, folder.as_deref(), see)).await;
    let stopped = |cause| Failure::from_error(Exit::Failed, "benchmark", &cause);
    Ok(json!(measured.map_err(stopped)??))
}

/// Measures Fig. 4, and writes each step to stderr.
pub async fn learned(asked: &Learned) -> Result<Value, Failure> {
    let quick = asked.quick;
    let size = default_size(quick);
    let size = if quick { size } else { Size { warm_s: asked.warm_s, ..size } };
    let adapted = (!asked.only_designs).then(|| shifts_and_sites(quick));
    let say = |what: &str| eprintln!("{what}");
    let measured = tokio::task::spawn_blocking(move || figure4(&size, adapted, &say)).await;
    let stopped = |cause| Failure::from_error(Exit::Failed, "benchmark", &cause);
    Ok(json!(measured.map_err(stopped)??))
}
