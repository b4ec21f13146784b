//! The planner with a strategy that chooses what a test wants: what is executed, in which order, and what follows a
//! failure, an unknown outcome or a worse latency.

use std::collections::{BTreeMap, VecDeque};

use rand::Rng;

use super::*;
use crate::store::considered::Estimate;
use crate::store::decide::HoldCheck;
use crate::store::layout::Partition;
use crate::store::price::Situation;
use crate::store::site_set::SiteSet;

const ROUND_MS: u64 = 250;

/// A strategy that chooses the next scripted plans in each decision.
#[derive(Default)]
struct Scripted(VecDeque<Vec<Vec<Operator<&'static str>>>>);

impl Strategy<&'static str> for Scripted {
    fn name(&self) -> &'static str {
        "scripted"
    }

    fn distrust(&self, _: &Situation<'_, &'static str>) -> Option<String> {
        None
    }

    fn decide(
        &mut self,
        layout: &Layout<&'static str>,
        situation: &Situation<'_, &'static str>,
        _: &Parameters,
        _: &HoldCheck<'_, &'static str>,
        _: &mut dyn Rng,
    ) -> Decided<&'static str> {
        let before = price(layout, situation);
        let plan = |operators| Considered {
            trigger: None,
            redesign: None,
            site: 1,
            operators,
            latency_us: (900.0, 600.0),
            work_us: (40.0, 40.0),
            takes_back: None,
            realized: 1.0,
            latency_ratio: Estimate::exact(1.0),
            operators_us: 0.0,
            operators_expected_us: Estimate::exact(0.0),
            operators_took_us: None,
            benefit_us: 3_000.0,
            cost_us: 100.0,
            rejected: None,
        };
        let considered = self.0.pop_front().unwrap_or_default().into_iter().map(plan).collect();
        Decided { considered, before: before.clone(), after: before }
    }
}

/// A planner of a store of three sites with two partitions, both at the first site, and its driver.
struct Driven {
    planner: Planner<&'static str>,
    strategy: Scripted,
    layout: Layout<&'static str>,
    now_ms: u64,
    latency_us: f64,
}

impl Driven {
    fn new(parameters: Parameters, permission: Permission) -> Self {
        let limits = Limits { sustained: 1, ..Limits::default() };
        let mut planner = Planner::new(Settings::default(), (parameters, limits), 7, 0);
        planner.configure(parameters, limits, permission);
        let partition = Partition {
            master: 0,
            replicas: SiteSet::default(),
            rows: 5_000,
            bytes: 600_000,
            pin: None,
        };
        let partitions = BTreeMap::from([("", partition), ("user:5000", partition)]);
        let layout = Layout::new(partitions, (0..3).collect());
        let strategy = Scripted::default();
        let mut driven = Self { planner, strategy, layout, now_ms: 0, latency_us: 900.0 };
        // The workload is known after some slices.
        (0..12).for_each(|_| driven.round());
        driven
    }

    /// A round in which clients count up users of both partitions.
    fn round(&mut self) {
        let from_ms = self.now_ms;
        self.now_ms += ROUND_MS;
        let observed = |n: u64| Observed {
            at_ms: from_ms + n * ROUND_MS / 50,
            every: 8,
            site: 0,
            reads: Vec::new(),
            writes: vec![if n.is_multiple_of(2) { "user:1207" } else { "user:7311" }],
            rows: Some((3, 3)),
            lag_entries: 0,
            waited: None,
            service_us: self.latency_us - 160.0,
            run_us: 60.0,
            commit_us: Some(100.0),
        };
        let observed = (0..50).map(observed).collect();
        let (now_ms, layout) = (self.now_ms, &self.layout);
        let work = BTreeMap::new();
        self.planner.observe(Round { now_ms, layout, observed, work: &work, core_share: None });
        _ = self.planner.decide(now_ms, layout, &mut self.strategy, &|_: &_, _: &_| None);
    }

    /// A round in which these plans pay.
    fn choose(&mut self, plans: Vec<Vec<Operator<&'static str>>>) {
        self.strategy.0.push_back(plans);
        self.round();
    }

