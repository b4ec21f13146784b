//! Generates the transactions to send. Each session draws its own from a seed. All sessions share the counter
//! of elements, so that each element is used once, and the lengths of the lists.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Element, LISTS, List, Step};

/// Length at which a list is replaced by the next one, in elements; it bounds the cost of reading a list.
const LENGTH: u32 = 96;
/// Maximum number of lists, and of steps, of a transaction.
const LISTS_MAX: usize = 4;
const STEPS_MAX: usize = 6;
/// Share of the transactions that only read, in percent.
const READ_ONLY_PERCENT: u32 = 30;
/// Maximum number of transactions that are sent before one of them is answered.
const PIPELINE_MAX: u32 = 4;
/// Number of lists among which half of the draws are made: transactions on the same lists reveal more than
/// others.
const HOT_LISTS: u32 = 4;

/// The state that the sessions of a load share.
#[derive(Debug)]
pub struct Pool {
    /// The element that the next append gets.
    next: AtomicU32,
    /// Number of appends to each of the lists in use and to the lists that they replaced.
    appended: Vec<AtomicU32>,
}

/// A transaction to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// True if the transaction is one command that reads many keys, instead of several commands.
    pub is_one_command: bool,
}

/// Generates the transactions of a session.
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
    /// Returns the number of lists that were used so far: the numbers of all of them are below it.
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
    /// Returns the generator of a session.
    #[must_use]
    pub fn new(seed: u64, session: u32, pool: Arc<Pool>) -> Self {
        let random =
            StdRng::seed_from_u64(seed.wrapping_mul(0x1_0000).wrapping_add(session.into()));
        Self { random, pool }
    }

    /// Draws the next transaction, or the next few that are to be sent at once.
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
