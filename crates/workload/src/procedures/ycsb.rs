//! YCSB's rows with the two transactions of MorphoSys (§7.2): read-modify-writes of three rows, and scans of 200 to
//! 1,000 rows in the order of their keys.
//!
//! A user has adjacent rows, `user`, its number in eight digits, `:` and the number of the row, which a
//! read-modify-write increments together: three, so that it concerns one user; or one, if it concerns several users. In
//! any snapshot the rows of a user have the same count. Popular users are adjacent, by Zipf's law, or all users are
//! accessed alike. The further users of a read-modify-write are neighbours of the first.

use std::collections::{BTreeSet, HashMap};

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

use super::{Access, Declared, Kind, Next, Part, Rows, contradiction, decode, encode};

/// Largest distance of the further users of a read-modify-write from its first user.
const NEIGHBOURS: u32 = 300;
/// Size of a row besides its count, in bytes.
const FILLER_BYTES: usize = 92;
/// Number of rows that a scan reads, before it is rounded up to whole users.
const SCANNED: std::ops::RangeInclusive<u32> = 200..=1_000;

/// Parameters of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Number of users; at least 1.
    pub users: u32,
    /// Number of rows of a user; at least 1.
    pub rows: u32,
    /// Number of users besides the first whose rows a read-modify-write increments. They are among the 300 before or
    /// behind it.
    pub partners: u32,
    /// Share of the transactions that are scans, from 0 to 1.
    pub scans: f64,
    /// Exponent of Zipf's law for the accesses; 0 if all users are accessed alike.
    pub exponent: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { users: 100_000, rows: 3, partners: 0, scans: 0.5, exponent: 0.99 }
    }
}

/// A transaction: users by number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the benchmark's own names")]
pub enum Transaction {
    /// Increments the rows of these users, of which each has `rows`.
    ReadModifyWrite { users: Vec<u32>, rows: u32 },
    /// Reads the rows of `users` users from `user` on, of which each has `rows`.
    Scan { user: u32, users: u32, rows: u32 },
}

/// A row: the number of its increments, and a filler.
type Row = (u64, String);

fn key(user: u32, row: u32) -> String {
    format!("user{user:08}:{row}")
}

fn keys(user: u32, rows: u32) -> impl Iterator<Item = String> {
    (0..rows).map(move |row| key(user, row))
}

fn row(count: u64) -> Row {
    (count, "x".repeat(FILLER_BYTES))
}

/// Returns the number of increments of a row with this value; `None` if the value is none of a row's.
#[must_use]
pub fn count(value: &[u8]) -> Option<u64> {
    let ((count, _), rest) = postcard::take_from_bytes::<(u64, &str)>(value).ok()?;
    rest.is_empty().then_some(count)
}

/// A generator of transactions.
pub struct Drawing {
    parameters: Parameters,
    zipf: Zipf<f64>,
}

impl Drawing {
    /// Draws a transaction.
    pub fn draw(&self, rng: &mut StdRng) -> Transaction {
        let Parameters { users, rows, partners, .. } = self.parameters;
        let user = (self.zipf.sample(rng) as u32 - 1).min(users - 1);
        if rng.random::<f64>() >= self.parameters.scans {
            let (least, most) = (user.saturating_sub(NEIGHBOURS), user + NEIGHBOURS);
            let partner = |_| rng.random_range(least..=most.min(users - 1));
            let others: BTreeSet<u32> = (0..partners).map(partner).collect();
            let others = others.into_iter().filter(|other| *other != user);
            let all = [user].into_iter().chain(others).collect();
            return Transaction::ReadModifyWrite { users: all, rows };
        }
        let many = rng.random_range(SCANNED).div_ceil(rows);
        Transaction::Scan { user, users: many.min(users - user), rows }
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
        let keys = move |user| keys(user, self.rows);
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
        match self {
            Self::ReadModifyWrite { users, rows } => {
                declared.writes = users.iter().flat_map(|user| keys(*user, *rows)).collect();
            }
            &Self::Scan { user, users, rows } => {
                let all = (user..user + users).flat_map(|user| keys(user, rows));
                declared.read_adjacent(key(user, 0), key(user + users, 0), all);
            }
        }
        Next::Run(declared)
    }

    /// Returns the new count of the first user's rows, or the number of the rows that were scanned.
    pub(super) fn run<R: Rows>(&self, rows: &mut Access<'_, R>) -> Part<i64, R> {
        match self {
            Self::ReadModifyWrite { users, rows: of_each } => {
                let all: Vec<String> =
                    users.iter().flat_map(|user| keys(*user, *of_each)).collect();
                let found = rows.find::<Row>(&all)?;
                let mut first = None;
                let of_each = *of_each as usize;
                for (keys, of_user) in all.chunks(of_each).zip(found.chunks(of_each)) {
                    let count = same_count(of_user).ok_or_else(|| contradiction(&keys[0]))? + 1;
                    first.get_or_insert(count);
                    for key in keys {
                        rows.put(key, &row(count))?;
                    }
                }
                Ok(first.unwrap_or(0) as i64)
            }
            &Self::Scan { user, users, rows: of_each } => {
                // The rows come in the order of users, and each user's count is that of its first row.
                let (start, end) = (key(user, 0), key(user + users, 0));
                let all = || (user..user + users).flat_map(|user| keys(user, of_each)).collect();
                let (mut many, mut of_user, mut torn) = (0, None, None);
                rows.visit(&start, &end, &all, &mut |key, value| {
                    if many % of_each == 0 {
                        of_user = count(value);
                    }
                    if of_user.is_none() || count(value) != of_user {
                        torn.get_or_insert_with(|| key.to_owned());
                    }
                    many += 1;
                })?;
                match torn {
                    Some(key) => Err(contradiction(&key)),
                    None if many != users * of_each => Err(contradiction(&start)),
                    None => Ok(many.into()),
                }
            }
        }
    }
}

/// Returns the count that all rows of a user have; `None` if one is missing or has another.
fn same_count(rows: &[Option<Row>]) -> Option<u64> {
    let mut counts = rows.iter().map(|row| row.as_ref().map(|(count, _)| *count));
    let first = counts.next()??;
    counts.all(|count| count == Some(first)).then_some(first)
}

/// The check of the rows after a load: the rows of each user have the same count, and it includes every acknowledged
/// increment.
#[derive(Clone, Debug, Default)]
pub struct Check {
    /// Counts of the rows of each user.
    counts: HashMap<u32, Vec<u64>>,
    /// The highest count that was acknowledged for each user that was the first of a transaction.
    acknowledged: HashMap<u32, u64>,
    /// Number of acknowledged increments of each user.
    increments: HashMap<u32, u64>,
}

impl Check {
    /// Records an acknowledged transaction; `done` is the number that it returned.
    pub fn acknowledged(&mut self, transaction: &Transaction, done: i64) {
        if let Transaction::ReadModifyWrite { users, .. } = transaction {
            let most = self.acknowledged.entry(users[0]).or_default();
            *most = (*most).max(u64::try_from(done).unwrap_or(0));
            users.iter().for_each(|user| *self.increments.entry(*user).or_default() += 1);
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
            if counts.len() != parameters.rows as usize
                || counts.iter().any(|count| *count != counts[0])
            {
                found.push(format!("the rows of user {user} have the counts {counts:?}"));
            }
        }
        for (user, most) in self.acknowledged.iter().chain(&self.increments) {
            let count = self.counts.get(user).and_then(|counts| counts.iter().max()).unwrap_or(&0);
            if count < most {
                found.push(format!("user {user} counts {count}, and {most} was acknowledged"));
            }
        }
        found
    }
}