    fn next(&mut self) -> Option<Vec<Operator<&'static str>>> {
        self.planner.next(self.now_ms, &self.layout)
    }

    /// Executes an operator that is under way.
    fn execute(&mut self, operator: &Operator<&'static str>) {
        self.layout.apply(operator).unwrap();
        self.planner.ended(operator, Outcome::Done(450.0));
    }

    fn verdicts(&mut self) -> Vec<Verdict> {
        let verdict = |event| match event {
            Event::Decided { verdict, .. } => Some(verdict),
            _ => None,
        };
        self.planner.events().into_iter().filter_map(verdict).collect()
    }
}

fn move_to(start: &'static str, site: Site) -> Vec<Operator<&'static str>> {
    vec![Operator::AddReplica(start, site), Operator::Remaster(start, site)]
}

#[test]
fn plans_are_executed_one_after_another_and_each_in_waves() {
    let mut driven = Driven::new(Parameters::default(), Permission::Change);
    let both = [move_to("", 1), move_to("user:5000", 2)].concat();
    driven.choose(vec![both, vec![Operator::Split("user:2500")]]);
    let copies = driven.next().unwrap();
    assert_eq!(copies, [Operator::AddReplica("", 1), Operator::AddReplica("user:5000", 2)]);
    driven.execute(&copies[1]);
    assert_eq!(driven.next(), None, "one of the wave is under way");
    driven.execute(&copies[0]);
    let moves = driven.next().unwrap();
    assert_eq!(moves, [Operator::Remaster("", 1), Operator::Remaster("user:5000", 2)]);
    moves.iter().for_each(|one| driven.execute(one));
    assert_eq!(driven.next(), Some(vec![Operator::Split("user:2500")]));
    driven.execute(&Operator::Split("user:2500"));
    assert_eq!(driven.next(), None);
    assert_eq!(driven.verdicts(), [Verdict::Done, Verdict::Done]);
    assert_eq!((driven.planner.changes, driven.planner.is_busy()), (5, false));
}

#[test]
fn without_permission_and_beyond_a_limit_nothing_is_executed() {
    let plan = vec![Operator::Split("user:2500")];
    for (permission, why) in
        [(Permission::Advise, Advised::OnlyAdvises), (Permission::Paused, Advised::Paused)]
    {
        let mut driven = Driven::new(Parameters::default(), permission);
        driven.choose(vec![plan.clone()]);
        assert_eq!((driven.next(), driven.verdicts()), (None, vec![Verdict::Advised(why)]));
    }
    let mut driven = Driven::new(Parameters::default(), Permission::Change);
    driven.choose(vec![plan]);
    let mut parameters = Parameters::default();
    parameters.thresholds.partitions_max = 2;
    driven.planner.configure(parameters, Limits::default(), Permission::Change);
    assert_eq!(driven.next(), None);
    assert_eq!(driven.verdicts(), [Verdict::Advised(Advised::LimitLowered)]);
}

#[test]
fn a_failed_move_is_rolled_back_where_its_replica_is_one_too_many() {
    let mut parameters = Parameters::default();
    parameters.thresholds.replicas_max = 0;
    let mut driven = Driven::new(parameters, Permission::Change);
    let mut plan = move_to("", 1);
    plan.push(Operator::RemoveReplica("", 0));
    driven.choose(vec![plan]);
    let copy = driven.next().unwrap();
    copy.iter().for_each(|one| driven.execute(one));
    let moved = driven.next().unwrap();
    assert_eq!(moved, [Operator::Remaster("", 1)]);
    driven.planner.ended(&moved[0], Outcome::Failed("site 1 is not there".to_owned()));
    assert_eq!(driven.next(), Some(vec![Operator::RemoveReplica("", 1)]));
    driven.execute(&Operator::RemoveReplica("", 1));
    assert_eq!(driven.next(), None);
    assert_eq!(driven.verdicts(), [Verdict::Failed("site 1 is not there".to_owned())]);
    let watched = driven.planner.controller().guardrails.watched();
    assert!(watched.is_empty(), "nothing is left whose effect could be measured: {watched:?}");
}

#[test]
fn a_replica_of_unknown_outcome_counts_until_it_cannot_come_and_goes_if_it_does() {
    let mut parameters = Parameters::default();
    parameters.thresholds.replicas_max = 1;
    for comes in [false, true] {
        let mut driven = Driven::new(parameters, Permission::Change);
        driven.choose(vec![vec![Operator::AddReplica("", 1)]]);
        let copy = driven.next().unwrap();
        let in_doubt = Outcome::InDoubt("no answer within 5 s".to_owned(), 0, 3);
        driven.planner.ended(&copy[0], in_doubt);
        assert_eq!(driven.next(), None);
        driven.verdicts();
        // Both replicas together would be two. One more may be there while a partition moves.
        let another = [move_to("", 2), vec![Operator::AddReplica("", 0)]].concat();
        driven.choose(vec![another]);
        assert_eq!(driven.next(), None);
        let verdicts = driven.verdicts();
        assert!(!verdicts.contains(&Verdict::Done), "{verdicts:?}");
        if comes {
            driven.layout.apply(&copy[0]).unwrap();
            driven.layout.apply(&Operator::AddReplica("", 2)).unwrap();
        } else {
            driven.now_ms += 61_000;
        }
        let now_ms = driven.now_ms;
        driven.planner.settle(now_ms, &driven.layout, &|site, epoch| (site, epoch) == (0, 3));
        let expected = comes.then(|| vec![Operator::RemoveReplica("", 1)]);
        assert_eq!(driven.next(), expected);
        assert_eq!(driven.planner.is_unsettled(), comes);
    }
}

#[test]
fn a_change_that_makes_the_latency_worse_is_undone_before_anything_else() {
    let mut driven = Driven::new(Parameters::default(), Permission::Change);
    driven.choose(vec![move_to("", 1)]);
    while let Some(wave) = driven.next() {
        wave.iter().for_each(|one| driven.execute(one));
    }
    driven.verdicts();
    driven.latency_us = 2_400.0;
    let mut undone = None;
    for _ in 0..60 {
        // A plan that pays at the same time is not executed: it was decided on the design before the undo.
        driven.choose(vec![vec![Operator::Split("user:2500")]]);
        let wave = driven.next();
        if wave.as_deref() == Some(&[Operator::Remaster("", 0)]) {
            undone = wave;
            break;
        }
        assert!(driven.planner.undone == 0);
        if let Some(wave) = wave {
            let refused = Outcome::Failed("it is not what this test is about".to_owned());
            wave.iter().for_each(|one| driven.planner.ended(one, refused.clone()));
            assert_eq!(driven.next(), None);
        }
    }
    let undone = undone.expect("the move is undone");
    undone.iter().for_each(|one| driven.execute(one));
    assert_eq!(driven.next(), Some(vec![Operator::RemoveReplica("", 1)]));
    driven.execute(&Operator::RemoveReplica("", 1));
    assert_eq!(driven.next(), None);
    let events = driven.planner.events();
    let number = events.iter().find_map(|event| match event {
        Event::Undone { number } => *number,
        _ => None,
    });
    assert_eq!((driven.planner.undone, number), (1, Some(0)), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::Measured { number: 0, .. })));
}

