//! The judgement of a change by the samples before and after it.

use imago_plan::tune::judge::{Bounds, Judgement, UndoReason, WINDOWS_MIN, Window, judge, waits};
use imago_plan::tune::planner::Rates;
use imago_plan::tune::sampling::is_warm;
use imago_plan::tune::switchback::{self, Side};
use imago_plan::tune::workload::{KINDS, Mix};
use serde::{Deserialize, Serialize};

use super::event::Change;
use super::turns::Turns;

/// Maximum number of samples skipped after a change while throughput rises: a JVM compiles, caches fill.
const WARM_MAX: usize = 12;
/// Maximum number of samples after a change, as a multiple of the number required to judge the change.
const SAMPLES_MAX: usize = 10;
/// Ratio of latencies (after to before a change) from which a sample counts, even if the load is low.
const WAITS_MAX: f64 = 2.0;
/// Maximum difference of two request rates that count as similar, as a share of the later one.
const LIKE: f64 = 0.3;

/// A persisted sample from before a change, by which a new controller judges a change that a dead one has made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PersistedSample {
    /// Shares of reads, updates, inserts and scans, 0 to 1.
    shares: [f64; KINDS],
    /// Request rate, in operations per second.
    rate_s: f64,
    /// Median latency of each kind of operations, in the database's unit; None if unknown.
    median: [Option<f64>; KINDS],
    /// 99th percentile of the latency of each kind of operations, in the same unit as [`Self::median`]; None if
    /// unknown.
    slowest: [Option<f64>; KINDS],
    /// Share of memory in use, from 0 to 1; None if unknown.
    memory: Option<f64>,
}

impl From<Window> for PersistedSample {
    fn from(window: Window) -> Self {
        let Window { mix, rate_s, median, slowest, memory } = window;
        Self { shares: mix.shares(), rate_s, median, slowest, memory }
    }
}

impl PersistedSample {
    /// Converts the persisted sample to a window; None if the persisted shares are invalid.
    pub(super) fn window(self) -> Option<Window> {
        let Self { shares, rate_s, median, slowest, memory } = self;
        let is_share = |share: &f64| share.is_finite() && *share >= 0.0;
        let mix = Mix::of(Some(shares).filter(|all| all.iter().all(is_share))?)?;
        Some(Window { mix, rate_s, median, slowest, memory })
    }
}

/// The judgement of a change, while its samples are collected; see the module's documentation.
pub(super) struct Trial {
    /// The change that is judged.
    pub(super) change: Change,
    /// Samples from before the change.
    before: Vec<Window>,
    /// Request rates of the first samples after the change, while throughput still rose, in operations per second.
    rising: Vec<f64>,
    /// True once throughput has stopped rising after the change.
    is_warm: bool,
    /// Samples after the change, since throughput has stopped rising.
    after: Vec<Window>,
    /// Number of samples in [`Self::after`] that are required to judge the change.
    judged_by: usize,
    /// Number of samples since the change, except those skipped under low load or while data were rewritten.
    samples: usize,
    /// Maximum number of samples that are skipped because the load is still low, for a change made under low load.
    /// None for other changes.
    quiet_max: Option<usize>,
    /// Number of samples so far that were skipped because the load was low.
    quiet: usize,
    /// Number of further samples to skip because data are still rewritten after the change.
    rewrites: usize,
    /// True if time passed between the samples before and those after the change, so that the load may differ.
    is_late: bool,
    /// The turns of both configurations; None for a change that is judged by the samples before and after it alone.
    turns: Option<Turns>,
    /// True if the times to a reply that a turn's samples have are those of that turn, and not also of turns before it.
    tells_times: bool,
    /// The configuration that the cluster has now.
    present: Side,
}

impl Trial {
    /// Starts a judgement; at least `judged_by` samples after the change are required. For `quiet_max` and `rewrites`
    /// see the fields.
    pub(super) fn new(
        change: Change,
        before: Vec<Window>,
        judged_by: usize,
        quiet_max: Option<usize>,
        rewrites: usize,
    ) -> Self {
        Self {
            change,
            before,
            rising: Vec::new(),
            is_warm: false,
            after: Vec::new(),
            judged_by: judged_by.max(WINDOWS_MIN),
            samples: 0,
            quiet_max,
            quiet: 0,
            rewrites,
            is_late: false,
            turns: None,
            tells_times: true,
            present: Side::New,
        }
    }

