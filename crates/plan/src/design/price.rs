//! The price of a design: what transactions like the sampled ones would take by it (MorphoSys, §5.3.2).
//!
//! Each sample runs where the router would run it: at the site that masters all that it writes and has all that
//! it reads; a sample that only reads, at the site with the least load of those that have what it reads. Where there is no
//! such site the design changes first, and the sample pays for that: so a design that needs no changes in
//! future is credited with them, and one that brings them about is debited. From where samples run follows the
//! load of each site ([`CostModel::cpu`]), from that the queue at each ([`super::queues`]), from that the wait for
//! service, and from that the latency.

use std::collections::BTreeMap;

use super::cost::{CostModel, Inputs, Operation};
use super::layout::{Key, Layout, Operator, Partition, Site};
use super::queues::{queues, slowed};
use super::site_set::SiteSet;
use super::updates::Updates;
use super::workload::{Accesses, Numbered, Sample, Statistics, Touched};

/// The default weight of a µs of a site's processor, against a µs of latency.
pub const CPU_WEIGHT: f64 = 0.5;

/// The workload and the state of the sites, apart from the design.
#[derive(Clone, Copy, Debug)]
pub struct Situation<'a, K> {
    /// Transactions like those to come, each with its weight.
    pub samples: &'a [(f64, Sample<K>)],
    /// Transactions a second.
    pub rate_s: f64,
    /// Transactions that are under way at once, at all sites.
    pub population: f64,
    /// The model of their costs.
    pub cost: &'a CostModel,
    /// Log entries that each site is behind.
    pub behind: &'a BTreeMap<Site, f64>,
    /// The weight of a µs of a site's processor, against a µs that a transaction takes. Without it a replica
    /// that is not read would cost nothing wherever its site has time.
    pub cpu_weight: f64,
}

/// The price of a design.
#[derive(Clone, Debug, PartialEq)]
pub struct Price {
    /// The mean latency of a transaction, in µs, design changes that it waits for included.
    pub latency_us: f64,
    /// The processor time of all sites for a transaction, in µs.
    pub work_us: f64,
    /// Both, as they count.
    pub total_us: f64,
    /// The predicted CPU of each site, in cores.
    pub cpu: BTreeMap<Site, f64>,
    /// The predicted number of transactions at each site.
    pub queues: BTreeMap<Site, f64>,
    /// The predicted work ahead of one wait at each site, in µs: see [`Inputs::ahead_us`].
    pub ahead_us: BTreeMap<Site, f64>,
    /// The inputs of the CPU prediction for each site: rows read, rows written and rows applied for others, a
    /// second.
    pub loads: BTreeMap<Site, [f64; 3]>,
    /// The share of transactions that a site can run without a change.
    pub single_site: f64,
}

/// A sample at a site: with what weight, and what has to be done before.
struct Placed {
    sample: usize,
    weight: f64,
    site: usize,
    /// Replicas and masters that the site has to get first.
    replicas: u32,
    masters: u32,
}

/// Prices a design.
#[must_use]
pub fn price<K: Key>(layout: &Layout<K>, situation: &Situation<'_, K>) -> Price {
    let accesses = Accesses::counted(&Numbered::new(layout), situation.samples);
    price_by(&accesses, layout, situation)
}

/// Prices a design by the accesses to its partitions, which are those of any design with the same partitions.
#[must_use]
pub fn price_by<K: Key>(
    Accesses { touched, statistics }: &Accesses,
    layout: &Layout<K>,
    situation: &Situation<'_, K>,
) -> Price {
    let partitions: Vec<&Partition> = layout.partitions().map(|(_, one)| one).collect();
    let sites: Vec<Site> = layout.sites().iter().collect();
    let mut placed = Vec::with_capacity(touched.len());
    // Reads that several sites can run.
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
        loads[site][0] += situation.rate_s * weight / all_weight * f64::from(of.rows_read);
        cpu[site] = situation.cost.cpu.predict(loads[site]);
        placed.push(Placed { sample, weight: *weight, site, replicas: 0, masters: 0 });
    }
    // The processor time that a site uses without any work is no demand of a transaction.
    let idle = situation.cost.cpu.predict([0.0; 3]);
    let own = |load: &[f64; 3]| situation.cost.cpu.predict([load[0], load[1], 0.0]) - idle;
    let demands: Vec<f64> = loads.iter().map(|load| own(load).max(0.0)).collect();
    let applied = cpu.iter().zip(&demands).map(|(cpu, own)| (cpu - idle - own).max(0.0));
    let demands = slowed(&demands, &applied.collect::<Vec<f64>>());
    let queues = queues(&demands, situation.population);
    let ahead_us = ahead_us(situation, touched, &placed, &demands, &queues, all_weight);
    let updates = Updates::new(layout.sites(), &partitions, statistics);
    let latency = |placed: &Placed| {
        let (_, sample) = &situation.samples[placed.sample];
        let Touched { reads, writes } = &touched[placed.sample];
        let site = sites[placed.site];
        let contention = writes.iter().map(|write| statistics.writes(*write)).sum();
        let (behind, update_share) = updates.share(site, reads).map_or((0.0, 0.0), |share| {
            (situation.behind.get(&site).copied().unwrap_or(0.0), share)
        });
        let inputs = Inputs {
            ahead_us: ahead_us[placed.site],
            other_ahead_us: ahead_us.iter().sum::<f64>() / ahead_us.len() as f64,
            behind,
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
        ahead_us: sites.iter().copied().zip(ahead_us.iter().copied()).collect(),
        loads: sites.iter().copied().zip(loads).collect(),
        single_site: able_weight / all_weight,
    }
}

