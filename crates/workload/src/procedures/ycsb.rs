//! YCSB's rows with the two transactions of MorphoSys (§7.2): read-modify-writes of three rows, and scans of 200 to
//! 1,000 rows in the order of their keys.
//!
//! A user has three adjacent rows, `user`, its number in eight digits, `:` and the number of the row, which a
//! read-modify-write increments together. In any snapshot the three have the same count. Popular users are adjacent,
//! by Zipf's law, or all users are accessed alike.

use std::collections::HashMap;

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

use super::{Access, Declared, Kind, Next, Part, Rows, contradiction, decode, encode};

/// Number of rows of a user.
const ROWS: u32 = 3;
/// Size of a row besides its count, in bytes.
const FILLER_BYTES: usize = 92;
/// Number of rows that a scan reads, before it is rounded up to whole users.
const SCANNED: std::ops::RangeInclusive<u32> = 200..=1_000;

/// Parameters of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Number of users, each with three rows; at least 1.
    pub users: u32,
    /// Share of the transactions that are scans, from 0 to 1.
    pub scans: f64,
    /// Exponent of Zipf's law for the accesses; 0 if all users are accessed alike.
    pub exponent: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { users: 100_000, scans: 0.5, exponent: 0.99 }
    }
}

/// A transaction: users by number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the benchmark's own names")]
pub enum Transaction {
    ReadModifyWrite { user: u32 },
    Scan { user: u32, users: u32 },
}

/// A row: the number of its increments, and a filler.
type Row = (u64, String);

fn key(user: u32, row: u32) -> String {
    format!("user{user:08}:{row}")
}

fn keys(user: u32) -> Vec<String> {
    (0..ROWS).map(|row| key(user, row)).collect()
}

fn row(count: u64) -> Row {
    (count, "x".repeat(FILLER_BYTES))
}

/// Returns the number of increments of a row with this value; `None` if the value is none of a row's.
#[must_use]
pub fn count(value: &[u8]) -> Option<u64> {
    decode::<Row>(value).map(|(count, _)| count)
}

/// A generator of transactions.
pub struct Drawing {
    parameters: Parameters,
    zipf: Zipf<f64>,
}

impl Drawing {
    /// Draws a transaction.
    pub fn draw(&self, rng: &mut StdRng) -> Transaction {
        let users = self.parameters.users;
        let user = (self.zipf.sample(rng) as u32 - 1).min(users - 1);
        if rng.random::<f64>() >= self.parameters.scans {
            return Transaction::ReadModifyWrite { user };
        }
        let many = rng.random_range(SCANNED).div_ceil(ROWS);
        Transaction::Scan { user, users: many.min(users - user) }
    }
}

impl Parameters {
    /// Returns a generator of transactions.
    ///
    /// # Panics
    /// Panics if the exponent is negative or no number, or if there are no users.
    #[must_use]
    pub fn drawing(&self) -> Drawing {
        let zipf = Zipf::new(f64::from(self.users), self.exponent);
        Drawing { parameters: *self, zipf: zipf.expect("users, and an exponent of Zipf's law") }
    }

    /// Returns all rows at the start: keys with their encoded values.
    pub fn fill(self) -> impl Iterator<Item = (String, Vec<u8>)> {
        let first = encode(&row(0));
        (0..self.users).flat_map(keys).map(move |key| (key, first.clone()))
    }
}

impl Transaction {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::ReadModifyWrite { .. } => Kind::ReadModifyWrite,
            Self::Scan { .. } => Kind::Scan,
        }
    }

    pub(super) fn next(&self) -> Next {
        let mut declared = Declared::default();
        match *self {
            Self::ReadModifyWrite { user } => declared.writes = keys(user),
            Self::Scan { user, users } => {
                let all = (user..user + users).flat_map(keys);
                declared.read_adjacent(key(user, 0), key(user + users, 0), all);
            }
        }
        Next::Run(declared)
    }

    /// Returns the new count of the user's rows, or the number of the rows that were scanned.
    pub(super) fn run<R: Rows>(&self, rows: &mut Access<'_, R>) -> Part<i64, R> {
        match *self {
            Self::ReadModifyWrite { user } => {
                let count = same_count(rows, user)? + 1;
                for key in keys(user) {
                    rows.put(&key, &row(count))?;
                }
                Ok(count as i64)
            }
            Self::Scan { user, users } => {
                let all: Vec<String> = (user..user + users).flat_map(keys).collect();
                let found = rows.find::<Row>(&all)?;
                for (keys, of_user) in all.chunks(ROWS as usize).zip(found.chunks(ROWS as usize)) {
                    let first = of_user[0].as_ref().map(|(count, _)| *count);
                    let is_torn =
                        |row: &Option<Row>| row.as_ref().map(|(count, _)| *count) != first;
                    if first.is_none() || of_user.iter().any(is_torn) {
                        return Err(contradiction(&keys[0]));
                    }
                }
                Ok(found.len() as i64)
            }
        }
    }
}

/// Reads a user's rows, which must have the same count, and returns it.
fn same_count<R: Rows>(rows: &mut Access<'_, R>, user: u32) -> Part<u64, R> {
    let keys = keys(user);
    let found = rows.find::<Row>(&keys)?;
    let counts: Vec<u64> = found.into_iter().flatten().map(|(count, _)| count).collect();
    match counts[..] {
        [first, ..] if counts.len() == keys.len() && counts.iter().all(|one| *one == first) => {
            Ok(first)
        }
        _ => Err(contradiction(&keys[0])),
    }
}

/// The check of the rows after a load: the rows of each user have the same count, and it includes every acknowledged
/// increment.
#[derive(Clone, Debug, Default)]
pub struct Check {
    /// Counts of the rows of each user.
    counts: HashMap<u32, Vec<u64>>,
    /// The highest count that was acknowledged for each user.
    acknowledged: HashMap<u32, u64>,
}

impl Check {
    /// Records an acknowledged transaction; `done` is the number that it returned.
    pub fn acknowledged(&mut self, transaction: &Transaction, done: i64) {
        if let Transaction::ReadModifyWrite { user } = transaction {
            let most = self.acknowledged.entry(*user).or_default();
            *most = (*most).max(u64::try_from(done).unwrap_or(0));
        }
    }

    /// Takes a row into the check.
    ///
    /// # Errors
    /// Returns what is wrong with a row that is none of the benchmark's.
    pub fn row(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        let user = key.strip_prefix("user").and_then(|rest| rest.get(..8)?.parse().ok());
        let (Some(user), Some((count, _))) = (user, decode::<Row>(value)) else {
            return Err(format!("the row {key} is none of YCSB's"));
        };
        self.counts.entry(user).or_default().push(count);
        Ok(())
    }

    /// Returns the contradictions between the rows, and between them and the acknowledged increments.
    #[must_use]
    pub fn contradictions(&self, parameters: &Parameters) -> Vec<String> {
        let mut found = Vec::new();
        if self.counts.len() != parameters.users as usize {
            found.push(format!("{} users, not {}", self.counts.len(), parameters.users));
        }
        for (user, counts) in &self.counts {
            if counts.len() != ROWS as usize || counts.iter().any(|count| *count != counts[0]) {
                found.push(format!("the rows of user {user} have the counts {counts:?}"));
            }
        }
        for (user, most) in &self.acknowledged {
            let count = self.counts.get(user).and_then(|counts| counts.iter().max()).unwrap_or(&0);
            if count < most {
                found.push(format!("user {user} counts {count}, and {most} was acknowledged"));
            }
        }
        found
    }
}
