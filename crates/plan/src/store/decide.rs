//! The choice of the plans that pay: of each, the expected saving is compared with its cost (MorphoSys, §5.3).
//!
//! For a few sampled transactions, each site is a candidate. Each plan for that site is priced: the design that the
//! plan leads to, compared with the present design. net = λ · E − C, where
//! - E is the saving of transactions: the mean latency saved and, with a weight, the CPU time of all sites, times the
//!   transaction rate, times an explicit *horizon* in seconds. The paper leaves open for how long a plan is credited;
//!   here the horizon is a parameter, reported with each decision. Other expected workloads ([`super::regimes`]) count
//!   by their weights, and a workload that is expected to end within the horizon is credited until then.
//! - C is the time that the plan's operators take.
//!
//! The best plan above a least gain is chosen. Then follows, of those that still pay and change other partitions, the
//! one that is best on the design that the first leads to. The result has all plans that were compared: the chosen
//! ones, and the others with the reason why not.

use std::collections::BTreeSet;

use rand::{Rng, RngExt as _};

use super::coarse::{coarse_by, starts};
use super::considered::{Considered, Hold, Rejected};
use super::division::{Division, divisions};
use super::layout::{Key, Layout, Operator, Site};
use super::parameters::Parameters;
use super::plans::{View, move_half, plans, removals};
use super::price::{Price, Situation, price, price_by};
use super::ranks::Ranks;
use super::redesign::{Masters, Redesign};
use super::regimes::{Expected, OtherRegime};
use super::removals::{is_many_removals, together};
use super::significance::Subsets;
use super::weigh::Weighing;
use super::workload::{Accesses, CoAccess, Numbered, Sample};

/// The result of one decision: the plans that were compared, and the prices before and after.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided<K: std::fmt::Debug> {
    /// All plans that were considered: first the chosen ones in the order of their execution, then the others.
    pub considered: Vec<Considered<K>>,
    /// Predicted price of the present design.
    pub before: Price,
    /// Predicted price of the design that the chosen plans lead to.
    pub after: Price,
}

impl<K: std::fmt::Debug> Decided<K> {
    /// Returns the plans that were chosen for execution, in the order of their execution.
    pub fn chosen(&self) -> impl Iterator<Item = &Considered<K>> {
        self.considered.iter().filter(|plan| plan.rejected.is_none())
    }
}

/// Returns the samples, each with weight 1, and transactions that are generated from the workload model (§5.3.1) by
/// `generated` draws. These access a partition, drawn by its accesses, and a partner of it, in the four combinations
/// of reading and writing, each weighted by its likelihood. They make a decision robust against the chance of few
/// samples.
#[must_use]
pub fn emulated<K: Key>(
    layout: &Layout<K>,
    samples: Vec<Sample<K>>,
    generated: usize,
    dice: &mut impl Rng,
) -> Vec<(f64, Sample<K>)> {
    let numbered = Numbered::new(layout);
    let mut all: Vec<(f64, Sample<K>)> = samples.into_iter().map(|sample| (1.0, sample)).collect();
    let Accesses { touched, statistics } = Accesses::of(&numbered, &all);
    if all.is_empty() {
        return all;
    }
    let count = |of: fn(&Sample<K>) -> u32| {
        let sum: f64 = all.iter().map(|(_, sample)| f64::from(of(sample))).sum();
        (sum / all.len() as f64).round() as u32
    };
    let (rows_read, rows_written) =
        (count(|sample| sample.rows_read), count(|sample| sample.rows_written));
    for _ in 0..generated {
        // A partition is drawn by its accesses: a random access of a random sample.
        let of = &touched[dice.random_range(0..touched.len())];
        let accessed: Vec<usize> = of.writes.iter().chain(&of.reads).copied().collect();
        let Some(one) = pick(&accessed, dice) else { continue };
        let Some(two) = pick(statistics.partners(one), dice) else { continue };
        let keys = [numbered.start(one).clone(), numbered.start(two).clone()];
        let (reads, writes) = (statistics.reads(one), statistics.writes(one));
        let kinds = [
            (CoAccess::ReadRead, reads, false, false),
            (CoAccess::WriteWrite, writes, true, true),
            (CoAccess::WriteRead, writes, true, false),
            (CoAccess::ReadWrite, reads, false, true),
        ];
        for (kind, share, one_writes, two_writes) in kinds {
            let weight = share * statistics.conditional_probability(kind, one, two);
            if weight <= 0.0 {
                continue;
            }
            let mut sample =
                Sample { reads: Vec::new(), writes: Vec::new(), rows_read, rows_written: 0 };
            for (number, key, writes) in [(one, &keys[0], one_writes), (two, &keys[1], two_writes)]
            {
                if writes {
                    sample.writes.push(key.clone());
                    sample.rows_written = rows_written.max(1);
                } else {
                    // The range ends with its partition, so that the read touches no other one.
                    let end =
                        (number + 1 < layout.len()).then(|| numbered.start(number + 1).clone());
                    sample.reads.push((key.clone(), end));
                }
            }
            all.push((weight, sample));
        }
    }
    all
}

