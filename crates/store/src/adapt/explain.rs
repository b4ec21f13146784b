//! The reason why a key's partition is where it is: every site by every rule that could keep the partition from it, with the cost
//! model's prediction for it being mastered there.

use std::collections::BTreeMap;

use imago_plan::design::brakes::Brakes;
use imago_plan::design::cost::CostModel;
use imago_plan::design::decide::{Parameters, Rejected, weigh};
use imago_plan::design::layout::{self, Layout, Operator, Partition};
use imago_plan::design::price::{CPU_WEIGHT, Price, Situation, price};
use imago_plan::design::workload::Sample;
use serde::{Deserialize, Serialize};

use super::Adaptation;
use super::report::named;
use crate::engine::unused::is_live;
use crate::key::{Key, KeyRange};
use crate::record::Site;
use crate::resp::exists;
use crate::transaction::Abort;

#[cfg(test)]
mod tests;

/// Knowledge of the planner in its last round.
#[derive(Clone, Default)]
pub(super) struct Known {
    pub samples: Vec<(f64, Sample<Key>)>,
    pub rate_s: f64,
    pub population: f64,
    pub behind: BTreeMap<layout::Site, f64>,
    pub cost: CostModel,
    pub brakes: Option<Brakes<Key>>,
}

/// A key's partition, and what each site is by each rule.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Explanation {
    /// The key.
    pub key: String,
    /// The first key of its partition; empty for the least key of all.
    pub start: String,
    /// The first key behind it.
    pub end: Option<String>,
    /// The site that writes it.
    pub master: u16,
    /// The sites with replicas.
    pub replicas: Vec<u16>,
    /// Its rows.
    pub rows: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
    /// The reason why nothing is predicted, if so.
    pub unpredicted: Option<String>,
    /// All sites, by number.
    pub sites: Vec<SiteExplanation>,
}

/// A site as the master of a partition.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SiteExplanation {
    /// Its number.
    pub site: u16,
    /// True if it is the master now.
    pub is_master: bool,
    /// Its predicted CPU, now and if it were the master: a share of what it has.
    pub cpu: Option<(f64, f64)>,
    /// The mean predicted latency of all transactions, now and if it were the master, in µs.
    pub latency_us: Option<(f64, f64)>,
    /// The time saved within the horizon, and the time that the change takes, in µs.
    pub saved_and_cost_us: Option<(f64, f64)>,
    /// Each rule.
    pub rules: Vec<RuleReport>,
}

/// A rule by which a site may or may not become the master.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleReport {
    /// Its name.
    pub rule: String,
    /// True if it speaks for the site; nothing where it does not concern it, or cannot be known.
    pub holds: Option<bool>,
    /// Why, in a sentence.
    pub why: String,
}

/// The reason why nothing can be explained.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExplained {
    /// There is no such row.
    #[error(
        "{0} has no row; it would lie in the partition from {1} on, which site {2} masters: `imago store explain` \
             takes a key with a row, or where a partition begins"
    )]
    NoRow(String, String, u16),
    /// It could not be read.
    #[error("the row could not be read: {0}")]
    Unread(#[from] Abort),
}

impl Adaptation {
    /// Explains where the partition of a key is, and is not.
    ///
    /// # Errors
    /// If the key has no row and no partition begins there.
    pub async fn explain(&self, key: &Key) -> Result<Explanation, NotExplained> {
        let layout = self.store.layout().await;
        let (start, partition) = layout.of(key);
        if start != key && !self.has_row(key).await? {
            return Err(NotExplained::NoRow(key.to_string(), named(start), partition.master));
        }
        let known = self.known();
        let situation = Situation {
            samples: &known.samples,
            rate_s: known.rate_s,
            population: known.population,
            cost: &known.cost,
            behind: &known.behind,
            cpu_weight: CPU_WEIGHT,
        };
        let unpredicted = match known.cost.distrust() {
            None if known.samples.is_empty() => {
                Some("no transaction was sampled in the last seconds".to_owned())
            }
            distrust => distrust,
        };
        let looked = Looked {
            of: self,
            layout: &layout,
            start,
            partition,
            before: price(&layout, &situation),
            situation,
            is_predicted: unpredicted.is_none(),
            brakes: known.brakes.as_ref(),
        };
        let sites = (0..self.store.sites() as u16).map(|site| looked.at(site));
        Ok(Explanation {
            key: key.to_string(),
            start: start.to_string(),
            end: layout.next(start).map(|(end, _)| end.to_string()),
            master: partition.master,
            replicas: partition.replicas.iter().collect(),
            rows: partition.rows,
            bytes: partition.bytes,
            sites: sites.collect(),
            unpredicted,
        })
    }

