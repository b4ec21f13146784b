//! Table 2: two data centres, and members chosen by their data-centre tags or without regard to them (Morphus, §4.2
//! and §5.6).
//!
//! Six servers in one data centre and three in the other each have a member of one of three replica sets. The first
//! data centre has the primaries and the first secondaries, the other one the second secondaries. The paper states of
//! its latencies only that they are within and between data centres; as in Fig. 9 they are taken as one way. The
//! paper's links of 100 Mb/s are taken to include the link between the data centres.
//!
//! The simulation covers one bulk transfer between replica sets, without clients. The paper's times are those of a
//! whole reconfiguration, which has a round for each member and catches up with changes. So ratios can be compared,
//! and times cannot. Replication is not simulated either: the copy of the new collection for a secondary in the other
//! data centre has to cross for any choice of members.
//!
//! Invariant: the n-th run of each row moves the same slices between the same replica sets.

use super::netsim::{Tcp, Topology};
use imago_plan::reshard::geo::{Member, Receivers, choose};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use crate::statistics::Figure;

use super::exchange::{Exchange, Moves};
use super::strategy::Strategy;
use super::{MEMBERS, SEED, tcp};

/// Number of servers in each data centre.
const DATA_CENTRES: [usize; 2] = [6, 3];
/// Latency within a data centre, one way, in µs.
const WITHIN_US: u32 = 70;
/// Latency between the data centres, one way, in µs.
const BETWEEN_US: u32 = 2_500;
const LINK_BYTES_S: f64 = 100e6 / 8.0;
/// Amount of data of all replica sets, in bytes.
const BYTES: u64 = 100_000_000;
/// Number of replica sets.
const SETS: usize = 3;
/// K, the number of sockets for the six flows between three replica sets.
const SOCKETS: usize = 21;
/// Receivers of the bulk transfer: the chosen members in Morphus, the primaries in Imago.
const RECEIVERS: [(&str, Receivers); 2] =
    [("chosen", Receivers::Chosen), ("primaries", Receivers::Primaries)];
const TAGS: [Tags; 2] = [Tags::Unaware, Tags::Aware];

/// Rule by which members are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tags {
    /// A random secondary of each replica set.
    Unaware,
    /// The members with the least traffic between data centres ([`imago_plan::reshard::geo`]).
    Aware,
}

impl Tags {
    /// Returns Table 2's time without reads and writes, in seconds.
    fn paper_s(self) -> f64 {
        match self {
            Self::Unaware => 49.074,
            Self::Aware => 21.772,
        }
    }
}

/// A row of Table 2, for one kind of receivers and one window. Figures are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Receivers of the chosen members' data: `chosen` for the other chosen members, as in Morphus; `primaries` for
    /// the primaries, as in Imago.
    pub receivers: &'static str,
    /// Rule by which members are chosen.
    pub tags: Tags,
    /// Largest window of a connection, in KiB.
    pub window_kib: u32,
    /// Time until all data has arrived, in simulated seconds.
    pub makespan_s: f64,
    /// Mean of the makespan over the runs, in simulated seconds. A median hides a few slow draws, such as those in
    /// which all senders are in the other data centre.
    pub makespan_mean_s: f64,
    /// Traffic between the data centres, in MB (1,000,000 bytes).
    pub crossing_mb: f64,
    /// Ratio of the makespan to that of the same data with random members.
    pub ratio_to_unaware: f64,
    /// Ratio of the makespan to the time that the busiest link needs for its traffic with these members.
    pub ratio_to_floor: f64,
    /// The paper's time for a whole reconfiguration, in seconds; `None` for variants that Morphus does not have.
    pub paper_s: Option<f64>,
    /// The figures with their extremes over the runs.
    pub spread: Spread,
}

/// The figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// See [`Row::makespan_s`].
    pub makespan_s: Figure,
    /// See [`Row::crossing_mb`].
    pub crossing_mb: Figure,
    /// See [`Row::ratio_to_unaware`].
    pub ratio_to_unaware: Figure,
    /// See [`Row::ratio_to_floor`].
    pub ratio_to_floor: Figure,
}