fn pick(among: &[usize], dice: &mut impl Rng) -> Option<usize> {
    (!among.is_empty()).then(|| among[dice.random_range(0..among.len())])
}

/// A function of a design and an operator that returns why the operator is held back now; `None` if it is not.
pub type HoldCheck<'h, K> = dyn Fn(&Layout<K>, &Operator<K>) -> Option<Hold> + 'h;

/// A plan that the last decision chose, which the next one considers again.
#[derive(Clone, Debug, PartialEq)]
pub struct Again<K> {
    /// First key of the transaction or division that the plan was made for; `None` for removals of replicas.
    pub trigger: Option<K>,
    /// The site that is to run these transactions, or has the replica.
    pub site: Site,
    /// Operators of the plan.
    pub operators: Vec<Operator<K>>,
}

impl<K: Key> Again<K> {
    /// Returns the plans that a decision chose.
    #[must_use]
    pub fn of(decided: &Decided<K>) -> Vec<Self> {
        let again = |plan: &Considered<K>| Self {
            trigger: plan.trigger.clone(),
            site: plan.site,
            operators: plan.operators.clone(),
        };
        // Redesigns are made anew.
        decided.chosen().filter(|plan| plan.redesign.is_none()).map(again).collect()
    }
}

/// Number of plans for drawn transactions from which on a decision makes none for further ones, because each has to be
/// weighed. The next decision draws others.
const PLANS_WEIGHED_MAX: usize = 400;
/// Number of plans whose saving is within its sampling error from which on a decision chooses no further ones.
const WITHIN_ERROR_MAX: usize = 12;

