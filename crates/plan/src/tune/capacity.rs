//! The choice of a configuration by capacity: a job's data has to fit into memory, and the job should end soonest
//! (SOPHIA, §5, Fig. 10).
//!
//! A configuration with a compact representation holds more data in the same memory, but takes more processor time per
//! operation. If the data fits either way, the wide representation is better; if not, it fails. The number of a job's
//! entries is known in advance from its queue, and the bytes and seconds of an entry are measured: no forecast is
//! needed.
//!
//! Memory is assumed to grow from a base by the same number of bytes with each entry. Time is that of the server, which
//! processes one operation after another: it adds up over operations, so the mean over kinds weighted by the mix is
//! exact.
//!
//! Invariants: the chosen configuration holds the job within the limit less its headroom; no other configuration that
//! holds it would end sooner by more than the minimum gain; no configuration is chosen only if none holds the job.

use super::workload::{KINDS, Mix};

/// The measured costs of holding and serving a job's data with one configuration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Memory that the server uses without any entry, in bytes.
    pub base_bytes: f64,
    /// Additional memory that each entry uses, in bytes.
    pub entry_bytes: f64,
    /// Time to write a new entry during a load, in seconds.
    pub load_s: f64,
    /// Time of one operation of each kind (reads, updates, inserts, scans), in seconds.
    pub operation_s: [f64; KINDS],
    /// Time to change to this configuration, in seconds; it is not counted if the configuration is the present one.
    pub change_s: f64,
}

/// Maximum relative difference between the memory that a sample explains and the memory in use, for decisions by the
/// sample.
pub const EXPLAINED_WITHIN: f64 = 0.1;

/// Returns true if a sample of entries explains the memory in use well enough for a decision; `explained` is the ratio
/// of the explained memory to that in use.
#[must_use]
pub fn explains(explained: f64) -> bool {
    (explained - 1.0).abs() <= EXPLAINED_WITHIN
}

/// A batch job: a load of entries into the database, followed by operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Job {
    /// Number of entries in the database before the job.
    pub present: f64,
    /// Number of entries that the job's load writes first.
    pub loaded: f64,
    /// Number of operations of the job after the load; each insert adds an entry.
    pub operations: f64,
    /// Mix of the job's operations after the load.
    pub mix: Mix,
}

impl Job {
    /// Returns the number of entries at the end of the job, which is the maximum.
    #[must_use]
    pub fn entries(&self) -> f64 {
        let [_, _, inserts, _] = self.mix.shares();
        self.present + self.loaded + self.operations * inserts
    }
}

/// The limits within which a configuration is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Memory at which the server rejects writes, in bytes.
    pub memory_bytes: f64,
    /// Share of this memory that has to stay free, from 0 to 1: entries differ in size, and clients' buffers take
    /// memory too.
    pub headroom: f64,
    /// Minimum gain in throughput for a change of the configuration, as a share of the present configuration's
    /// throughput.
    pub gain_min: f64,
}

impl Limits {
    /// Returns the memory that a job's data may use, in bytes: the limit less the headroom.
    fn usable_bytes(&self) -> f64 {
        self.memory_bytes * (1.0 - self.headroom)
    }
}

/// The reason why a configuration is chosen for a job, or is not.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// The configuration is chosen.
    Chosen,
    /// The job's data does not fit into memory with this configuration.
    TooLarge {
        /// Bytes by which the job's data exceeds the limit less its headroom.
        over_bytes: f64,
    },
    /// The job takes longer than with the chosen configuration.
    Slower {
        /// Additional time, as a share of the time with the chosen configuration; zero if both take the same time.
        by: f64,
    },
    /// The job would end sooner, but the gain over the present configuration is too small for a change.
    GainTooSmall {
        /// Gain, as a share of the present throughput.
        gain: f64,
    },
}

/// The assessment of one configuration for a job.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Assessment {
    /// Predicted memory with the job's maximum number of entries, in bytes.
    pub peak_bytes: f64,
    /// Number of entries for which the memory limit less its headroom suffices, a whole number; infinite if an entry
    /// takes no memory.
    pub entries_max: f64,
    /// Predicted time of the job with this configuration, including the change to it, in seconds.
    pub job_s: f64,
    /// The reason why the configuration is chosen or not.
    pub verdict: Verdict,
}

