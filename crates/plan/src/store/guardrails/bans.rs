//! The reasons for which an operator is held back, one by one, and the bans, which a caller persists and restores.

use super::{Guardrails, REMEMBERED_MAX};
use crate::store::layout::{Key, Layout, Operator};

impl<K: Key> Guardrails<K> {
    /// Returns why an operator is banned at `now_ms`: it made the latency worse before. `None` if it is not banned.
    #[must_use]
    pub fn ban(&self, operator: &Operator<K>, now_ms: u64) -> Option<String> {
        let (until_ms, times) = self.banned.get(operator).filter(|(until, _)| *until > now_ms)?;
        let left_s = (until_ms - now_ms).div_ceil(1_000);
        Some(format!("it made things worse {times} times: tried again in {left_s} s"))
    }

    /// Returns why an operator has to wait: one of its partitions was changed just before, or it would reverse a recent
    /// change. `None` if it need not wait.
    #[must_use]
    pub fn cool_down(
        &self,
        layout: &Layout<K>,
        operator: &Operator<K>,
        now_ms: u64,
    ) -> Option<String> {
        let reversed_ms = self.reversals.age_ms(layout, operator, now_ms);
        if let Some(age_ms) = reversed_ms.filter(|age_ms| *age_ms < self.limits.reversal_ms) {
            let age_s = age_ms as f64 / 1_000.0;
            return Some(format!("it would take back what was done {age_s:.1} s ago"));
        }
        let start = layout.of(operator.key()).0;
        let next = matches!(operator, Operator::Merge(_)).then(|| layout.next(start)).flatten();
        let starts = std::iter::once(start).chain(next.map(|(next, _)| next));
        let last_ms = starts.filter_map(|start| self.changed_ms.get(start)).max()?;
        let age_ms = now_ms.saturating_sub(*last_ms);
        (age_ms < self.limits.cool_down_ms)
            .then(|| format!("the partition was changed {:.1} s ago", age_ms as f64 / 1_000.0))
    }

    /// Returns each operator that made the latency worse, with the end of its ban in ms of the planner's clock, and
    /// how often it made the latency worse.
    pub fn bans(&self) -> impl Iterator<Item = (&Operator<K>, u64, u32)> {
        self.banned.iter().map(|(operator, (until_ms, times))| (operator, *until_ms, *times))
    }

    /// Restores a persisted ban: its operator, its end in ms of the planner's clock, and how often the operator made
    /// the latency worse.
    pub fn restore_ban(&mut self, operator: Operator<K>, until_ms: u64, times: u32) {
        if self.banned.len() < REMEMBERED_MAX {
            self.banned.insert(operator, (until_ms, times));
        }
    }

    /// Replaces the limits of the guardrails, from now on.
    pub fn limit(&mut self, limits: super::Limits) {
        self.limits = limits;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::guardrails::Limits;

    #[test]
    fn a_restored_ban_holds_until_its_time() {
        let mut guardrails: Guardrails<u8> = Guardrails::new(Limits::default());
        guardrails.restore_ban(Operator::Split(3), 5_000, 2);
        assert_eq!(guardrails.bans().collect::<Vec<_>>(), [(&Operator::Split(3), 5_000, 2)]);
        let why = guardrails.ban(&Operator::Split(3), 4_000).unwrap();
        assert_eq!(why, "it made things worse 2 times: tried again in 1 s");
        assert_eq!(guardrails.ban(&Operator::Split(3), 5_000), None);
    }
}
