//! The planner of a simulated store: it learns and decides as the store's own does, in virtual time.

use std::collections::BTreeMap;

use imago_plan::design::brakes::{Judged, Limits};
use imago_plan::design::controller::Controller;
use imago_plan::design::cost::{Inputs, Measured, Operation};
use imago_plan::design::decide::Parameters;
use imago_plan::design::layout::{Layout, Operator, Site};
use imago_plan::design::regimes::{Seen, Settings};
use imago_plan::design::strategy::MorphoSys;
use imago_plan::design::workload::{Numbered, Sample, Statistics};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::{ROUND_US, US_S, share};
use crate::adapt::workload::{Kind, ROWS};

/// As of the store's planner.
const SAMPLES_S: f64 = 400.0;
const BEHIND_RATE: f64 = 0.02;
/// The model learns from so many rounds at once.
const LEARNED_ROUNDS: u64 = 4;

/// A transaction that a site has taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran {
    pub kind: Kind,
    pub at_us: u64,
    pub site: Site,
    /// The waits for the site's thread.
    pub service_us: f64,
    /// The wait for updates of a scan, or for a partition of a write.
    pub waited_us: f64,
    /// Log entries that the site was behind.
    pub behind: u64,
    pub reads_replica: bool,
    pub run_us: f64,
    pub commit_us: f64,
}

/// Sums over the transactions of one kind at a site.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: f64,
    service_us: f64,
    waited_us: f64,
    behind: f64,
    contention: f64,
    run_us: f64,
    commit_us: f64,
    rows: (f64, f64),
}

/// W of each partition, by its start.
#[derive(Clone, Debug, Default)]
struct Written {
    starts: Vec<u64>,
    shares: Vec<f64>,
}

impl Written {
    fn of(layout: &Layout<u64>, samples: &[Sample<u64>]) -> Self {
        let numbered = Numbered::new(layout);
        let touched: Vec<_> = samples.iter().map(|sample| numbered.touched(sample)).collect();
        let weighed = touched.iter().map(|touched| (1.0, touched));
        let statistics = Statistics::counted(layout.len(), weighed);
        let starts = layout.partitions().map(|(start, _)| *start).collect();
        Self { starts, shares: (0..layout.len()).map(|one| statistics.writes(one)).collect() }
    }

    /// That of the partition of a user.
    fn share(&self, user: u64) -> f64 {
        let at = self.starts.partition_point(|start| *start <= user).saturating_sub(1);
        self.shares.get(at).copied().unwrap_or(0.0)
    }
}

impl Sums {
    /// The time apart from waits for the site's thread.
    fn beside_us(&self) -> f64 {
        self.waited_us + self.run_us + self.commit_us
    }
}

pub(super) struct Planner {
    dice: StdRng,
    controller: Controller<u64>,
    strategy: MorphoSys<u64>,
    every: u64,
    skipped: u64,
    rounds: u64,
    /// By site, and whether they write; since they were learned from last.
    sums: BTreeMap<(Site, bool), Sums>,
    /// The sites' work when it was learned from last.
    work: Vec<(f64, [u64; 3])>,
    behind: BTreeMap<Site, f64>,
    written: Written,
    /// The sum of the latencies of the present round.
    round_us: f64,
    pub changes: u64,
}

impl Planner {
    pub fn new(seed: u64, sites: u16) -> Self {
        Self {
            dice: StdRng::seed_from_u64(seed),
            controller: Controller::new(Settings::default(), Limits::default()),
            strategy: MorphoSys::default(),
            every: 8,
            skipped: 0,
            rounds: 0,
            sums: BTreeMap::new(),
            work: vec![(0.0, [0; 3]); usize::from(sites)],
            behind: BTreeMap::new(),
            written: Written::default(),
            round_us: 0.0,
            changes: 0,
        }
    }

    /// Takes note of a transaction, if it is its turn to be sampled.
    pub fn ran(&mut self, ran: Ran) {
        self.skipped += 1;
        if self.skipped < self.every {
            return;
        }
        self.skipped = 0;
        let (sample, writes) = match ran.kind {
            Kind::Count(user) => (sample(Vec::new(), vec![user], ROWS, ROWS), true),
            Kind::Scan(user, users) => {
                (sample(vec![(user, Some(user + users))], Vec::new(), users * ROWS, 0), false)
            }
        };
        let sums = self.sums.entry((ran.site, writes)).or_default();
        sums.count += 1.0;
        sums.service_us += ran.service_us;
        sums.waited_us += ran.waited_us;
        if ran.reads_replica {
            sums.behind += ran.behind as f64;
        }
        sums.contention += sample.writes.iter().map(|user| self.written.share(*user)).sum::<f64>();
        sums.run_us += ran.run_us;
        sums.commit_us += ran.commit_us;
        let behind = self.behind.entry(ran.site).or_default();
        *behind += BEHIND_RATE * (ran.behind as f64 - *behind);
        sums.rows.0 += f64::from(sample.rows_read);
        sums.rows.1 += f64::from(sample.rows_written);
        let latency_us = ran.service_us + ran.waited_us + ran.run_us + ran.commit_us;
        self.round_us += latency_us;
        self.controller.regimes.offer(Seen {
            at_ms: ran.at_us / 1_000,
            every: self.every as u32,
            latency_us,
            chance: self.dice.random(),
            sample,
        });
    }

