//! The advice: the shapes worth choosing among, the cheapest that meets the deadline, and why not its neighbours.
//!
//! Invariants: no shape of the front is beaten by another in time and cost; the advised shape is on the grid, and if any
//! shape meets the deadline, it does and none that does costs less.

use std::cmp::Ordering;

use super::Workload;
use super::costs::{Costs, Job, Machine, Prices};
use super::grid::Grid;
use super::predict::{Prediction, predict};
use super::reasons;
use super::shape::{Shape, Shares};

/// What is asked.
#[derive(Clone, Copy)]
pub struct Question<'a> {
    /// What the job reads.
    pub workload: Workload<'a>,
    /// What a request costs.
    pub costs: &'a Costs,
    /// What the stations have.
    pub machine: &'a Machine,
    /// The job's settings.
    pub job: &'a Job,
    /// Where the keys lie.
    pub shares: &'a Shares,
    /// The shapes to compare.
    pub grid: &'a Grid,
    /// The time within which the job has to end, in seconds.
    pub deadline_s: f64,
    /// Without them shapes are ordered by processors, then by memory.
    pub prices: Option<Prices>,
}

/// A shape with what it is expected to do and to cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// What it is expected to do.
    pub prediction: Prediction,
    /// Processors that are provisioned for it: the client's, the router's, the cache's if there is one, all members'.
    pub processors: f64,
    /// Memory that is provisioned for it, in bytes: all members', and the cache's limit with its server.
    pub memory_bytes: f64,
    /// The price of an hour, by [`Question::prices`].
    pub price_hour: Option<f64>,
}

impl Candidate {
    /// The price of the job's time.
    #[must_use]
    pub fn price_job(&self) -> Option<f64> {
        self.price_hour.map(|price| price * self.prediction.job_s / 3600.0)
    }

    fn new(question: &Question<'_>, shares: &Shares, shape: Shape) -> Self {
        let Question { workload, costs, machine, job, prices, .. } = *question;
        let prediction = predict(workload, costs, machine, job, shape, shares);
        let (cache_cores, cache_bytes) = match shape.cache_bytes {
            0 => (0.0, 0.0),
            bytes => (machine.cache_cores, bytes as f64 + costs.cache_server_bytes),
        };
        let members = f64::from(shape.members());
        let processors = machine.client_cores
            + machine.router_cores
            + cache_cores
            + members * machine.shard_cores;
        let memory_bytes = prediction.database_bytes() + cache_bytes;
        let price = |prices: Prices| prices.core * processors + prices.gb * memory_bytes / 1e9;
        Self { prediction, processors, memory_bytes, price_hour: prices.map(price) }
    }

    /// Compares what is paid: the price, else processors and then memory. Differences below a millionth are none.
    pub(super) fn dearer(&self, other: &Self) -> Ordering {
        match (self.price_hour, other.price_hour) {
            (Some(own), Some(its)) => compared(own, its),
            _ => compared(self.processors, other.processors)
                .then(compared(self.memory_bytes, other.memory_bytes)),
        }
    }

    fn slower(&self, other: &Self) -> Ordering {
        compared(self.prediction.job_s, other.prediction.job_s)
    }

    /// True if the other one is nowhere worse, and somewhere better.
    fn is_beaten_by(&self, other: &Self) -> bool {
        let mut all = vec![self.slower(other)];
        match (self.price_hour, other.price_hour) {
            (Some(own), Some(its)) => all.push(compared(own, its)),
            _ => {
                all.push(compared(self.processors, other.processors));
                all.push(compared(self.memory_bytes, other.memory_bytes));
            }
        }
        !all.contains(&Ordering::Less) && all.contains(&Ordering::Greater)
    }
}

fn compared(one: f64, other: f64) -> Ordering {
    if (one - other).abs() <= 1e-6 * one.abs().max(other.abs()) {
        Ordering::Equal
    } else {
        one.total_cmp(&other)
    }
}

/// The shape to provision, and its reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Advice {
    /// The cheapest one that meets the deadline, by its number among the candidates.
    Meets(usize),
    /// None meets it: the fastest one, and by how many seconds it misses.
    Misses(usize, f64),
}

impl Advice {
    /// The number of the advised candidate.
    #[must_use]
    pub fn candidate(self) -> usize {
        match self {
            Self::Meets(number) | Self::Misses(number, _) => number,
        }
    }
}

/// A shape that is one step from the advised one.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbour {
    /// Its number among the candidates.
    pub candidate: usize,
    /// Why it is not advised, as a sentence.
    pub because: String,
}

