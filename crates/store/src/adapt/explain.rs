//! Explanation of a partition's placement: for each site, the rules that decide whether it could be the partition's
//! master, and the cost model's prediction for that case.

use imago_plan::store::considered::Rejected;
use imago_plan::store::guardrails::Guardrails;
use imago_plan::store::layout::{Layout, Operator, Partition};
use imago_plan::store::parameters::Parameters;
use imago_plan::store::planner::DecisionSnapshot;
use imago_plan::store::price::{Price, Situation, price};
use imago_plan::store::weigh::weigh;

use super::Adaptation;
use super::explanation::{Explanation, NotExplained, RuleReport, SiteExplanation};
use super::report::named;
use crate::engine::unused::is_live;
use crate::key::{Key, KeyRange};
use crate::record::Site;
use crate::resp::exists;
use crate::transaction::Abort;

#[cfg(test)]
mod tests;

impl Adaptation {
    /// Returns the placement of a key's partition, and the reasons for it.
    ///
    /// # Errors
    /// If the key has no row and no partition begins at it, or if the row cannot be read.
    pub async fn explain(&self, key: &Key) -> Result<Explanation, NotExplained> {
        let layout = self.store.layout().await;
        let (start, partition) = layout.of(key);
        if start != key && !self.has_row(key).await? {
            return Err(NotExplained::NoRow(key.to_string(), named(start), partition.master));
        }
        let known = self.known();
        let DecisionSnapshot { outlook, lag_entries, cost, parameters, .. } = &known.snapshot;
        let situation = outlook.situation(cost, lag_entries);
        let unpredicted = match cost.distrust() {
            None if outlook.samples.is_empty() => {
                Some("no transaction was sampled in the last seconds".to_owned())
            }
            distrust => distrust,
        };
        let looked = SiteJudgement {
            of: self,
            layout: &layout,
            start,
            partition,
            before: price(&layout, &situation),
            situation,
            is_predicted: unpredicted.is_none(),
            brakes: known.brakes.as_ref(),
            parameters: *parameters,
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

/// The inputs by which every site is judged: the partition, the design with its predicted price, and the workload.
struct SiteJudgement<'l> {
    of: &'l Adaptation,
    layout: &'l Layout<Key>,
    start: &'l Key,
    partition: &'l Partition,
    before: Price,
    situation: Situation<'l, Key>,
    is_predicted: bool,
    brakes: Option<&'l Guardrails<Key>>,
    parameters: Parameters,
}

fn rule(name: &str, holds: Option<bool>, why: impl Into<String>) -> RuleReport {
    RuleReport { rule: name.to_owned(), holds, why: why.into() }
}

/// Returns the rule `name`, which speaks against a site for `reason`, or, if that is `None`, for the site because of
/// `else_why`.
fn unless(name: &str, reason: Option<String>, else_why: &str) -> RuleReport {
    rule(name, Some(reason.is_none()), reason.unwrap_or_else(|| else_why.to_owned()))
}

impl SiteJudgement<'_> {
    /// Returns the operators that make a site the master of the partition with at most `replicas_max` replicas
    /// afterwards; an empty list if the site is the master already.
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
        // The old master keeps a replica; without room for one more, that replica is removed.
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
                    "the site is running"
                } else {
                    "the site is not running, or was declared dead"
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
                    rule("copy", Some(false), "it has no copy: a replica is added first")
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
        rules.push(unless("not undone", ban, "no such change was undone recently"));
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
                format!(
                    "it holds {held} bytes, this partition included; the limit of a site is {most}"
                ),
            ),
            Some(most) => rule(
                "memory",
                Some(would <= most),
                format!("it would hold {would} bytes; the limit of a site is {most}"),
            ),
        }
    }

    fn replicas(&self, has_copy: bool, most: usize) -> RuleReport {
        let has = self.partition.replicas.len();
        let why = match (has_copy, most) {
            (true, _) => return rule("replicas", Some(true), "it needs no further replica"),
            (_, usize::MAX) => "there is no limit of replicas".to_owned(),
            _ if has < most => {
                format!("the partition has {has} of at most {most} replicas")
            }
            _ => format!(
                "the partition has {has} of at most {most} replicas: the old master would drop its \
                 copy"
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
            let (now, work) = (self.before.latency_us, self.before.work_us);
            explained.cpu = Some((cpu(&self.before), cpu(&self.before)));
            (explained.latency_us, explained.work_us) = (Some((now, now)), Some((work, work)));
            explained.rules.push(none("it is the master already"));
            return;
        }
        if !is_possible {
            explained.rules.push(none("the site cannot receive copies"));
            return;
        }
        let mut after = self.layout.clone();
        if let Some(why) = operators.iter().find_map(|operator| after.apply(operator).err()) {
            explained.rules.push(none(&format!("it cannot become the master: {why}")));
            return;
        }
        let after = price(&after, &self.situation);
        let parameters = Parameters { memory_max: None, ..self.parameters };
        let plan = weigh(self.layout, &self.before, &self.situation, &parameters, site, operators);
        explained.cpu = Some((cpu(&self.before), cpu(&after)));
        explained.latency_us = Some(plan.latency_us);
        explained.work_us = Some(plan.work_us);
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
            Some(Rejected::Harmful) => {
                let why =
                    format!("{amounts}, and costs more in workloads that are expected to return");
                rule("pays", Some(false), why)
            }
            Some(_) => rule("pays", Some(false), amounts),
        });
    }
}
