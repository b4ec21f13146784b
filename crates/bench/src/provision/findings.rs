//! The conclusions of the paper (Wong and others, §5.3 and §7), each checked against the measurements.
//!
//! A claim compares pairs of cells. It is confirmed if most pairs show it beyond their confidence intervals and no
//! pair shows the opposite; otherwise it is not confirmed. The evidence of a finding has the number of pairs for and
//! against the claim.

use serde::Serialize;

use super::cell::{CacheAt, Reads};
use super::summary::{Mean, Summary};

/// Result of the check of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Most pairs show the claim beyond their confidence intervals, and no pair shows the opposite.
    Confirmed,
    /// At most half of the pairs show the claim, or a pair shows the opposite.
    NotConfirmed,
    /// No pair of cells was measured that the claim compares.
    NotTold,
}

/// A claim of the paper, with the result of its check.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The claim, in short.
    pub claim: &'static str,
    /// Section of the paper with the claim.
    pub section: &'static str,
    /// Result of the check.
    pub verdict: Verdict,
    /// Number of pairs for and against the claim, in words.
    pub evidence: String,
}

/// Number of pairs in which the first value is less than the second beyond the confidence intervals, in which it is
/// more, and in which the intervals overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pairs {
    less: usize,
    more: usize,
    even: usize,
}

impl Pairs {
    fn add(&mut self, one: Mean, other: Mean) {
        if one.is_less_than(other) {
            self.less += 1;
        } else if other.is_less_than(one) {
            self.more += 1;
        } else {
            self.even += 1;
        }
    }

    /// Returns [`Verdict::Confirmed`] if the first value is less in most pairs, and more in none.
    fn verdict(self) -> Verdict {
        match self {
            Self { less: 0, more: 0, even: 0 } => Verdict::NotTold,
            Self { less, more: 0, even } if less > even => Verdict::Confirmed,
            _ => Verdict::NotConfirmed,
        }
    }

    fn said(self, less: &str, more: &str) -> String {
        let all = self.less + self.more + self.even;
        format!("{} of {all} pairs {less} beyond their intervals, {} {more}", self.less, self.more)
    }
}

