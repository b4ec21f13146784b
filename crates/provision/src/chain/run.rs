//! A whole chain in one process: the same maps and reduces, in memory, with the time of each phase.
//!
//! The keys of a phase are sorted by their text as bytes, as between the two separate programs. The chain reads the
//! same keys as map and reduce, in differently composed batches, and ends with the same keys. Memory is bounded by the
//! keys of the first phase ([`KEYS_MAX`]): no later phase has more.

use std::io::BufRead as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt as _, stream};
use imago_workload::scatter::Permutation;
use serde::Serialize;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::cache::CacheUsage;
use super::draw::{Keys, Next};
use super::error::{Error, Result};
use super::fetch::{Counts, Fetched, Fetcher};
use super::key::Key;
use super::map::{Batch, Missing, Options, ordered};
use super::{Job, merkle};

/// Maximum number of keys in the first phase of a chain in one process.
pub const KEYS_MAX: u64 = 20_000_000;

/// The keys of a chain's first phase.
#[derive(Clone, Debug)]
pub enum Start {
    /// Distinct keys, drawn at random from all keys; for a Merkle tree, the first keys.
    Drawn {
        /// Number of keys to draw.
        count: u64,
        /// Seed of the random draw; a Merkle tree ignores it.
        seed: u64,
    },
    /// The keys are those of this list.
    Listed(Vec<Key>),
}

impl Start {
    /// Reads keys from a file, one per line.
    ///
    /// # Errors
    /// The file cannot be read, a line is not a key, or it has more than [`KEYS_MAX`] keys.
    pub fn read(path: &Path) -> Result<Self> {
        let failed = |cause| Error::Read { what: path.display().to_string(), cause };
        let file = std::fs::File::open(path).map_err(failed)?;
        let mut keys = Vec::new();
        for (line, text) in (1..).zip(std::io::BufReader::new(file).lines()) {
            let text = text.map_err(failed)?;
            let key = Key::parse(text.trim_end_matches('\t'));
            keys.push(key.map_err(|problem| Error::Input { line, problem })?);
            if line > KEYS_MAX {
                return Err(too_many(line));
            }
        }
        Ok(Self::Listed(keys))
    }

    /// Draws `count` distinct ranks of `keys` at random by `seed`, and returns them in the order in which they are
    /// read: by the text of their keys.
    ///
    /// # Errors
    /// `count` exceeds the number of keys, or [`KEYS_MAX`].
    pub fn drawn(keys: &Keys, count: u64, seed: u64) -> Result<Vec<u64>> {
        if count > KEYS_MAX {
            return Err(too_many(count));
        }
        let all = keys.count();
        if count > all {
            return Err(Error::Usage(format!("{count} keys cannot be drawn from {all}")));
        }
        let drawn = Permutation::new(all, seed);
        let mut ranks: Vec<u64> = (0..count).map(|index| drawn.at(index)).collect();
        sort(keys, &mut ranks);
        Ok(ranks)
    }
}

/// Makes the error for `count` keys, which are more than [`KEYS_MAX`].
fn too_many(count: u64) -> Error {
    Error::Usage(format!("{count} keys: a chain in one process begins with at most {KEYS_MAX}"))
}

/// The settings of a chain.
#[derive(Clone, Debug)]
pub struct Chain {
    /// The computation that each phase runs on its documents.
    pub job: Job,
    /// The rule that draws the next keys, with the list of all keys; a Merkle tree uses the list alone.
    pub next: Next,
    /// Number of phases, each a map and a reduce; a Merkle tree ignores it, since its number of phases follows from
    /// its number of leaves.
    pub length: u32,
    /// The keys of the first phase, or their draw.
    pub start: Start,
    /// Options of the map of each phase.
    pub map: Options,
}

/// A callback for each key that is read, in order. Its arguments are the phase, from 0 on, the key, and the size of its
/// document in bytes; `None` if there is no document.
pub type Observer = dyn Fn(u32, &Key, Option<u32>) + Send + Sync;

/// The counts and times of one phase of a chain: a map, a sort and a reduce.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Phase {
    /// Number of the phase in the chain, from 1 on.
    pub phase: u32,
    /// Counts of the reads of the phase's map.
    #[serde(flatten)]
    pub read: Counts,
    /// Number of distinct keys after the phase's reduce; for a Merkle tree, the number of nodes of the next level.
    pub unique: u64,
    /// Time of the phase's map, in seconds: fetching and hashing, which overlap.
    pub map_s: f64,
    /// Time of sorting the map's output, in seconds.
    pub sort_s: f64,
    /// Time of the phase's reduce, in seconds.
    pub reduce_s: f64,
}