    async fn has_row(&self, key: &Key) -> Result<bool, Abort> {
        let (exists, yes) = exists(key);
        let reads = vec![KeyRange::only(key)];
        let done = self.store.session().run(reads, Vec::new(), exists).await?;
        Ok(done.answer.into_bytes() == yes)
    }
}

/// The measure of all sites: the design and the workload.
struct Looked<'l> {
    of: &'l Adaptation,
    layout: &'l Layout<Key>,
    start: &'l Key,
    partition: &'l Partition,
    before: Price,
    situation: Situation<'l, Key>,
    is_predicted: bool,
    brakes: Option<&'l Brakes<Key>>,
}

fn rule(name: &str, holds: Option<bool>, why: impl Into<String>) -> RuleReport {
    RuleReport { rule: name.to_owned(), holds, why: why.into() }
}

/// A rule that forbids for a reason, or does not.
fn unless(name: &str, reason: Option<String>, else_why: &str) -> RuleReport {
    rule(name, Some(reason.is_none()), reason.unwrap_or_else(|| else_why.to_owned()))
}

impl Looked<'_> {
    /// The operators that would make a site the master, within the limit of replicas.
    fn operators(&self, site: u16, replicas_max: usize) -> Vec<Operator<Key>> {
        let (start, is_copied) = (self.start.clone(), self.partition.is_at(site));
        let mut operators = Vec::new();
        if self.partition.master == site {
            return operators;
        }
        if !is_copied {
            operators.push(Operator::AddReplica(start.clone(), site));
        }
        operators.push(Operator::Remaster(start.clone(), site));
        // The old master keeps a copy: with room for none it is removed.
        if !is_copied && self.partition.replicas.len() >= replicas_max {
            operators.push(Operator::RemoveReplica(start, self.partition.master));
        }
        operators
    }

    fn at(&self, site: u16) -> SiteExplanation {
        let Parameters { memory_max, thresholds, .. } = self.of.options().parameters;
        let (is_master, has_copy) = (self.partition.master == site, self.partition.is_at(site));
        let design_is_live = is_live(&self.of.store.map().design, Site(site));
        let is_used = self.of.store.is_used(Site(site));
        let operators = self.operators(site, thresholds.replicas_max);
        let mut rules = vec![
            rule(
                "alive",
                Some(design_is_live),
                if design_is_live {
                    "it takes part"
                } else {
                    "it is not there, or was declared dead"
                },
            ),
            rule(
                "in use",
                Some(is_used),
                if is_used { "it is in use" } else { "it is drained, or not used yet" },
            ),
            match (is_master, has_copy) {
                (true, _) => rule("copy", Some(true), "it is the master"),
                (false, true) => rule("copy", Some(true), "it has a replica"),
                (false, false) => {
                    rule("copy", Some(false), "it has no copy: a replica would come first")
                }
            },
            match self.partition.pin {
                None => rule("pin", Some(true), "the partition is not pinned"),
                Some(pin) if pin == site => {
                    rule("pin", Some(true), "the partition is pinned to it")
                }
                Some(pin) => {
                    rule("pin", Some(false), format!("the partition is pinned to site {pin}"))
                }
            },
            self.memory(site, has_copy, memory_max),
            self.replicas(has_copy, thresholds.replicas_max),
        ];
        let now_ms = self.of.now_ms();
        let cool_down = self.brakes.and_then(|brakes| {
            operators.iter().find_map(|one| brakes.cool_down(self.layout, one, now_ms))
        });
        let ban =
            self.brakes.and_then(|brakes| operators.iter().find_map(|one| brakes.ban(one, now_ms)));
        rules.push(unless(
            "cool-down",
            cool_down,
            "the partition was not changed in the last seconds",
        ));
        rules.push(unless("not undone", ban, "such a change did not make things worse before"));
        let mut explained =
            SiteExplanation { site, is_master, rules, ..SiteExplanation::default() };
        self.predict(&mut explained, &operators, design_is_live && is_used);
        explained
    }

    fn memory(&self, site: u16, has_copy: bool, memory_max: Option<u64>) -> RuleReport {
        let held = self.layout.bytes_at(site);
        let would = if has_copy { held } else { held + self.partition.bytes };
        match memory_max {
            None => rule("memory", Some(true), "there is no memory limit"),
            Some(most) if has_copy => rule(
                "memory",
                Some(true),
                format!("it holds {held} bytes of {most}, the partition among them"),
            ),
            Some(most) => rule(
                "memory",
                Some(would <= most),
                format!("it would hold {would} bytes, of {most} that a site may hold"),
            ),
        }
    }

    fn replicas(&self, has_copy: bool, most: usize) -> RuleReport {
        let has = self.partition.replicas.len();
        let why = match (has_copy, most) {
            (true, _) => return rule("replicas", Some(true), "it needs no further replica"),
            (_, usize::MAX) => "there is no limit of replicas".to_owned(),
            _ if has < most => {
                format!("the partition has {has} replicas, of {most} that it may have")
            }
            _ => format!(
                "the partition has {has} replicas, of {most} that it may have: the old master would drop its copy"
            ),
        };
        rule("replicas", Some(most > 0 || has_copy || has == 0), why)
    }

    fn predict(
        &self,
        explained: &mut SiteExplanation,
        operators: &[Operator<Key>],
        is_possible: bool,
    ) {
        let site = explained.site;
        let cpu = |price: &Price| price.cpu.get(&site).copied().unwrap_or(0.0);
        let none = |why: &str| rule("pays", None, why);
        if !self.is_predicted {
            explained.rules.push(none("nothing is predicted yet"));
            return;
        }
        if explained.is_master {
            let now = self.before.latency_us;
            (explained.cpu, explained.latency_us) =
                (Some((cpu(&self.before), cpu(&self.before))), Some((now, now)));
            explained.rules.push(none("it is the master already"));
            return;
        }
        if !is_possible {
            explained.rules.push(none("it cannot get anything"));
            return;
        }
        let mut after = self.layout.clone();
        if let Some(why) = operators.iter().find_map(|operator| after.apply(operator).err()) {
            explained.rules.push(none(&format!("it cannot become the master: {why}")));
            return;
        }
        let after = price(&after, &self.situation);
        let parameters = Parameters { memory_max: None, ..self.of.options().parameters };
        let plan = weigh(self.layout, &self.before, &self.situation, &parameters, site, operators);
        explained.cpu = Some((cpu(&self.before), cpu(&after)));
        explained.latency_us = Some(plan.latency_us);
        explained.saved_and_cost_us = Some((plan.benefit_us, plan.cost_us));
        let (saves, costs) = (plan.benefit_us / 1_000.0, plan.cost_us / 1_000.0);
        let amounts = format!(
            "within {} s it saves {saves:.1} ms and costs {costs:.1} ms",
            parameters.horizon_s
        );
        explained.rules.push(match plan.rejected {
            None => rule("pays", Some(true), amounts),
            Some(Rejected::TooLittle) => {
                rule("pays", Some(false), format!("{amounts}: less than the least gain"))
            }
            Some(_) => rule("pays", Some(false), amounts),
        });
    }
}