/// The choice of a configuration for a job, with the reasons.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Index of the chosen configuration; `None` if no configuration holds the job's data.
    pub choice: Option<usize>,
    /// The assessment of each configuration, in their order.
    pub assessments: Vec<Assessment>,
}

impl Decision {
    /// Returns the index of the configuration that lacks the least memory, and the missing bytes; `None` if a
    /// configuration was chosen.
    #[must_use]
    pub fn smallest_shortfall(&self) -> Option<(usize, f64)> {
        let lacking = self.assessments.iter().enumerate().map(|(number, one)| match one.verdict {
            Verdict::TooLarge { over_bytes } => Some((number, over_bytes)),
            _ => None,
        });
        // Either all configurations lack memory, or one was chosen.
        let all: Option<Vec<(usize, f64)>> = lacking.collect();
        all?.into_iter().min_by(|left, right| left.1.total_cmp(&right.1))
    }
}

/// Returns the number of entries that fit into `bytes` bytes of memory with a configuration of these costs; infinite
/// if an entry takes no memory.
#[must_use]
pub fn entries_max(costs: &Costs, bytes: f64) -> f64 {
    let room = (bytes - costs.base_bytes).max(0.0);
    if costs.entry_bytes <= 0.0 { f64::INFINITY } else { (room / costs.entry_bytes).floor() }
}

/// Returns the predicted time of a job with a configuration of these costs, in seconds, without the time to change to
/// it.
#[must_use]
pub fn job_s(costs: &Costs, job: &Job) -> f64 {
    let shares = job.mix.shares();
    let operation_s: f64 = shares.iter().zip(costs.operation_s).map(|(share, s)| share * s).sum();
    job.loaded * costs.load_s + job.operations * operation_s
}

/// Chooses the configuration for a job among those with the costs `all`; `current` is the index of the present one.
///
/// # Panics
/// If there is no configuration `current`.
#[must_use]
pub fn choose(all: &[Costs], current: usize, job: &Job, limits: &Limits) -> Decision {
    assert!(current < all.len(), "{current} of {} configurations", all.len());
    let usable = limits.usable_bytes();
    let assess = |(number, costs): (usize, &Costs)| {
        let peak_bytes = costs.base_bytes + costs.entry_bytes * job.entries();
        let change_s = if number == current { 0.0 } else { costs.change_s };
        Assessment {
            peak_bytes,
            entries_max: entries_max(costs, usable),
            job_s: change_s + job_s(costs, job),
            verdict: Verdict::TooLarge { over_bytes: peak_bytes - usable },
        }
    };
    let mut assessments: Vec<Assessment> = all.iter().enumerate().map(assess).collect();
    let fits = |one: &Assessment| one.peak_bytes <= usable;
    let soonest =
        (0..all.len()).filter(|number| fits(&assessments[*number])).min_by(|&one, &other| {
            let by_time = assessments[one].job_s.total_cmp(&assessments[other].job_s);
            by_time.then((one != current).cmp(&(other != current))).then(one.cmp(&other))
        });
    let now = assessments[current];
    let choice = soonest.map(|number| {
        let is_worth_it = gain(now.job_s, assessments[number].job_s) >= limits.gain_min;
        if fits(&now) && !is_worth_it { current } else { number }
    });
    if let Some(choice) = choice {
        let chosen_s = assessments[choice].job_s;
        for (number, one) in assessments.iter_mut().enumerate().filter(|(_, one)| fits(one)) {
            let gain_over_it = gain(chosen_s, one.job_s);
            one.verdict = match number {
                _ if number == choice => Verdict::Chosen,
                _ if one.job_s < chosen_s => Verdict::GainTooSmall { gain: gain_over_it },
                _ => Verdict::Slower { by: gain(one.job_s, chosen_s) },
            };
        }
    }
    Decision { choice, assessments }
}

