//! A closed network played through, event by event: the oracle of what is calculated.
//!
//! A number of customers goes round until a number of rounds is begun and ended. Each round is a list of [`Step`]s that the
//! caller draws, so service is constant, exponential or anything else, routes are random or fixed, and a fork is literally
//! one: its parts are served by several stations, and the next step begins when the slowest part has ended.
//!
//! Stations serve in the order of arrival. One with c servers works on its first ⌈c⌉ customers, n of them, each at the rate
//! min(n, c) / n: one at 0.3 if it has 0.3 servers, two at 1 if it has two.
//!
//! Invariants: work is served once, never before it arrived; the same draws give the same run.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// One step of a round.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Time that passes for this customer alone, in seconds.
    Delay(f64),
    /// Service at a station, in seconds at the rate 1.
    Visit(usize, f64),
    /// Service at several stations at once; ends with the slowest. Empty, it takes no time.
    Fork(Vec<(usize, f64)>),
}

/// The figures of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The time until the last round ended, in seconds.
    pub elapsed_s: f64,
    /// The time at which each round ended, in seconds, in the order in which they ended.
    pub ended_s: Vec<f64>,
    /// By station: the service that it gave, in seconds at the rate 1.
    pub served_s: Vec<f64>,
    /// By station: the integral of its customers over time, in customer-seconds.
    pub customers_s: Vec<f64>,
}

/// Plays `rounds` rounds through with at most `customers` of them at once. All customers begin at the same moment; a round
/// that ends makes room for the next. `draw` is asked for the steps of each round when it begins.
///
/// # Panics
/// If a station has no servers or does not exist.
pub fn simulate(
    servers: &[f64],
    customers: u32,
    rounds: u64,
    mut draw: impl FnMut(u64) -> Vec<Step>,
) -> Run {
    assert!(servers.iter().all(|servers| *servers > 0.0), "stations have servers");
    let mut run = Simulation {
        now_s: 0.0,
        events: BinaryHeap::new(),
        stations: servers.iter().map(|servers| Station::new(*servers)).collect(),
        served_s: vec![0.0; servers.len()],
        customers_s: vec![0.0; servers.len()],
        rounds: Vec::new(),
    };
    let mut begun = 0;
    let mut ended_s = Vec::new();
    while begun < rounds.min(u64::from(customers)) {
        run.rounds.push(Round { steps: draw(begun).into(), parts: 0 });
        begun += 1;
        run.events.push(Event { at_s: 0.0, what: What::Resume(run.rounds.len() - 1) });
    }
    while let Some(event) = run.events.pop() {
        run.now_s = event.at_s;
        let resumed = match event.what {
            What::Resume(customer) => Some(customer),
            What::Served { station, version } => run.complete(station, version),
        };
        let Some(customer) = resumed else { continue };
        // The customer's further steps, and further rounds, until one takes time.
        while run.step(customer) {
            ended_s.push(run.now_s);
            if begun == rounds {
                break;
            }
            run.rounds[customer] = Round { steps: draw(begun).into(), parts: 0 };
            begun += 1;
        }
    }
    Run { elapsed_s: run.now_s, ended_s, served_s: run.served_s, customers_s: run.customers_s }
}

struct Round {
    steps: VecDeque<Step>,
    /// Parts of the present step that are not served yet.
    parts: usize,
}

struct Job {
    customer: usize,
    left_s: f64,
}

struct Station {
    servers: f64,
    queue: VecDeque<Job>,
    /// The moment up to which the work of the queue is accounted for.
    at_s: f64,
    /// Changes with each arrival and each end: an older event no longer counts.
    version: u64,
}

impl Station {
    fn new(servers: f64) -> Self {
        Self { servers, queue: VecDeque::new(), at_s: 0.0, version: 0 }
    }

    /// Customers that are worked on, and the rate of each.
    fn working(&self) -> (usize, f64) {
        let working = self.queue.len().min(self.servers.ceil() as usize);
        (working, self.servers.min(working as f64) / working as f64)
    }
}

#[derive(PartialEq)]
enum What {
    Resume(usize),
    Served { station: usize, version: u64 },
}

#[derive(PartialEq)]
struct Event {
    at_s: f64,
    what: What,
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// The earliest is the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        other.at_s.total_cmp(&self.at_s)
    }
}

struct Simulation {
    now_s: f64,
    events: BinaryHeap<Event>,
    stations: Vec<Station>,
    served_s: Vec<f64>,
    customers_s: Vec<f64>,
    rounds: Vec<Round>,
}

impl Simulation {
    /// Begins the customer's next step that takes time. True if there is none left.
    fn step(&mut self, customer: usize) -> bool {
        while let Some(step) = self.rounds[customer].steps.pop_front() {
            match step {
                Step::Delay(s) if s > 0.0 => {
                    self.events.push(Event { at_s: self.now_s + s, what: What::Resume(customer) });
                    return false;
                }
                Step::Delay(_) => {}
                Step::Visit(station, work_s) => {
                    self.rounds[customer].parts = 1;
                    self.arrive(station, customer, work_s);
                    return false;
                }
                Step::Fork(parts) if parts.is_empty() => {}
                Step::Fork(parts) => {
                    self.rounds[customer].parts = parts.len();
                    for (station, work_s) in parts {
                        self.arrive(station, customer, work_s);
                    }
                    return false;
                }
            }
        }
        true
    }

    fn arrive(&mut self, station: usize, customer: usize, work_s: f64) {
        self.account(station);
        self.stations[station].queue.push_back(Job { customer, left_s: work_s });
        self.expect(station);
    }

    /// Ends the first job that has no work left. Names the customer if its step is over by that.
    fn complete(&mut self, station: usize, version: u64) -> Option<usize> {
        if self.stations[station].version != version {
            return None;
        }
        self.account(station);
        let its = &mut self.stations[station];
        let working = its.working().0;
        let least =
            |at: &usize, other: &usize| its.queue[*at].left_s.total_cmp(&its.queue[*other].left_s);
        let done = (0..working).min_by(least)?;
        let job = its.queue.remove(done)?;
        self.expect(station);
        let parts = &mut self.rounds[job.customer].parts;
        *parts -= 1;
        (*parts == 0).then_some(job.customer)
    }

    /// Does the work between the last change of a station and now.
    fn account(&mut self, station: usize) {
        let its = &mut self.stations[station];
        let passed_s = self.now_s - its.at_s;
        its.at_s = self.now_s;
        self.customers_s[station] += its.queue.len() as f64 * passed_s;
        if its.queue.is_empty() {
            return;
        }
        let (working, rate) = its.working();
        its.queue.iter_mut().take(working).for_each(|job| job.left_s -= rate * passed_s);
        self.served_s[station] += working as f64 * rate * passed_s;
    }

    /// Schedules the next end of a station's work.
    fn expect(&mut self, station: usize) {
        let its = &mut self.stations[station];
        its.version += 1;
        if its.queue.is_empty() {
            return;
        }
        let (working, rate) = its.working();
        let least =
            its.queue.iter().take(working).map(|job| job.left_s).fold(f64::INFINITY, f64::min);
        let at_s = self.now_s + least.max(0.0) / rate;
        self.events.push(Event { at_s, what: What::Served { station, version: its.version } });
    }
}
