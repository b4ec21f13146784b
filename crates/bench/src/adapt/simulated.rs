//! More sites than one machine can run: the store's sites as queues, in virtual time.
//!
//! Each site serves one transaction after the other, and what it applies for other masters between them. What each
//! needs of a site's time is measured on the real engine ([`Demands`], [`super::larger`]); the rest of the
//! engine takes no time here. Clients, workload and designs are those of the real loads, and decisions are those of
//! `imago_plan::design` ([`planner`]). A run is determined by its specification.

mod planner;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use imago_plan::design::layout::{Layout, Operator, Partition, Site};
use serde::Serialize;

use super::designs::Part;
use super::workload::{Drawing, Kind, ROWS, Workload};
use planner::{Planner, Ran};

/// The time that a site needs, of what it has, in µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Demands {
    /// For a read-modify-write of a user's rows.
    pub count_us: f64,
    /// For each row of a scan.
    pub scanned_row_us: f64,
    /// To apply such a read-modify-write for its master.
    pub applied_us: f64,
}

/// The parameters of a simulated load.
#[derive(Clone, Debug)]
pub struct SimulationSpec {
    /// The demands on a site.
    pub demands: Demands,
    /// Sites.
    pub sites: u16,
    /// Clients, each with one transaction under way.
    pub clients: u64,
    /// Virtual seconds.
    pub lasts_s: u64,
    /// The workload of the clients.
    pub workload: Workload,
    /// The design at the start.
    pub design: Vec<Part>,
    /// True if the store adapts.
    pub adapts: bool,
    /// The seed of clients and planner.
    pub seed: u64,
}

/// The result of a simulated load.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Transactions in each second.
    pub throughput_s: Vec<u64>,
    /// Operators that were carried out by decisions.
    pub changes: u64,
    /// Partitions at the end.
    pub partitions: usize,
}

impl Simulated {
    /// Transactions a second from a second on.
    pub fn mean_s(&self, from: usize) -> f64 {
        let of = &self.throughput_s[from.min(self.throughput_s.len())..];
        of.iter().sum::<u64>() as f64 / of.len().max(1) as f64
    }
}

const US_S: f64 = 1e6;
/// Between two decisions.
const ROUND_US: u64 = 250_000;
/// Bytes of a row, with its key.
const ROW_BYTES: u64 = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A client's transaction has ended; a new one begins.
    Ended { client: usize, site: Site },
    /// A write has come to a site with a copy.
    Applied { site: Site },
    /// A decision is due.
    Round,
    /// A change of the design takes effect, by its number.
    Changed(usize),
}

/// A site: the time until which it has work, and what it was given.
#[derive(Clone, Copy, Debug, Default)]
struct SiteQueue {
    busy_until_us: f64,
    given_us: f64,
    rows: [u64; 3],
    under_way: u32,
}

impl SiteQueue {
    /// Gives it work now; when it begins that, and when it ends it.
    fn give(&mut self, now_us: f64, demand_us: f64) -> (f64, f64) {
        let begins_us = self.busy_until_us.max(now_us);
        self.busy_until_us = begins_us + demand_us;
        self.given_us += demand_us;
        (begins_us, self.busy_until_us)
    }

    /// The time that it has worked so far.
    fn worked_us(&self, now_us: f64) -> f64 {
        self.given_us - (self.busy_until_us - now_us).max(0.0)
    }
}

struct Simulation<'s> {
    spec: &'s SimulationSpec,
    /// By what is due when, in order, in µs; the second is the order in which it was planned.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    planned: u64,
    sites: Vec<SiteQueue>,
    layout: Layout<u64>,
    /// The partitions' starts and partitions, as the layout has them.
    starts: Vec<u64>,
    partitions: Vec<Partition>,
    drawings: Vec<Drawing>,
    changes: Vec<Operator<u64>>,
    planner: Option<Planner>,
    throughput_s: Vec<u64>,
}

/// Runs a simulated load.
#[must_use]
pub fn simulate(spec: &SimulationSpec) -> Simulated {
    let mut simulation = Simulation::new(spec);
    simulation.run();
    Simulated {
        throughput_s: simulation.throughput_s,
        changes: simulation.planner.map_or(0, |planner| planner.changes),
        partitions: simulation.layout.len(),
    }
}

