//! The shape of a cluster for a chained job, and where its keys lie.
//!
//! Invariant: shares of a number of shards are that many, none is negative, and they sum up to 1.

use std::collections::BTreeMap;
use std::fmt;

/// What is provisioned. Ordered by shards, replicas, cache and its place, reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Shards.
    pub shards: u32,
    /// Members of each shard.
    pub replicas: u32,
    /// Bytes that the cache may use; 0: there is no cache.
    pub cache_bytes: u64,
    /// Where the cache is.
    pub cache_at: CacheAt,
    /// Which members are read.
    pub reads: Reads,
}

/// Which members of a shard are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reads {
    /// The primary only.
    #[default]
    Primary,
    /// Each member equally often.
    Nearest,
}

/// Where the cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheAt {
    /// Beside the workers, which ask it themselves.
    #[default]
    Worker,
    /// Beside the router: workers ask a proxy there, which asks the cache and the router.
    Router,
}

impl Shape {
    /// Members of each shard that are read.
    #[must_use]
    pub fn read_members(self) -> u32 {
        match self.reads {
            Reads::Primary => 1,
            Reads::Nearest => self.replicas,
        }
    }

    /// Members of all shards.
    #[must_use]
    pub fn members(self) -> u32 {
        self.shards * self.replicas
    }

    /// The same shape with what makes no difference at its default: where a cache is that does not exist, and which of one
    /// member is read.
    #[must_use]
    pub fn canonical(mut self) -> Self {
        if self.cache_bytes == 0 {
            self.cache_at = CacheAt::default();
        }
        if self.replicas == 1 {
            self.reads = Reads::default();
        }
        self
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", counted(self.shards, "shard"))?;
        if self.replicas > 1 {
            let reads = match self.reads {
                Reads::Primary => "primary",
                Reads::Nearest => "nearest",
            };
            write!(f, " of {} members (reads by {reads})", self.replicas)?;
        }
        match (self.cache_bytes, self.cache_at) {
            (0, _) => write!(f, ", no cache"),
            (bytes, CacheAt::Worker) => write!(f, ", a cache of {} at the workers", size(bytes)),
            (bytes, CacheAt::Router) => write!(f, ", a cache of {} at the router", size(bytes)),
        }
    }
}

/// A number and its noun.
pub(super) fn counted(number: u32, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Bytes, in the unit that leaves at most three digits before the point.
pub(super) fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, bits)| bytes >= 1 << bits);
    let Some((unit, bits)) = unit else { return format!("{bytes} B") };
    let number = bytes as f64 / f64::from(1_u32 << bits);
    let text = format!("{number:.1}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// A station that a batch passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Station {
    /// The workers' processors.
    Client,
    /// The cache's.
    Cache,
    /// The router's; with the proxy's if the cache is at the router.
    Router,
    /// Those of a shard's members, by the shard's number from 0.
    Shard(u32),
    /// No processor: round trips, and the few batches that are in flight at once.
    Workers,
}

impl fmt::Display for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client => write!(f, "the client's processors"),
            Self::Cache => write!(f, "the cache's processor"),
            Self::Router => write!(f, "the router's processors"),
            Self::Shard(number) => write!(f, "the processors of shard {}", number + 1),
            Self::Workers => write!(f, "the number of workers"),
        }
    }
}

/// The share of keys that each shard has, for each number of shards: as it is known, else even.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    known: BTreeMap<u32, Vec<f64>>,
}

/// Why shares are none.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SharesError {
    /// There are none.
    #[error("there are no shares: give one for each shard")]
    Empty,
    /// One is negative, or no number.
    #[error("a share is {0}: each must be 0 or more")]
    Negative(f64),
    /// The sum is another.
    #[error("the shares sum up to {0} %, not to 100 %")]
    Sum(f64),
}

impl Shares {
    /// All even.
    #[must_use]
    pub fn even() -> Self {
        Self::default()
    }

    /// With these shares, in percent, for as many shards as they are. They may miss 100 by 0.5 for each, as rounded ones do.
    ///
    /// # Errors
    /// If they do not sum up to 100, or one is negative.
    pub fn with_percent(mut self, percent: &[f64]) -> Result<Self, SharesError> {
        let number = u32::try_from(percent.len()).ok().filter(|number| *number > 0);
        let number = number.ok_or(SharesError::Empty)?;
        if let Some(bad) = percent.iter().find(|share| !(share.is_finite() && **share >= 0.0)) {
            return Err(SharesError::Negative(*bad));
        }
        let sum: f64 = percent.iter().sum();
        if (sum - 100.0).abs() > 0.5 * f64::from(number).min(4.0) || sum <= 0.0 {
            return Err(SharesError::Sum(sum));
        }
        self.known.insert(number, percent.iter().map(|share| share / sum).collect());
        Ok(self)
    }

    /// The shares of so many shards, which sum up to 1.
    #[must_use]
    pub fn of(&self, shards: u32) -> Vec<f64> {
        let even = || vec![1.0 / f64::from(shards); shards as usize];
        self.known.get(&shards).cloned().unwrap_or_else(even)
    }

    /// True if the shares of so many shards are all the same.
    #[must_use]
    pub fn is_even(&self, shards: u32) -> bool {
        let even = 1.0 / f64::from(shards);
        self.of(shards).iter().all(|share| (share - even).abs() < 1e-9)
    }
}
