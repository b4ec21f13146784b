//! The options of `imago bench run adapt`.

use imago_bench::adapt;

/// The size of a benchmark of adaptation.
#[derive(Debug, clap::Args)]
pub struct Adapting {
    /// Users, with three rows of 100 bytes each.
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1_000..=1_000_000))]
    pub users: u64,
    /// The share of a core that each of the four sites has.
    #[arg(long, value_name = "SHARE", default_value_t = 0.15)]
    pub site_cpu: f64,
    /// Clients, each with one transaction under way.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub clients: u64,
    /// Moves of the most popular users, one a minute.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    pub shifts: u64,
    /// With `--parts periods`: how long the popular users stay in a place, in seconds.
    #[arg(
        long,
        value_name = "SECONDS",
        value_delimiter = ',',
        default_value = "2,5,10,20,60",
        value_parser = clap::value_parser!(u64).range(1..=600)
    )]
    pub periods: Vec<u64>,
    /// The parts.
    #[arg(
        long,
        value_enum,
        value_name = "PART",
        value_delimiter = ',',
        default_value = "starts,shifts,beside"
    )]
    parts: Vec<AdaptPart>,
    /// Only show that the benchmark works: 4,000 users, loads of a few seconds.
    #[arg(long, conflicts_with_all = ["users", "shifts", "periods"])]
    pub quick: bool,
}

/// A part of the benchmark of adaptation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum AdaptPart {
    /// From a random start, beside static designs.
    Starts,
    /// The popular users move.
    Shifts,
    /// The popular users are in two places in turn (25 minutes).
    Periods,
    /// Loads at which nothing is to be gained, with adaptation and without.
    Beside,
    /// More sites in simulation, and how far that is from the real engine at one, two and four sites: within a third.
    Sites,
}

/// Returns the size of the shifts and of the simulated sites, as the defaults have it.
pub fn shifts_and_sites(quick: bool) -> adapt::Size {
    let asked = Adapting {
        users: 40_000,
        site_cpu: 0.15,
        clients: 64,
        shifts: 3,
        periods: Vec::new(),
        parts: vec![AdaptPart::Shifts, AdaptPart::Sites],
        quick,
    };
    asked.size()
}

impl Adapting {
    pub fn size(&self) -> adapt::Size {
        let Self { users, site_cpu, clients, shifts, quick, .. } = *self;
        let has = |part| self.parts.contains(&part);
        let parts = adapt::Parts {
            starts: has(AdaptPart::Starts),
            shifts: has(AdaptPart::Shifts),
            beside: has(AdaptPart::Beside),
            sites: has(AdaptPart::Sites),
            periods: has(AdaptPart::Periods),
        };
        let size = adapt::Size {
            users,
            sites: 4,
            site_cpu,
            clients,
            partitions: 32,
            compared_s: 12,
            beside_s: 20,
            mixes: 2,
            sites_max: 16,
            rounds: 2,
            learns_s: 70,
            learned_s: 30,
            shift_s: 60,
            shifts,
            periods_s: if quick { vec![2] } else { self.periods.clone() },
            parts,
        };
        match quick {
            true => adapt::Size {
                users: 4_000,
                compared_s: 3,
                beside_s: 3,
                mixes: 1,
                sites_max: 8,
                rounds: 1,
                learns_s: 5,
                learned_s: 2,
                shift_s: 4,
                shifts: 1,
                ..size
            },
            false => size,
        }
    }
}