impl<'s> Simulation<'s> {
    fn new(spec: &'s SimulationSpec) -> Self {
        let ends = spec.design.iter().skip(1).map(|part| part.from);
        let ends = ends.chain([spec.workload.users]);
        let partition = |(part, end): (&Part, u64)| {
            let rows = (end - part.from) * ROWS;
            let replicas = part.replicas.iter().copied().collect();
            let bytes = rows * ROW_BYTES;
            (part.from, Partition { master: part.master, replicas, rows, bytes, pin: None })
        };
        let partitions: BTreeMap<u64, Partition> =
            spec.design.iter().zip(ends).map(partition).collect();
        let mut simulation = Self {
            spec,
            events: BinaryHeap::new(),
            planned: 0,
            sites: vec![SiteQueue::default(); usize::from(spec.sites)],
            layout: Layout::new(partitions, (0..spec.sites).collect()),
            starts: Vec::new(),
            partitions: Vec::new(),
            drawings: (0..spec.clients).map(|n| spec.workload.drawing(spec.seed + n)).collect(),
            changes: Vec::new(),
            planner: spec.adapts.then(|| Planner::new(spec.seed, spec.sites)),
            throughput_s: vec![0; spec.lasts_s as usize],
        };
        simulation.relay_out();
        simulation
    }

    /// Has the arrays follow the layout.
    fn relay_out(&mut self) {
        let all = self.layout.partitions().map(|(start, one)| (*start, one.clone()));
        (self.starts, self.partitions) = all.unzip();
    }

    fn plan(&mut self, at_us: f64, event: Event) {
        self.planned += 1;
        self.events.push(Reverse((at_us.ceil() as u64, self.planned, event)));
    }

    fn run(&mut self) {
        for client in 0..self.drawings.len() {
            self.begin(0, client);
        }
        if self.planner.is_some() {
            self.plan(ROUND_US as f64, Event::Round);
        }
        let end_us = self.spec.lasts_s * 1_000_000;
        while let Some(Reverse((now_us, _, event))) = self.events.pop() {
            if now_us >= end_us {
                return;
            }
            match event {
                Event::Ended { client, site } => {
                    self.throughput_s[(now_us / 1_000_000) as usize] += 1;
                    self.sites[usize::from(site)].under_way -= 1;
                    self.begin(now_us, client);
                }
                Event::Applied { site } => {
                    let site = &mut self.sites[usize::from(site)];
                    site.rows[2] += ROWS;
                    site.give(now_us as f64, self.spec.demands.applied_us);
                }
                Event::Round => self.decide(now_us),
                Event::Changed(number) => {
                    // A plan was made for the design of then: what is impossible by now is not done.
                    if self.layout.apply(&self.changes[number]).is_ok() {
                        self.relay_out();
                    }
                }
            }
        }
    }

    fn partition_of(&self, user: u64) -> usize {
        self.starts.partition_point(|start| *start <= user).saturating_sub(1)
    }

    /// A client begins its next transaction.
    fn begin(&mut self, now_us: u64, client: usize) {
        let after = std::time::Duration::from_micros(now_us);
        let kind = self.drawings[client].next(after);
        let now = now_us as f64;
        let Demands { count_us, scanned_row_us, .. } = self.spec.demands;
        let (site, demand_us, rows) = match kind {
            Kind::Count(user) => {
                (self.partitions[self.partition_of(user)].master, count_us, [ROWS, ROWS])
            }
            Kind::Scan(user, users) => {
                let rows = users * ROWS;
                let site = self.site_to_scan(now, user, users);
                (site, scanned_row_us * rows as f64, [rows, 0])
            }
        };
        let queue = &mut self.sites[usize::from(site)];
        queue.under_way += 1;
        queue.rows[0] += rows[0];
        queue.rows[1] += rows[1];
        let (begins_us, ends_us) = queue.give(now, demand_us);
        self.plan(ends_us, Event::Ended { client, site });
        if let Kind::Count(user) = kind {
            let copies: Vec<Site> =
                self.partitions[self.partition_of(user)].replicas.iter().copied().collect();
            copies.into_iter().for_each(|site| self.plan(ends_us, Event::Applied { site }));
        }
        if let Some(planner) = &mut self.planner {
            let (wait_us, run_us) = (begins_us - now, demand_us);
            planner.ran(Ran { kind, at_us: now_us, site, wait_us, run_us });
        }
    }

    /// The site with the fewest transactions of those that have all that a scan reads. If none has, the one with most of
    /// it gets copies of the rest first.
    fn site_to_scan(&mut self, now_us: f64, user: u64, users: u64) -> Site {
        let (first, last) = (self.partition_of(user), self.partition_of(user + users - 1));
        let read = &self.partitions[first..=last];
        let has = |site: &Site| read.iter().filter(|one| one.is_at(*site)).count();
        let least = |site: &Site| self.sites[usize::from(*site)].under_way;
        let all = (0..self.spec.sites).filter(|site| has(site) == read.len());
        if let Some(site) = all.min_by_key(least) {
            return site;
        }
        let site = (0..self.spec.sites).max_by_key(has).expect("there are sites");
        for number in first..=last {
            if !self.partitions[number].is_at(site) {
                self.copy(now_us, number, site);
                let start = self.starts[number];
                _ = self.layout.apply(&Operator::AddReplica(start, site));
            }
        }
        self.relay_out();
        site
    }

