//! EVAL runs a program in Lua at the transaction's site, inside the transaction's procedure, over the keys that the
//! request names.
//!
//! The rows of a script must be known before it runs, so KEYS is binding: a command on another key is an error. All
//! of KEYS count as written; for EVAL_RO they count as read only. As in Redis, the writes that a script made before
//! it failed remain; only a script that exceeds a limit is rolled back as a whole.
//!
//! Each run has its own Lua machine ([`machine`]), so that no script sees state of another. The texts are
//! stored by their SHA-1, for EVALSHA, in a table that all connections share and that evicts the oldest
//! texts.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use sha1::{Digest, Sha1};

use super::Settings;
use super::answer::Answer;
use super::keys::{count_keys, key};
use super::parse::Arguments;
use super::session::Call;
use crate::key::{Key, Table};

mod library;
pub(super) mod machine;
mod meter;
mod raise;
mod value;

/// Limits of the table of scripts: the number of texts, their total size in bytes, and the size of one text in bytes.
const SCRIPTS_MAX: usize = 10_000;
const SCRIPTS_BYTES_MAX: usize = 64 * 1024 * 1024;
const SCRIPT_BYTES_MAX: usize = 1024 * 1024;

const UNKNOWN: &str = "NOSCRIPT No matching script. Please use EVAL.";

/// Limits that all scripts of one transaction share, except for the memory, which is limited per script.
#[derive(Clone)]
pub struct ScriptLimits {
    /// Maximum memory of one script's Lua machine, in bytes, including KEYS, ARGV and the values that were read.
    pub memory_bytes_max: usize,
    /// Maximum number of Lua instructions that the scripts of one transaction run together.
    pub steps_max: u64,
    /// Maximum time from the start of a transaction's first script until the end of its last one, in ms of
    /// `clock_ms`.
    pub time_ms_max: u64,
    /// A clock that returns the present time in ms; without one only instructions are counted, and one instruction
    /// may take long.
    pub clock_ms: Option<Arc<dyn Fn() -> u64 + Send + Sync>>,
}

impl Default for ScriptLimits {
    fn default() -> Self {
        let memory_bytes_max = 16 * 1024 * 1024;
        Self { memory_bytes_max, steps_max: 10_000_000, time_ms_max: 50, clock_ms: None }
    }
}

/// The SHA-1 of a script's text.
type Hash = [u8; 20];

/// The texts of scripts by their hashes, and the seeds for the random numbers of each run; shared by all connections.
#[derive(Default)]
pub struct Scripts {
    known: Mutex<Known>,
    seeds: RandomState,
    runs: AtomicU64,
}

/// The table of scripts.
#[derive(Default)]
struct Known {
    /// Total length of the texts, in bytes.
    bytes: usize,
    texts: BTreeMap<Hash, Arc<[u8]>>,
    /// The hashes of the texts in the order in which they were stored, the oldest first.
    order: VecDeque<Hash>,
}

impl Scripts {
    /// Stores a text under its hash, and returns the stored text. The oldest texts are evicted if the table is full.
    fn keep(&self, hash: Hash, text: &[u8]) -> Arc<[u8]> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = known.texts.get(&hash) {
            return Arc::clone(text);
        }
        let text: Arc<[u8]> = text.into();
        known.bytes += text.len();
        known.texts.insert(hash, Arc::clone(&text));
        known.order.push_back(hash);
        while known.order.len() > SCRIPTS_MAX || known.bytes > SCRIPTS_BYTES_MAX {
            let Some(oldest) = known.order.pop_front() else { break };
            known.bytes -= known.texts.remove(&oldest).map_or(0, |text| text.len());
        }
        text
    }

    fn get(&self, hash: &Hash) -> Option<Arc<[u8]>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.texts.get(hash).cloned()
    }

    /// Returns a seed of 32 bits for the random numbers of one run of a script, which differs between runs.
    fn seed(&self) -> u64 {
        self.seeds.hash_one(self.runs.fetch_add(1, Ordering::Relaxed)) >> 32
    }

    fn forget(&self) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Known::default();
    }
}

/// A client's request to run a script, with the script's text.
#[derive(Serialize, Deserialize)]
pub(super) struct Script {
    #[serde(with = "crate::record::value")]
    text: Arc<[u8]>,
    hash: Hash,
    table: Table,
    /// The keys that the script may use, KEYS, sorted and without duplicates.
    keys: Vec<Key>,
    /// The names in KEYS, in the order of the request.
    names: Vec<Vec<u8>>,
    /// The texts in ARGV.
    arguments: Vec<Vec<u8>>,
    is_read_only: bool,
    /// The seed of the script's random numbers, the same wherever the request is run.
    seed: u64,
    /// The settings of the process that runs the script.
    #[serde(skip)]
    pub settings: Arc<Settings>,
}

impl Script {
    /// Adds the script's keys to `reads` if the script is read only, else to `writes`.
    pub fn declare(&self, reads: &mut Vec<Key>, writes: &mut Vec<Key>) {
        let keys = if self.is_read_only { reads } else { writes };
        keys.extend_from_slice(&self.keys);
    }
}

