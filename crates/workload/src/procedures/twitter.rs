//! A social network after OLTP-Bench's Twitter (Difallah et al., PVLDB 7, 2013): users, their tweets, and who follows
//! whom.
//!
//! The shares are chosen for the 89 % reads of MorphoSys §7.2, whose paper does not list them: 45 % GetUserTweets,
//! 20 % GetTweetsFromFollowing, 12 % GetTweet, 12 % GetFollowers, 11 % InsertTweet. Users have followers, and are
//! accessed, by Zipf's law of the same exponent, so that the tweets that are read most are those of users whom many
//! follow. A user's rank follows from its number by a permutation: popular users are not neighbours.
//!
//! Rows, with a user's number in eight digits: `u` the profile, `f` the users that it follows, `r` its followers, and
//! `t` with a tweet's number in six digits one of its tweets.

use std::collections::{HashMap, HashSet};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use rand_distr::{Distribution as _, Zipf};
use serde::{Deserialize, Serialize};

use super::{
    Access, Answer, Declared, Ended, Kind, Next, Part, Rows, Value, contradiction, decode, encode,
    read_row,
};

/// Number of users that each user follows.
const FOLLOWS: u32 = 20;
/// Maximum number of followers of a user whose numbers its row lists; OLTP-Bench reads 20 of them.
const FOLLOWERS_LISTED: usize = 200;
/// Number of followers of which GetFollowers reads the profiles.
const FOLLOWERS_READ: usize = 20;
/// Number of a user's last tweets that GetUserTweets reads.
const TWEETS_READ: u32 = 10;
/// Number of the last tweets of each followed user that GetTweetsFromFollowing reads.
const TWEETS_OF_EACH: u32 = 5;
/// Number of tweets of each user at the start.
const TWEETS_AT_START: u32 = 10;
/// Number of tweet numbers for which InsertTweet declares keys: other tweets of the user may come before it.
const NUMBERS_DECLARED: u32 = 4;
/// Length of a tweet, in bytes.
const TWEET_BYTES: usize = 140;

/// Parameters of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Number of users; more than 20.
    pub users: u32,
    /// Exponent of Zipf's law for followers and accesses.
    pub exponent: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { users: 100_000, exponent: 0.99 }
    }
}