/// The outcome of a chain that has ended.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The computation that each phase ran on its documents.
    pub job: Job,
    /// The collection that was read, as `database.collection`.
    pub namespace: String,
    /// Maximum number of keys in a batch.
    pub batch: usize,
    /// Number of batches that were in flight at once.
    pub workers: usize,
    /// True if the chain read through a cache.
    pub is_cached: bool,
    /// Description of the failure after which the cache was not used; `None` if it did not fail, or there was no
    /// cache.
    pub cache_failure: Option<String>,
    /// Statistics of the cache's server at the end of the chain; `None` without a cache or after its failure.
    pub cache: Option<CacheUsage>,
    /// Time from the chain's start to its end, in seconds.
    pub seconds: f64,
    /// Counts of the reads of all phases together.
    #[serde(flatten)]
    pub read: Counts,
    /// The counts and times of each phase, in order.
    pub phases: Vec<Phase>,
    /// Number of distinct keys in the result of the last phase; 1 for a Merkle tree.
    pub result_keys: u64,
    /// SHA-256 of the result's lines in hexadecimal, equal to `sha256sum` of the output of the programs map and
    /// reduce.
    pub result_sha256: String,
    /// Root of the Merkle tree, in hexadecimal; `None` for another job.
    pub root: Option<String>,
}

/// Runs all phases of a chain in this process. `observer` is called for each key that is read; cancelling `cancel`
/// ends the chain with [`Error::Interrupted`].
///
/// # Errors
/// As [`super::map::map`].
#[crate::boxed]
pub async fn run(
    chain: &Chain,
    fetcher: &Fetcher,
    observer: Option<Arc<Observer>>,
    cancel: &CancellationToken,
) -> Result<Report> {
    let began = Instant::now();
    let mut state = Running { chain, fetcher, observer, cancel, phases: Vec::new() };
    let (result_keys, digest, root) = match chain.job {
        Job::Merkle => state.tree().await?,
        Job::Hash | Job::Zipf => state.draws().await?,
    };
    let seconds = began.elapsed().as_secs_f64();
    let mut read = Counts::default();
    state.phases.iter().for_each(|phase| read += phase.read);
    let held = match fetcher.cache() {
        Some(cache) => cache.usage().await?,
        None => None,
    };
    Ok(Report {
        job: chain.job,
        namespace: fetcher.source().namespace().to_string(),
        batch: chain.map.batch,
        workers: chain.map.workers,
        is_cached: fetcher.cache().is_some(),
        cache_failure: fetcher.cache().and_then(|cache| cache.failure()).map(str::to_owned),
        cache: held,
        seconds,
        read,
        phases: state.phases,
        result_keys,
        result_sha256: digest,
        root,
    })
}

/// The keys that one phase reads.
enum PhaseKeys {
    /// The keys themselves, as they were given for the first phase.
    Listed(Vec<Key>),
    /// Ranks of the keys in the list of all keys.
    Ranks(Vec<u64>),
}

impl PhaseKeys {
    fn len(&self) -> usize {
        match self {
            Self::Listed(keys) => keys.len(),
            Self::Ranks(ranks) => ranks.len(),
        }
    }

    /// Makes a batch of the keys at the indexes `places`; `keys` are all keys of the collection, by rank.
    fn batch(&self, keys: &Keys, places: impl Iterator<Item = usize>) -> Batch {
        let keys = match self {
            Self::Listed(given) => places.map(|at| given[at].clone()).collect(),
            Self::Ranks(ranks) => places.map(|at| keys.key(ranks[at])).collect(),
        };
        Batch { keys, indexes: Vec::new() }
    }
}

/// Divides the indexes of `len` keys into batches of at most `size`. A Merkle tree needs its leaves in order. Other
/// keys are dealt out to the batches in turn: if `_id`s are split into ranges, consecutive keys are on one shard, and
/// all batches in flight would read from that shard while the others are idle.
fn places(
    job: Job,
    len: usize,
    size: usize,
) -> impl Iterator<Item = std::iter::StepBy<std::ops::Range<usize>>> {
    let (size, batches) = (size.max(1), len.div_ceil(size.max(1)));
    (0..batches).map(move |batch| match job {
        Job::Merkle => (batch * size..len.min((batch + 1) * size)).step_by(1),
        Job::Hash | Job::Zipf => (batch..len).step_by(batches),
    })
}