/// Decides which plans save more than they cost. `held` returns why an operator must not be executed now. `again` has
/// the plans that the last decision chose: those that still pay are chosen first. Without that, the best of many plans
/// that pay alike would be another one each time, and none would be chosen twice in a row.
pub fn decide<K: Key>(
    layout: &Layout<K>,
    situation: &Situation<'_, K>,
    parameters: &Parameters,
    held: &HoldCheck<'_, K>,
    again: &[Again<K>],
    dice: &mut (impl Rng + ?Sized),
) -> Decided<K> {
    let Expected { lasts_s, others } = situation.expected;
    let of_others = others.iter().flat_map(|other| &other.samples);
    let ranks = Ranks::of(layout, situation.samples.iter().chain(of_others));
    let ranked = |samples: &[(f64, Sample<K>)]| -> Vec<(f64, Sample<u32>)> {
        samples.iter().map(|(weight, of)| (*weight, ranks.sample(of))).collect()
    };
    let design = ranks.layout(layout);
    let samples = ranked(situation.samples);
    // Plans split at pieces of the present workload, so the pieces of other workloads begin at least there.
    let mut pieces = starts(&design, &samples, parameters.thresholds.split_above);
    // Divisions need all keys: the pieces of a partition do not show which distant keys belong together.
    let divisions = divisions(&design, &samples);
    pieces.extend(divisions.iter().flat_map(|one| one.starts.iter().copied()));
    pieces.sort_unstable();
    pieces.dedup();
    let mut others: Vec<OtherRegime<u32>> = others
        .iter()
        .map(|other| OtherRegime {
            id: other.id,
            weight: other.weight,
            samples: ranked(&other.samples),
            rate_s: other.rate_s,
            population: other.population,
        })
        .collect();
    let samples = coarse_by(&pieces, &samples);
    for other in &mut others {
        pieces.extend(starts(&design, &other.samples, parameters.thresholds.split_above));
    }
    pieces.sort_unstable();
    pieces.dedup();
    for other in &mut others {
        other.samples = coarse_by(&pieces, &other.samples);
    }
    let expected = Expected { lasts_s, others: &others };
    let Situation { rate_s, population, cost, lag_entries, cpu_weight, .. } = *situation;
    let situation = Situation {
        samples: &samples,
        rate_s,
        population,
        cost,
        lag_entries,
        cpu_weight,
        expected,
    };
    let held_by = |layout: &Layout<u32>| {
        let layout = ranks.named(layout);
        let ranks = &ranks;
        move |operator: &Operator<u32>| held(&layout, &ranks.operator(operator))
    };
    let again = again.iter().map(|plan| Again {
        trigger: plan.trigger.as_ref().map(|key| ranks.nearest(key)),
        site: plan.site,
        operators: plan.operators.iter().map(|operator| ranks.nearest_operator(operator)).collect(),
    });
    let again = again.collect();
    let triggers = triggers(&samples, parameters.triggers, dice);
    let origins = Origins { triggers, divisions, again };
    let decided = decide_ranked(&design, &situation, parameters, held_by, &origins);
    let named = |plan: Considered<u32>| Considered {
        trigger: plan.trigger.map(|rank| ranks.key(rank)),
        redesign: plan.redesign,
        site: plan.site,
        operators: plan.operators.iter().map(|operator| ranks.operator(operator)).collect(),
        latency_us: plan.latency_us,
        work_us: plan.work_us,
        takes_back: plan.takes_back,
        realized: plan.realized,
        latency_ratio: plan.latency_ratio,
        operators_us: plan.operators_us,
        operators_expected_us: plan.operators_expected_us,
        operators_took_us: plan.operators_took_us,
        benefit_us: plan.benefit_us,
        cost_us: plan.cost_us,
        rejected: plan.rejected.map(|rejected| rejected.named(&ranks)),
    };
    Decided {
        considered: decided.considered.into_iter().map(named).collect(),
        before: decided.before,
        after: decided.after,
    }
}

/// The transactions and divisions for which a decision makes plans.
struct Origins<K> {
    /// Indexes of the drawn transactions among the samples, in the order in which they were drawn.
    triggers: Vec<usize>,
    /// Divisions of sites that run more than their share of the writing transactions.
    divisions: Vec<Division<K>>,
    /// The plans that the last decision chose.
    again: Vec<Again<K>>,
}