/// Simulates all rows with one window. `runs`, at least 1, is the number of draws of data and members.
///
/// The future yields between draws, so that it can be dropped there.
pub(super) async fn run(runs: u32, window_kib: u32) -> Vec<Row> {
    let (network, tcp) = (Network::new(), tcp(window_kib));
    let mut draws = Vec::new();
    for run in 0..runs {
        tokio::task::yield_now().await;
        draws.push(Draw::new(SEED + u64::from(run)).simulate(&network, tcp));
    }
    let row = |receivers: usize, tags: usize| {
        let of = |figure: fn(&DrawOutcome) -> f64| {
            Figure::of(draws.iter().map(|came| figure(&came[receivers][tags])))
        };
        let to_unaware = draws.iter().map(|came| {
            let [unaware, aware] = &came[receivers];
            [unaware, aware][tags].makespan_s / unaware.makespan_s
        });
        let sum_s: f64 = draws.iter().map(|came| came[receivers][tags].makespan_s).sum();
        let spread = Spread {
            makespan_s: of(|came| came.makespan_s),
            crossing_mb: of(|came| came.crossing_bytes as f64 / 1e6),
            ratio_to_unaware: Figure::of(to_unaware),
            ratio_to_floor: of(|came| came.makespan_s / came.floor_s),
        };
        let ((name, way), tags) = (RECEIVERS[receivers], TAGS[tags]);
        Row {
            receivers: name,
            tags,
            window_kib,
            makespan_s: spread.makespan_s.median,
            makespan_mean_s: sum_s / draws.len() as f64,
            crossing_mb: spread.crossing_mb.median,
            ratio_to_unaware: spread.ratio_to_unaware.median,
            ratio_to_floor: spread.ratio_to_floor.median,
            paper_s: (way == Receivers::Chosen).then(|| tags.paper_s()),
            spread,
        }
    };
    let pairs = (0..RECEIVERS.len()).flat_map(|way| (0..TAGS.len()).map(move |tags| (way, tags)));
    pairs.map(|(receivers, tags)| row(receivers, tags)).collect()
}

/// The network, with the two data centres as racks, and the members in it.
struct Network {
    topology: Topology,
    /// Members of each replica set: the primary, then the secondaries.
    sets: Vec<[Member; MEMBERS]>,
}

impl Network {
    fn new() -> Self {
        let topology = Topology::tree(&DATA_CENTRES, LINK_BYTES_S, WITHIN_US, BETWEEN_US);
        let member = |set: usize, member: usize| Member {
            data_centre: Some(topology.rack_of(host(set, member)).to_string()),
            primary: member == 0,
            usable: true,
        };
        let sets = (0..SETS).map(|set| std::array::from_fn(|at| member(set, at))).collect();
        Self { topology, sets }
    }
}

/// Returns the host of a replica set's member.
fn host(set: usize, member: usize) -> usize {
    match member {
        0 => 2 * set,
        1 => 2 * set + 1,
        _ => DATA_CENTRES[0] + set,
    }
}

/// Data that moves in a run, and the member of each set that is taken without regard to tags.
struct Draw {
    moves: Moves,
    drawn: Vec<usize>,
}

/// The outcome of a draw with one choice of members.
struct DrawOutcome {
    makespan_s: f64,
    floor_s: f64,
    crossing_bytes: u64,
}