    /// Has a site get a copy of a partition; when it has it. A copied row costs as much as one that is scanned.
    fn copy(&mut self, now_us: f64, partition: usize, to: Site) -> f64 {
        let Partition { master, rows, .. } = self.partitions[partition];
        let demand_us = self.spec.demands.scanned_row_us * rows as f64;
        let (_, read_us) = self.sites[usize::from(master)].give(now_us, demand_us);
        let (_, written_us) = self.sites[usize::from(to)].give(now_us, demand_us);
        read_us.max(written_us)
    }

    fn decide(&mut self, now_us: u64) {
        let now = now_us as f64;
        let work: Vec<(f64, [u64; 3])> =
            self.sites.iter().map(|site| (site.worked_us(now), site.rows)).collect();
        let planner = self.planner.as_mut().expect("it adapts");
        let plans = planner.round(now_us, &self.layout, &work);
        for operators in plans {
            let mut at_us = now;
            for operator in operators {
                let number = self.partition_of(*operator.key());
                at_us = match &operator {
                    Operator::AddReplica(_, site) => self.copy(at_us, number, *site),
                    // It is logged behind what its master has at work.
                    _ => {
                        let master = usize::from(self.partitions[number].master);
                        at_us.max(self.sites[master].busy_until_us)
                    }
                };
                self.changes.push(operator);
                self.plan(at_us, Event::Changed(self.changes.len() - 1));
            }
        }
        self.plan((now_us + ROUND_US) as f64, Event::Round);
    }
}

/// Processor time as a share of the time that passed.
fn share(worked_us: f64, passed_us: f64) -> f64 {
    worked_us / passed_us.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::super::designs::{balanced, random};
    use super::super::workload::Popularity;
    use super::*;

    fn spec(sites: u16, adapts: bool) -> SimulationSpec {
        let workload = Workload {
            users: 4_000,
            scans: 0.5,
            popularity: Popularity::Zipf(0.99),
            shift_every_s: None,
        };
        let demands = Demands { count_us: 600.0, scanned_row_us: 10.0, applied_us: 200.0 };
        let design = random(4_000, 32, sites, 11);
        let clients = 8 * u64::from(sites);
        SimulationSpec { demands, sites, clients, lasts_s: 12, workload, design, adapts, seed: 11 }
    }

    #[test]
    fn one_saturated_site_serves_what_its_demands_allow() {
        let workload = Workload { scans: 0.0, ..spec(1, false).workload };
        let result = simulate(&SimulationSpec { workload, ..spec(1, false) });
        let expected = US_S / 600.0;
        assert!((result.mean_s(1) / expected - 1.0).abs() < 0.005, "{result:?}");
    }

    #[test]
    fn writes_are_applied_at_copies_and_slow_them() {
        let workload = Workload { scans: 0.0, ..spec(2, false).workload };
        let part = |master, replicas| vec![Part { from: 0, master, replicas }];
        let of = |design| {
            let simulated = SimulationSpec { workload, design, ..spec(2, false) };
            simulate(&simulated).mean_s(1)
        };
        // The master of all is the busier one with a copy elsewhere, too.
        assert!((of(part(0, vec![])) / of(part(0, vec![1])) - 1.0).abs() < 0.005);
        let halves = |replicas: [Vec<u16>; 2]| {
            let [one, two] = replicas;
            vec![
                Part { from: 0, master: 0, replicas: one },
                Part { from: 24, master: 1, replicas: two },
            ]
        };
        let alone = of(halves([vec![], vec![]]));
        let copied = of(halves([vec![1], vec![0]]));
        assert!((0.6..0.9).contains(&(copied / alone)), "{copied} of {alone}");
    }

    #[test]
    fn a_run_is_determined_and_adapting_approaches_what_is_made_by_hand() {
        let short = SimulationSpec { lasts_s: 3, ..spec(4, true) };
        assert_eq!(simulate(&short), simulate(&short));
        let adapted = simulate(&spec(4, true));
        let left_alone = simulate(&spec(4, false));
        let design = balanced(&spec(4, false).workload, 4, false);
        let by_hand = simulate(&SimulationSpec { design, ..spec(4, false) });
        let [adapted_s, alone_s, by_hand_s] =
            [&adapted, &left_alone, &by_hand].map(|result| result.mean_s(8));
        assert!(adapted.changes > 0);
        assert!(adapted_s > 1.3 * alone_s, "{adapted_s} of {alone_s}");
        assert!(adapted_s > 0.8 * by_hand_s, "{adapted_s} of {by_hand_s}");
    }
}
