//! The price of a design: the predicted cost of transactions like the sampled ones, if the store had that design
//! (MorphoSys, §5.3.2).
//!
//! Each sample runs where the router would run it: at the site that masters all that it writes and has copies of all
//! that it reads. A sample that only reads runs at the least loaded of the sites that have copies of all that it reads.
//! Where there is no such site the design changes first, and the sample pays for that: so a design that needs no future
//! changes is credited with them, and one that causes them is debited. The sites of the samples give the load of each
//! site ([`CostModel::cpu`]), that gives the queue at each ([`super::queues`]), that gives the wait for service, and
//! that gives the latency.

use std::collections::BTreeMap;

use super::cost::{CostModel, Inputs, Operation, SiteRates};
use super::layout::{Key, Layout, Operator, Partition, Site};
use super::queues::{queues, slowed};
use super::regimes::Expected;
use super::site_set::SiteSet;
use super::updates::Updates;
use super::workload::{Accesses, Numbered, Sample, Statistics, Touched};

/// Default weight of a µs of a site's CPU time, relative to a µs of latency.
pub const CPU_WEIGHT: f64 = 0.5;

/// The workload and the state of the sites, independent of the design that is priced.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a, K> {
    /// Transactions that stand for the expected ones, each with its weight.
    pub samples: &'a [(f64, Sample<K>)],
    /// Number of transactions per second, at all sites together.
    pub rate_s: f64,
    /// Mean number of concurrent transactions, at all sites together.
    pub population: f64,
    /// The model that predicts the costs of transactions and operators.
    pub cost: &'a CostModel,
    /// Number of log entries that each site has yet to apply.
    pub lag_entries: &'a BTreeMap<Site, f64>,
    /// Weight of a µs of a site's CPU time, relative to a µs of latency. Without it an unread replica would cost
    /// nothing where its site has idle time.
    pub cpu_weight: f64,
    /// The workload that is expected after the present moment.
    pub expected: Expected<'a, K>,
}

/// The price of a design: the predicted latency of transactions and the predicted load of the sites.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Price {
    /// Mean latency of a transaction, in µs, including the design changes that it waits for.
    pub latency_us: f64,
    /// CPU time of all sites per transaction, in µs.
    pub work_us: f64,
    /// Latency plus weighted CPU time of a transaction, in µs.
    pub total_us: f64,
    /// Predicted CPU load of each site, as a share of the CPU that the site has.
    pub cpu: BTreeMap<Site, f64>,
    /// Predicted mean number of transactions at each site, running or waiting.
    pub queues: BTreeMap<Site, f64>,
    /// Predicted work ahead of one wait for each site's thread, in µs: see [`Inputs::queued_work_us`].
    pub queued_work_us: BTreeMap<Site, f64>,
    /// Predicted work of each site: the inputs of [`CostModel::cpu`].
    pub loads: BTreeMap<Site, SiteRates>,
    /// Share (0..1) of transactions that some site can run without a design change.
    pub single_site: f64,
}

/// A sample placed at a site, with the design changes that the site needs first.
struct Placed {
    sample: usize,
    weight: f64,
    site: usize,
    /// Number of replicas that the site has to get before it can run the sample.
    replicas: u32,
    /// Number of partitions whose master the site has to become before it can run the sample.
    masters: u32,
}

/// Returns the predicted price of the design `layout` in a situation.
#[must_use]
pub fn price<K: Key>(layout: &Layout<K>, situation: &Situation<'_, K>) -> Price {
    let accesses = Accesses::counted(&Numbered::new(layout), situation.samples);
    price_by(&accesses, layout, situation)
}