fn kind(touched: &Touched) -> Operation {
    Operation::Transaction { reads: !touched.reads.is_empty(), writes: !touched.writes.is_empty() }
}

/// The work ahead of one wait at each site: the transactions there, times what one needs of the site, divided by
/// the waits of one.
fn ahead_us<K>(
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

/// The sites that can run a transaction without a change.
fn able(touched: &Touched, partitions: &[&Partition], sites: SiteSet) -> SiteSet {
    let readable = touched.reads.iter().map(|read| partitions[*read].copies());
    let writable = touched.writes.iter().map(|write| SiteSet::only(partitions[*write].master));
    readable.chain(writable).fold(sites, SiteSet::intersection)
}

/// Counts the replicas and the masters that a site lacks for a transaction.
fn needs(touched: &Touched, partitions: &[&Partition], site: Site) -> (u32, u32) {
    let missing = touched.reads.iter().chain(&touched.writes);
    let replicas = missing.filter(|one| !partitions[**one].is_at(site)).count();
    let masters = touched.writes.iter().filter(|one| partitions[**one].master != site).count();
    (replicas as u32, masters as u32)
}

/// Rows read, rows written and rows applied for others, a second, of each site.
fn loads<K>(
    situation: &Situation<'_, K>,
    sites: SiteSet,
    partitions: &[&Partition],
    touched: &[Touched],
    placed: &[Placed],
    all_weight: f64,
) -> Vec<[f64; 3]> {
    let mut loads = vec![[0.0; 3]; sites.len()];
    for Placed { sample, weight, site, .. } in placed {
        let (_, of) = &situation.samples[*sample];
        let rate_s = situation.rate_s * weight / all_weight;
        loads[*site][0] += rate_s * f64::from(of.rows_read);
        loads[*site][1] += rate_s * f64::from(of.rows_written);
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

/// Returns what an operator's cost is told from: by the partition that it changes, the work ahead at the sites and what
/// they are behind, and the share of writes that the partition has.
#[must_use]
pub fn inputs_of<K>(
    operator: &Operator<K>,
    partition: &Partition,
    ahead_us: &BTreeMap<Site, f64>,
    behind: &BTreeMap<Site, f64>,
    contention: f64,
) -> (Operation, Inputs) {
    let ahead_us = |site: Site| ahead_us.get(&site).copied().unwrap_or(0.0);
    let behind = |site: Site| behind.get(&site).copied().unwrap_or(0.0);
    let of = Inputs { ahead_us: ahead_us(partition.master), contention, ..Inputs::default() };
    match operator {
        Operator::Split(_) => (Operation::Split, Inputs { partitions: (0.0, 3.0), ..of }),
        Operator::Merge(_) => (Operation::Merge, Inputs { partitions: (0.0, 3.0), ..of }),
        Operator::AddReplica(_, site) => {
            let (other_ahead_us, copied) = (ahead_us(*site), partition.rows as f64);
            (Operation::AddReplica, Inputs { other_ahead_us, copied, ..of })
        }
        Operator::RemoveReplica(_, site) => {
            (Operation::RemoveReplica, Inputs { ahead_us: ahead_us(*site), ..of })
        }
        Operator::Remaster(_, site) => {
            let (other_ahead_us, behind) = (ahead_us(*site), behind(*site));
            let inputs = Inputs { other_ahead_us, behind, partitions: (0.0, 1.0), ..of };
            (Operation::Remaster, inputs)
        }
    }
}

/// Applies the operators of a plan to the present design, one after the other, and predicts their cost
/// (§5.3). Returns the design after them, and the cost in µs.
///
/// # Errors
/// The operator that is impossible, and why.
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
            inputs_of(operator, partition, &before.ahead_us, situation.behind, writes);
        us += situation.cost.predict(operation, &inputs);
        after.apply(operator)?;
    }
    Ok((after, us))
}