impl Draw {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let moves = Moves::draw(SETS, BYTES / SETS as u64, &mut rng);
        let drawn = (0..SETS).map(|_| rng.random_range(1..MEMBERS)).collect();
        Self { moves, drawn }
    }

    /// Simulates the draw for each of [`RECEIVERS`] and each of [`TAGS`].
    fn simulate(
        &self,
        network: &Network,
        tcp: Tcp,
    ) -> [[DrawOutcome; TAGS.len()]; RECEIVERS.len()] {
        RECEIVERS.map(|(_, receivers)| {
            TAGS.map(|tags| {
                let members = match tags {
                    Tags::Unaware => self.drawn.clone(),
                    Tags::Aware => self.chosen(network, receivers),
                };
                self.simulate_members(network, &members, receivers, tcp)
            })
        })
    }

    fn chosen(&self, network: &Network, receivers: Receivers) -> Vec<usize> {
        let sets: Vec<Vec<Member>> = network.sets.iter().map(|set| set.to_vec()).collect();
        let choice = choose(&sets, self.moves.flows(), receivers);
        choice.expect("every set has a primary, and its members are usable").members
    }

    fn simulate_members(
        &self,
        network: &Network,
        members: &[usize],
        receivers: Receivers,
        tcp: Tcp,
    ) -> DrawOutcome {
        let at = |(set, member): (usize, &usize)| host(set, *member);
        let senders: Vec<usize> = members.iter().enumerate().map(at).collect();
        let receivers = match receivers {
            Receivers::Chosen => senders.clone(),
            Receivers::Primaries => (0..SETS).map(|set| host(set, 0)).collect(),
        };
        let topology = &network.topology;
        let exchange = Exchange::between(topology, senders, receivers, self.moves.clone());
        let latencies = exchange.latencies(|from, to| topology.latency_us(from, to));
        let plan = exchange.plan(Strategy::Wfs, SOCKETS, &latencies);
        let outcome = exchange.simulate(&plan, tcp, 0.0);
        DrawOutcome {
            makespan_s: outcome.makespan_s,
            floor_s: outcome.floor_s,
            crossing_bytes: exchange.crossing_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the outcomes of every draw with two windows: 16 KiB, which limits long paths, and 64 KiB, which does
    /// not.
    fn draws() -> impl Iterator<Item = [[DrawOutcome; TAGS.len()]; RECEIVERS.len()]> {
        let network = Network::new();
        let draws = [16, 64].into_iter().flat_map(|kib| (0..30).map(move |seed| (kib, seed)));
        draws.map(move |(kib, seed)| Draw::new(seed).simulate(&network, tcp(kib)))
    }

    #[test]
    fn members_that_are_chosen_by_their_tags_send_nothing_across() {
        for [[_, chosen], [_, primaries]] in draws() {
            assert_eq!((chosen.crossing_bytes, primaries.crossing_bytes), (0, 0));
        }
    }

    #[test]
    fn members_that_are_drawn_send_something_across() {
        let crossing = |way: usize| draws().map(|came| came[way][0].crossing_bytes).max();
        assert!(crossing(0) > Some(0) && crossing(1) > Some(0));
    }

    #[test]
    fn tags_never_make_an_exchange_between_chosen_members_slower() {
        for [[unaware, aware], _] in draws() {
            let (unaware_s, aware_s) = (unaware.makespan_s, aware.makespan_s);
            assert!(aware_s <= unaware_s * (1.0 + 1e-9), "{aware_s} s instead of {unaware_s} s");
        }
    }

    // With one sender in the other data centre, the busiest link need not carry more than with none. Then the
    // rounding of K decides which is faster.
    #[test]
    fn tags_cost_what_primaries_get_no_more_than_the_rounding_of_sockets() {
        for [_, [unaware, aware]] in draws() {
            let (unaware_s, aware_s) = (unaware.floor_s, aware.makespan_s);
            assert!(
                aware_s <= unaware_s * 1.1,
                "{aware_s} s, and {unaware_s} s on the busiest link"
            );
        }
    }

    #[test]
    fn a_transfer_takes_at_least_what_the_busiest_link_needs() {
        for came in draws().flatten().flatten() {
            let (makespan_s, floor_s) = (came.makespan_s, came.floor_s);
            assert!(makespan_s > 0.999_999 * floor_s, "{makespan_s} s, below {floor_s} s");
        }
    }

    #[tokio::test]
    async fn a_row_is_there_for_each_way_of_receiving_and_choosing() {
        let rows = run(3, 16).await;
        let found: Vec<_> = rows.iter().map(|row| (row.receivers, row.tags)).collect();
        let expected = ["chosen", "primaries"].map(|way| TAGS.map(|tags| (way, tags)));
        assert_eq!(found, expected.concat());
        assert!(rows.iter().all(|row| row.spread.makespan_s.min <= row.makespan_s), "{rows:?}");
    }
}
