//! A roll, the change from one configuration to another: the capacity of the cluster during the change, and the
//! configuration that serves (SOPHIA, §4.5 and Eq. 8).
//!
//! A roll is a sequence of phases. In each phase, a share of the cluster's capacity serves by the old configuration and
//! a share by the new one; the rest is down, or busy with the change. The shares assume equal nodes, as in the paper.
//!
//! The paper's Eq. 8 charges a change with `H(W, C_k) · T_r`: the throughput of the whole cluster for as long as one
//! node is down, since R nodes at a time in N_s/R steps cancel out. The text before it says that the *old*
//! configuration's throughput is lost, but the formula takes the *new* one's; and it ignores that during a roll some
//! nodes serve by the old configuration and some by the new one. So there are two rules: [`Rule::Published`], and
//! [`Rule::Phases`], which adds up the operations of each phase. The latter is the default.

/// The kind of work that the change of a setting needs, the cheapest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CostClass {
    /// The setting is changed in each running node.
    Live,
    /// A statement changes the setting for all nodes at once; data is rewritten only as it would be anyway.
    Alter,
    /// Each node restarts, some at a time.
    Restart,
    /// A statement changes the setting for all nodes at once, after which all data is rewritten.
    Rewrite,
    /// Each node restarts, and all data is rewritten.
    RestartAndRewrite,
}

/// The durations and capacities of configuration changes in a cluster.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// N_s: number of nodes.
    pub nodes: usize,
    /// R: number of nodes that may be down together in a restart.
    pub at_once: usize,
    /// T_r: time from a node's stop until the node has the writes that it missed, in seconds.
    pub restart_s: f64,
    /// Share of T_r in which the node serves again, and its peers send the writes that it missed, from 0 to 1; 0.6 to
    /// 0.7 in the paper.
    pub catch_up: f64,
    /// Capacity of a node while it catches up with missed writes, as a share of its full capacity.
    pub catch_up_capacity: f64,
    /// Time of a live change at one node, in seconds.
    pub live_s: f64,
    /// Time for a statement to reach all nodes, in seconds.
    pub alter_s: f64,
    /// Time to rewrite all data, in seconds.
    pub rewrite_s: f64,
    /// Share of the cluster's capacity that rewriting takes, from 0 to 1.
    pub rewrite_takes: f64,
}

impl Costs {
    /// Returns assumed costs for a cluster of `nodes` nodes, until a roll has measured them: restarts as measured on
    /// three nodes of Cassandra on one machine (30 s), with the paper's share of catching up.
    #[must_use]
    pub fn guessed(nodes: usize) -> Self {
        Self {
            nodes,
            at_once: 1,
            restart_s: 30.0,
            catch_up: 0.65,
            catch_up_capacity: 0.5,
            live_s: 2.0,
            alter_s: 2.0,
            rewrite_s: 600.0,
            rewrite_takes: 0.25,
        }
    }
}

/// A phase of a roll, in which the capacity of the cluster is constant.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    /// Length of the phase, in seconds.
    pub seconds: f64,
    /// Share of the capacity that serves by the old configuration, from 0 to 1.
    pub old: f64,
    /// Share of the capacity that serves by the new configuration, from 0 to 1.
    pub new: f64,
}

impl Costs {
    /// Returns T_R, the time from the first node's stop to the end of the last node's catch-up: T_r · ⌈N_s/R⌉, in
    /// seconds.
    #[must_use]
    pub fn roll_s(&self) -> f64 {
        self.restart_s * self.nodes.div_ceil(self.at_once.max(1)) as f64
    }

    /// Returns the phases of a change, in order, whose most expensive setting needs this kind of work.
    ///
    /// # Panics
    /// If the cluster has no node.
    #[must_use]
    pub fn phases(&self, class: CostClass) -> Vec<Phase> {
        assert!(self.nodes > 0, "a cluster of no node");
        match class {
            CostClass::Live => self.live(),
            CostClass::Alter => vec![self.alter()],
            CostClass::Restart => self.restarts(),
            CostClass::Rewrite => vec![self.alter(), self.rewrite()],
            CostClass::RestartAndRewrite => {
                self.restarts().into_iter().chain([self.rewrite()]).collect()
            }
        }
    }

    /// Returns the phase in which a statement reaches all nodes.
    fn alter(&self) -> Phase {
        Phase { seconds: self.alter_s, old: 1.0, new: 0.0 }
    }

    /// Returns the phase in which all data is rewritten, after a statement or the restarts.
    fn rewrite(&self) -> Phase {
        Phase { seconds: self.rewrite_s, old: 0.0, new: 1.0 - self.rewrite_takes }
    }

    /// Returns the phases of a change in running nodes, one node after the other.
    fn live(&self) -> Vec<Phase> {
        let all = self.nodes as f64;
        let at = |done: usize| {
            let new = done as f64 / all;
            Phase { seconds: self.live_s, old: 1.0 - new, new }
        };
        (0..self.nodes).map(at).collect()
    }