/// Decides on one design. `held_by` returns, for a design, the function that says which operators are held back.
fn decide_ranked<K: Key, H: Fn(&Operator<K>) -> Option<Hold>>(
    layout: &Layout<K>,
    situation: &Situation<'_, K>,
    parameters: &Parameters,
    held_by: impl Fn(&Layout<K>) -> H,
    origins: &Origins<K>,
) -> Decided<K> {
    let before = price(layout, situation);
    let looked = look(layout, &before, situation, parameters, origins, &held_by(layout));
    let (mut paying, mut others): (Vec<_>, Vec<_>) =
        looked.into_iter().partition(|plan| plan.rejected.is_none());
    let (mut design, mut design_price) = (layout.clone(), before.clone());
    let mut chosen = Vec::<Considered<K>>::new();
    let subsets = Subsets::of(situation.samples);
    let mut within_error = 0;
    while chosen.len() < parameters.plans_max {
        let net = |plan: &Considered<K>| plan.net_us(parameters.lambda);
        let is_again = |plan: &Considered<K>| {
            let has_all = |again: &Again<K>| {
                plan.operators.iter().all(|operator| again.operators.contains(operator))
            };
            origins.again.iter().any(has_all)
        };
        // Removals of many replicas concern many partitions, which no other plan could change then. That is true of a
        // redesign, too, but it saves far more.
        let order = |plan: &Considered<K>| {
            let is_last = is_many_removals(plan);
            (plan.redesign.is_some(), !is_last, is_again(plan))
        };
        let open = paying.iter().enumerate().filter(|(_, plan)| plan.rejected.is_none());
        let best = open.max_by(|(_, one), (_, two)| {
            order(one).cmp(&order(two)).then(net(one).total_cmp(&net(two)))
        });
        let Some((best, _)) = best else { break };
        let mut best = paying.remove(best);
        // A redesign has a large least saving of its own.
        let is_redesign = best.redesign.is_some();
        let (is_told, error) = subsets.judge(&design, &best.operators, situation);
        best.latency_ratio.log_error = best.latency_ratio.log_error.hypot(error);
        if !is_redesign && !is_told {
            best.rejected = Some(Rejected::WithinError);
            others.push(best);
            within_error += 1;
            if within_error == WITHIN_ERROR_MAX {
                break;
            }
            continue;
        }
        for operator in &best.operators {
            design.apply(operator).expect("a plan can be applied to its design");
        }
        let changed: BTreeSet<&K> =
            best.operators.iter().map(|operator| layout.of(operator.key()).0).collect();
        let is_changed = |operator: &Operator<K>| changed.contains(layout.of(operator.key()).0);
        // After the chosen plan the others save different amounts.
        let accesses = Accesses::counted(&Numbered::new(&design), situation.samples);
        design_price = price_by(&accesses, &design, situation);
        let (layout, before, held) = (&design, &design_price, &held_by(&design));
        let by = Weighing::new(layout, before, situation, parameters, &accesses, held);
        for plan in paying.iter_mut().filter(|plan| plan.rejected.is_none()) {
            if is_many_removals(plan) {
                plan.operators.retain(|operator| !is_changed(operator));
            }
            if plan.operators.is_empty()
                || plan.operators.iter().any(is_changed)
                || !by.is_possible(&plan.operators)
            {
                plan.rejected = Some(Rejected::Another);
            } else {
                // A redesign is the first that is chosen, and the only one that is not rejected.
                *plan = by.weighed(plan.trigger.clone(), plan.site, plan.operators.clone());
            }
        }
        chosen.push(best);
    }
    for plan in &mut paying {
        plan.rejected.get_or_insert(Rejected::Another);
    }
    chosen.append(&mut paying);
    chosen.append(&mut others);
    Decided { considered: chosen, before, after: design_price }
}

/// Draws `many` samples with probability proportional to their weights. Returns their indexes in the order of the draws,
/// each at most once.
fn triggers<K>(
    samples: &[(f64, Sample<K>)],
    many: usize,
    dice: &mut (impl Rng + ?Sized),
) -> Vec<usize> {
    let mut sum = 0.0;
    let sums: Vec<f64> = samples
        .iter()
        .map(|(weight, _)| {
            sum += weight;
            sum
        })
        .collect();
    let one = |_| {
        let at = dice.random::<f64>() * sum;
        sums.partition_point(|sum| *sum <= at)
    };
    // Rounding can put a draw above the last sum.
    let mut drawn = Vec::with_capacity(many);
    for one in (0..many).map(one).filter(|one| *one < samples.len()) {
        if !drawn.contains(&one) {
            drawn.push(one);
        }
    }
    drawn
}

/// Returns the first written key of a transaction, or else the start of its first range: it identifies a trigger.
fn first_key<K>(sample: &Sample<K>) -> Option<&K> {
    sample.writes.first().or(sample.reads.first().map(|(from, _)| from))
}

/// Share (0..1) of the best redesign's net saving from which on one with fewer operators is chosen instead.
const NEARLY_BEST: f64 = 0.95;