    /// One decision, by the design and the sites' work so far; the plans that are to be carried out.
    pub fn round(
        &mut self,
        now_us: u64,
        layout: &Layout<u64>,
        work: &[(f64, [u64; 3])],
    ) -> Vec<Vec<Operator<u64>>> {
        let now_ms = now_us / 1_000;
        self.controller.regimes.pass(now_ms);
        let sum_us = std::mem::take(&mut self.round_us);
        self.controller.regimes.under_way(sum_us * self.every as f64 / ROUND_US as f64);
        self.rounds += 1;
        if self.rounds.is_multiple_of(LEARNED_ROUNDS) {
            self.learn(work);
        }
        self.every = (self.controller.regimes.rate_s() / SAMPLES_S).ceil().max(1.0) as u64;
        let samples: Vec<Sample<u64>> = self.controller.regimes.samples().cloned().collect();
        self.written = Written::of(layout, &samples);
        let outlook = self.controller.outlook(layout, &mut self.dice);
        let (behind, cost) = (self.behind.clone(), self.controller.cost.clone());
        let situation = outlook.situation(&cost, &behind);
        let parameters = self.controller.widened(Parameters::default(), None);
        let (strategy, dice) = (&mut self.strategy, &mut self.dice);
        let decided = self.controller.decide(
            strategy,
            layout,
            &situation,
            &parameters,
            (&|_: &_, _: &_| None, now_ms),
            dice,
        );
        let Some(decided) = decided else { return Vec::new() };
        let mut plans: Vec<Vec<Operator<u64>>> = Vec::new();
        for judged in self.controller.judge(now_ms) {
            if let Judged::Undo(watched) = judged {
                self.controller.brakes.spend(watched.inverse.len(), now_ms);
                self.controller.brakes.taken_back(layout, &watched.inverse, now_ms);
                plans.push(watched.inverse);
            }
        }
        if !plans.is_empty() {
            return plans;
        }
        let chosen: Vec<_> = decided.chosen().collect();
        let paying: Vec<&[Operator<u64>]> = chosen.iter().map(|one| &one.operators[..]).collect();
        let sustained = self.controller.sustained(&outlook, layout, &paying);
        for (plan, is_sustained) in chosen.into_iter().zip(sustained) {
            let many = plan.operators.len();
            if is_sustained && self.controller.brakes.may_spend(many, now_ms) {
                let operators = plan.operators.clone();
                self.controller.done(&outlook, layout, operators, now_ms, plan.latency_us);
                self.changes += many as u64;
                plans.push(plan.operators.clone());
            }
        }
        plans
    }

    /// Learns from the means of what was sampled, and from the sites' work since the last time.
    fn learn(&mut self, work: &[(f64, [u64; 3])]) {
        let passed_us = (LEARNED_ROUNDS * ROUND_US) as f64;
        let sums = std::mem::take(&mut self.sums);
        let before = std::mem::replace(&mut self.work, work.to_vec());
        for (site, (now, before)) in work.iter().zip(&before).enumerate() {
            let share = share(now.0 - before.0, passed_us);
            let rate = |n: usize| (now.1[n] - before.1[n]) as f64 * US_S / passed_us;
            self.controller.cost.cpu.observe([rate(0), rate(1), rate(2)], share);
            let of = |writes: bool| sums.get(&(site as Site, writes)).copied().unwrap_or_default();
            let kinds = [(of(false), false), (of(true), true)];
            let count: f64 = kinds.iter().map(|(sums, _)| sums.count).sum();
            if count == 0.0 {
                continue;
            }
            let is = |writes: bool| Operation::Transaction { reads: !writes, writes };
            let waits: f64 =
                kinds.iter().map(|(sums, writes)| sums.count * is(*writes).waits().0).sum();
            let service_us: f64 = kinds.iter().map(|(sums, _)| sums.service_us).sum();
            let all_us = service_us + kinds.iter().map(|(sums, _)| sums.beside_us()).sum::<f64>();
            let there = all_us * self.every as f64 / passed_us;
            let each_us = share * passed_us / (count * self.every as f64);
            let ahead_us = there * each_us * count / waits;
            self.controller.cost.service.observe([ahead_us], service_us / waits);
            for (sums, writes) in kinds.into_iter().filter(|(sums, _)| sums.count > 0.0) {
                let rows = (sums.rows.0 / sums.count, sums.rows.1 / sums.count);
                let mean = |of: f64| Some(of / sums.count);
                let (behind, contention) = (sums.behind / sums.count, sums.contention / sums.count);
                let partitions = if writes { (0.0, 1.0) } else { (1.0, 0.0) };
                let inputs = Inputs { rows, behind, contention, partitions, ..Inputs::default() };
                let measured = Measured {
                    service: None,
                    read_write: mean(sums.run_us),
                    commit: mean(sums.commit_us).filter(|_| writes),
                    wait_updates: mean(sums.waited_us),
                    lock: mean(sums.waited_us),
                };
                self.controller.cost.observe(is(writes), &inputs, &measured);
            }
        }
    }
}

fn sample(
    reads: Vec<(u64, Option<u64>)>,
    writes: Vec<u64>,
    rows_read: u64,
    rows_written: u64,
) -> Sample<u64> {
    Sample { reads, writes, rows_read: rows_read as u32, rows_written: rows_written as u32 }
}
