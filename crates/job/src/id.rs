//! Ids of jobs: short enough to type, sorted by time of creation, unique without coordination.
//!
//! An id has nine digits of milliseconds since the Unix epoch, a hyphen, and four random digits, in base 32 without
//! letters that look alike (Crockford's), in lower case. Two ids are equal only if they were made in the same
//! millisecond with the same 20 random bits; the journal then refuses the second.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const TIME_DIGITS: usize = 9;
const RANDOM_DIGITS: usize = 4;

/// The id of a job, such as `1k7z0q2fv-3d9a`: the time of the job's creation and 20 random bits, in base 32.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct JobId(String);

/// The error that a text is not a job id. Contains that text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a job id (one looks like 1k7z0q2fv-3d9a; `imago job list` shows them)")]
pub struct NotAJobId(String);

impl JobId {
    /// Returns a new id, made of the present time of the wall clock and random bits.
    pub fn generate() -> Self {
        Self::from_parts(crate::clock::now_ms(), rand::random())
    }

    /// Returns the id that is made of the time `at_ms`, in milliseconds since the Unix epoch, and of the lowest 20
    /// bits of `random`.
    pub fn from_parts(at_ms: u64, random: u32) -> Self {
        let time = digits(at_ms, TIME_DIGITS);
        Self(format!("{time}-{}", digits(u64::from(random), RANDOM_DIGITS)))
    }

    /// Returns the id in its text form, such as `1k7z0q2fv-3d9a`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn digits(number: u64, count: usize) -> String {
    let digit = |place: usize| char::from(DIGITS[(number >> (5 * place)) as usize & 31]);
    (0..count).rev().map(digit).collect()
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for JobId {
    type Err = NotAJobId;

    fn from_str(text: &str) -> Result<Self, NotAJobId> {
        let known = |part: &str| part.bytes().all(|byte| DIGITS.contains(&byte));
        match text.split_once('-') {
            Some((time, random))
                if time.len() == TIME_DIGITS
                    && random.len() == RANDOM_DIGITS
                    && known(time)
                    && known(random) =>
            {
                Ok(Self(text.to_owned()))
            }
            _ => Err(NotAJobId(text.to_owned())),
        }
    }
}

impl TryFrom<String> for JobId {
    type Error = NotAJobId;

    fn try_from(text: String) -> Result<Self, NotAJobId> {
        text.parse()
    }
}

impl From<JobId> for String {
    fn from(id: JobId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ids_sort_by_time(a in 0..1_u64 << 45, b in 0..1_u64 << 45, r: u32, s: u32) {
            prop_assume!(a != b);
            let (first, second) = (JobId::from_parts(a, r), JobId::from_parts(b, s));
            prop_assert_eq!(first.cmp(&second), a.cmp(&b));
        }

        #[test]
        fn an_id_is_read_back_as_itself(at in 0..1_u64 << 45, random: u32) {
            let id = JobId::from_parts(at, random);
            prop_assert_eq!(id.as_str().parse::<JobId>(), Ok(id.clone()));
        }
    }

    #[test]
    fn what_could_leave_a_directory_is_no_id() {
        for text in ["", "-", "../../etc-pass", "1k7z0q2fv", "1k7z0q2fv-3d9A", "1k7z0q2fv-3d9a/"] {
            assert!(text.parse::<JobId>().is_err(), "{text}");
        }
    }
}
