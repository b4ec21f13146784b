//! Simulation of more sites than one machine can run: each site of the store is a queue in virtual time.
//!
//! Each site runs one job after the other: transactions, and between them the writes that it applies for other
//! masters ([`site_queue`]). The time that each job takes at a site is measured on the real engine ([`Demands`],
//! [`super::larger`]), and so is the round trip to the log. Clients, workload and designs are those of the real
//! loads. The planner is that of the store ([`imago_plan::store::planner`]). The specification determines a run
//! completely.

pub mod demands;
mod driver;
mod site_queue;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use imago_plan::store::layout::{Layout, Operator, Partition, Site};

use super::designs::Part;
use super::workload::{Drawing, Kind, ROWS, Workload};
use demands::Demands;
use driver::Driver;
use site_queue::{Job, Partitions, SiteQueue, Transaction};

/// The parameters of a simulated load.
#[derive(Clone, Debug)]
pub struct SimulationSpec {
    /// Demands on a site.
    pub demands: Demands,
    /// Number of sites.
    pub sites: u16,
    /// Number of clients, each with one transaction in progress.
    pub clients: u64,
    /// Duration of the load, in virtual seconds.
    pub lasts_s: u64,
    /// Workload of the clients.
    pub workload: Workload,
    /// Design at the start of the load.
    pub design: Vec<Part>,
    /// True if the store adapts.
    pub adapts: bool,
    /// Seed of the clients and of the planner.
    pub seed: u64,
}

/// Results of a simulated load.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Number of transactions in each second.
    pub throughput_s: Vec<u64>,
    /// Number of operators that the planner executed.
    pub changes: u64,
    /// Number of partitions at the end of the load.
    pub partitions: usize,
    /// Fraction of the load's time in which each site worked.
    pub site_shares: Vec<f64>,
}

impl Simulated {
    /// Returns the mean throughput from second `from` on, in transactions per second.
    pub fn mean_s(&self, from: usize) -> f64 {
        let of = &self.throughput_s[from.min(self.throughput_s.len())..];
        of.iter().sum::<u64>() as f64 / of.len().max(1) as f64
    }
}

/// Interval between two decisions, in µs.
const ROUND_US: u64 = 250_000;
/// Size of a row with its key, in bytes.
const ROW_BYTES: u64 = 120;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A site ends its job.
    Done(Site),
    /// A site's own writes up to this number come back from the log.
    Logged(Site, u64),
    /// A write of the master arrives at a site that has a replica.
    Applied(Site),
    /// A write of the master arrives at a site that has no replica.
    Skipped(Site),
    /// A decision of the planner is due.
    Round,
    /// The change of the design with this index takes effect.
    Changed(usize),
}

struct Simulation<'s> {
    spec: &'s SimulationSpec,
    /// Scheduled events: the time in µs, the order in which they were scheduled, and the event.
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    planned: u64,
    sites: Vec<SiteQueue>,
    layout: Layout<u64>,
    /// Partitions of the layout.
    partitions: Partitions,
    drawings: Vec<Drawing>,
    /// Operators that were started, and the time of each start in µs.
    changes: Vec<(Operator<u64>, u64)>,
    planner: Option<Driver>,
    throughput_s: Vec<u64>,
}

