//! The shape of a cluster for a chained job, and the distribution of its keys over the shards.
//!
//! Invariant: there is one share per shard, no share is negative, and the shares sum up to 1.

use std::collections::BTreeMap;
use std::fmt;

/// The shape of a cluster: its provisioned servers and cache. Shapes are ordered by shards, replicas, storage cache, cache
/// size and location, and reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Shape {
    /// Number of shards of the cluster.
    pub shards: u32,
    /// Number of members of each shard's replica set, the primary included.
    pub replicas: u32,
    /// Size of the storage cache of each member of a shard (`wiredTigerCacheSizeGB`), in bytes; `None`: as large as its
    /// documents and indexes, so that no page is read from disk.
    pub storage_bytes: Option<u64>,
    /// Size of the cache, in bytes; 0: there is no cache.
    pub cache_bytes: u64,
    /// Location of the cache; without a cache it has no effect.
    pub cache_at: CacheAt,
    /// Read preference: the members of each shard that are read.
    pub reads: Reads,
}

/// Read preference: the members of a shard that are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reads {
    /// Only the primary is read.
    #[default]
    Primary,
    /// Each member is read equally often.
    Nearest,
}

/// The location of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheAt {
    /// The cache is at the workers, which send their lookups to it.
    #[default]
    Worker,
    /// The cache is at the router: workers send their lookups to a proxy there, which queries the cache and the router.
    Router,
}

impl Shape {
    /// Returns the number of members of each shard that are read.
    #[must_use]
    pub fn read_members(self) -> u32 {
        match self.reads {
            Reads::Primary => 1,
            Reads::Nearest => self.replicas,
        }
    }

    /// Returns the number of members of all shards together.
    #[must_use]
    pub fn members(self) -> u32 {
        self.shards * self.replicas
    }

    /// Returns the same shape with irrelevant dimensions at their defaults: the location of a cache of 0 bytes, and the
    /// read preference of shards with one member.
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
        if let Some(bytes) = self.storage_bytes {
            write!(f, " with {} of storage cache each", size(bytes))?;
        }
        match (self.cache_bytes, self.cache_at) {
            (0, _) => write!(f, ", no cache"),
            (bytes, CacheAt::Worker) => write!(f, ", a cache of {} at the workers", size(bytes)),
            (bytes, CacheAt::Router) => write!(f, ", a cache of {} at the router", size(bytes)),
        }
    }
}

/// Formats a number with its noun, which is in the singular for 1.
pub(super) fn counted(number: u32, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Formats a number of bytes in the greatest unit of which there is at least one.
pub(super) fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, bits)| bytes >= 1 << bits);
    let Some((unit, bits)) = unit else { return format!("{bytes} B") };
    let number = bytes as f64 / f64::from(1_u32 << bits);
    let text = format!("{number:.1}");
    format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// A station that a batch of keys passes: a set of processors, or a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Station {
    /// The workers' processors.
    Client,
    /// The cache's processor.
    Cache,
    /// The router's processors, shared with the proxy if the cache is at the router.
    Router,
    /// The processors of a shard's members; the field is the shard's number, from 0.
    Shard(u32),
    /// No processor: time is bounded by round trips and the limited number of batches in flight.
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

/// Share of the keys on each shard, for each number of shards: the known shares, or else even ones.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares {
    known: BTreeMap<u32, Vec<f64>>,
}

/// A reason why the given shares of keys are invalid.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SharesError {
    /// The list of shares is empty.
    #[error("there are no shares: give one for each shard")]
    Empty,
    /// A share is negative or not finite; the field is the share, in percent.
    #[error("a share is {0}: each must be 0 or more")]
    Negative(f64),
    /// The shares do not sum up to 100 percent; the field is their sum.
    #[error("the shares sum up to {0} %, not to 100 %")]
    Sum(f64),
}

impl Shares {
    /// Returns shares that are even for every number of shards.
    #[must_use]
    pub fn even() -> Self {
        Self::default()
    }

    /// Sets the shares of the keys on each shard, in percent, for the number of shards that equals the number of
    /// shares. Their sum may differ from 100 by 0.5 for each share (at most by 2), as that of rounded shares does.
    ///
    /// # Errors
    /// The shares do not sum up to 100, or one is negative.
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

    /// Returns the share of the keys on each of `shards` shards; the shares sum up to 1.
    #[must_use]
    pub fn of(&self, shards: u32) -> Vec<f64> {
        let even = || vec![1.0 / f64::from(shards); shards as usize];
        self.known.get(&shards).cloned().unwrap_or_else(even)
    }

    /// Returns true if each of `shards` shards has the same share of the keys.
    #[must_use]
    pub fn is_even(&self, shards: u32) -> bool {
        let even = 1.0 / f64::from(shards);
        self.of(shards).iter().all(|share| (share - even).abs() < 1e-9)
    }
}