    /// Returns the same judgement by turns, if there are enough samples from before and the change was not made under low load;
    /// `middle` is the configuration with which the block in the middle begins. Times to a reply that a sample tells are those of
    /// the last `remembered` samples.
    pub(super) fn with_turns(self, middle: Side, remembered: usize) -> Self {
        let is_quiet = self.quiet_max.is_some();
        let turns = (!is_quiet).then(|| Turns::new(&self.before, self.judged_by, middle)).flatten();
        let tells_times = turns.as_ref().is_none_or(|turns| turns.length() > remembered);
        Self { turns, tells_times, ..self }
    }

    /// Returns the configuration whose turn it is if the cluster does not have it, with the numbers of complete turns and of all;
    /// None if the present configuration goes on.
    pub(super) fn due(&self) -> Option<(Side, (usize, usize))> {
        let turns = self.turns.as_ref()?;
        let side = turns.side().filter(|side| *side != self.present)?;
        Some((side, turns.progress()))
    }

    /// Returns the mean mix of the samples after the change; None if there are none.
    pub(super) fn mix(&self) -> Option<Mix> {
        Mix::mean(self.after.iter().map(|window| (1.0, window.mix)))
    }

    /// Handles the end of a roll after which the cluster has this configuration.
    pub(super) fn turned(&mut self, present: Side) {
        self.present = present;
        if let Some(turns) = &mut self.turns {
            turns.changed();
        }
    }

    /// Has the present configuration stay: the change is judged by the samples until now.
    pub(super) fn end_turns(&mut self) {
        self.turns = None;
        self.samples = usize::MAX;
    }

    /// Returns the same judgement, marked as started late: the load may have changed since the samples before the
    /// change.
    pub(super) fn late(self) -> Self {
        Self { is_late: true, ..self }
    }

    /// Adds a sample after the change; None if the cluster was idle or a node could not be read. A sample under low
    /// load (`is_quiet`) is skipped if the change was made under low load, unless latencies have risen sharply.
    pub(super) fn add(&mut self, window: Option<Window>, is_quiet: bool) {
        if self.rewrites > 0 {
            self.rewrites -= 1;
            return;
        }
        let waits = window.and_then(|window| waits(&self.before, &[window]));
        if self.quiet_max.is_some() && is_quiet && waits.is_none_or(|waits| waits < WAITS_MAX) {
            self.quiet += 1;
            return;
        }
        self.samples = self.samples.saturating_add(1);
        let Some(window) = window else { return };
        if !self.is_warm {
            self.rising.push(window.rate_s);
            self.is_warm = is_warm(&self.rising) || self.rising.len() >= WARM_MAX;
            return;
        }
        let counts = self.turns.as_mut().is_none_or(|turns| turns.add(window));
        if counts && self.present == Side::New {
            self.after.push(window);
        }
    }

    /// Judges a change by its turns: None while more of them are awaited. A change that has the slowest replies take too long,
    /// or memory run short, in half of the samples that are required at least, is not tried for longer.
    fn judged_by_turns(
        &self,
        turns: &Turns,
        rates: &Rates<'_>,
        numbers: (usize, usize),
        bounds: &Bounds,
    ) -> Option<Judgement> {
        let is_seen = self.after.len() >= self.judged_by.div_ceil(2).max(WINDOWS_MIN);
        let until_now = judge(&self.before, &self.after, rates, numbers, bounds);
        let harmful = until_now.filter(|until_now| {
            let reason = until_now.undo_reason;
            is_seen && matches!(reason, Some(UndoReason::TailLatency | UndoReason::Memory))
        });
        if harmful.is_some() || turns.side().is_some() {
            return harmful;
        }
        switchback::judged(&turns.blocks(), rates, numbers, bounds, self.tells_times)
    }

    /// Judges the change. Returns None while more samples after it are awaited, and `Some(None)` if there are too few
    /// on either side when no more are awaited. `numbers` are the indices of the old and the new configuration.
    pub(super) fn judged(
        &self,
        rates: &Rates<'_>,
        numbers: (usize, usize),
        bounds: &Bounds,
    ) -> Option<Option<Judgement>> {
        let is_waited_for = self.samples < WARM_MAX + SAMPLES_MAX * self.judged_by
            && self.quiet_max.is_none_or(|most| self.quiet < most);
        if let Some(turns) = self.turns.as_ref().filter(|_| is_waited_for) {
            return self.judged_by_turns(turns, rates, numbers, bounds).map(Some);
        }
        if self.after.len() < self.judged_by && is_waited_for {
            return None;
        }
        let like = self.like();
        Some(judge(like.as_deref().unwrap_or(&self.before), &self.after, rates, numbers, bounds))
    }