/// Runs a simulated load.
#[must_use]
pub fn simulate(spec: &SimulationSpec) -> Simulated {
    let mut simulation = Simulation::new(spec);
    simulation.run();
    let lasts_us = spec.lasts_s as f64 * 1e6;
    Simulated {
        throughput_s: simulation.throughput_s,
        changes: simulation.planner.map_or(0, |planner| planner.changes()),
        partitions: simulation.layout.len(),
        site_shares: simulation.sites.iter().map(|site| site.worked_us / lasts_us).collect(),
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
            sites: (0..spec.sites).map(SiteQueue::new).collect(),
            layout: Layout::new(partitions, (0..spec.sites).collect()),
            partitions: Partitions::default(),
            drawings: (0..spec.clients).map(|n| spec.workload.drawing(spec.seed + n)).collect(),
            changes: Vec::new(),
            planner: spec.adapts.then(|| Driver::new(spec.seed)),
            throughput_s: vec![0; spec.lasts_s as usize],
        };
        simulation.relay_out();
        simulation
    }

    /// Updates the list of partitions from the layout.
    fn relay_out(&mut self) {
        let all = self.layout.partitions().map(|(start, one)| (*start, *one));
        (self.partitions.starts, self.partitions.all) = all.unzip();
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
                Event::Done(site) => self.done(now_us, site),
                Event::Logged(site, number) => self.give(now_us, site, Job::Logged(number)),
                Event::Applied(site) => self.give(now_us, site, Job::Applied),
                Event::Skipped(site) => self.give(now_us, site, Job::Skipped),
                Event::Round => self.decide(now_us),
                Event::Changed(number) => self.changed(now_us, number),
            }
        }
    }

    fn give(&mut self, now_us: u64, site: Site, job: Job) {
        self.sites[usize::from(site)].push(job);
        self.go_on(now_us, site);
    }

    /// Starts the next job of a site if the site is idle.
    fn go_on(&mut self, now_us: u64, site: Site) {
        let (now, demands) = (now_us as f64, &self.spec.demands);
        let begun = self.sites[usize::from(site)].begin(now, &self.partitions, demands);
        if let Some(demand_us) = begun {
            self.plan(now + demand_us, Event::Done(site));
        }
    }

    fn done(&mut self, now_us: u64, site: Site) {
        let ended = self.sites[usize::from(site)].end(&self.partitions);
        if let Some((number, user)) = ended.wrote {
            let logged_us = now_us as f64 + self.spec.demands.log_us;
            self.plan(logged_us, Event::Logged(site, number));
            let copies = self.partitions.all[self.partitions.number_of(user)].replicas;
            for other in (0..self.spec.sites).filter(|other| *other != site) {
                let has_copy = copies.contains(other);
                let event = if has_copy { Event::Applied(other) } else { Event::Skipped(other) };
                self.plan(logged_us, event);
            }
        }
        for of in ended.answered {
            self.throughput_s[(now_us / 1_000_000) as usize] += 1;
            if let Some(planner) = &mut self.planner {
                planner.record(now_us, site, &of);
            }
            self.begin(now_us, of.client);
        }
        self.go_on(now_us, site);
    }

    /// Begins the next transaction of a client.
    fn begin(&mut self, now_us: u64, client: usize) {
        let after = std::time::Duration::from_micros(now_us);
        let kind = self.drawings[client].next(after);
        let site = match kind {
            Kind::Count(user) => self.partitions.all[self.partitions.number_of(user)].master,
            Kind::Scan(..) => self.site_to_scan(now_us, kind),
        };
        self.give(now_us, site, Job::Transaction(Transaction::new(client, kind, now_us as f64)));
    }

    /// Returns the site for a scan: of the sites that have all partitions that the scan reads, the one with the
    /// fewest transactions in progress. If no site has all of them, the site with most of them first gets replicas of
    /// the others, as with the real router (`imago_store::router::MostMastered`).
    fn site_to_scan(&mut self, now_us: u64, kind: Kind) -> Site {
        let touched = self.partitions.touched(kind);
        let read = &self.partitions.all[touched.clone()];
        let has_all = |site: &Site| read.iter().all(|one| one.is_at(*site));
        let least = |site: &Site| self.sites[usize::from(*site)].under_way;
        if let Some(site) = (0..self.spec.sites).filter(has_all).min_by_key(least) {
            return site;
        }
        let merit = |site: &Site| {
            let of = |one: &Partition| u32::from(one.is_at(*site)) + u32::from(one.master == *site);
            (read.iter().map(of).sum::<u32>(), Reverse(*site))
        };
        let site = (0..self.spec.sites).max_by_key(merit).expect("there are sites");
        for number in touched {
            if !self.partitions.all[number].is_at(site) {
                self.copy(now_us, number, site);
                let start = self.partitions.starts[number];
                _ = self.layout.apply(&Operator::AddReplica(start, site));
            }
        }
        self.relay_out();
        site
    }

    /// Copies a partition to a site. Returns the minimum duration of the copy, in µs. Copying a row costs each of
    /// both sites as much as scanning it.
    fn copy(&mut self, now_us: u64, partition: usize, to: Site) -> f64 {
        let Partition { master, rows, .. } = self.partitions.all[partition];
        let demand_us = self.spec.demands.copied_row_us() * rows as f64;
        self.give(now_us, master, Job::Copied(demand_us));
        self.give(now_us, to, Job::Copied(demand_us));
        2.0 * demand_us
    }

    fn decide(&mut self, now_us: u64) {
        let work: Vec<(f64, [u64; 4])> =
            self.sites.iter().map(|site| (site.worked_us, site.counts)).collect();
        if let Some(planner) = &mut self.planner {
            planner.decide(now_us, &self.layout, &work);
        }
        self.execute(now_us);
        self.plan((now_us + ROUND_US) as f64, Event::Round);
    }

    /// Starts the operators that the planner returns as the next to execute.
    fn execute(&mut self, now_us: u64) {
        let Some(planner) = &mut self.planner else { return };
        for operator in planner.next(now_us, &self.layout) {
            let number = self.partitions.number_of(*operator.key());
            let took_us = match &operator {
                Operator::AddReplica(_, site) => self.copy(now_us, number, *site),
                _ => self.spec.demands.log_us,
            };
            self.changes.push((operator, now_us));
            self.plan(now_us as f64 + took_us, Event::Changed(self.changes.len() - 1));
        }
    }

    /// Applies an operator that ends now, if the present design still allows it, and reports its outcome to the
    /// planner.
    fn changed(&mut self, now_us: u64, number: usize) {
        let (operator, began_us) = self.changes[number].clone();
        let is_done = self.layout.apply(&operator).is_ok();
        if is_done {
            self.relay_out();
        }
        let took_us = is_done.then_some((now_us - began_us) as f64);
        self.planner.as_mut().expect("it adapts").ended(&operator, took_us);
        self.execute(now_us);
    }
}

#[cfg(test)]
mod tests {
    use super::super::designs::{balanced, random};
    use super::super::workload::Popularity;
    use super::demands::{IN_PROGRESS, TransactionDemands};
    use super::*;

    fn spec(sites: u16, adapts: bool) -> SimulationSpec {
        let workload = Workload {
            users: 4_000,
            scans: 0.5,
            popularity: Popularity::Zipf(0.99),
            shift_every_s: None,
            places: None,
        };
        let transactions =
            TransactionDemands { count_us: 600.0, count_beside_us: 0.0, scanned_row_us: 10.0 };
        let demands = Demands {
            transactions: [transactions; IN_PROGRESS.len()],
            applied_us: 200.0,
            skipped_us: 0.0,
            log_us: 150.0,
        };
        let design = random(4_000, 32, sites, 11);
        let clients = 8 * u64::from(sites);
        SimulationSpec { demands, sites, clients, lasts_s: 12, workload, design, adapts, seed: 11 }
    }

    #[test]
    fn one_saturated_site_serves_what_its_demands_allow() {
        let workload = Workload { scans: 0.0, ..spec(1, false).workload };
        let result = simulate(&SimulationSpec { workload, ..spec(1, false) });
        let expected = 1e6 / 600.0;
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
        // The master of all partitions is the bottleneck, even if the other site has replicas.
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