/// That uneven shards are the cause.
#[derive(Clone, Debug, PartialEq)]
pub struct Uneven {
    /// The shape that even shards would make the better one.
    pub shape: Shape,
    /// Its time as the shares are, in seconds.
    pub uneven_s: f64,
    /// Its time with even shares, in seconds.
    pub even_s: f64,
    /// The share of keys of its largest shard.
    pub largest: f64,
    /// What even shares would bring, as a sentence.
    pub because: String,
}

/// The shapes of a grid, compared.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// All of them, in order.
    pub candidates: Vec<Candidate>,
    /// Those that no other beats in time and cost, the fastest first, by number.
    pub front: Vec<usize>,
    /// What to provision.
    pub advice: Advice,
    /// The advice as a sentence.
    pub because: String,
    /// Why not what is one step away.
    pub neighbours: Vec<Neighbour>,
    /// What even shares would change, if they would.
    pub uneven: Option<Uneven>,
}

impl Plan {
    /// The advised candidate.
    #[must_use]
    pub fn advised(&self) -> &Candidate {
        &self.candidates[self.advice.candidate()]
    }
}

/// Compares the shapes of the grid.
#[must_use]
pub fn plan(question: &Question<'_>) -> Plan {
    let shapes = question.grid.shapes();
    let candidates: Vec<Candidate> =
        shapes.iter().map(|shape| Candidate::new(question, question.shares, *shape)).collect();
    let advice = advice(&candidates, question.deadline_s);
    let advised = &candidates[advice.candidate()];
    let because = reasons::advice(advised, advice, question, candidates.len());
    let neighbours = question.grid.neighbours(advised.prediction.shape);
    let neighbours = neighbours.into_iter().filter_map(|(dimension, shape)| {
        let candidate = shapes.iter().position(|other| *other == shape)?;
        let because = reasons::neighbour(dimension, &candidates[candidate], advised, question);
        Some(Neighbour { candidate, because })
    });
    Plan {
        front: front(&candidates),
        advice,
        because,
        neighbours: neighbours.collect(),
        uneven: uneven(question, &candidates, advice),
        candidates,
    }
}

fn advice(candidates: &[Candidate], deadline_s: f64) -> Advice {
    let numbers = || 0..candidates.len();
    let its = |number: &usize| &candidates[*number];
    let meeting = numbers().filter(|number| its(number).prediction.job_s <= deadline_s);
    let cheapest =
        meeting.min_by(|one, other| its(one).dearer(its(other)).then(its(one).slower(its(other))));
    if let Some(number) = cheapest {
        return Advice::Meets(number);
    }
    let fastest = numbers()
        .min_by(|one, other| its(one).slower(its(other)).then(its(one).dearer(its(other))));
    let fastest = fastest.expect("a grid has shapes");
    Advice::Misses(fastest, candidates[fastest].prediction.job_s - deadline_s)
}

fn front(candidates: &[Candidate]) -> Vec<usize> {
    let beaten = |own: &Candidate| candidates.iter().any(|other| own.is_beaten_by(other));
    let mut front: Vec<usize> =
        (0..candidates.len()).filter(|number| !beaten(&candidates[*number])).collect();
    let its = |number: &usize| &candidates[*number];
    front.sort_by(|one, other| its(one).slower(its(other)).then(its(one).dearer(its(other))));
    front
}

/// What the advice would be with even shares, if that is better.
fn uneven(question: &Question<'_>, candidates: &[Candidate], advice: Advice) -> Option<Uneven> {
    let even = Shares::even();
    let shapes = candidates.iter().map(|candidate| candidate.prediction.shape);
    let all: Vec<Candidate> = shapes
        .zip(candidates)
        .map(|(shape, as_is)| {
            let same = question.shares.is_even(shape.shards);
            if same { as_is.clone() } else { Candidate::new(question, &even, shape) }
        })
        .collect();
    let other = self::advice(&all, question.deadline_s);
    let (with_even, as_is) = (&all[other.candidate()], &candidates[other.candidate()]);
    let advised = &candidates[advice.candidate()];
    let shape = with_even.prediction.shape;
    if question.shares.is_even(shape.shards) {
        return None;
    }
    let better = match (advice, other) {
        (Advice::Misses(..), Advice::Meets(_)) => true,
        (Advice::Meets(_), Advice::Meets(_)) => with_even.dearer(advised) == Ordering::Less,
        (Advice::Misses(_, as_is), Advice::Misses(_, even)) => {
            compared(even, as_is) == Ordering::Less
        }
        (Advice::Meets(_), Advice::Misses(..)) => false,
    };
    let largest = question.shares.of(shape.shards).into_iter().fold(0.0, f64::max);
    better.then(|| Uneven {
        shape,
        uneven_s: as_is.prediction.job_s,
        even_s: with_even.prediction.job_s,
        largest,
        because: reasons::uneven(with_even, as_is, advised, advice, largest, question),
    })
}