    /// Returns the samples before the change whose load is similar to that after it, for a change made under low load
    /// or judged late: hours lie in between. None for other changes.
    fn like(&self) -> Option<Vec<Window>> {
        if self.quiet_max.is_none() && !self.is_late {
            return None;
        }
        let mean = self.after.iter().map(|one| one.rate_s).sum::<f64>() / self.after.len() as f64;
        let is_like = |one: &&Window| (one.rate_s - mean).abs() <= LIKE * mean;
        Some(self.before.iter().filter(is_like).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use imago_plan::tune::workload::Mix;

    use super::*;

    fn rates(_: Mix) -> Vec<f64> {
        vec![9_000.0, 9_900.0]
    }

    fn window(rate_s: f64) -> Window {
        let times = [Some(1.0), None, None, None];
        let mix = Mix::of_reads(1.0);
        Window { mix, rate_s, median: times, slowest: times, memory: None }
    }

    fn trial(before: usize) -> Trial {
        let (from, to) = ("unified T8".to_owned(), "unified L10".to_owned());
        let change = Change { from, to, predicted: 0.1 };
        Trial::new(change, vec![window(9_000.0); before], 4, None, 0)
    }

    #[test]
    fn what_is_served_while_a_jvm_warms_up_does_not_count() {
        let mut trial = trial(6);
        let judged = |trial: &Trial| trial.judged(&rates, (0, 1), &Bounds::default());
        for rate in [2_000.0, 4_000.0, 7_000.0, 9_500.0, 9_900.0, 9_900.0, 9_900.0] {
            trial.add(Some(window(rate)), false);
            assert_eq!(judged(&trial), None);
        }
        for _ in 0..3 {
            trial.add(Some(window(9_900.0)), false);
        }
        let judged = judged(&trial).expect("enough was seen").expect("and before");
        assert!((judged.realised.mean - 0.1).abs() < 1e-9, "{judged:?}");
    }

    #[test]
    fn a_live_change_is_judged_by_turns_while_the_load_grows() {
        let judged = |trial: &Trial| trial.judged(&rates, (0, 1), &Bounds::default());
        // Clients ask for one percent more with each sample; the change gains a tenth.
        let mut growth = 1.0;
        let mut serve = |side: Side| {
            growth *= 1.01;
            let gain = if side == Side::New { 1.1 } else { 1.0 };
            window(9_000.0 * growth * gain)
        };
        let before: Vec<Window> = (0..6).map(|_| serve(Side::Old)).collect();
        let mut trial = Trial { before, ..trial(0) }.with_turns(Side::New, 0);
        let mut turned = 0;
        let judgement = loop {
            let window = serve(trial.present);
            trial.add(Some(window), false);
            if let Some(judgement) = judged(&trial) {
                break judgement.unwrap();
            }
            if let Some((side, _)) = trial.due() {
                assert_ne!(side, trial.present);
                trial.turned(side);
                turned += 1;
            }
            assert!(turned < 20, "it ends");
        };
        assert!((judgement.realised.mean - 0.1).abs() < 0.005, "{judgement:?}");
        assert_eq!((judgement.undo_reason, trial.present), (None, Side::New));
    }

    #[test]
    fn turns_end_early_if_the_change_harms_or_it_may_not_go_on() {
        let judged = |trial: &Trial| trial.judged(&rates, (0, 1), &Bounds::default());
        let times = [Some(40.0), None, None, None];
        let slow = Window { slowest: times, ..window(9_000.0) };
        let mut harmful = trial(6).with_turns(Side::Old, 0);
        (0..6).for_each(|_| harmful.add(Some(slow), false));
        let reason = judged(&harmful).unwrap().unwrap().undo_reason;
        assert_eq!(reason, Some(UndoReason::TailLatency));

        let mut held = trial(6).with_turns(Side::Old, 0);
        (0..8).for_each(|_| held.add(Some(window(9_900.0)), false));
        assert_eq!(judged(&held), None);
        held.end_turns();
        assert!((judged(&held).unwrap().unwrap().realised.mean - 0.1).abs() < 1e-9);
        // Clients who ask for nothing are not waited for without end.
        let mut idle = trial(6).with_turns(Side::Old, 0);
        (0..60).for_each(|_| idle.add(None, false));
        assert_eq!(judged(&idle), Some(None));
        assert!(trial(1).with_turns(Side::Old, 0).turns.is_none(), "too little from before");
    }

    #[test]
    fn one_that_never_settles_is_judged_all_the_same() {
        let mut trial = trial(6);
        for n in 0..20 {
            trial.add(Some(window(100.0 * 1.3_f64.powi(n))), false);
        }
        assert!(trial.judged(&rates, (0, 1), &Bounds::default()).is_some());
    }

    #[test]
    fn without_a_before_there_is_no_judgement() {
        let mut trial = trial(1);
        (0..9).for_each(|_| trial.add(Some(window(9_900.0)), false));
        assert_eq!(trial.judged(&rates, (0, 1), &Bounds::default()), Some(None));
    }

    #[test]
    fn a_change_after_which_nothing_is_asked_for_is_not_waited_for_without_end() {
        let mut trial = trial(6);
        (0..51).for_each(|_| trial.add(None, false));
        assert_eq!(trial.judged(&rates, (0, 1), &Bounds::default()), None);
        trial.add(None, false);
        assert_eq!(trial.judged(&rates, (0, 1), &Bounds::default()), Some(None));
    }

    #[test]
    fn a_change_in_a_quiet_time_is_judged_when_clients_ask_for_more() {
        let judged = |trial: &Trial| trial.judged(&rates, (0, 1), &Bounds::default());
        // An evening before it, and the noon before that.
        let before = [vec![window(3_000.0); 6], vec![window(9_000.0); 6]].concat();
        let begun = || Trial { before: before.clone(), quiet_max: Some(200), ..trial(0) };
        let mut trial = begun();
        (0..150).for_each(|_| trial.add(None, true));
        assert_eq!(judged(&trial), None);
        (0..8).for_each(|_| trial.add(Some(window(9_900.0)), false));
        let judgement = judged(&trial).expect("enough was seen").expect("and before");
        // Beside the noon alone.
        assert!((judgement.realised.mean - 0.1).abs() < 1e-9, "{judgement:?}");
        let mut trial = begun();
        (0..200).for_each(|_| trial.add(Some(window(500.0)), true));
        assert_eq!(judged(&trial), Some(None), "it is not waited for without end");
        let mut trial = begun();
        (0..8).for_each(|_| trial.add(Some(window(6_000.0)), false));
        assert_eq!(judged(&trial), Some(None), "nothing before it was like that");
    }

    #[test]
    fn one_that_is_judged_late_is_judged_beside_looks_of_like_load() {
        let judged = |mut trial: Trial, rate_s: f64| {
            (0..8).for_each(|_| trial.add(Some(window(rate_s)), false));
            trial.judged(&rates, (0, 1), &Bounds::default()).expect("enough was seen")
        };
        assert!(judged(trial(6).late(), 9_900.0).is_some());
        assert_eq!(
            judged(trial(6).late(), 20_000.0),
            None,
            "an hour later twice as much is asked for"
        );
        assert!(judged(trial(6), 20_000.0).is_some());
    }

    #[test]
    fn a_change_that_rewrites_all_data_is_judged_behind_that() {
        let mut trial = Trial { rewrites: 30, ..trial(6) };
        (0..30).for_each(|_| trial.add(Some(window(4_000.0)), false));
        (0..8).for_each(|_| trial.add(Some(window(9_900.0)), false));
        let judged = trial.judged(&rates, (0, 1), &Bounds::default()).unwrap().unwrap();
        assert!((judged.realised.mean - 0.1).abs() < 1e-9, "{judged:?}");
    }

    #[test]
    fn clients_who_are_served_little_because_they_wait_are_not_quiet() {
        let mut trial = Trial { quiet_max: Some(200), ..trial(6) };
        let times = [Some(40.0), None, None, None];
        let slow = Window { median: times, slowest: times, ..window(900.0) };
        (0..160).for_each(|_| trial.add(Some(slow), true));
        assert_eq!(trial.quiet, 0);
        // Another change is judged by all samples.
        let mut busy = self::trial(6);
        busy.add(Some(window(500.0)), true);
        assert_eq!((busy.quiet, busy.samples), (0, 1));
    }
}
