//! A change that is being judged: the looks before it and behind it.

use imago_plan::tune::judge::{Bounds, Judgement, WINDOWS_MIN, Window, judge};
use imago_plan::tune::planner::Rates;
use imago_plan::tune::sampling::is_warm;

use super::event::Change;

/// Looks behind a change that are passed over at most while throughput rises: a JVM compiles, caches fill.
const WARM_MAX: usize = 12;
/// Looks behind a change that are waited for at most, as a multiple of those that it is judged by.
const LOOKS_MAX: usize = 10;
/// Quiet looks behind a change that are waited for at most: a day of looks of twenty seconds.
const QUIET_MAX: usize = 4_320;

/// See the module's documentation.
pub(super) struct Trial {
    pub(super) change: Change,
    before: Vec<Window>,
    /// What was served while throughput still rose.
    rising: Vec<f64>,
    is_warm: bool,
    after: Vec<Window>,
    /// Looks that it is judged by.
    judged_by: usize,
    /// Looks since the change, also those of which nothing is told, but for quiet ones.
    looks: usize,
    /// Looks in which clients asked for too little to tell anything.
    quiet: usize,
}

impl Trial {
    pub(super) fn new(change: Change, before: Vec<Window>, judged_by: usize) -> Self {
        let judged_by = judged_by.max(WINDOWS_MIN);
        let (rising, after) = (Vec::new(), Vec::new());
        Self { change, before, rising, is_warm: false, after, judged_by, looks: 0, quiet: 0 }
    }

    /// Adds a look behind the change; nothing where clients asked for nothing, or too little (then it is quiet), or a node was
    /// missed.
    pub(super) fn add(&mut self, window: Option<Window>, is_quiet: bool) {
        if is_quiet {
            self.quiet += 1;
            return;
        }
        self.looks += 1;
        let Some(window) = window else { return };
        if !self.is_warm {
            self.rising.push(window.rate_s);
            self.is_warm = is_warm(&self.rising) || self.rising.len() >= WARM_MAX;
            return;
        }
        self.after.push(window);
    }

    /// Judges the change: none while too little was seen since; a judgement of none if too little was seen before, or
    /// nothing for so long that it is no longer waited for.
    pub(super) fn judged(
        &self,
        rates: &Rates<'_>,
        numbers: (usize, usize),
        bounds: &Bounds,
    ) -> Option<Option<Judgement>> {
        let is_waited_for =
            self.looks < WARM_MAX + LOOKS_MAX * self.judged_by && self.quiet < QUIET_MAX;
        if self.after.len() < self.judged_by && is_waited_for {
            return None;
        }
        Some(judge(&self.before, &self.after, rates, numbers, bounds))
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
        Trial::new(change, vec![window(9_000.0); before], 4)
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
    fn a_change_in_a_quiet_time_is_judged_when_clients_ask_for_more_within_a_day() {
        let judged = |trial: &Trial| trial.judged(&rates, (0, 1), &Bounds::default());
        let mut trial = trial(6);
        (0..3_000).for_each(|_| trial.add(None, true));
        assert_eq!(judged(&trial), None);
        (0..8).for_each(|_| trial.add(Some(window(9_900.0)), false));
        assert!(judged(&trial).is_some_and(|judgement| judgement.is_some()));
        let mut trial = self::trial(6);
        (0..4_320).for_each(|_| trial.add(None, true));
        assert_eq!(judged(&trial), Some(None), "it is not waited for without end");
    }
}
