//! Plans: the advice beside a search of all shapes, its neighbours' sentences, and what uneven shards cost.

use proptest::prelude::*;

use super::super::{
    Advice, Basis, CacheAt, Costs, Errors, Grid, Hits, Job, Machine, Plan, Prices, Question, Reads,
    Shares, Station, Workload, plan, predict,
};
use super::{Constant, Proportional, costs, job, machine, shape};

const MIB: u64 = 1 << 20;

/// A question that owns what it asks about.
struct Asked {
    phases: Vec<u64>,
    hits: Box<dyn Hits>,
    costs: Costs,
    machine: Machine,
    job: Job,
    shares: Shares,
    grid: Grid,
    prices: Option<Prices>,
}

impl Asked {
    fn plan(&self, deadline_s: f64) -> Plan {
        plan(&Question {
            workload: Workload { phases: &self.phases, hits: &*self.hits },
            costs: &self.costs,
            machine: &self.machine,
            job: &self.job,
            shares: &self.shares,
            grid: &self.grid,
            deadline_s,
            prices: self.prices,
        })
    }
}

/// Eight phases of 200,000 keys over shards of 0.3 processors, and a cache that can hold all.
fn asked() -> Asked {
    let grid = Grid::new(
        vec![1, 2, 4],
        vec![1, 2],
        vec![None],
        vec![0, 64 * MIB, 256 * MIB],
        vec![Reads::Primary, Reads::Nearest],
        vec![CacheAt::Worker],
    );
    Asked {
        phases: vec![200_000; 8],
        hits: Box::new(Proportional { keys: 200_000, data_bytes: 256 * MIB }),
        costs: costs(),
        machine: machine(0.3),
        job: job(),
        shares: Shares::even(),
        grid: grid.expect("a grid"),
        prices: None,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_advice_is_what_a_search_of_all_shapes_finds(
        deadline_s in 5.0..120.0,
        core in 0.0..0.1,
        gb in 0.0..0.1,
        priced: bool,
    ) {
        let asked = Asked { prices: priced.then_some(Prices { core, gb }), ..asked() };
        let plan = asked.plan(deadline_s);
        let advised = plan.advised();
        let paid = |at: &super::super::Candidate| match at.price_hour {
            Some(price) => (price, 0.0),
            None => (at.processors, at.memory_bytes),
        };
        let meets = |at: &&super::super::Candidate| at.prediction.job_s <= deadline_s;
        match plan.advice {
            Advice::Meets(_) => {
                prop_assert!(meets(&advised));
                for other in plan.candidates.iter().filter(meets) {
                    let ((own, own_then), (its, its_then)) = (paid(advised), paid(other));
                    prop_assert!(own <= its * (1.0 + 1e-5) + 1e-12);
                    prop_assert!(own < its * (1.0 - 1e-5) || own_then <= its_then * (1.0 + 1e-5));
                }
            }
            Advice::Misses(_, by_s) => {
                prop_assert_eq!(plan.candidates.iter().filter(meets).count(), 0);
                let fastest = plan.candidates.iter().map(|at| at.prediction.job_s).fold(f64::INFINITY, f64::min);
                prop_assert!((advised.prediction.job_s - fastest).abs() < 1e-5 * fastest);
                prop_assert!((advised.prediction.job_s - by_s - deadline_s).abs() < 1e-9);
            }
        }
        // Nothing beats the front, and what is not on it is beaten.
        let beats = |one: &super::super::Candidate, other: &super::super::Candidate| {
            one.prediction.job_s < other.prediction.job_s * (1.0 - 1e-5)
                && paid(one).0 < paid(other).0 * (1.0 - 1e-5)
                && (priced || paid(one).1 < paid(other).1 * (1.0 - 1e-5))
        };
        for number in &plan.front {
            prop_assert!(!plan.candidates.iter().any(|other| beats(other, &plan.candidates[*number])));
        }
    }
}

#[test]
fn a_deadline_that_all_meet_takes_the_smallest_shape() {
    let asked = asked();
    let plan = asked.plan(100_000.0);
    let shape = plan.advised().prediction.shape;
    assert_eq!((shape.shards, shape.replicas, shape.cache_bytes), (1, 1, 0));
    assert!(plan.because.contains("fewest processors"), "{}", plan.because);
    assert!(!plan.because.contains("cheapest"), "{}", plan.because);
}

#[test]
fn a_deadline_that_none_meets_gets_the_fastest_and_what_bounds_it() {
    let plan = asked().plan(0.5);
    assert!(matches!(plan.advice, Advice::Misses(..)));
    assert!(plan.because.starts_with("No shape of 27 meets the deadline"), "{}", plan.because);
    assert!(plan.because.contains("too long; it is bounded by the"), "{}", plan.because);
}

#[test]
fn a_neighbour_s_sentence_says_what_it_misses_or_costs() {
    let asked = Asked { prices: Some(Prices { core: 0.04, gb: 0.005 }), ..asked() };
    let all = asked.plan(100_000.0);
    // The time of two shards without anything else: what four, or a replica, would have to be taken for.
    let two = all.candidates.iter().find(|at| at.prediction.shape == shape(2, 0)).expect("a shape");
    let plan = asked.plan(two.prediction.job_s * 1.01);
    for neighbour in &plan.neighbours {
        let its = &plan.candidates[neighbour.candidate];
        let late = its.prediction.job_s > two.prediction.job_s * 1.01;
        assert_eq!(
            neighbour.because.contains("beyond the deadline"),
            late,
            "{}",
            neighbour.because
        );
        assert_eq!(neighbour.because.contains(" cost"), !late, "{}", neighbour.because);
    }
    assert!(plan.neighbours.len() >= 3, "{:?}", plan.neighbours);
}

#[test]
fn a_cache_that_answers_nothing_is_not_advised_and_costs_time() {
    let asked = Asked {
        hits: Box::new(Constant { keys: 200_000, ratio: 0.0, page_ratio: 0.0 }),
        ..asked()
    };
    let plan = asked.plan(100_000.0);
    let of = |cache| plan.candidates.iter().find(|at| at.prediction.shape == shape(4, cache));
    let (without, with) = (of(0).expect("a shape"), of(64 * MIB).expect("a shape"));
    assert!(with.prediction.job_s > without.prediction.job_s);
    let fastest = asked.plan(0.5);
    assert_eq!(fastest.advised().prediction.shape.cache_bytes, 0);
}

#[test]
fn replicas_count_for_time_only_if_they_are_read() {
    let asked = asked();
    let of = |replicas, reads| {
        let shape = super::Shape { replicas, reads, ..shape(2, 0) };
        let workload = Workload { phases: &asked.phases, hits: &*asked.hits };
        predict(workload, &asked.costs, &asked.machine, &asked.job, shape, &asked.shares)
    };
    let (one, primary, nearest) =
        (of(1, Reads::Primary), of(2, Reads::Primary), of(2, Reads::Nearest));
    assert_eq!(one.job_s, primary.job_s);
    assert!(nearest.job_s < 0.7 * one.job_s, "{} beside {}", nearest.job_s, one.job_s);
    assert!((primary.database_bytes() / one.database_bytes() - 2.0).abs() < 1e-9);
    assert!((primary.database.average / one.database.average - 0.5).abs() < 1e-9);
}

#[test]
fn uneven_shards_are_found_where_they_are_the_cause() {
    let shares = Shares::even().with_percent(&[14.0, 14.0, 39.0, 33.0]).expect("shares");
    let grid = Grid::new(
        vec![1, 2, 4],
        vec![1],
        vec![None],
        vec![0],
        vec![Reads::Primary],
        vec![CacheAt::Worker],
    );
    let uneven = Asked { shares, grid: grid.expect("a grid"), ..asked() };
    let even = Asked { shares: Shares::even(), grid: uneven.grid.clone(), ..asked() };
    let four = |plan: &Plan| {
        let its = plan.candidates.iter().find(|at| at.prediction.shape.shards == 4);
        its.expect("a shape").prediction.clone()
    };
    let (slow, quick) = (four(&uneven.plan(1.0)), four(&even.plan(1.0)));
    assert_eq!(slow.bottleneck, Station::Shard(2));
    // Of 100 keys the largest shard has 39 instead of 25.
    let expected = asked().costs.shard.of(1.0, 39.0) / asked().costs.shard.of(1.0, 25.0);
    assert!(
        (slow.job_s / quick.job_s / expected - 1.0).abs() < 0.02,
        "{} beside {}",
        slow.job_s,
        quick.job_s
    );
    let deadline_s = quick.job_s * 1.1;
    assert!(matches!(uneven.plan(deadline_s).advice, Advice::Misses(..)));
    let finding = uneven.plan(deadline_s).uneven.expect("a finding");
    assert_eq!(finding.shape.shards, 4);
    assert!(finding.because.ends_with("which meets the deadline"), "{}", finding.because);
    assert!(finding.because.contains("39 % of the keys"), "{}", finding.because);
    // Where even shares change nothing, nothing is said.
    assert_eq!(uneven.plan(100_000.0).uneven, None);
    assert_eq!(even.plan(deadline_s).uneven, None);
}

#[test]
fn the_interval_follows_the_bottleneck_s_error() {
    let asked = asked();
    let workload = Workload { phases: &asked.phases, hits: &*asked.hits };
    let of = |errors: Errors| {
        Basis {
            workload,
            costs: &asked.costs,
            errors: &errors,
            machine: &asked.machine,
            job: &asked.job,
            shares: &asked.shares,
        }
        .interval(shape(1, 0))
    };
    // The standard error of the time's logarithm.
    let error = |errors| {
        let its = of(errors);
        (its.high_s / its.low_s).ln() / 2.0 / 1.645
    };
    let model = error(Errors::default());
    assert!((model - 0.12).abs() < 1e-6, "{model}");
    // The shard is the bottleneck, and the router is not.
    let shard = error(Errors { shard: 0.2, ..Errors::default() });
    assert!((shard.powi(2) - model.powi(2)).sqrt() > 0.16, "{shard}");
    let router = error(Errors { router: 0.2, ..Errors::default() });
    assert!((router.powi(2) - model.powi(2)).sqrt() < 0.03, "{router}");
}

#[test]
fn an_error_that_two_shapes_have_in_common_does_not_matter_to_their_ratio() {
    let asked = asked();
    let workload = Workload { phases: &asked.phases, hits: &*asked.hits };
    let of = |errors: Errors, shards: u32, cache_bytes: u64| {
        let basis = Basis {
            workload,
            costs: &asked.costs,
            errors: &errors,
            machine: &asked.machine,
            job: &asked.job,
            shares: &asked.shares,
        };
        basis.ratio(shape(shards, cache_bytes), shape(1, 0))
    };
    let width = |[low, high]: [f64; 2]| high / low;
    let other = Errors { all: 0.5, ..Errors::default() };
    let (none, all) = (of(Errors::default(), 2, 0), of(other, 2, 0));
    assert!((width(all) / width(none) - 1.0).abs() < 0.02, "{none:?} {all:?}");
    // Two shards are told apart from one, and a cache of a few bytes is not told apart from none.
    assert!(none[1] < 1.0, "{none:?}");
    let tiny = of(Errors::default(), 1, 4_096);
    assert!((tiny[0]..=tiny[1]).contains(&1.0), "{tiny:?}");
}

#[test]
fn shares_that_are_none_are_refused() {
    let of = |percent: &[f64]| Shares::even().with_percent(percent);
    assert!(of(&[]).is_err());
    assert!(of(&[44.0, 46.0]).is_err());
    assert!(of(&[120.0, -20.0]).is_err());
    // Rounded ones are taken, and sum up to 1.
    let thirds = of(&[33.0, 33.0, 33.0]).expect("shares").of(3);
    assert!((thirds.iter().sum::<f64>() - 1.0).abs() < 1e-12);
}