/// The state of a chain that is running.
struct Running<'a> {
    /// The settings of the chain.
    chain: &'a Chain,
    fetcher: &'a Fetcher,
    /// The callback for each key that is read; `None` if the reads are not observed.
    observer: Option<Arc<Observer>>,
    cancel: &'a CancellationToken,
    /// The counts and times of the phases that have ended.
    phases: Vec<Phase>,
}

impl Running<'_> {
    /// Returns the keys of the chain's first phase, which are drawn if they were not given.
    fn start(&self) -> Result<PhaseKeys> {
        let keys = self.chain.next.keys();
        Ok(match (&self.chain.start, self.chain.job) {
            (Start::Listed(given), _) => PhaseKeys::Listed(given.clone()),
            (Start::Drawn { count, .. }, Job::Merkle) => {
                if *count > KEYS_MAX.min(keys.count()) {
                    return Err(Error::Usage(format!(
                        "a tree of {count} leaves: there are not so many keys"
                    )));
                }
                PhaseKeys::Ranks((0..*count).collect())
            }
            (Start::Drawn { count, seed }, _) => {
                PhaseKeys::Ranks(Start::drawn(keys, *count, *seed)?)
            }
        })
    }

    /// Fetches the documents of `keys` by one map. Returns the result of `make` for each existing document, in order,
    /// and the phase's counts and time.
    async fn map<T: Send + 'static>(
        &mut self,
        keys: PhaseKeys,
        make: impl Fn(&[u8]) -> T + Send + Sync + 'static,
    ) -> Result<(Vec<T>, Phase)> {
        let began = Instant::now();
        let (all, size) = (self.chain.next.keys(), self.chain.map.batch);
        let places = places(self.chain.job, keys.len(), size);
        let batches = stream::iter(places.map(|places| Ok(keys.batch(all, places))));
        let is_observed = self.observer.is_some();
        let make = move |batch: &Batch, fetched: &Fetched| {
            let documents = || (0..batch.keys.len()).map(|at| fetched.document(at));
            let made: Vec<T> = documents().flatten().map(&make).collect();
            let seen: Option<Vec<(Key, Option<u32>)>> = is_observed.then(|| {
                let bytes =
                    documents().map(|one| one.and_then(|one| u32::try_from(one.len()).ok()));
                batch.keys.iter().cloned().zip(bytes).collect()
            });
            (made, seen)
        };
        let mut phase = Phase { phase: self.phases.len() as u32 + 1, ..Phase::default() };
        let fetcher = self.fetcher.in_phase(phase.phase - 1);
        let mut results = Vec::new();
        let mut ended = std::pin::pin!(ordered(batches, &fetcher, &self.chain.map, make));
        loop {
            let next = tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(Error::Interrupted),
                next = ended.next() => next,
            };
            let Some(next) = next else { break };
            let ((made, seen), read) = next?;
            results.extend(made);
            phase.read += read;
            if let Some(observer) = &self.observer {
                seen.iter()
                    .flatten()
                    .for_each(|(key, bytes)| observer(phase.phase - 1, key, *bytes));
            }
        }
        phase.map_s = began.elapsed().as_secs_f64();
        Ok((results, phase))
    }

    /// Runs the phases of a chain that draws its next keys. Returns the number of keys in the result, the SHA-256 of
    /// its lines in hexadecimal, and `None` for the root of a tree.
    async fn draws(&mut self) -> Result<(u64, String, Option<String>)> {
        let mut keys = self.start()?;
        let all = self.chain.next.keys().clone();
        for _ in 0..self.chain.length {
            let next = self.chain.next.clone();
            let (mut ranks, mut phase) =
                self.map(keys, move |document| next.rank(document)).await?;
            let began = Instant::now();
            sort(&all, &mut ranks);
            phase.sort_s = began.elapsed().as_secs_f64();
            let began = Instant::now();
            ranks.dedup_by(|one, other| all.is_same(*one, *other));
            phase.reduce_s = began.elapsed().as_secs_f64();
            phase.unique = ranks.len() as u64;
            self.phases.push(phase);
            keys = PhaseKeys::Ranks(ranks);
        }
        let mut digest = Sha256::new();
        let mut line = Vec::new();
        let PhaseKeys::Ranks(ranks) = &keys else {
            return Err(Error::Usage("a chain has at least one phase".into()));
        };
        for rank in ranks {
            line.clear();
            all.write(*rank, &mut line);
            line.push(b'\n');
            digest.update(&line);
        }
        Ok((ranks.len() as u64, merkle::hex(&digest.finalize().into()), None))
    }

    /// Computes a Merkle tree. Returns 1 for the number of keys, the SHA-256 of the result's line in hexadecimal, and
    /// the tree's root in hexadecimal.
    async fn tree(&mut self) -> Result<(u64, String, Option<String>)> {
        if self.chain.map.missing == Missing::Skipped {
            let what = "a tree has no place for a missing document: leave out --missing skip";
            return Err(Error::Usage(what.into()));
        }
        let keys = self.start()?;
        if keys.len() == 0 {
            return Err(Error::Usage("a tree has at least one leaf".into()));
        }
        let (mut level, mut phase) = self.map(keys, merkle::leaf).await?;
        loop {
            let began = Instant::now();
            level = merkle::combine(&level);
            phase.reduce_s = began.elapsed().as_secs_f64();
            phase.unique = level.len() as u64;
            let number = phase.phase + 1;
            self.phases.push(phase);
            if level.len() == 1 {
                break;
            }
            phase = Phase { phase: number, ..Phase::default() };
        }
        let mut line = Vec::new();
        merkle::write_node(0, &level[0], &mut line);
        let digest = Sha256::digest(&line).into();
        Ok((1, merkle::hex(&digest), Some(merkle::hex(&level[0]))))
    }
}

