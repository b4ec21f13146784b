//! Judgement of changes, by the latency of each regime before and after.
//!
//! A change is judged first in the regime in which it was made. Where other regimes are expected, it is then judged
//! over one visit of each of these, so that a period longer than one measurement is judged as a whole. The latencies of
//! regimes count by the weights of the regimes.

use super::{BANNED_MS_MAX, Guardrails, REMEMBERED_MAX};
use crate::store::layout::{Key, Operator};
use crate::store::regimes::{Latencies, Latency, OtherRegime};

/// Longest time for which the effect of a change is measured, in ms.
const WATCHED_MS_MAX: u64 = 660_000;
/// Limit on the number of changes whose effect is measured at once; the oldest are dropped.
const WATCHED_MAX: usize = 1_000;

/// Latencies at the time when a change was made, with which later ones are compared.
#[derive(Clone, Debug, PartialEq)]
pub struct LatencyBaseline {
    /// Number of the regime in which the change was made.
    pub regime: u64,
    /// Measured mean latency of that regime before the change.
    pub latency: Latency,
    /// Mean latencies that were predicted for the design before the change and for the one after it, in µs.
    pub predicted_us: (f64, f64),
    /// Other regimes that were expected when the change was made: the number, weight and mean latency before the
    /// change of each.
    pub others: Vec<(u64, f64, Latency)>,
}

impl LatencyBaseline {
    /// Returns the baseline of a change that is made in a regime. It includes the last mean latencies over `span_ms`
    /// ms of the `others`, the other expected regimes; regimes without a known latency are left out.
    #[must_use]
    pub fn of<K>(
        regime: u64,
        latency: Latency,
        predicted_us: (f64, f64),
        (others, latencies, span_ms): (&[OtherRegime<K>], &Latencies, u64),
    ) -> Self {
        let known = |other: &OtherRegime<K>| {
            latencies.last(other.id, span_ms).map(|latency| (other.id, other.weight, latency))
        };
        Self { regime, latency, predicted_us, others: others.iter().filter_map(known).collect() }
    }
}

/// An executed change of the design whose effect on the latency is being measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched<K> {
    /// Operators of the change, in the order in which they were executed.
    pub operators: Vec<Operator<K>>,
    /// Operators that undo the change, in the order of their execution.
    pub inverse: Vec<Operator<K>>,
    /// Time at which the last operator of the change was done, in ms of the planner's clock.
    pub done_ms: u64,
    /// Latencies before the change.
    pub before: LatencyBaseline,
    /// Mean latency, after the change, of the regime in which the change was made; `None` until it is measured.
    pub after: Option<Latency>,
    /// Time, in ms of the planner's clock, at which a first measurement found the latency worse and the second
    /// measurement began; `None` as long as none has.
    pub suspected_ms: Option<u64>,
}

/// Judgement of a change by its effect on the latency.
#[derive(Clone, Debug, PartialEq)]
pub enum Judgement<K> {
    /// The change stays, because the latency did not become worse.
    Keep(Watched<K>),
    /// The change made the latency worse: its inverse operators have to be executed.
    Undo(Watched<K>),
}

/// The outcome of comparing the latencies before and after a change.
enum Comparison {
    Pending,
    NotWorse,
    Worse,
}

impl<K: Key> Guardrails<K> {
    pub(super) fn watch(
        &mut self,
        operators: Vec<Operator<K>>,
        inverse: Vec<Operator<K>>,
        done_ms: u64,
        before: LatencyBaseline,
    ) {
        if self.watched.len() == WATCHED_MAX {
            self.watched.remove(0);
        }
        let (after, suspected_ms) = (None, None);
        self.watched.push(Watched { operators, inverse, done_ms, before, after, suspected_ms });
    }

