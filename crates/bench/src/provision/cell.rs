//! A cell: one shape of the servers, one size of the cache, and what a chain took there.

use serde::{Deserialize, Serialize};

use super::usage::Usage;

/// Which members of a shard answer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// The primary alone.
    Primary,
    /// All of them.
    Nearest,
}

/// Where the cache is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheAt {
    /// By the job.
    Worker,
    /// By a proxy in front of the router.
    Router,
}

/// One cell.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// The share of the documents on each shard, in percent; as many as there are shards.
    pub shares: Vec<u32>,
    /// Members of each shard.
    pub members: u32,
    /// The limit of the cache in bytes; 0 without a cache.
    pub cache_bytes: u64,
    /// Where the cache is asked.
    pub cache_at: CacheAt,
    /// Which members answer reads.
    pub reads: Reads,
}

impl Cell {
    /// Shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shares.len()
    }

    /// The same cell with what makes no difference at its default: where a cache is that there is not, and which of one
    /// member is read.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        if self.cache_bytes == 0 {
            self.cache_at = CacheAt::Worker;
        }
        if self.members == 1 {
            self.reads = Reads::Primary;
        }
        self
    }

    /// True if all shards have as much as each other, but for what does not divide.
    #[must_use]
    pub fn is_even(&self) -> bool {
        let (least, most) = (self.shares.iter().min(), self.shares.iter().max());
        least.zip(most).is_some_and(|(least, most)| most - least <= 1)
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        let (shards, members) = (self.shards(), self.members as usize);
        write!(f, "{shards} shard{} of {members} member{}", plural(shards), plural(members))?;
        if !self.is_even() {
            let shares: Vec<String> = self.shares.iter().map(u32::to_string).collect();
            write!(f, " ({} %)", shares.join("/"))?;
        }
        match self.cache_bytes {
            0 => f.write_str(", no cache")?,
            bytes => write!(f, ", a cache of {:.1} MB", bytes as f64 / 1e6)?,
        }
        if self.cache_at == CacheAt::Router {
            f.write_str(" at the router")?;
        }
        if self.reads == Reads::Nearest {
            f.write_str(", reads by all members")?;
        }
        Ok(())
    }
}

/// One phase of a chain, as it was measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Seconds.
    pub seconds: f64,
    /// Keys that were fetched.
    pub keys: u64,
    /// Of these, keys that the cache had.
    pub hits: u64,
}

/// One run of a chain in a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The cell.
    pub cell: Cell,
    /// The number of the run.
    pub run: u32,
    /// The phases. A shorter chain is the beginning of a longer one.
    pub phases: Vec<Phase>,
    /// Bytes in the cache at the end, without what an empty cache takes.
    pub cache_bytes: u64,
    /// The members with data.
    pub members: Vec<Usage>,
    /// The SHA-256 of the last keys, which is the same in all cells.
    pub result_sha256: String,
    /// Why members were not held to their shares of the processors, if they were not.
    pub unshared: Option<String>,
}

impl Run {
    /// Seconds of a chain of this length.
    #[must_use]
    pub fn job_s(&self, length: usize) -> f64 {
        self.phases.iter().take(length).map(|phase| phase.seconds).sum()
    }

    /// The hits of a chain of this length, as a share of its keys.
    #[must_use]
    pub fn hit_ratio(&self, length: usize) -> f64 {
        let sum = |of: fn(&Phase) -> u64| -> u64 { self.phases.iter().take(length).map(of).sum() };
        sum(|phase| phase.hits) as f64 / sum(|phase| phase.keys).max(1) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_said_in_words() {
        let cell = Cell {
            shares: vec![44, 56],
            members: 1,
            cache_bytes: 17_000_000,
            cache_at: CacheAt::Router,
            reads: Reads::Nearest,
        };
        assert_eq!(
            cell.to_string(),
            "2 shards of 1 member (44/56 %), a cache of 17.0 MB at the router, reads by all members"
        );
        let even = Cell { shares: vec![33, 33, 34], cache_bytes: 0, ..cell };
        assert!(even.is_even() && even.to_string().starts_with("3 shards of 1 member, no cache"));
    }

    #[test]
    fn a_shorter_chain_is_the_beginning_of_a_longer_one() {
        let phase = |seconds: f64, hits: u64| Phase { seconds, keys: 1_000, hits };
        let cell = Cell {
            shares: vec![100],
            members: 1,
            cache_bytes: 0,
            cache_at: CacheAt::Worker,
            reads: Reads::Primary,
        };
        let phases = vec![phase(1.5, 0), phase(1.0, 200), phase(0.5, 400)];
        let run = Run {
            cell,
            run: 0,
            phases,
            cache_bytes: 0,
            members: Vec::new(),
            result_sha256: String::new(),
            unshared: None,
        };
        assert_eq!((run.job_s(1), run.job_s(2), run.job_s(8)), (1.5, 2.5, 3.0));
        assert!((run.hit_ratio(2) - 0.1).abs() < 1e-12);
    }
}