/// A transaction: users by number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "OLTP-Bench's own names")]
pub enum Transaction {
    GetTweet { user: u32, tweet: u32 },
    GetUserTweets { user: u32, tweets: u32 },
    GetFollowers { user: u32, followers: Vec<u32> },
    GetTweetsFromFollowing { user: u32, followed: Vec<(u32, u32)> },
    InsertTweet { user: u32, unique: u64, first_number: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Profile {
    name: String,
    followers: u32,
    /// Number of tweets; they are numbered from 1 on.
    tweets: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Tweet {
    /// Unique number of the transaction that inserted the tweet; 0 for one of the start.
    unique: u64,
    text: String,
}

fn profile(user: u32) -> String {
    format!("u{user:08}")
}

fn follows(user: u32) -> String {
    format!("f{user:08}")
}

fn followers(user: u32) -> String {
    format!("r{user:08}")
}

fn tweet(user: u32, number: u32) -> String {
    format!("t{user:08}{number:06}")
}

/// Returns the keys of a user's last tweets, at most `most` of the first `tweets`.
fn last_tweets(user: u32, tweets: u32, most: u32) -> impl Iterator<Item = String> {
    (tweets.saturating_sub(most) + 1..=tweets).map(move |number| tweet(user, number))
}

/// Declares that the last tweets of a user are read, at most `most` of the first `tweets`.
fn declare_tweets(declared: &mut Declared, user: u32, tweets: u32, most: u32) {
    let start = tweet(user, tweets.saturating_sub(most) + 1);
    declared.read_adjacent(start, tweet(user, tweets + 1), last_tweets(user, tweets, most));
}

/// A generator of transactions.
pub struct Drawing {
    users: u32,
    zipf: Zipf<f64>,
}

impl Drawing {
    /// Draws a user, popular ones more often.
    fn user(&self, rng: &mut StdRng) -> u32 {
        let rank = self.zipf.sample(rng) as u32 - 1;
        user_of_rank(rank.min(self.users - 1), self.users)
    }

    /// Draws a transaction; `unique` is a number that no other transaction of the load has, and not 0.
    pub fn draw(&self, rng: &mut StdRng, unique: u64) -> Transaction {
        let user = self.user(rng);
        match rng.random_range(0..100) {
            0..45 => Transaction::GetUserTweets { user, tweets: 0 },
            45..65 => Transaction::GetTweetsFromFollowing { user, followed: Vec::new() },
            65..77 => Transaction::GetTweet { user, tweet: rng.random_range(1..=TWEETS_AT_START) },
            77..89 => Transaction::GetFollowers { user, followers: Vec::new() },
            _ => Transaction::InsertTweet { user, unique, first_number: 0 },
        }
    }
}

/// Returns the user with a popularity rank from 0 on, by a permutation: the step has no divisor in common with the
/// number of users.
fn user_of_rank(rank: u32, users: u32) -> u32 {
    let divisor = |mut a: u32, mut b: u32| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let near = (f64::from(users) * 0.618) as u32;
    let step = (near.max(1)..).find(|step| divisor(*step, users) == 1).unwrap_or(1);
    ((u64::from(rank) * u64::from(step)) % u64::from(users)) as u32
}

impl Parameters {
    /// Returns a generator of transactions.
    ///
    /// # Panics
    /// Panics if the exponent is negative or no number, or if there are no users.
    #[must_use]
    pub fn drawing(&self) -> Drawing {
        let zipf = Zipf::new(f64::from(self.users), self.exponent);
        Drawing { users: self.users, zipf: zipf.expect("users, and an exponent of Zipf's law") }
    }

    /// Returns all rows at the start: keys with their encoded values, drawn from `seed`.
    pub fn fill(self, seed: u64) -> impl Iterator<Item = (String, Vec<u8>)> {
        let drawing = self.drawing();
        let mut rng = StdRng::seed_from_u64(seed);
        let mut of_each: Vec<Vec<u32>> = Vec::with_capacity(self.users as usize);
        let mut listed: HashMap<u32, (u32, Vec<u32>)> = HashMap::new();
        for user in 0..self.users {
            let mut followed = HashSet::new();
            // Popular users are drawn again and again: the number of attempts is bounded.
            for _ in 0..4 * FOLLOWS {
                let other = drawing.user(&mut rng);
                if other != user && followed.len() < FOLLOWS as usize && followed.insert(other) {
                    let (many, list) = listed.entry(other).or_default();
                    *many += 1;
                    if list.len() < FOLLOWERS_LISTED {
                        list.push(user);
                    }
                }
            }
            let mut followed: Vec<u32> = followed.into_iter().collect();
            followed.sort_unstable();
            of_each.push(followed);
        }
        (0..self.users).zip(of_each).flat_map(move |(user, followed)| {
            let (many, list) = listed.remove(&user).unwrap_or_default();
            let row = Profile {
                name: format!("user{user:08}"),
                followers: many,
                tweets: TWEETS_AT_START,
            };
            let tweets = (1..=TWEETS_AT_START).map(move |number| {
                (tweet(user, number), encode(&Tweet { unique: 0, text: text(user, number) }))
            });
            [
                (profile(user), encode(&row)),
                (follows(user), encode(&followed)),
                (followers(user), encode(&list)),
            ]
            .into_iter()
            .chain(tweets)
        })
    }
}

/// Returns the text of a tweet.
fn text(user: u32, number: u32) -> String {
    let mut text = format!("Tweet {number} of user{user:08}. ");
    text.extend(std::iter::repeat_n('.', TWEET_BYTES.saturating_sub(text.len())));
    text
}

impl Transaction {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::GetTweet { .. } => Kind::GetTweet,
            Self::GetUserTweets { .. } => Kind::GetUserTweets,
            Self::GetFollowers { .. } => Kind::GetFollowers,
            Self::GetTweetsFromFollowing { .. } => Kind::GetTweetsFromFollowing,
            Self::InsertTweet { .. } => Kind::InsertTweet,
        }
    }

    pub(super) fn next(&mut self, found: &[Vec<Value>]) -> Next {
        let mut declared = Declared::default();
        match self {
            Self::GetTweet { user, tweet: number } => declared.read(tweet(*user, *number)),
            Self::GetUserTweets { user, tweets } => {
                if found.is_empty() {
                    return Next::Read(vec![profile(*user)]);
                }
                let Some(row) = read_row::<Profile>(found, 0, 0) else { return Next::Nothing };
                *tweets = row.tweets;
                declared.read(profile(*user));
                declare_tweets(&mut declared, *user, row.tweets, TWEETS_READ);
            }
            Self::GetFollowers { user, followers: read } => {
                if found.is_empty() {
                    return Next::Read(vec![followers(*user)]);
                }
                *read = read_row(found, 0, 0).unwrap_or_default();
                read.truncate(FOLLOWERS_READ);
                declared.read(followers(*user));
                read.iter().for_each(|other| declared.read(profile(*other)));
            }
            Self::GetTweetsFromFollowing { user, followed } => {
                if found.is_empty() {
                    return Next::Read(vec![follows(*user)]);
                }
                let others: Vec<u32> = read_row(found, 0, 0).unwrap_or_default();
                let Some(profiles) = found.get(1) else {
                    return Next::Read(others.into_iter().map(profile).collect());
                };
                let row = |row: &Value| decode::<Profile>(row.as_deref()?);
                let tweets = profiles.iter().map(|found| row(found).map_or(0, |row| row.tweets));
                *followed = others.into_iter().zip(tweets).collect();
                declared.read(follows(*user));
                for (other, tweets) in followed {
                    declare_tweets(&mut declared, *other, *tweets, TWEETS_OF_EACH);
                }
            }
            Self::InsertTweet { user, first_number, .. } => {
                if found.is_empty() {
                    return Next::Read(vec![profile(*user)]);
                }
                let Some(row) = read_row::<Profile>(found, 0, 0) else { return Next::Nothing };
                *first_number = row.tweets + 1;
                declared.writes.push(profile(*user));
                let numbers = *first_number..*first_number + NUMBERS_DECLARED;
                declared.writes.extend(numbers.map(|number| tweet(*user, number)));
            }
        }
        Next::Run(declared)
    }

    /// Returns the number of rows that a reading transaction returns to its client, or the number of the new tweet.
    pub(super) fn run<R: Rows>(&self, rows: &mut Access<'_, R>) -> Part<i64, R> {
        match self {
            Self::GetTweet { user, tweet: number } => {
                let _: Tweet = rows.get(&tweet(*user, *number))?;
                Ok(1)
            }
            Self::GetUserTweets { user, tweets } => {
                // The profile of the snapshot has at least the tweets that the client has seen.
                let row: Profile = rows.get(&profile(*user))?;
                if row.tweets < *tweets {
                    return Err(contradiction(&profile(*user)));
                }
                all(rows, last_tweets(*user, *tweets, TWEETS_READ).collect())
            }
            Self::GetFollowers { user, followers: read } => {
                let _: Vec<u32> = rows.get(&followers(*user))?;
                let keys: Vec<String> = read.iter().copied().map(profile).collect();
                let found = rows.find::<Profile>(&keys)?;
                match keys.iter().zip(&found).find(|(_, row)| row.is_none()) {
                    Some((key, _)) => Err(contradiction(key)),
                    None => Ok(found.len() as i64),
                }
            }
            Self::GetTweetsFromFollowing { user, followed } => {
                let _: Vec<u32> = rows.get(&follows(*user))?;
                let keys = followed.iter();
                all(
                    rows,
                    keys.flat_map(|(other, many)| last_tweets(*other, *many, TWEETS_OF_EACH))
                        .collect(),
                )
            }
            Self::InsertTweet { user, unique, first_number } => {
                let mut row: Profile = rows.get(&profile(*user))?;
                let number = row.tweets + 1;
                if !(*first_number..*first_number + NUMBERS_DECLARED).contains(&number) {
                    return Err(Ended::With(Answer::Moved));
                }
                row.tweets = number;
                rows.put(&profile(*user), &row)?;
                rows.put(
                    &tweet(*user, number),
                    &Tweet { unique: *unique, text: text(*user, number) },
                )?;
                Ok(i64::from(number))
            }
        }
    }
}

/// Reads tweets, all of which must exist, and returns their number.
fn all<R: Rows>(rows: &mut Access<'_, R>, keys: Vec<String>) -> Part<i64, R> {
    let found = rows.find::<Tweet>(&keys)?;
    match keys.iter().zip(&found).find(|(_, tweet)| tweet.is_none()) {
        Some((key, _)) => Err(contradiction(key)),
        None => Ok(found.len() as i64),
    }
}

/// The check of the tweets after a load: each user has as many as its profile says, and every acknowledged one is
/// there.
#[derive(Clone, Debug, Default)]
pub struct Check {
    profiles: HashMap<u32, u32>,
    tweets: HashMap<u32, u32>,
    /// Unique numbers of the tweets that the load inserted, by their keys.
    inserted: HashMap<String, u64>,
    acknowledged: Vec<(String, u64)>,
}

impl Check {
    /// Records an acknowledged transaction; `done` is the number that it returned.
    pub fn acknowledged(&mut self, transaction: &Transaction, done: i64) {
        if let Transaction::InsertTweet { user, unique, .. } = transaction {
            let number = u32::try_from(done).unwrap_or(0);
            self.acknowledged.push((tweet(*user, number), *unique));
        }
    }

