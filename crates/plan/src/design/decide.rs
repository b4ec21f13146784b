//! Which plan pays: the expected benefit of each against its cost (MorphoSys, §5.3).
//!
//! For a few sampled transactions, each site is a candidate, and each of its plans is priced: the design that the
//! plan leads to, against the design that is. net = λ · E − C, where
//! - E is what transactions save: the mean latency saved, and with a weight the processor time of all sites, times
//!   their rate, times an explicit *horizon* in
//!   seconds. The paper leaves open for how long a plan is credited; here it is a parameter, told with each
//!   decision.
//! - C is what the plan's operators take.
//!
//! The best plan above a least gain is chosen; then, of those that pay as well and change other partitions, the one that
//! is best by the design that the first leads to. Everything that was compared comes back: the chosen plans, and for
//! each of the others why not.

use std::collections::BTreeSet;

use rand::{Rng, RngExt as _};

use super::coarse::coarse;
use super::layout::{Key, Layout, Operator, Site};
use super::plans::{NoPlan, Thresholds, View, plans, removals};
use super::price::{Price, Situation, plan_cost, price, price_by};
use super::ranks::Ranks;
use super::workload::{Accesses, Given, Numbered, Sample};

/// The parameters of decisions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// λ: how much an expected µs counts against one that is spent.
    pub lambda: f64,
    /// For how long a plan is credited with what it saves, in seconds.
    pub horizon_s: f64,
    /// A plan saves at least this share of what a transaction costs, with up to four sites: see
    /// [`Self::least_gain`].
    pub gain_min: f64,
    /// Sampled transactions for which plans are made.
    pub triggers: usize,
    /// The most plans that are chosen at once.
    pub plans_max: usize,
    /// The most bytes of a site.
    pub memory_max: Option<u64>,
    /// Thresholds of plans.
    pub thresholds: Thresholds,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            lambda: 1.0,
            horizon_s: 10.0,
            gain_min: 0.01,
            triggers: 12,
            plans_max: 4,
            memory_max: None,
            thresholds: Thresholds::default(),
        }
    }
}

/// Sites up to which the least gain does not depend on their number.
const FEW_SITES: usize = 4;

impl Parameters {
    /// The share of what a transaction costs that a plan has to save. With more sites a plan, which concerns few of
    /// them, saves less of what all transactions cost, though as much of what those at its sites do.
    #[must_use]
    pub fn least_gain(&self, sites: usize) -> f64 {
        self.gain_min * FEW_SITES as f64 / sites.max(FEW_SITES) as f64
    }
}

/// Why a plan was not chosen.
#[derive(Clone, Debug, PartialEq)]
pub enum Rejected<K: std::fmt::Debug> {
    /// No plan lets the transaction run there.
    NoPlan(NoPlan<K>),
    /// It saves less than it costs.
    DoesNotPay,
    /// It saves less than the least gain.
    TooLittle,
    /// Another one saves more, and changes the same.
    Another,
    /// A site would hold more than it may.
    Memory(Site),
    /// It is held back: see [`super::brakes`].
    Held(String),
}

impl Rejected<u32> {
    fn named<K: Key>(self, ranks: &Ranks<K>) -> Rejected<K> {
        match self {
            Self::NoPlan(why) => Rejected::NoPlan(ranks.no_plan(&why)),
            Self::DoesNotPay => Rejected::DoesNotPay,
            Self::TooLittle => Rejected::TooLittle,
            Self::Another => Rejected::Another,
            Self::Memory(site) => Rejected::Memory(site),
            Self::Held(why) => Rejected::Held(why),
        }
    }
}

/// A plan that was looked at.
#[derive(Clone, Debug, PartialEq)]
pub struct Considered<K: std::fmt::Debug> {
    /// The transaction that gave rise to it, by its first key; none of a removal.
    pub trigger: Option<K>,
    /// The site that it is for.
    pub site: Site,
    /// Its operators, in order.
    pub operators: Vec<Operator<K>>,
    /// The mean latency by the design that is, and by the one that would be, in µs.
    pub latency_us: (f64, f64),
    /// E: what is saved within the horizon, in µs.
    pub benefit_us: f64,
    /// C: what the operators take, in µs.
    pub cost_us: f64,
    /// Why it was not chosen; none if it was.
    pub rejected: Option<Rejected<K>>,
}

