//! The YCSB workload of MorphoSys (§7.2): read-modify-writes of three adjacent rows, and scans of 200 to 1,000 rows.
//! Few users are popular. They are adjacent, and their position may change during a load.
//!
//! Each user has three rows with adjacent keys, which are always written together. A row's value begins with the
//! number of times that the row was incremented, so that every reply can be checked. In any snapshot the three rows
//! of a user have the same count, and no session sees a count decrease.

use std::time::Duration;

use imago_store::key::{Key, KeyRange, Table};
use imago_store::transaction::{Abort, View};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use serde::Serialize;

/// Number of rows of a user.
pub const ROWS: u64 = 3;
/// Size of a row's value, in bytes.
const VALUE_BYTES: usize = 100;
/// Number of rows that a scan reads, before it is rounded up to whole users.
const SCANNED: std::ops::RangeInclusive<u64> = 200..=1_000;

/// The distribution of accesses over users.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Popularity {
    /// All users are accessed with the same probability.
    Uniform,
    /// The accesses follow Zipf's law with this exponent. The most popular users are adjacent.
    Zipf(f64),
}

/// Parameters of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Workload {
    /// Number of users; each has three rows.
    pub users: u64,
    /// Fraction of the transactions that are scans. The others read, modify and write the rows of one user.
    pub scans: f64,
    /// Distribution of the accesses over the users.
    pub popularity: Popularity,
    /// Interval between two moves of the most popular users, in seconds; `None` if they never move.
    pub shift_every_s: Option<f64>,
    /// Number of places that the most popular users visit in rotation; `None` if each move leads to a new place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub places: Option<u64>,
}

/// Returns the key of a row.
pub fn key(user: u64, row: u64) -> Key {
    Key::new(Table(0), format!("user{user:08}:{row}").as_bytes())
}

/// Returns the keys of a user's rows.
pub fn rows(user: u64) -> Vec<Key> {
    (0..ROWS).map(|row| key(user, row)).collect()
}

/// A transaction, and the users that it accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Increments the counts in the rows of this user.
    Count(u64),
    /// Reads the rows of consecutive users: the first user, and the number of users.
    Scan(u64, u64),
}

/// A generator of random transactions.
pub struct Drawing {
    workload: Workload,
    zipf: Option<Zipf<f64>>,
    rng: StdRng,
}

impl Workload {
    /// Returns a generator with this seed.
    #[must_use]
    pub fn drawing(self, seed: u64) -> Drawing {
        let zipf = match self.popularity {
            Popularity::Uniform => None,
            Popularity::Zipf(exponent) => {
                Some(Zipf::new(self.users as f64, exponent).expect("a population and an exponent"))
            }
        };
        Drawing { workload: self, zipf, rng: StdRng::seed_from_u64(seed) }
    }

    /// Returns the user that is the most popular one at time `after` since the start of the load. Without fixed
    /// places, each move advances by a fraction of the users that leads back to an earlier place only after many
    /// moves.
    #[must_use]
    pub fn most_popular(&self, after: Duration) -> u64 {
        let moves =
            self.shift_every_s.map_or(0.0, |every_s| (after.as_secs_f64() / every_s).floor());
        let of_users = match self.places {
            Some(places) => self.place(moves as u64 % places.max(1), places),
            None => (moves * 0.381_966).fract(),
        };
        (of_users * self.users as f64) as u64
    }

    /// Returns the position of a place as a fraction of the users. The places are evenly spaced from 0.1 to 1.
    pub(super) fn place(&self, number: u64, places: u64) -> f64 {
        0.1 + 0.9 * number as f64 / places.max(1) as f64
    }
}

impl Drawing {
    /// Returns the next transaction at time `after` since the start of the load.
    pub fn next(&mut self, after: Duration) -> Kind {
        let users = self.workload.users;
        let rank = match &self.zipf {
            None => self.rng.random_range(0..users),
            Some(zipf) => zipf.sample(&mut self.rng) as u64 - 1,
        };
        let user = (self.workload.most_popular(after) + rank) % users;
        if self.rng.random::<f64>() >= self.workload.scans {
            return Kind::Count(user);
        }
        let many = self.rng.random_range(SCANNED).div_ceil(ROWS);
        Kind::Scan(user, many.min(users - user))
    }
}

