//! A discrete-event simulation of a closed queueing network: the oracle for the calculated means.
//!
//! Customers circulate until a given number of rounds has started and ended. Each round is a list
//! of [`Step`]s drawn by the caller, so service times may be constant, exponential or of any
//! distribution, routes random or fixed. A fork is simulated literally: its parts are served by
//! several stations, and the next step starts when the slowest part has ended.
//!
//! Stations serve in the order of arrival. A station with c servers works on its first ⌈c⌉
//! customers. If there are n of them, each is served at the rate min(n, c) / n: one customer at 0.3
//! with 0.3 servers, two customers at 1 with two servers.
//!
//! Invariants: work is served once, never before it arrived; the same draws give the same run.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// A step of a customer's round.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Time that passes for this customer alone, in seconds.
    Delay(f64),
    /// Service at one station, as (index of the station, seconds of service at the rate 1).
    Visit(usize, f64),
    /// Service at several stations at once, as (index of the station, seconds of service at the rate 1, seconds that pass
    /// after it); the step ends with the slowest. An empty fork takes no time.
    Fork(Vec<(usize, f64, f64)>),
}

/// The results of one simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// Simulated time from the start until the last round ended, in seconds.
    pub elapsed_s: f64,
    /// Simulated time from the start to the end of each round, in seconds, in the order in which the rounds ended.
    pub ended_s: Vec<f64>,
    /// Service that each station gave, in seconds at the rate 1.
    pub served_s: Vec<f64>,
    /// Integral of the number of customers at each station over time, in customer-seconds.
    pub customers_s: Vec<f64>,
}

/// Simulates `rounds` rounds with at most `customers` of them at once. All customers start at the same moment; a round
/// that ends makes room for the next. `servers` has the number of servers of each station. `draw` returns the steps of
/// a round, by its number, when the round starts.
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
        run.events.push(Event { at_s: 0.0, kind: EventKind::Resume(run.rounds.len() - 1) });
    }
    while let Some(event) = run.events.pop() {
        run.now_s = event.at_s;
        let resumed = match event.kind {
            EventKind::Resume(customer) => Some(customer),
            EventKind::Served { station, version } => run.complete(station, version),
            EventKind::Waited(customer) => run.part_ended(customer),
        };
        let Some(customer) = resumed else { continue };
        // Runs the customer's further steps, and further rounds, until one takes time.
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
    /// Number of parts of the round's current step that are not served yet.
    parts: usize,
}

struct Job {
    customer: usize,
    left_s: f64,
    /// Time that passes for the customer after its service, in seconds.
    then_s: f64,
}

struct Station {
    servers: f64,
    queue: VecDeque<Job>,
    /// Simulated time up to which the work of the queue is accounted for, in seconds since the start.
    at_s: f64,
    /// Number that grows with each arrival and each end of service; events with an older number are invalid.
    version: u64,
}

impl Station {
    fn new(servers: f64) -> Self {
        Self { servers, queue: VecDeque::new(), at_s: 0.0, version: 0 }
    }

    /// Returns the number of customers in service at the station, and the service rate of each.
    fn working(&self) -> (usize, f64) {
        let working = self.queue.len().min(self.servers.ceil() as usize);
        (working, self.servers.min(working as f64) / working as f64)
    }
}

#[derive(PartialEq)]
enum EventKind {
    Resume(usize),
    /// The time after a service of this customer has passed.
    Waited(usize),
    Served {
        station: usize,
        version: u64,
    },
}

#[derive(PartialEq)]
struct Event {
    at_s: f64,
    kind: EventKind,
}

impl Eq for Event {}

impl PartialOrd for Event {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Event {
    /// Reverses the order of time, so that a max-heap returns the earliest event.
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
    /// Starts the customer's next step that takes time. Returns true if the customer's round has no step left.
    fn step(&mut self, customer: usize) -> bool {
        while let Some(step) = self.rounds[customer].steps.pop_front() {
            match step {
                Step::Delay(s) if s > 0.0 => {
                    self.events
                        .push(Event { at_s: self.now_s + s, kind: EventKind::Resume(customer) });
                    return false;
                }
                Step::Delay(_) => {}
                Step::Visit(station, work_s) => {
                    self.rounds[customer].parts = 1;
                    self.arrive(station, customer, work_s, 0.0);
                    return false;
                }
                Step::Fork(parts) if parts.is_empty() => {}
                Step::Fork(parts) => {
                    self.rounds[customer].parts = parts.len();
                    for (station, work_s, then_s) in parts {
                        self.arrive(station, customer, work_s, then_s);
                    }
                    return false;
                }
            }
        }
        true
    }

    fn arrive(&mut self, station: usize, customer: usize, work_s: f64, then_s: f64) {
        self.account(station);
        self.stations[station].queue.push_back(Job { customer, left_s: work_s, then_s });
        self.expect(station);
    }

    /// Ends the job with the least work left at a station. Returns the job's customer if that completes the customer's
    /// step; `None` if it does not, or if the event's `version` is out of date.
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
        if job.then_s > 0.0 {
            let at_s = self.now_s + job.then_s;
            self.events.push(Event { at_s, kind: EventKind::Waited(job.customer) });
            return None;
        }
        self.part_ended(job.customer)
    }

    /// Ends one part of a customer's step. Returns the customer if it was the last one.
    fn part_ended(&mut self, customer: usize) -> Option<usize> {
        let parts = &mut self.rounds[customer].parts;
        *parts -= 1;
        (*parts == 0).then_some(customer)
    }

    /// Accounts for the work that a station did since its last change.
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

    /// Schedules the event of the next end of service at a station.
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
        self.events.push(Event { at_s, kind: EventKind::Served { station, version: its.version } });
    }
}