impl<K: std::fmt::Debug> Considered<K> {
    /// net = λ · E − C, in µs.
    #[must_use]
    pub fn net_us(&self, lambda: f64) -> f64 {
        lambda * self.benefit_us - self.cost_us
    }
}

/// The result of a decision.
#[derive(Clone, Debug, PartialEq)]
pub struct Decided<K: std::fmt::Debug> {
    /// All plans that were looked at, the chosen ones first, in their order.
    pub considered: Vec<Considered<K>>,
    /// The price of the design that is.
    pub before: Price,
    /// The predicted price of the design that the chosen plans lead to.
    pub after: Price,
}

impl<K: std::fmt::Debug> Decided<K> {
    /// The plans to carry out, in their order.
    pub fn chosen(&self) -> impl Iterator<Item = &Considered<K>> {
        self.considered.iter().filter(|plan| plan.rejected.is_none())
    }
}

/// The samples, and with them transactions that are generated from the workload model (§5.3.1): of a partition
/// drawn by its accesses and a partner of it, in the four combinations of reading and writing, weighed by
/// their likelihood. They make a decision robust against the chance of few samples.
#[must_use]
pub fn emulated<K: Key>(
    layout: &Layout<K>,
    samples: &[Sample<K>],
    generated: usize,
    dice: &mut impl Rng,
) -> Vec<(f64, Sample<K>)> {
    let numbered = Numbered::new(layout);
    let mut all: Vec<(f64, Sample<K>)> =
        samples.iter().map(|sample| (1.0, sample.clone())).collect();
    let Accesses { touched, statistics } = Accesses::of(&numbered, &all);
    if samples.is_empty() {
        return all;
    }
    let count = |of: fn(&Sample<K>) -> u32| {
        let sum: f64 = samples.iter().map(|sample| f64::from(of(sample))).sum();
        (sum / samples.len() as f64).round() as u32
    };
    let (rows_read, rows_written) =
        (count(|sample| sample.rows_read), count(|sample| sample.rows_written));
    for _ in 0..generated {
        // A partition by its accesses: any access of any sample is as likely.
        let of = &touched[dice.random_range(0..touched.len())];
        let accessed: Vec<usize> = of.writes.iter().chain(&of.reads).copied().collect();
        let Some(one) = pick(&accessed, dice) else { continue };
        let Some(two) = pick(statistics.partners(one), dice) else { continue };
        let keys = [numbered.start(one).clone(), numbered.start(two).clone()];
        let (reads, writes) = (statistics.reads(one), statistics.writes(one));
        let kinds = [
            (Given::ReadRead, reads, false, false),
            (Given::WriteWrite, writes, true, true),
            (Given::WriteRead, writes, true, false),
            (Given::ReadWrite, reads, false, true),
        ];
        for (kind, share, one_writes, two_writes) in kinds {
            let weight = share * statistics.given(kind, one, two);
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
                    // The first row alone: a read of one key ends in its partition.
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

/// Says why an operator may not be carried out on a design now, if it may not.
pub type Held<'h, K> = dyn Fn(&Layout<K>, &Operator<K>) -> Option<String> + 'h;

/// Decides which plans pay. `held` says why an operator may not be carried out now, if it may not; `again` has the
/// triggers of plans that paid before, which are looked at beside those that are drawn.
pub fn decide<K: Key>(
    layout: &Layout<K>,
    situation: &Situation<'_, K>,
    parameters: &Parameters,
    held: &Held<'_, K>,
    again: &[K],
    dice: &mut (impl Rng + ?Sized),
) -> Decided<K> {
    let ranks = Ranks::of(layout, situation.samples);
    let samples = situation.samples.iter().map(|(weight, of)| (*weight, ranks.sample(of)));
    let samples: Vec<(f64, Sample<u32>)> = samples.collect();
    let design = ranks.layout(layout);
    let samples = coarse(&design, &samples, parameters.thresholds.split_above);
    let Situation { rate_s, population, cost, behind, cpu_weight, .. } = *situation;
    let situation = Situation { samples: &samples, rate_s, population, cost, behind, cpu_weight };
    let held_by = |layout: &Layout<u32>| {
        let layout = ranks.named(layout);
        let ranks = &ranks;
        move |operator: &Operator<u32>| held(&layout, &ranks.operator(operator))
    };
    let again: Vec<u32> = again.iter().map(|key| ranks.nearest(key)).collect();
    let mut triggers = triggers(&samples, parameters.triggers, dice);
    triggers.extend(again.iter().flat_map(|key| heaviest(&samples, key)));
    let decided = decide_ranked(&design, &situation, parameters, held_by, &triggers);
    let named = |plan: Considered<u32>| Considered {
        trigger: plan.trigger.map(|rank| ranks.key(rank)),
        site: plan.site,
        operators: plan.operators.iter().map(|operator| ranks.operator(operator)).collect(),
        latency_us: plan.latency_us,
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

/// `held_by` says of a design which operators are held back.
fn decide_ranked<K: Key, H: Fn(&Operator<K>) -> Option<String>>(
    layout: &Layout<K>,
    situation: &Situation<'_, K>,
    parameters: &Parameters,
    held_by: impl Fn(&Layout<K>) -> H,
    triggers: &BTreeSet<usize>,
) -> Decided<K> {
    let before = price(layout, situation);
    let looked = look(layout, &before, situation, parameters, triggers, &held_by(layout));
    let (mut paying, mut others): (Vec<_>, Vec<_>) =
        looked.into_iter().partition(|plan| plan.rejected.is_none());
    let (mut design, mut design_price) = (layout.clone(), before.clone());
    let mut chosen = Vec::<Considered<K>>::new();
    while chosen.len() < parameters.plans_max {
        let net = |plan: &Considered<K>| plan.net_us(parameters.lambda);
        let open = paying.iter().enumerate().filter(|(_, plan)| plan.rejected.is_none());
        let best = open.max_by(|(_, one), (_, two)| net(one).total_cmp(&net(two)));
        let Some((best, _)) = best else { break };
        let best = paying.remove(best);
        for operator in &best.operators {
            design.apply(operator).expect("a plan can be applied to its design");
        }
        let changed: BTreeSet<&K> =
            best.operators.iter().map(|operator| layout.of(operator.key()).0).collect();
        let is_changed = |operator: &Operator<K>| changed.contains(layout.of(operator.key()).0);
        // Behind it the others save something else.
        let accesses = Accesses::counted(&Numbered::new(&design), situation.samples);
        design_price = price_by(&accesses, &design, situation);
        let (layout, before, held) = (&design, &design_price, &held_by(&design));
        let by = Weighing { layout, before, situation, parameters, accesses: &accesses, held };
        for plan in paying.iter_mut().filter(|plan| plan.rejected.is_none()) {
            if plan.operators.iter().any(is_changed) || !by.is_possible(&plan.operators) {
                plan.rejected = Some(Rejected::Another);
            } else {
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

/// Draws samples by their weights, each once at most.
fn triggers<K>(
    samples: &[(f64, Sample<K>)],
    many: usize,
    dice: &mut (impl Rng + ?Sized),
) -> BTreeSet<usize> {
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
    // The last one has no sum above it, where that was rounded.
    (0..many).map(one).filter(|one| *one < samples.len()).collect()
}

/// The key that a trigger is told by.
fn first_key<K>(sample: &Sample<K>) -> Option<&K> {
    sample.writes.first().or(sample.reads.first().map(|(from, _)| from))
}

/// The samples with most weight, one that writes and one that only reads, of those that begin with the last key up to
/// this one.
fn heaviest<K: Key>(samples: &[(f64, Sample<K>)], key: &K) -> impl Iterator<Item = usize> {
    let firsts = samples.iter().filter_map(|(_, sample)| first_key(sample));
    let last = firsts.filter(|first| *first <= key).max();
    let of = |writes: bool| {
        let begins = |(_, (_, sample)): &(usize, &(f64, Sample<K>))| {
            first_key(sample) == last && sample.writes.is_empty() != writes
        };
        let all = samples.iter().enumerate().filter(begins);
        all.max_by(|(_, (one, _)), (_, (two, _))| one.total_cmp(two)).map(|(number, _)| number)
    };
    let both = last.map(|_| [of(true), of(false)]);
    both.into_iter().flatten().flatten()
}

/// Looks at all plans of the triggers by one design.
fn look<K: Key>(
    layout: &Layout<K>,
    before: &Price,
    situation: &Situation<'_, K>,
    parameters: &Parameters,
    triggers: &BTreeSet<usize>,
    held: &dyn Fn(&Operator<K>) -> Option<String>,
) -> Vec<Considered<K>> {
    let numbered = Numbered::new(layout);
    let samples = situation.samples;
    let accesses = Accesses::of(&numbered, samples);
    let (numbered, thresholds) = (&numbered, &parameters.thresholds);
    let view = View::new(numbered, &accesses.statistics, samples, thresholds);
    let by = Weighing { layout, before, situation, parameters, accesses: &accesses, held };
    let (mut considered, mut without_plan) = (Vec::new(), Vec::new());
    let mut seen = BTreeSet::new();
    for trigger in triggers {
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
    for removal in removals(&view) {
        if let Some(Operator::RemoveReplica(_, site)) = removal.first() {
            let site = *site;
            considered.push(by.weighed(None, site, removal));
        }
    }
    considered.append(&mut without_plan);
    considered
}

/// The basis on which plans are weighed: a design with its price, and the workload.
struct Weighing<'w, K: Key> {
    layout: &'w Layout<K>,
    before: &'w Price,
    situation: &'w Situation<'w, K>,
    parameters: &'w Parameters,
    accesses: &'w Accesses,
    held: &'w dyn Fn(&Operator<K>) -> Option<String>,
}

impl<K: Key> Weighing<'_, K> {
    /// A plan that nothing is known of.
    fn untouched(
        &self,
        trigger: Option<K>,
        site: Site,
        operators: Vec<Operator<K>>,
    ) -> Considered<K> {
        let latency_us = (self.before.latency_us, self.before.latency_us);
        let (benefit_us, cost_us, rejected) = (0.0, 0.0, None);
        Considered { trigger, site, operators, latency_us, benefit_us, cost_us, rejected }
    }

    /// True if a plan for another design can be carried out on this one, within its limits.
    fn is_possible(&self, operators: &[Operator<K>]) -> bool {
        self.parameters.thresholds.keeps(self.layout, operators)
    }

    /// A plan with its benefit and cost, and why it is not to be chosen, if so.
    fn weighed(
        &self,
        trigger: Option<K>,
        site: Site,
        operators: Vec<Operator<K>>,
    ) -> Considered<K> {
        let Self { layout, before, situation, parameters, accesses, held } = self;
        let mut plan = self.untouched(trigger, site, operators);
        if let Some(why) = plan.operators.iter().find_map(held) {
            plan.rejected = Some(Rejected::Held(why));
            return plan;
        }
        let costed = plan_cost(layout, &plan.operators, situation, before, &accesses.statistics);
        let (after, cost_us) = costed.expect("a plan can be applied to its design");
        let moves_boundary =
            |one: &Operator<K>| matches!(one, Operator::Split(_) | Operator::Merge(_));
        let after_price = if plan.operators.iter().any(moves_boundary) {
            price(&after, situation)
        } else {
            price_by(accesses, &after, situation)
        };
        let saved_us = before.total_us - after_price.total_us;
        plan.latency_us.1 = after_price.latency_us;
        plan.benefit_us = saved_us * situation.rate_s * parameters.horizon_s;
        plan.cost_us = cost_us;
        let grows = |site: &Site| after.bytes_at(*site) > layout.bytes_at(*site);
        let full = parameters.memory_max.and_then(|max| {
            layout.sites().iter().find(|site| grows(site) && after.bytes_at(*site) > max)
        });
        plan.rejected = if let Some(site) = full {
            Some(Rejected::Memory(site))
        } else if plan.net_us(parameters.lambda) <= 0.0 {
            Some(Rejected::DoesNotPay)
        } else if saved_us < parameters.least_gain(layout.sites().len()) * before.total_us {
            Some(Rejected::TooLittle)
        } else {
            None
        };
        plan
    }
}

/// Weighs one plan by itself, which can be applied to the design: its benefit and cost, and why it does not pay, if so.
/// Nothing holds it back.
#[must_use]
pub fn weigh<K: Key>(
    layout: &Layout<K>,
    before: &Price,
    situation: &Situation<'_, K>,
    parameters: &Parameters,
    site: Site,
    operators: &[Operator<K>],
) -> Considered<K> {
    let accesses = &Accesses::of(&Numbered::new(layout), situation.samples);
    let held = &|_: &Operator<K>| None;
    let by = Weighing { layout, before, situation, parameters, accesses, held };
    by.weighed(None, site, operators.to_vec())
}