/// Weighs all redesigns, of which at most one is not rejected. Operators that are held back are left out of them.
fn redesigns<K: Key>(
    view: &View<'_, K>,
    by: &Weighing<'_, K>,
    parameters: &Parameters,
) -> Vec<Considered<K>> {
    let layout = view.numbered.layout;
    let mut seen = BTreeSet::new();
    let weighed = |redesign: Redesign| {
        let mut operators =
            redesign.operators(view.numbered, view.statistics, &parameters.thresholds);
        operators.retain(|operator| by.forbids(operator).is_none());
        let operators = layout.possible(&operators);
        if operators.is_empty() || !by.is_possible(&operators) || !seen.insert(operators.clone()) {
            return None;
        }
        let site = match redesign.masters {
            Masters::One(site) => site,
            _ => layout.of(operators[0].key()).1.master,
        };
        Some(by.redesigned(redesign, site, operators))
    };
    let all = Redesign::all(view.numbered, view.statistics);
    let mut weighed: Vec<Considered<K>> = all.into_iter().filter_map(weighed).collect();
    let net = |plan: &Considered<K>| plan.net_us(parameters.lambda);
    let paying = || weighed.iter().enumerate().filter(|(_, plan)| plan.rejected.is_none());
    let best = paying().map(|(_, plan)| net(plan)).fold(0.0, f64::max);
    let good = paying().filter(|(_, plan)| net(plan) >= NEARLY_BEST * best);
    let chosen = good.min_by_key(|(_, plan)| plan.operators.len()).map(|(at, _)| at);
    for (at, plan) in weighed.iter_mut().enumerate() {
        if chosen != Some(at) {
            plan.rejected.get_or_insert(Rejected::Another);
        }
    }
    weighed
}

/// Weighs all plans of the origins, and all removals of replicas, on one design.
fn look<K: Key>(
    layout: &Layout<K>,
    before: &Price,
    situation: &Situation<'_, K>,
    parameters: &Parameters,
    origins: &Origins<K>,
    held: &dyn Fn(&Operator<K>) -> Option<Hold>,
) -> Vec<Considered<K>> {
    let numbered = Numbered::new(layout);
    let samples = situation.samples;
    let accesses = Accesses::of(&numbered, samples);
    let (numbered, thresholds) = (&numbered, &parameters.thresholds);
    let view = View::new(numbered, &accesses.statistics, samples, thresholds);
    let by = Weighing::new(layout, before, situation, parameters, &accesses, held);
    let (mut considered, mut without_plan) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for trigger in &origins.triggers {
        if considered.len() >= PLANS_WEIGHED_MAX {
            break;
        }
        let (_, sample) = &samples[*trigger];
        let first = first_key(sample);
        for site in layout.sites().iter() {
            match plans(&view, &accesses.touched[*trigger], site) {
                Ok(plans) => {
                    let new = plans.into_iter().filter(|plan| seen.insert(plan.clone()));
                    considered.extend(new.map(|plan| by.weighed(first.cloned(), site, plan)));
                }
                Err(why) => {
                    let plan = by.untouched(first.cloned(), site, Vec::new());
                    let rejected = Some(Rejected::NoPlan(why));
                    without_plan.push(Considered { rejected, ..plan });
                }
            }
        }
    }
    for division in &origins.divisions {
        for site in layout.sites().iter().filter(|site| *site != division.site) {
            let first = division.starts.first();
            let plans = move_half(&view, division, site);
            let new = plans.into_iter().filter(|plan| seen.insert(plan.clone()));
            considered.extend(new.map(|plan| by.weighed(first.cloned(), site, plan)));
        }
    }
    let single: Vec<Considered<K>> = removals(&view)
        .filter_map(|removal| match removal.first() {
            Some(Operator::RemoveReplica(_, site)) => Some((*site, removal)),
            _ => None,
        })
        .map(|(site, removal)| by.weighed(None, site, removal))
        .collect();
    let together = together(layout, &single, parameters);
    if let Some(Operator::RemoveReplica(_, site)) = together.first().filter(|_| together.len() > 1)
    {
        considered.push(by.weighed(None, *site, together.clone()));
    }
    considered.extend(single);
    considered.extend(redesigns(&view, &by, parameters));
    for Again { trigger, site, operators } in &origins.again {
        let operators = layout.possible(operators);
        let is_new = considered.iter().all(|plan| plan.operators != operators);
        if is_new && !operators.is_empty() && by.is_possible(&operators) {
            considered.push(by.weighed(trigger.clone(), *site, operators));
        }
    }
    considered.append(&mut without_plan);
    considered
}