    /// Returns the phases of a restart of all nodes, at most `at_once` at a time.
    fn restarts(&self) -> Vec<Phase> {
        let at_once = self.at_once.max(1);
        let first = (0..self.nodes).step_by(at_once);
        let steps: Vec<usize> = first.map(|done| at_once.min(self.nodes - done)).collect();
        self.restarts_in(&steps)
    }

    /// Returns the phases of a restart of all nodes, where `steps` has the number of nodes in each step, as
    /// [`super::availability`] computes it for a cluster's ranges. The cluster's size is the sum of the steps.
    #[must_use]
    pub fn restarts_in(&self, steps: &[usize]) -> Vec<Phase> {
        let all = steps.iter().sum::<usize>() as f64;
        let mut phases = Vec::new();
        let mut done = 0.0;
        for step in steps.iter().filter(|step| **step > 0) {
            let away = *step as f64;
            let (rest, catching_up) = (all - done - away, away * self.catch_up_capacity);
            phases.push(Phase {
                seconds: self.restart_s * (1.0 - self.catch_up),
                old: rest / all,
                new: done / all,
            });
            phases.push(Phase {
                seconds: self.restart_s * self.catch_up,
                old: rest / all,
                new: (done + catching_up) / all,
            });
            done += away;
        }
        phases
    }
}

/// The rule by which the operations served during a roll are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rule {
    /// The operations of each phase are added up.
    #[default]
    Phases,
    /// Eq. 8 as it is printed: the new configuration serves from the roll's start on, less all of its throughput for
    /// T_r.
    Published,
}

/// A roll, divided into the intervals of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Sliced {
    /// For each interval of the roll, the equivalent time at full capacity by the old and by the new configuration, in
    /// seconds. There is at least one interval; the last one is a whole one.
    pub capacity_s: Vec<(f64, f64)>,
}

impl Sliced {
    /// Divides a roll into intervals of `interval_s` seconds; the roll begins with an interval. After the roll's end,
    /// the new configuration serves for the rest of the last interval. `restart_s` is T_r, which [`Rule::Published`]
    /// uses.
    ///
    /// # Panics
    /// If an interval has no length.
    #[must_use]
    pub fn new(phases: &[Phase], interval_s: f64, rule: Rule, restart_s: f64) -> Self {
        assert!(interval_s > 0.0, "an interval of {interval_s} s");
        let all_s: f64 = phases.iter().map(|phase| phase.seconds).sum();
        let intervals = ((all_s / interval_s - 1e-9).ceil() as usize).max(1);
        let mut capacity_s = vec![(0.0, 0.0); intervals];
        if rule == Rule::Published {
            capacity_s.iter_mut().for_each(|of| of.1 = interval_s);
            // W(t_k) of Eq. 8 is the workload of the roll's first interval.
            capacity_s[0].1 -= restart_s;
            return Self { capacity_s };
        }
        let rest = Phase { seconds: f64::INFINITY, old: 0.0, new: 1.0 };
        let mut at_s = 0.0;
        for phase in phases.iter().chain([&rest]) {
            let end_s = (at_s + phase.seconds).min(intervals as f64 * interval_s);
            while at_s < end_s - 1e-9 {
                let interval = ((at_s / interval_s + 1e-9) as usize).min(intervals - 1);
                let until_s = end_s.min((interval + 1) as f64 * interval_s);
                capacity_s[interval].0 += phase.old * (until_s - at_s);
                capacity_s[interval].1 += phase.new * (until_s - at_s);
                at_s = until_s;
            }
        }
        Self { capacity_s }
    }