/// Checks all claims of the paper; a claim without measured pairs is [`Verdict::NotTold`].
#[must_use]
pub fn findings(cells: &[Summary]) -> Vec<Finding> {
    let plain = |cell: &&Summary| {
        cell.cell.is_even()
            && cell.cell.cache_at == CacheAt::Worker
            && cell.cell.reads == Reads::Primary
    };
    let plain: Vec<&Summary> = cells.iter().filter(plain).collect();
    let longest = plain.iter().map(|cell| cell.length).max().unwrap_or(0);
    let like = |one: &Summary, other: &Summary| {
        one.length == other.length && one.cell.members == other.cell.members
    };
    let pairs = |of: &dyn Fn(&Summary, &Summary) -> bool, value: fn(&Summary) -> Option<Mean>| {
        let mut found = Pairs::default();
        for one in &plain {
            for other in plain.iter().filter(|other| of(one, other)) {
                if let (Some(one), Some(other)) = (value(one), value(other)) {
                    found.add(one, other);
                }
            }
        }
        found
    };
    let same_shards = |one: &Summary, other: &Summary| {
        like(one, other) && one.cell.shards() == other.cell.shards()
    };
    let cached = |is_long: bool| {
        move |one: &Summary, other: &Summary| {
            same_shards(one, other)
                && (one.length > 1) == is_long
                && one.cell.cache_bytes > 0
                && other.cell.cache_bytes == 0
        }
    };
    let smaller = |one: &Summary, other: &Summary| {
        same_shards(one, other)
            && one.length == longest
            && 0 < one.cell.cache_bytes
            && one.cell.cache_bytes < other.cell.cache_bytes
    };
    let more_shards = |one: &Summary, other: &Summary| {
        like(one, other)
            && one.length == longest
            && one.cell.cache_bytes == other.cell.cache_bytes
            && one.cell.shards() > other.cell.shards()
    };
    let more_members = |one: &Summary, other: &Summary| {
        one.length == longest
            && one.length == other.length
            && one.cell.shards() == other.cell.shards()
            && one.cell.cache_bytes == other.cell.cache_bytes
            && one.cell.members > other.cell.members
    };
    let finding = |claim, section, found: Pairs, less: &str, more: &str| Finding {
        claim,
        section,
        verdict: found.verdict(),
        evidence: found.said(less, more),
    };
    vec![
        finding(
            "chains of two phases and more are quicker with a cache",
            "§5.3",
            pairs(&cached(true), |cell| Some(cell.job_s)),
            "are quicker with a cache",
            "are slower",
        ),
        finding(
            "a chain of one phase is quicker with a cache (the paper saw no clear relation)",
            "§5.3",
            pairs(&cached(false), |cell| Some(cell.job_s)),
            "are quicker with a cache",
            "are slower",
        ),
        finding(
            "a smaller cache is quicker than a larger one",
            "§5.3",
            pairs(&smaller, |cell| Some(cell.job_s)),
            "are quicker with the smaller cache",
            "are slower",
        ),
        finding(
            "more shards shorten the job",
            "§5.3, Fig. 4",
            pairs(&more_shards, |cell| Some(cell.job_s)),
            "are quicker with more shards",
            "are slower",
        ),
        finding(
            "with more shards each node's processor is less busy",
            "§5.3, Fig. 4",
            pairs(&more_shards, |cell| cell.cpu_mean),
            "are less busy with more shards",
            "are busier",
        ),
        finding(
            "one shard takes the least memory of all nodes together",
            "§5.3, Fig. 4",
            pairs(&|one, other| more_shards(other, one), |cell| cell.memory_all),
            "take less with fewer shards",
            "take more",
        ),
        finding(
            "a cache lowers the processor time of a database node",
            "§5.3, Fig. 3",
            pairs(&|one, other| cached(true)(one, other) && one.length == longest, |cell| {
                cell.cpu_mean
            }),
            "are less busy with a cache",
            "are busier",
        ),
        finding(
            "a cache lowers the memory of the database nodes",
            "§5.3",
            pairs(&|one, other| cached(true)(one, other) && one.length == longest, |cell| {
                cell.memory_all
            }),
            "take less memory with a cache",
            "take more",
        ),
        finding(
            "replicas shorten the job (here with reads by primaries, which the paper used)",
            "§7",
            pairs(&more_members, |cell| Some(cell.job_s)),
            "are quicker with more members",
            "are slower",
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::cell::Cell;
    use super::*;

    fn summary(shards: usize, cache_bytes: u64, seconds: f64) -> Summary {
        let mean = |mean: f64| Mean { mean, interval: Some(0.1) };
        let some = |of: f64| Some(mean(of));
        let cell = Cell {
            shares: vec![100 / shards as u32; shards],
            members: 1,
            cache_bytes,
            cache_at: CacheAt::Worker,
            reads: Reads::Primary,
        };
        Summary {
            cell,
            length: 8,
            runs: 3,
            job_s: mean(seconds),
            hit_ratio: 0.1,
            hits: 16_000.0,
            cached_bytes: Some(4e6),
            cpu_mean: some(0.15),
            cpu_max: some(0.15),
            memory_mean: some(2e8),
            memory_max: some(2e8),
            memory_all: some(2e8 * shards as f64),
        }
    }

    #[test]
    fn claims_are_judged_by_what_was_measured() {
        let cells = [
            summary(1, 0, 12.0),
            summary(1, 4_000_000, 11.0),
            summary(1, 32_000_000, 11.05),
            summary(2, 0, 7.0),
            summary(2, 4_000_000, 6.5),
            summary(2, 32_000_000, 6.45),
        ];
        let found = findings(&cells);
        let verdict =
            |part: &str| found.iter().find(|finding| finding.claim.contains(part)).unwrap().verdict;
        assert_eq!(verdict("two phases and more"), Verdict::Confirmed);
        assert_eq!(verdict("a chain of one phase"), Verdict::NotTold);
        assert_eq!(verdict("smaller cache"), Verdict::NotConfirmed);
        assert_eq!(verdict("more shards shorten"), Verdict::Confirmed);
        assert_eq!(verdict("processor is less busy"), Verdict::NotConfirmed);
        assert_eq!(verdict("least memory"), Verdict::Confirmed);
        assert_eq!(verdict("replicas shorten"), Verdict::NotTold);
    }
}