/// Sorts ranks by the text of their keys in `keys`, as bytes.
fn sort(keys: &Keys, ranks: &mut [u64]) {
    match keys {
        Keys::Numbers(_) => ranks.sort_unstable_by_key(|rank| as_text(*rank)),
        Keys::Listed(listed) => {
            let text = |rank: &u64| usize::try_from(*rank).ok().and_then(|at| listed.get(at));
            ranks.sort_unstable_by(|one, other| text(one).cmp(&text(other)));
        }
    }
}

/// Returns a sort key that orders numbers as the bytes of their decimal texts: first by the digits aligned to the left,
/// then by length.
fn as_text(number: u64) -> (u128, u32) {
    let digits = number.checked_ilog10().map_or(1, |log| log + 1);
    (u128::from(number) * 10_u128.pow(20 - digits), digits)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_sorted_as_their_texts(numbers: Vec<u64>, small in prop::collection::vec(0_u64..2_000, 0..50)) {
            let mut numbers: Vec<u64> = numbers.into_iter().chain(small).collect();
            let mut texts: Vec<String> = numbers.iter().map(u64::to_string).collect();
            texts.sort();
            sort(&Keys::Numbers(u64::MAX), &mut numbers);
            let sorted: Vec<String> = numbers.iter().map(u64::to_string).collect();
            prop_assert_eq!(sorted, texts);
        }
    }

    #[test]
    fn batches_have_each_key_once_and_reach_over_all_of_them() {
        for (len, size) in [(0, 512), (1, 512), (512, 512), (20_000, 512), (20_001, 64)] {
            for job in [Job::Hash, Job::Merkle] {
                let batches: Vec<Vec<usize>> =
                    places(job, len, size).map(Iterator::collect).collect();
                assert!(batches.iter().all(|batch| (1..=size).contains(&batch.len())));
                let mut all = batches.concat();
                if job == Job::Hash {
                    all.sort_unstable();
                }
                assert!(all.into_iter().eq(0..len), "{job} {len} {size}");
            }
        }
        let first = places(Job::Hash, 20_000, 512).next().unwrap();
        assert!(first.max() > Some(19_900), "a batch reaches to the last shard");
    }

    #[test]
    fn keys_that_are_drawn_are_different() {
        let mut drawn = Start::drawn(&Keys::Numbers(5_000), 4_000, 7).unwrap();
        drawn.sort_unstable();
        drawn.dedup();
        assert_eq!(drawn.len(), 4_000);
        assert!(Start::drawn(&Keys::Numbers(5), 6, 7).is_err());
    }
}