/// Returns the gain in throughput if a job takes `new_s` instead of `old_s` seconds, as a share of the old throughput.
fn gain(old_s: f64, new_s: f64) -> f64 {
    if old_s <= new_s && old_s == 0.0 { 0.0 } else { old_s / new_s.max(f64::MIN_POSITIVE) - 1.0 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_sample_that_is_a_tenth_off_decides_nothing() {
        for (explained, does) in [
            (1.0, true),
            (0.91, true),
            (1.09, true),
            (0.89, false),
            (1.11, false),
            (f64::NAN, false),
        ] {
            assert_eq!(super::explains(explained), does, "{explained}");
        }
    }

    use proptest::prelude::*;

    use super::*;

    fn costs(entry_bytes: f64, operation_s: f64) -> Costs {
        Costs {
            base_bytes: 1_000.0,
            entry_bytes,
            load_s: operation_s,
            operation_s: [operation_s; KINDS],
            change_s: 0.0,
        }
    }

    fn job(loaded: f64) -> Job {
        Job { present: 0.0, loaded, operations: 1_000.0, mix: Mix::of_reads(0.5) }
    }

    const LIMITS: Limits = Limits { memory_bytes: 101_000.0, headroom: 0.0, gain_min: 0.05 };

    #[test]
    fn the_quick_one_is_chosen_where_it_fits_and_the_compact_one_where_only_that_does() {
        let all = [costs(100.0, 1.0), costs(30.0, 3.0)];
        for (entries, current, choice) in [
            (1_000.0, 0, Some(0)),
            (1_000.0, 1, Some(0)),
            (1_001.0, 0, Some(1)),
            (3_333.0, 1, Some(1)),
            (3_334.0, 1, None),
        ] {
            let decision = choose(&all, current, &job(entries), &LIMITS);
            assert_eq!(decision.choice, choice, "{entries}: {decision:?}");
        }
    }

    #[test]
    fn each_other_one_has_its_reason() {
        let all = [costs(100.0, 1.0), costs(30.0, 3.0)];
        let roomy = choose(&all, 1, &job(500.0), &LIMITS);
        assert_eq!(roomy.assessments[0].verdict, Verdict::Chosen);
        assert_eq!(roomy.assessments[1].verdict, Verdict::Slower { by: 2.0 });
        assert_eq!(roomy.assessments[1].entries_max, 3_333.0);
        let tight = choose(&all, 0, &job(1_110.0), &LIMITS);
        assert_eq!(tight.assessments[0].verdict, Verdict::TooLarge { over_bytes: 11_000.0 });
        assert_eq!(tight.smallest_shortfall(), None);
        let none = choose(&all, 0, &job(4_000.0), &LIMITS);
        assert_eq!(none.smallest_shortfall(), Some((1, 20_000.0)));
    }

    #[test]
    fn a_small_gain_changes_nothing_unless_the_present_one_is_too_large() {
        let all = [costs(100.0, 1.04), costs(90.0, 1.0)];
        let kept = choose(&all, 0, &job(500.0), &LIMITS);
        assert_eq!(kept.choice, Some(0));
        let Verdict::GainTooSmall { gain } = kept.assessments[1].verdict else {
            panic!("{kept:?}")
        };
        assert!((gain - 0.04).abs() < 1e-9, "{kept:?}");
        assert_eq!(choose(&all, 0, &job(1_050.0), &LIMITS).choice, Some(1));
    }

    #[test]
    fn a_change_that_takes_longer_than_it_gains_is_not_made() {
        let mut all = [costs(100.0, 1.1), costs(100.0, 1.0)];
        assert_eq!(choose(&all, 0, &job(500.0), &LIMITS).choice, Some(1));
        all[1].change_s = 150.0;
        let stays = choose(&all, 0, &job(500.0), &LIMITS);
        assert_eq!(stays.choice, Some(0), "{stays:?}");
        assert_eq!(choose(&all, 1, &job(500.0), &LIMITS).choice, Some(1), "it is there already");
    }

    #[test]
    fn inserts_among_the_operations_take_memory_and_what_is_there_takes_no_time() {
        let mix = Mix::of([0.0, 0.0, 1.0, 0.0]).unwrap();
        let job = Job { present: 400.0, loaded: 500.0, operations: 101.0, mix };
        assert_eq!(job.entries(), 1_001.0);
        let all = [costs(100.0, 1.0)];
        let decision = choose(&all, 0, &job, &LIMITS);
        assert_eq!((decision.choice, decision.assessments[0].job_s), (None, 601.0));
    }

    /// Chooses by filling memory entry by entry and doing one operation after the other, among all that hold the job.
    fn slowly(all: &[Costs], current: usize, job: &Job, limits: &Limits) -> Option<usize> {
        let holds = |costs: &Costs| {
            let mut bytes = costs.base_bytes;
            for _ in 0..job.entries() as u64 {
                bytes += costs.entry_bytes;
            }
            bytes <= limits.usable_bytes()
        };
        let takes = |number: usize| {
            let costs = &all[number];
            let mut s = if number == current { 0.0 } else { costs.change_s };
            for _ in 0..job.loaded as u64 {
                s += costs.load_s;
            }
            for (share, kind_s) in job.mix.shares().into_iter().zip(costs.operation_s) {
                for _ in 0..(share * job.operations) as u64 {
                    s += kind_s;
                }
            }
            s
        };
        let mut best: Option<usize> = None;
        for number in (0..all.len()).filter(|number| holds(&all[*number])) {
            let is_better = match best {
                None => true,
                Some(best) if takes(number) == takes(best) => number == current,
                Some(best) => takes(number) < takes(best),
            };
            if is_better {
                best = Some(number);
            }
        }
        let best = best?;
        let gains = takes(current) / takes(best) - 1.0 >= limits.gain_min;
        Some(if holds(&all[current]) && !gains { current } else { best })
    }

    prop_compose! {
        /// In whole numbers, so that sums in another order are equal.
        fn any_costs()(base in 0..50_u32, entry in 1..40_u32, load in 1..9_u32, of in [1..9_u32, 1..9, 1..9, 1..9],
                       change in 0..400_u32) -> Costs {
            Costs {
                base_bytes: base.into(),
                entry_bytes: entry.into(),
                load_s: load.into(),
                operation_s: of.map(f64::from),
                change_s: change.into(),
            }
        }
    }

    prop_compose! {
        fn any_job()(present in 0..20_u32, loaded in 0..60_u32, tens in 1..8_u32, parts in 0..5_usize) -> Job {
            // Halves and quarters, of a number of operations that has them.
            let counts = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 0.0], [2.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0],
                          [1.0, 1.0, 1.0, 1.0]];
            let mix = Mix::of(counts[parts]).unwrap();
            Job { present: present.into(), loaded: loaded.into(), operations: f64::from(40 * tens), mix }
        }
    }

    proptest! {
        #[test]
        fn the_choice_is_that_of_doing_it_step_by_step(
            all in prop::collection::vec(any_costs(), 1..5),
            job in any_job(),
            current in any::<prop::sample::Index>(),
            memory in 0..4_000_u32,
            gain in 0..4_u32,
        ) {
            let current = current.index(all.len());
            let limits =
                Limits { memory_bytes: memory.into(), headroom: 0.0, gain_min: f64::from(gain) / 8.0 };
            let decision = choose(&all, current, &job, &limits);
            prop_assert_eq!(decision.choice, slowly(&all, current, &job, &limits), "{:?}", decision);
        }

        #[test]
        fn more_memory_never_makes_a_job_slower_and_what_fits_fits_exactly(
            all in prop::collection::vec(any_costs(), 1..5),
            job in any_job(),
            memory in 0..4_000_u32,
            more in 0..2_000_u32,
            headroom in 0..3_u32,
        ) {
            let limits = |memory: u32| Limits {
                memory_bytes: memory.into(),
                headroom: f64::from(headroom) / 8.0,
                gain_min: 0.0,
            };
            let (less, more) = (choose(&all, 0, &job, &limits(memory)), choose(&all, 0, &job, &limits(memory + more)));
            if let Some(choice) = less.choice {
                let with_more = more.choice.expect("what fitted fits");
                prop_assert!(more.assessments[with_more].job_s <= less.assessments[choice].job_s);
            } else {
                let (_, over_bytes) = less.smallest_shortfall().expect("nothing was chosen");
                prop_assert!(over_bytes > 0.0);
            }
            for (costs, one) in all.iter().zip(&less.assessments) {
                let fits = |entries: f64| {
                    costs.base_bytes + costs.entry_bytes * entries <= limits(memory).usable_bytes()
                };
                prop_assert!(one.entries_max == 0.0 || fits(one.entries_max));
                prop_assert!(!fits(one.entries_max + 1.0));
                prop_assert_eq!(one.entries_max >= job.entries() && fits(0.0), !matches!(one.verdict, Verdict::TooLarge { .. }));
            }
        }
    }
}