fn hash_of(text: &[u8]) -> Hash {
    Sha1::digest(text).into()
}

fn hex(hash: &[u8]) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(digits: &[u8]) -> Option<Hash> {
    let digits = std::str::from_utf8(digits).ok().filter(|it| it.is_ascii() && it.len() == 40)?;
    let mut hash = Hash::default();
    for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).ok()?;
    }
    Some(hash)
}

fn check(text: &[u8]) -> Result<(), Answer> {
    if text.len() > SCRIPT_BYTES_MAX {
        let text = format!("ERR a script is too long: at most {SCRIPT_BYTES_MAX} bytes");
        return Err(Answer::error(text));
    }
    if text.starts_with(b"#!") {
        let text =
            "ERR a script that begins with '#!' is not supported by Imago: there are no flags";
        return Err(Answer::error(text));
    }
    Ok(())
}

/// The type of a function that parses a request to run a script in a database.
pub(super) type Understand = fn(&Arguments<'_>, Table, &Arc<Settings>) -> Eval;

pub(super) fn eval(arguments: &Arguments<'_>, table: Table, settings: &Arc<Settings>) -> Eval {
    by_text(arguments, table, settings, false)
}

pub(super) fn eval_ro(arguments: &Arguments<'_>, table: Table, settings: &Arc<Settings>) -> Eval {
    by_text(arguments, table, settings, true)
}

pub(super) fn eval_sha(arguments: &Arguments<'_>, table: Table, settings: &Arc<Settings>) -> Eval {
    by_hash(arguments, table, settings, false)
}

pub(super) fn eval_sha_ro(
    arguments: &Arguments<'_>,
    table: Table,
    settings: &Arc<Settings>,
) -> Eval {
    by_hash(arguments, table, settings, true)
}

type Eval = Result<Script, Answer>;

fn by_text(
    arguments: &Arguments<'_>,
    table: Table,
    settings: &Arc<Settings>,
    is_read_only: bool,
) -> Eval {
    let count = count_keys(arguments, 2)?;
    let (hash, text) = learn(arguments.at(1), settings)?;
    understood(arguments, table, settings, (text, hash, count, is_read_only))
}

/// Stores a script's text in the table if it compiles, and returns its hash and the stored text.
fn learn(text: &[u8], settings: &Settings) -> Result<(Hash, Arc<[u8]>), Answer> {
    let hash = hash_of(text);
    if let Some(known) = settings.scripts.get(&hash) {
        return Ok((hash, known));
    }
    check(text)?;
    machine::compile(text, &settings.script_limits)?;
    Ok((hash, settings.scripts.keep(hash, text)))
}

fn by_hash(
    arguments: &Arguments<'_>,
    table: Table,
    settings: &Arc<Settings>,
    is_read_only: bool,
) -> Eval {
    let unknown = || Answer::error(UNKNOWN);
    if arguments.at(1).len() != 40 {
        return Err(unknown());
    }
    let count = count_keys(arguments, 2)?;
    let hash = from_hex(arguments.at(1)).ok_or_else(unknown)?;
    let text = settings.scripts.get(&hash).ok_or_else(unknown)?;
    understood(arguments, table, settings, (text, hash, count, is_read_only))
}

fn understood(
    arguments: &Arguments<'_>,
    table: Table,
    settings: &Arc<Settings>,
    (text, hash, count, is_read_only): (Arc<[u8]>, Hash, usize, bool),
) -> Eval {
    let names: Vec<_> = arguments.from(3).take(count).map(<[u8]>::to_vec).collect();
    let mut keys = names.iter().map(|name| key(table, name)).collect::<Result<Vec<_>, _>>()?;
    keys.sort_unstable();
    keys.dedup();
    let arguments = arguments.from(3 + count).map(<[u8]>::to_vec).collect();
    let settings = Arc::clone(settings);
    let seed = settings.scripts.seed();
    Ok(Script { text, hash, table, keys, names, arguments, is_read_only, seed, settings })
}

pub(super) fn load(Call { arguments, settings, .. }: Call<'_>) -> Result<Answer, Answer> {
    let (hash, _) = learn(arguments.at(2), settings)?;
    Ok(Answer::bulk(hex(&hash)))
}

pub(super) fn exists(Call { arguments, settings, .. }: Call<'_>) -> Result<Answer, Answer> {
    let is_known = |hash: Hash| settings.scripts.get(&hash).is_some();
    let known = arguments.from(2).map(|digits| from_hex(digits).is_some_and(is_known));
    Ok(Answer::Array(known.map(|known| Answer::Integer(known.into())).collect()))
}

pub(super) fn flush(Call { arguments, settings, .. }: Call<'_>) -> Result<Answer, Answer> {
    let is_right = match arguments.len() {
        2 => true,
        3 => arguments.is(2, "SYNC") || arguments.is(2, "ASYNC"),
        _ => false,
    };
    if !is_right {
        return Err(Answer::error("ERR SCRIPT FLUSH only support SYNC|ASYNC option"));
    }
    settings.scripts.forget();
    Ok(Answer::OK)
}