/// Returns the predicted price of the design `layout`, by accesses that were counted on a design with the same
/// partition bounds.
#[must_use]
pub fn price_by<K: Key>(
    Accesses { touched, statistics }: &Accesses,
    layout: &Layout<K>,
    situation: &Situation<'_, K>,
) -> Price {
    let partitions: Vec<&Partition> = layout.partitions().map(|(_, one)| one).collect();
    let sites: Vec<Site> = layout.sites().iter().collect();
    let mut placed = Vec::with_capacity(touched.len());
    // Samples that several sites can run: these only read.
    let mut roaming: Vec<(usize, SiteSet)> = Vec::new();
    let (mut able_weight, mut all_weight) = (0.0, 0.0);
    for (sample, ((weight, _), touched)) in situation.samples.iter().zip(touched).enumerate() {
        let able = able(touched, &partitions, layout.sites());
        all_weight += weight;
        let place = |site| Placed { sample, weight: *weight, site, replicas: 0, masters: 0 };
        if able.len() > 1 {
            roaming.push((sample, able));
            able_weight += weight;
        } else if let Some(site) = able.iter().next() {
            placed.push(place(layout.sites().place_of(site)));
            able_weight += weight;
        } else {
            let at = |site: &usize| needs(touched, &partitions, sites[*site]);
            let cheapest = (0..sites.len()).min_by_key(at).expect("there is a site");
            let (replicas, masters) = at(&cheapest);
            placed.push(Placed { sample, weight: *weight, site: cheapest, replicas, masters });
        }
    }
    let all_weight: f64 = if all_weight > 0.0 { all_weight } else { 1.0 };
    let mut loads = loads(situation, layout.sites(), &partitions, touched, &placed, all_weight);
    let mut cpu: Vec<f64> = loads.iter().map(|load| situation.cost.cpu.predict(*load)).collect();
    for (sample, able) in roaming {
        let able = able.iter().map(|site| layout.sites().place_of(site));
        let site = able.min_by(|one, two| cpu[*one].total_cmp(&cpu[*two])).expect("some can");
        let (weight, of) = &situation.samples[sample];
        let rate_s = situation.rate_s * weight / all_weight;
        loads[site][0] += rate_s * f64::from(of.rows_read);
        loads[site][3] += rate_s;
        cpu[site] = situation.cost.cpu.predict(loads[site]);
        placed.push(Placed { sample, weight: *weight, site, replicas: 0, masters: 0 });
    }
    // CPU time that a site uses when idle is not a demand of transactions.
    let idle = situation.cost.cpu.predict([0.0; 4]);
    let own = |[read, written, _, run]: &SiteRates| {
        situation.cost.cpu.predict([*read, *written, 0.0, *run]) - idle
    };
    let demands: Vec<f64> = loads.iter().map(|load| own(load).max(0.0)).collect();
    let applied = cpu.iter().zip(&demands).map(|(cpu, own)| (cpu - idle - own).max(0.0));
    let demands = slowed(&demands, &applied.collect::<Vec<f64>>());
    let queues = queues(&demands, situation.population);
    let queued_work_us = queued_work_us(situation, touched, &placed, &demands, &queues, all_weight);
    let updates = Updates::new(layout.sites(), &partitions, statistics);
    let latency = |placed: &Placed| {
        let (_, sample) = &situation.samples[placed.sample];
        let Touched { reads, writes } = &touched[placed.sample];
        let site = sites[placed.site];
        let contention = writes.iter().map(|write| statistics.writes(*write)).sum();
        let (lag_entries, update_share) = updates.share(site, reads).map_or((0.0, 0.0), |share| {
            (situation.lag_entries.get(&site).copied().unwrap_or(0.0), share)
        });
        let inputs = Inputs {
            queued_work_us: queued_work_us[placed.site],
            other_queued_work_us: queued_work_us.iter().sum::<f64>() / queued_work_us.len() as f64,
            lag_entries,
            update_share,
            contention,
            rows: (f64::from(sample.rows_read), f64::from(sample.rows_written)),
            copied: 0.0,
            partitions: (reads.len() as f64, writes.len() as f64),
        };
        let is = kind(&touched[placed.sample]);
        let mut us = situation.cost.predict(is, &inputs);
        if placed.masters + placed.replicas > 0 {
            let change = Inputs { partitions: (0.0, 1.0), ..inputs };
            us += f64::from(placed.masters) * situation.cost.predict(Operation::Remaster, &change);
            let missing = reads.iter().chain(writes).filter(|one| !partitions[**one].is_at(site));
            for one in missing {
                let rows = partitions[*one].rows as f64;
                let copy = Inputs { copied: rows, ..inputs };
                us += situation.cost.predict(Operation::AddReplica, &copy);
            }
        }
        placed.weight * us
    };
    let latency_us = placed.iter().map(latency).sum::<f64>() / all_weight;
    let work_us = cpu.iter().sum::<f64>() * 1e6 / situation.rate_s.max(1.0);
    Price {
        latency_us,
        work_us,
        total_us: latency_us + situation.cpu_weight * work_us,
        cpu: sites.iter().copied().zip(cpu.iter().copied()).collect(),
        queues: sites.iter().copied().zip(queues.iter().copied()).collect(),
        queued_work_us: sites.iter().copied().zip(queued_work_us.iter().copied()).collect(),
        loads: sites.iter().copied().zip(loads).collect(),
        single_site: able_weight / all_weight,
    }
}

fn kind(touched: &Touched) -> Operation {
    Operation::Transaction { reads: !touched.reads.is_empty(), writes: !touched.writes.is_empty() }
}

/// Returns the work ahead of one wait for the thread of each site, in µs: the number of transactions at the site,
/// times the time that one needs of its thread, divided by the number of waits of one.
fn queued_work_us<K>(
    situation: &Situation<'_, K>,
    touched: &[Touched],
    placed: &[Placed],
    demands: &[f64],
    queues: &[f64],
    all_weight: f64,
) -> Vec<f64> {
    let mut waits = vec![(0.0, 0.0); demands.len()];
    for Placed { sample, weight, site, .. } in placed {
        let of: &mut (f64, f64) = &mut waits[*site];
        of.0 += weight;
        of.1 += weight * kind(&touched[*sample]).waits().0;
    }
    let of = |site: usize| {
        let (weight, waits) = waits[site];
        let here_s = situation.rate_s * weight / all_weight;
        if here_s <= 0.0 {
            return 0.0;
        }
        let each_us = demands[site] * 1e6 / here_s;
        queues[site] * each_us * weight / waits
    };
    (0..demands.len()).map(of).collect()
}