/// A driver of a store with forty partitions at the first of three sites, and a plan with a replica for each.
fn many(changes_s_max: f64) -> (Driven, Vec<Operator<&'static str>>) {
    let mut driven = Driven::new(Parameters::default(), Permission::Change);
    let limits = Limits { sustained: 1, changes_s_max, ..Limits::default() };
    driven.planner.configure(Parameters::default(), limits, Permission::Change);
    // So many may be executed after a rest.
    (0..4).for_each(|_| driven.round());
    let (_, partition) = driven.layout.partitions().next().unwrap();
    let partition = *partition;
    let start = |n: usize| &*format!("user:{n:02}00").leak();
    let partitions = std::iter::once("").chain((1..40).map(start)).map(|start| (start, partition));
    driven.layout = Layout::new(partitions.collect(), (0..3).collect());
    let plan = driven.layout.partitions().map(|(start, _)| Operator::AddReplica(*start, 1));
    let plan = plan.collect();
    (driven, plan)
}

#[test]
fn what_transactions_did_of_a_large_plan_is_left_out() {
    let (mut driven, plan) = many(1_000.0);
    let moved = plan.iter().map(|one| Operator::Remaster(*one.key(), 1));
    driven.choose(vec![plan.iter().cloned().chain(moved).collect()]);
    // A transaction got a replica before the plan began, and another one a master after the first wave.
    driven.layout.apply(&plan[7]).unwrap();
    let first = driven.next().unwrap();
    let copies = first.iter().filter(|one| matches!(one, Operator::AddReplica(..))).count();
    assert_eq!((copies, first.len()), (39, 40), "the one that has its replica is moved at once");
    first.iter().for_each(|one| driven.execute(one));
    driven.layout.apply(&Operator::Remaster("user:0900", 1)).unwrap();
    let moves = driven.next().unwrap();
    assert_eq!(moves.len(), 38, "the partition that has its master is left out");
    moves.iter().for_each(|one| driven.execute(one));
    assert_eq!(driven.next(), None);
    assert_eq!(driven.verdicts(), [Verdict::Done]);
    assert!(driven.layout.partitions().all(|(_, one)| one.master == 1));
}

