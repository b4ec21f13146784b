//! A cell: one shape of the servers with one cache size; and the measurements of a chain in a cell.

use serde::{Deserialize, Serialize};

use super::usage::Usage;

/// The members of a shard that serve reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// The primary only.
    Primary,
    /// All members.
    Nearest,
}

/// The process that looks up keys in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheAt {
    /// The job itself.
    Worker,
    /// A proxy between the job and the router.
    Router,
}

/// One shape of the servers, with one cache size and read preference.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// Share of the documents on each shard, in percent; one entry for each shard.
    pub shares: Vec<u32>,
    /// Number of members of each shard.
    pub members: u32,
    /// Size limit of the cache, in bytes; 0 without a cache.
    pub cache_bytes: u64,
    /// The process that looks up keys in the cache.
    pub cache_at: CacheAt,
    /// The members of a shard that serve reads.
    pub reads: Reads,
}

impl Cell {
    /// Returns the number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shares.len()
    }

    /// Returns the same cell with irrelevant settings at their defaults: the location of a cache of 0 bytes, and the
    /// read preference of shards with one member.
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

    /// Returns true if all shards have the same share of the documents, to within 1 % that the division leaves.
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

/// Measurements of one phase of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// Time of the phase, in seconds.
    pub seconds: f64,
    /// Number of keys that were fetched.
    pub keys: u64,
    /// Number of those keys that the cache had. With a cache at the router, the last phase has the hits of the whole
    /// chain.
    pub hits: u64,
}

/// Measurements of one run of a chain in a cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// The cell in which the chain ran.
    pub cell: Cell,
    /// Number of the run within its cell, from 0 on.
    pub run: u32,
    /// The phases in their order. The first phases of a long chain are the same as a shorter chain.
    pub phases: Vec<Phase>,
    /// Memory that the cache uses at the end in addition to an empty cache, in bytes; 0 without a cache, and on
    /// existing servers, where it is not measured.
    pub cache_bytes: u64,
    /// Resource use of the members with data; empty if they were not observed.
    pub members: Vec<Usage>,
    /// SHA-256 of the keys after the last phase; it must be the same in all cells.
    pub result_sha256: String,
    /// Reason why CPU limits of the members were unavailable; None if the limits were in force.
    pub unshared: Option<String>,
}

impl Run {
    /// Returns the time of a chain of `length` phases, in seconds.
    #[must_use]
    pub fn job_s(&self, length: usize) -> f64 {
        self.phases.iter().take(length).map(|phase| phase.seconds).sum()
    }

    /// Returns the hits of a chain of `length` phases, as a share of the keys that it fetches.
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
