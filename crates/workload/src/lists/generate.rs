//! Generates the transactions to send. Each session draws its own from a seed. All sessions share the counter
//! of elements, so that each element is used once, and the lengths of the lists.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Element, LISTS, List, Step};

/// Length at which a list is replaced by the next one, in elements; it bounds the cost of reading a list.
const LENGTH: u32 = 96;
/// Limit of the number of lists that one transaction uses; below, of its steps.
const LISTS_MAX: usize = 4;
const STEPS_MAX: usize = 6;
/// Share of the transactions that only read, in percent.
const READ_ONLY_PERCENT: u32 = 30;
/// Limit of the number of transactions that a session sends before one of them is answered.
const PIPELINE_MAX: u32 = 4;
/// Number of lists from which half of the draws are made: transactions on the same lists reveal more anomalies than
/// others.
const HOT_LISTS: u32 = 4;

/// State that all sessions of a load share: the next element, and the lengths of the lists.
#[derive(Debug)]
pub struct Pool {
    /// Number of the element that the next append gets.
    next: AtomicU32,
    /// For each of the [`LISTS`] lists in use, the number of appends to it and to the lists that it replaced.
    appended: Vec<AtomicU32>,
}

/// A transaction that a session is to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Reads and appends of the transaction, in order.
    pub steps: Vec<Step>,
    /// True if the transaction is one command that reads many keys, instead of several commands.
    pub is_one_command: bool,
}

/// Generates the transactions of one session.
#[derive(Debug)]
pub struct Generator {
    random: StdRng,
    pool: Arc<Pool>,
}

impl Default for Pool {
    fn default() -> Self {
        let appended = (0..LISTS).map(|_| AtomicU32::new(0)).collect();
        Self { next: AtomicU32::new(1), appended }
    }
}

impl Pool {
    /// Returns an upper bound of the numbers of the lists used so far: all of them are below it.
    #[must_use]
    pub fn lists(&self) -> u32 {
        let rounds = self.appended.iter().map(|count| count.load(Ordering::Relaxed) / LENGTH);
        (rounds.max().unwrap_or(0) + 1) * LISTS
    }

    fn list(&self, place: u32) -> List {
        let round = self.appended[place as usize].load(Ordering::Relaxed) / LENGTH;
        List(round * LISTS + place)
    }

    fn element(&self, list: List) -> Element {
        self.appended[(list.0 % LISTS) as usize].fetch_add(1, Ordering::Relaxed);
        self.next.fetch_add(1, Ordering::Relaxed)
    }
}

impl Generator {
    /// Returns the generator of the session number `session` in the load with the seed `seed`.
    #[must_use]
    pub fn new(seed: u64, session: u32, pool: Arc<Pool>) -> Self {
        let random =
            StdRng::seed_from_u64(seed.wrapping_mul(0x1_0000).wrapping_add(session.into()));
        Self { random, pool }
    }

    /// Draws the next transaction, or the next few (at most four) that are to be sent without waiting for answers.
    pub fn draw_batch(&mut self) -> Vec<Request> {
        let is_one = self.random.random_bool(0.7);
        let count = if is_one { 1 } else { self.random.random_range(2..=PIPELINE_MAX) };
        (0..count).map(|_| self.draw()).collect()
    }

    /// Draws the next transaction.
    pub fn draw(&mut self) -> Request {
        let random = &mut self.random;
        let count = random.random_range(1..=LISTS_MAX);
        let lists: Vec<List> = (0..count)
            .map(|_| {
                let among = if random.random_bool(0.5) { HOT_LISTS } else { LISTS };
                self.pool.list(random.random_range(0..among))
            })
            .collect();
        if random.random_range(0..100) < READ_ONLY_PERCENT {
            let steps = lists.into_iter().map(Step::Read).collect();
            return Request { steps, is_one_command: random.random_bool(0.5) };
        }
        let mut steps = Vec::new();
        for _ in 1..random.random_range(1..=STEPS_MAX) {
            let list = lists[random.random_range(0..count)];
            let is_read = random.random_bool(0.5);
            steps.push(if is_read {
                Step::Read(list)
            } else {
                Step::Append(list, self.pool.element(list))
            });
        }
        let list = lists[random.random_range(0..count)];
        steps.push(Step::Append(list, self.pool.element(list)));
        Request { steps, is_one_command: false }
    }
}