/// Returns the sites that can run a transaction on these partitions without a design change.
fn able(touched: &Touched, partitions: &[&Partition], sites: SiteSet) -> SiteSet {
    let readable = touched.reads.iter().map(|read| partitions[*read].copies());
    let writable = touched.writes.iter().map(|write| SiteSet::only(partitions[*write].master));
    readable.chain(writable).fold(sites, SiteSet::intersection)
}

/// Returns how many replicas, and how many masters of partitions, a site lacks to run a transaction.
fn needs(touched: &Touched, partitions: &[&Partition], site: Site) -> (u32, u32) {
    let missing = touched.reads.iter().chain(&touched.writes);
    let replicas = missing.filter(|one| !partitions[**one].is_at(site)).count();
    let masters = touched.writes.iter().filter(|one| partitions[**one].master != site).count();
    (replicas as u32, masters as u32)
}

/// Returns the work of each site with the samples placed as in `placed`.
fn loads<K>(
    situation: &Situation<'_, K>,
    sites: SiteSet,
    partitions: &[&Partition],
    touched: &[Touched],
    placed: &[Placed],
    all_weight: f64,
) -> Vec<SiteRates> {
    let mut loads = vec![SiteRates::default(); sites.len()];
    for Placed { sample, weight, site, .. } in placed {
        let (_, of) = &situation.samples[*sample];
        let rate_s = situation.rate_s * weight / all_weight;
        loads[*site][0] += rate_s * f64::from(of.rows_read);
        loads[*site][1] += rate_s * f64::from(of.rows_written);
        loads[*site][3] += rate_s;
        let writes = &touched[*sample].writes;
        let each = f64::from(of.rows_written) / writes.len().max(1) as f64;
        for write in writes {
            let copies = partitions[*write].copies().intersection(sites);
            for other in copies.iter().map(|other| sites.place_of(other)).filter(|n| n != site) {
                loads[other][2] += rate_s * each;
            }
        }
    }
    loads
}

/// Returns the kind of an operator, and the inputs from which its cost is predicted: from the partition that it
/// changes, the work ahead at the sites in µs, the log lag of the sites in entries, and the partition's share of
/// writes (`contention`).
#[must_use]
pub fn inputs_of<K>(
    operator: &Operator<K>,
    partition: &Partition,
    queued_work_us: &BTreeMap<Site, f64>,
    lag_entries: &BTreeMap<Site, f64>,
    contention: f64,
) -> (Operation, Inputs) {
    let queued_work_us = |site: Site| queued_work_us.get(&site).copied().unwrap_or(0.0);
    let lag_entries = |site: Site| lag_entries.get(&site).copied().unwrap_or(0.0);
    let of = Inputs {
        queued_work_us: queued_work_us(partition.master),
        contention,
        ..Inputs::default()
    };
    match operator {
        Operator::Split(_) => (Operation::Split, Inputs { partitions: (0.0, 3.0), ..of }),
        Operator::Merge(_) => (Operation::Merge, Inputs { partitions: (0.0, 3.0), ..of }),
        Operator::AddReplica(_, site) => {
            let (other_queued_work_us, copied) = (queued_work_us(*site), partition.rows as f64);
            (Operation::AddReplica, Inputs { other_queued_work_us, copied, ..of })
        }
        Operator::RemoveReplica(_, site) => {
            (Operation::RemoveReplica, Inputs { queued_work_us: queued_work_us(*site), ..of })
        }
        Operator::Remaster(_, site) => {
            let (other_queued_work_us, lag_entries) = (queued_work_us(*site), lag_entries(*site));
            let inputs = Inputs { other_queued_work_us, lag_entries, partitions: (0.0, 1.0), ..of };
            (Operation::Remaster, inputs)
        }
    }
}

/// Applies the operators of a plan to the present design `layout`, in order, and predicts their cost (§5.3). Returns
/// the resulting design, and the cost in µs.
///
/// # Errors
/// Returns the reason for which an operator is impossible, if one is.
pub fn plan_cost<K: Key>(
    layout: &Layout<K>,
    operators: &[Operator<K>],
    situation: &Situation<'_, K>,
    before: &Price,
    statistics: &Statistics,
) -> Result<(Layout<K>, f64), super::layout::Impossible> {
    let numbered = Numbered::new(layout);
    let (mut after, mut us) = (layout.clone(), 0.0);
    for operator in operators {
        let (_, partition) = after.of(operator.key());
        let writes = statistics.writes(numbered.of(operator.key()));
        let (operation, inputs) =
            inputs_of(operator, partition, &before.queued_work_us, situation.lag_entries, writes);
        us += situation.cost.predict(operation, &inputs);
        after.apply(operator)?;
    }
    Ok((after, us))
}