#[test]
fn a_large_plan_goes_on_after_some_failures_and_not_after_many() {
    for failures in [16, 17] {
        let (mut driven, plan) = many(1_000.0);
        let moved = plan.iter().map(|one| Operator::Remaster(*one.key(), 1));
        driven.choose(vec![plan.iter().cloned().chain(moved).collect()]);
        let copies = driven.next().unwrap();
        let (fail, done) = copies.split_at(failures);
        let full = Outcome::Failed("site 1 has no room".to_owned());
        fail.iter().for_each(|one| driven.planner.ended(one, full.clone()));
        done.iter().for_each(|one| driven.execute(one));
        let moves = driven.next();
        if failures == 17 {
            assert_eq!(moves, None);
            let expected = Verdict::Failed("site 1 has no room".to_owned());
            assert_eq!(driven.verdicts(), [expected]);
            continue;
        }
        let moves = moves.unwrap();
        assert_eq!(moves.len(), 40 - failures, "what has no replica cannot be moved");
        moves.iter().for_each(|one| driven.execute(one));
        assert_eq!(driven.next(), None);
        assert_eq!(driven.verdicts(), [Verdict::Done]);
    }
}

#[test]
fn a_large_plan_is_executed_in_parts_and_others_wait_for_it() {
    let (mut driven, plan) = many(10.0);
    driven.choose(vec![plan]);
    for _ in 0..4 {
        let part = driven.next().unwrap();
        assert_eq!(part.len(), 10);
        // Nothing else is decided meanwhile.
        driven.choose(vec![vec![Operator::Split("user:0050")]]);
        part.iter().for_each(|one| driven.execute(one));
    }
    assert_eq!((driven.next(), driven.planner.is_busy()), (None, false));
    assert_eq!(driven.verdicts(), [Verdict::Done]);
    // What was executed beyond the limit is waited for: 40 operators less 10 at the start, and a second's part of it.
    driven.strategy.0.clear();
    driven.choose(vec![vec![Operator::Split("user:0050")]]);
    assert_eq!(driven.next(), None);
    assert_eq!(driven.verdicts(), [Verdict::Advised(Advised::RateLimited)]);
    (0..12).for_each(|_| driven.round());
    driven.choose(vec![vec![Operator::Split("user:0050")]]);
    assert_eq!(driven.next(), Some(vec![Operator::Split("user:0050")]));
}

#[test]
fn a_pause_ends_a_large_plan() {
    let (mut driven, plan) = many(10.0);
    driven.choose(vec![plan]);
    let part = driven.next().unwrap();
    let limits = Limits { sustained: 1, ..Limits::default() };
    driven.planner.configure(Parameters::default(), limits, Permission::Paused);
    part.iter().for_each(|one| driven.execute(one));
    assert_eq!((driven.next(), driven.planner.is_busy()), (None, false));
    let paused = "adaptation was paused or made to advise meanwhile".to_owned();
    assert_eq!(driven.verdicts(), [Verdict::Failed(paused)]);
    assert_eq!(driven.planner.changes, 10);
}