    /// Judges the changes that were measured for long enough, by the latencies since each change, and bans the
    /// operators of those that made the latency worse.
    pub fn judge(&mut self, now_ms: u64, latencies: &Latencies) -> Vec<Judgement<K>> {
        let mut judged = Vec::new();
        for mut one in std::mem::take(&mut self.watched) {
            let is_over = now_ms.saturating_sub(one.done_ms) >= WATCHED_MS_MAX;
            match self.compare(&mut one, latencies) {
                Comparison::Pending if is_over => {
                    if one.after.is_some() {
                        judged.push(Judgement::Keep(one));
                    }
                }
                Comparison::Pending => self.watched.push(one),
                Comparison::NotWorse => judged.push(Judgement::Keep(one)),
                Comparison::Worse if one.suspected_ms.is_none() => {
                    one.suspected_ms = Some(now_ms);
                    self.watched.push(one);
                }
                Comparison::Worse => {
                    self.forbid(&one, now_ms);
                    judged.push(Judgement::Undo(one));
                }
            }
        }
        judged
    }

    fn compare(&self, one: &mut Watched<K>, latencies: &Latencies) -> Comparison {
        let from_ms = one.suspected_ms.unwrap_or(one.done_ms);
        let since = |regime: u64| latencies.since(regime, from_ms, self.limits.measured_ms);
        let before = &one.before;
        let mut own = one.after.filter(|_| one.suspected_ms.is_none());
        if own.is_none() {
            let Some(after) = since(before.regime) else { return Comparison::Pending };
            (own, one.after) = (Some(after), Some(after));
            if self.is_worse(before.latency, after) {
                return Comparison::Worse;
            }
        }
        let Some(own) = own else { return Comparison::Pending };
        let (mut was, mut is) = (Mean::of(before.latency), Mean::of(own));
        for (regime, weight, before) in &before.others {
            if !latencies.regimes().any(|known| known == *regime) {
                // The regime did not return for so long that its latencies are forgotten.
                continue;
            }
            let Some(after) = since(*regime) else { return Comparison::Pending };
            was.add(*weight, *before);
            is.add(*weight, after);
        }
        if self.is_worse(was.latency(), is.latency()) {
            Comparison::Worse
        } else {
            Comparison::NotWorse
        }
    }

    fn is_worse(&self, before: Latency, after: Latency) -> bool {
        // Latencies differ by chance, too.
        let chance_us = 2.0 * after.error_us.hypot(before.error_us);
        after.mean_us > before.mean_us * (1.0 + self.limits.slowdown_max) + chance_us
    }

    fn forbid(&mut self, one: &Watched<K>, now_ms: u64) {
        for operator in &one.operators {
            let times = self.banned.get(operator).map_or(0, |(_, times)| *times) + 1;
            let banned_ms = self.limits.banned_ms.saturating_mul(1 << (times - 1).min(16));
            let until_ms = now_ms + banned_ms.min(BANNED_MS_MAX);
            self.banned.insert(operator.clone(), (until_ms, times));
        }
        if self.banned.len() > REMEMBERED_MAX {
            self.banned.retain(|_, (until_ms, _)| *until_ms > now_ms);
        }
    }

    /// Returns the changes whose effect is still being measured.
    #[must_use]
    pub fn watched(&self) -> &[Watched<K>] {
        &self.watched
    }
}

/// A weighted mean of latencies of several regimes, under construction.
struct Mean {
    weight: f64,
    sum_us: f64,
    error_us: f64,
}

impl Mean {
    fn of(latency: Latency) -> Self {
        Self { weight: 1.0, sum_us: latency.mean_us, error_us: latency.error_us }
    }

    fn add(&mut self, weight: f64, latency: Latency) {
        self.weight += weight;
        self.sum_us += weight * latency.mean_us;
        self.error_us = self.error_us.hypot(weight * latency.error_us);
    }

    fn latency(&self) -> Latency {
        Latency { mean_us: self.sum_us / self.weight, error_us: self.error_us / self.weight }
    }
}
