//! The advice on the shape of a cluster: the Pareto front of the shapes, the cheapest shape that meets the deadline,
//! and the reasons against its neighbours.
//!
//! Invariants: no shape of the front is beaten by another in time and cost; the advised shape is on the grid; if any
//! shape meets the deadline, the advised shape meets it, and no shape that does costs less.

use std::cmp::Ordering;

use super::candidate::{Advice, Candidate, Question, compared};
use super::reasons;
use super::shape::{Shape, Shares};

/// A shape one step away from the advised one on the grid.
#[derive(Clone, Debug, PartialEq)]
pub struct Neighbour {
    /// Index of the neighbouring shape among the candidates.
    pub candidate: usize,
    /// The reason why the neighbouring shape is not advised, as a sentence.
    pub because: String,
}

/// The effect of an uneven distribution of keys over the shards on the advice.
#[derive(Clone, Debug, PartialEq)]
pub struct Uneven {
    /// The shape that would be advised if its shards were even.
    pub shape: Shape,
    /// Time of the job on this shape with the present shares of keys, in seconds.
    pub uneven_s: f64,
    /// Time of the job on this shape with even shares of keys, in seconds.
    pub even_s: f64,
    /// Share of the keys on the largest shard, from 0 to 1.
    pub largest: f64,
    /// The gain from even shares, as a sentence.
    pub because: String,
}

/// The comparison of the shapes of a grid, with the advice.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// All shapes of the grid with their predictions, in the order of [`super::Grid::shapes`].
    pub candidates: Vec<Candidate>,
    /// The Pareto front: indexes of the candidates for which no other one is better in time or cost and worse in
    /// neither; the fastest first.
    pub front: Vec<usize>,
    /// The advised shape, by its index among the candidates.
    pub advice: Advice,
    /// The advice as a sentence.
    pub because: String,
    /// The shapes one step away from the advised one, each with the reason why it is not advised.
    pub neighbours: Vec<Neighbour>,
    /// The better shape that even shares of keys would allow; `None` if even shares would not improve the advice.
    pub uneven: Option<Uneven>,
}

impl Plan {
    /// Returns the advised candidate, with its prediction and cost.
    #[must_use]
    pub fn advised(&self) -> &Candidate {
        &self.candidates[self.advice.candidate()]
    }
}

/// Compares the shapes of the grid, and returns the advice with its reasons.
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

/// Returns the cheapest candidate that meets the deadline of `deadline_s` seconds, or the fastest one if none does.
fn advice(candidates: &[Candidate], deadline_s: f64) -> Advice {
    let numbers = || 0..candidates.len();
    let its = |number: &usize| &candidates[*number];
    let meeting = numbers().filter(|number| its(number).prediction.job_s <= deadline_s);
    let cheapest = meeting
        .min_by(|one, other| its(one).cmp_cost(its(other)).then(its(one).cmp_time(its(other))));
    if let Some(number) = cheapest {
        return Advice::Meets(number);
    }
    let fastest = numbers()
        .min_by(|one, other| its(one).cmp_time(its(other)).then(its(one).cmp_cost(its(other))));
    let fastest = fastest.expect("a grid has shapes");
    Advice::Misses(fastest, candidates[fastest].prediction.job_s - deadline_s)
}

/// Returns the indexes of the candidates on the Pareto front, the fastest first.
fn front(candidates: &[Candidate]) -> Vec<usize> {
    let beaten = |own: &Candidate| candidates.iter().any(|other| own.is_dominated_by(other));
    let mut front: Vec<usize> =
        (0..candidates.len()).filter(|number| !beaten(&candidates[*number])).collect();
    let its = |number: &usize| &candidates[*number];
    front.sort_by(|one, other| its(one).cmp_time(its(other)).then(its(one).cmp_cost(its(other))));
    front
}

/// Returns the advice for even shares of keys, if it is better than the advice for the present shares.
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
        (Advice::Meets(_), Advice::Meets(_)) => with_even.cmp_cost(advised) == Ordering::Less,
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