    /// Takes a row into the check.
    ///
    /// # Errors
    /// Returns what is wrong with a row that is none of the benchmark's.
    pub fn row(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        let foreign = || format!("the row {key} is none of Twitter's");
        let user: u32 = key.get(1..9).and_then(|user| user.parse().ok()).ok_or_else(foreign)?;
        match key.chars().next() {
            Some('u') => {
                let row: Profile = decode(value).ok_or_else(foreign)?;
                self.profiles.insert(user, row.tweets);
            }
            Some('t') => {
                let row: Tweet = decode(value).ok_or_else(foreign)?;
                *self.tweets.entry(user).or_default() += 1;
                if row.unique > 0 {
                    self.inserted.insert(key.to_owned(), row.unique);
                }
            }
            Some('f' | 'r') => {}
            _ => return Err(foreign()),
        }
        Ok(())
    }

    /// Returns the contradictions between the rows, and between them and the acknowledged tweets.
    #[must_use]
    pub fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (user, said) in &self.profiles {
            let there = self.tweets.get(user).copied().unwrap_or(0);
            if there != *said {
                found.push(format!("user {user} has {there} tweets, its profile says {said}"));
            }
        }
        let lost =
            self.acknowledged.iter().filter(|(key, unique)| self.inserted.get(key) != Some(unique));
        found.extend(lost.map(|(key, _)| format!("the acknowledged tweet {key} is lost")));
        found
    }
}