/// Returns the number of increments of a row, which is stored at the start of its value.
pub fn count(value: &[u8]) -> u64 {
    value.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

fn value(count: u64) -> Vec<u8> {
    let mut value = vec![b'x'; VALUE_BYTES];
    value[..8].copy_from_slice(&count.to_be_bytes());
    value
}

/// Reads, increments and writes a user's rows. The reply has the count of the first row before the increment, and the
/// number of rows whose count differed from it.
pub fn count_up(user: u64) -> impl FnMut(&mut View<'_>) -> Result<Vec<u8>, Abort> + Send {
    let keys = rows(user);
    move |view| {
        let before: Vec<u64> = view
            .get_each(&keys)?
            .iter()
            .map(|seen| seen.as_ref().map_or(0, |seen| count(&seen.value)))
            .collect();
        for (key, before) in keys.iter().zip(&before) {
            view.put(key, value(before + 1).into())?;
        }
        Ok(answer(before[0], before.iter().filter(|one| **one != before[0]).count() as u64))
    }
}

/// Writes a user's rows for the first time, with a count of 0.
pub fn fill(user: u64) -> impl FnMut(&mut View<'_>) -> Result<Vec<u8>, Abort> + Send {
    let keys = rows(user);
    move |view| {
        keys.iter().try_for_each(|key| view.put(key, value(0).into()))?;
        Ok(Vec::new())
    }
}

/// Returns the key range of a scan.
pub fn scanned(user: u64, users: u64) -> KeyRange {
    KeyRange { start: key(user, 0), end: Some(key(user + users, 0)) }
}

/// Reads the rows of consecutive users. The reply has the number of rows, and the number of users whose rows have
/// different counts.
pub fn scan(user: u64, users: u64) -> impl FnMut(&mut View<'_>) -> Result<Vec<u8>, Abort> + Send {
    let range = scanned(user, users);
    move |view| {
        let mut counts: Vec<u64> = Vec::with_capacity((users * ROWS) as usize);
        view.visit(&range, &mut |_, value| counts.push(count(value)))?;
        let torn = counts.chunks(ROWS as usize).filter(|of| of.iter().any(|one| *one != of[0]));
        Ok(answer(counts.len() as u64, torn.count() as u64))
    }
}

/// Reads a user's rows. The reply has the least count of the rows, and the number of rows whose count differs from
/// it.
pub fn look(user: u64) -> impl FnMut(&mut View<'_>) -> Result<Vec<u8>, Abort> + Send {
    let keys = rows(user);
    move |view| {
        let counts = view.get_each(&keys)?;
        let counts: Vec<u64> =
            counts.iter().map(|seen| seen.as_ref().map_or(0, |seen| count(&seen.value))).collect();
        let least = counts.iter().copied().min().unwrap_or(0);
        Ok(answer(least, counts.iter().filter(|one| **one != least).count() as u64))
    }
}

fn answer(first: u64, second: u64) -> Vec<u8> {
    [first.to_be_bytes(), second.to_be_bytes()].concat()
}

/// Decodes the two numbers of a reply; `None` if the reply is too short.
pub fn answered(bytes: &[u8]) -> Option<(u64, u64)> {
    let (first, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*first), u64::from_be_bytes(*rest.first_chunk()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_popular_users_are_neighbours_and_move() {
        let workload = Workload {
            users: 40_000,
            scans: 0.5,
            popularity: Popularity::Zipf(0.99),
            shift_every_s: Some(60.0),
            places: None,
        };
        let mut drawing = workload.drawing(7);
        for moved in 0..3_u64 {
            let after = Duration::from_secs(60 * moved + 5);
            let center = workload.most_popular(after);
            let near = |kind: Kind| {
                let (Kind::Count(user) | Kind::Scan(user, _)) = kind;
                (user + workload.users - center) % workload.users < 400
            };
            let hits = (0..10_000).filter(|_| near(drawing.next(after))).count();
            assert!((5_000..7_500).contains(&hits), "{hits} of 10000 after {moved} moves");
        }
        let in_turn = Workload { places: Some(2), ..workload };
        let at = |s| in_turn.most_popular(Duration::from_secs(s));
        assert_eq!((at(5), at(65), at(125), at(185)), (4_000, 22_000, 4_000, 22_000));
        assert_ne!(
            workload.most_popular(Duration::from_secs(59)),
            workload.most_popular(Duration::from_secs(61))
        );
    }
}