    /// Returns the number of intervals that the roll takes, in which no other roll may begin.
    #[must_use]
    pub fn intervals(&self) -> usize {
        self.capacity_s.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const THREE: Costs = Costs {
        nodes: 3,
        at_once: 1,
        restart_s: 30.0,
        catch_up: 0.6,
        catch_up_capacity: 0.5,
        live_s: 0.5,
        alter_s: 1.2,
        rewrite_s: 90.0,
        rewrite_takes: 0.25,
    };

    #[test]
    fn a_roll_of_three_nodes_has_two_phases_for_each() {
        let phases = THREE.phases(CostClass::Restart);
        let is = |phase: &Phase, seconds: f64, old: f64, new: f64| {
            (phase.seconds - seconds).abs() < 1e-9
                && (phase.old - old / 3.0).abs() < 1e-9
                && (phase.new - new / 3.0).abs() < 1e-9
        };
        let expected = [
            (12.0, 2.0, 0.0),
            (18.0, 2.0, 0.5),
            (12.0, 1.0, 1.0),
            (18.0, 1.0, 1.5),
            (12.0, 0.0, 2.0),
            (18.0, 0.0, 2.5),
        ];
        assert_eq!(phases.len(), expected.len());
        for (phase, (seconds, old, new)) in phases.iter().zip(expected) {
            assert!(is(phase, seconds, old, new), "{phase:?}");
        }
        assert!((THREE.roll_s() - 90.0).abs() < 1e-9);
        let both = Costs { at_once: 2, ..THREE };
        assert!((both.roll_s() - 60.0).abs() < 1e-9, "two, then the last one");
        let away = |phase: &Phase| phase.old + phase.new;
        let least = both.phases(CostClass::Restart).iter().map(away).fold(1.0, f64::min);
        assert!((least - 1.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn dearer_classes_serve_less_while_they_change() {
        let lost = |class: CostClass| {
            let phases = THREE.phases(class);
            phases.iter().map(|phase| phase.seconds * (1.0 - phase.old - phase.new)).sum::<f64>()
        };
        assert!(lost(CostClass::Live).abs() < 1e-9 && lost(CostClass::Alter).abs() < 1e-9);
        assert!((lost(CostClass::Restart) - 21.0).abs() < 1e-9, "{}", lost(CostClass::Restart));
        assert!((lost(CostClass::Rewrite) - 22.5).abs() < 1e-9, "{}", lost(CostClass::Rewrite));
        let both = lost(CostClass::RestartAndRewrite);
        assert!((both - 43.5).abs() < 1e-9, "{both}");
    }

    #[test]
    fn the_printed_rule_takes_the_new_throughput_for_one_restart() {
        let sliced = Sliced::new(&THREE.phases(CostClass::Restart), 30.0, Rule::Published, 30.0);
        assert_eq!(sliced.capacity_s, [(0.0, 0.0), (0.0, 30.0), (0.0, 30.0)]);
    }

    proptest! {
        #[test]
        fn more_nodes_at_once_never_lengthen_a_roll_and_cost_the_same_capacity(
            nodes in 1..40_usize, at_once in 1..20_usize, more in 0..20_usize,
        ) {
            let lasts = |at_once: usize| {
                let phases = Costs { nodes, at_once, ..THREE }.phases(CostClass::Restart);
                let lost = |phase: &Phase| phase.seconds * (1.0 - phase.old - phase.new);
                let seconds = phases.iter().map(|phase| phase.seconds).sum::<f64>();
                (seconds, phases.iter().map(lost).sum::<f64>())
            };
            let (few, many) = (lasts(at_once), lasts(at_once + more));
            prop_assert!(many.0 <= few.0 + 1e-9, "{many:?} {few:?}");
            // R and N_s cancel, as in Eq. 8.
            prop_assert!((many.1 - few.1).abs() < 1e-6, "{many:?} {few:?}");
        }

        #[test]
        fn steps_of_any_sizes_last_one_restart_each(steps in prop::collection::vec(0..6_usize, 0..8)) {
            let phases = THREE.restarts_in(&steps);
            let seconds = phases.iter().map(|phase| phase.seconds).sum::<f64>();
            let restarts = steps.iter().filter(|step| **step > 0).count();
            prop_assert!((seconds - THREE.restart_s * restarts as f64).abs() < 1e-9);
            prop_assert!(phases.iter().all(|phase| phase.old + phase.new <= 1.0 + 1e-9));
            if let Some(last) = phases.last() {
                prop_assert!(last.old.abs() < 1e-9, "none is left behind");
            }
        }

        #[test]
        fn slices_lose_nothing(
            nodes in 1..20_usize, at_once in 1..6_usize, restart_s in 1.0..200.0_f64, catch_up in 0.0..1.0_f64,
            interval_s in 5.0..400.0_f64,
        ) {
            let costs = Costs { nodes, at_once, restart_s, catch_up, ..THREE };
            let phases = costs.phases(CostClass::Restart);
            let all_s: f64 = phases.iter().map(|phase| phase.seconds).sum();
            prop_assert!((all_s - costs.roll_s()).abs() < 1e-6);
            let sliced = Sliced::new(&phases, interval_s, Rule::Phases, restart_s);
            let lasts_s = sliced.intervals() as f64 * interval_s;
            prop_assert!(lasts_s > all_s - 1e-6 && lasts_s < all_s + interval_s + 1e-6);
            let sums = sliced.capacity_s.iter().fold((0.0, 0.0), |sum, of| (sum.0 + of.0, sum.1 + of.1));
            let of = |share: fn(&Phase) -> f64| {
                phases.iter().map(|phase| phase.seconds * share(phase)).sum::<f64>()
            };
            prop_assert!((sums.0 - of(|phase| phase.old)).abs() < 1e-6);
            prop_assert!((sums.1 - of(|phase| phase.new) - (lasts_s - all_s)).abs() < 1e-6);
            prop_assert!(sliced.capacity_s.iter().all(|(old, new)| old + new <= interval_s + 1e-6));
        }
    }
}
