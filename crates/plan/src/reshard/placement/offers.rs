//! For each pair of servers, the chunk that loses the least weight by moving from the one to the
//! other.
//!
//! The solver needs only the best chunk of each pair, but a full order of all chunks for each of N²
//! pairs would be N copies of all weights. So a pair starts with its best chunk alone. When that
//! chunk leaves, one scan of the server's chunks fills the pair's queue with the next best ones,
//! which serve until the queue is empty. A chunk that arrives is inserted at its position in the
//! queue.
//!
//! Invariant, for each pair: the best chunk has the smallest loss of all chunks at the server;
//! every chunk at the server that is neither the best nor queued loses at least `bound`, and no
//! queued one loses more. A chunk that has left the server may still be queued, and is skipped when
//! it reaches the head.

/// Marks a pair without a chunk.
const NONE: u32 = u32::MAX;

/// The loss of a pair without a chunk to move.
pub(super) const NO_OFFER: i64 = i64::MAX;

const QUEUE_MIN: usize = 16;
const QUEUE_MAX: usize = 1024;

#[derive(Clone, Debug)]
struct Queue {
    /// The next best chunks as (loss, chunk), the smallest loss at the end.
    next: Vec<(i64, u32)>,
    /// Largest number of chunks in the queue.
    room: usize,
    bound: i64,
}

/// For each ordered pair of `servers` servers, the best chunk to move, which loses the least weight.
#[derive(Debug)]
pub(super) struct Offers {
    servers: usize,
    /// Smallest loss of weight by a move, indexed by `from × servers + to`; separate from the queues because the
    /// search reads all of it.
    loss: Vec<i64>,
    chunk: Vec<u32>,
    queues: Vec<Queue>,
}

impl Offers {
    pub(super) fn new(servers: usize) -> Self {
        let pairs = servers * servers;
        let queue = Queue { next: Vec::new(), room: 0, bound: NO_OFFER };
        Self {
            servers,
            loss: vec![NO_OFFER; pairs],
            chunk: vec![NONE; pairs],
            queues: vec![queue; pairs],
        }
    }

    /// Returns, for each server, the smallest loss of weight by moving a chunk from `from` to that server.
    pub(super) fn losses(&self, from: usize) -> &[i64] {
        &self.loss[from * self.servers..(from + 1) * self.servers]
    }

    /// Returns the chunk that loses the least weight by a move from `from` to `to`.
    pub(super) fn best(&self, from: usize, to: usize) -> u32 {
        self.chunk[from * self.servers + to]
    }

    /// Records that a chunk arrived at `from`; `row` holds its weight on each server.
    pub(super) fn arrive(&mut self, chunk: u32, from: usize, row: &[i64]) {
        let first = from * self.servers;
        for (to, weight) in row.iter().enumerate() {
            if to != from {
                self.offer(first + to, row[from] - weight, chunk);
            }
        }
    }

    fn offer(&mut self, pair: usize, loss: i64, chunk: u32) {
        let mut other = (loss, chunk);
        if loss < self.loss[pair] {
            other = (self.loss[pair], self.chunk[pair]);
            (self.loss[pair], self.chunk[pair]) = (loss, chunk);
        }
        if other.1 == NONE {
            return;
        }
        let queue = &mut self.queues[pair];
        if queue.room == 0 || other.0 >= queue.bound {
            queue.bound = queue.bound.min(other.0);
            return;
        }
        let at = queue.next.partition_point(|queued| *queued > other);
        queue.next.insert(at, other);
        if queue.next.len() > queue.room {
            queue.bound = queue.next.remove(0).0;
        }
    }

    /// Records that a chunk left the server `from`; `is_here` says whether a chunk is still there. Returns the servers
    /// for which the best chunk to move is now unknown; the caller must [`Offers::fill`] them.
    #[must_use]
    pub(super) fn leave(
        &mut self,
        chunk: u32,
        from: usize,
        is_here: impl Fn(u32) -> bool,
    ) -> Vec<usize> {
        let mut unknown = Vec::new();
        for to in 0..self.servers {
            let pair = from * self.servers + to;
            if self.chunk[pair] != chunk {
                continue;
            }
            let queue = &mut self.queues[pair];
            let next = std::iter::from_fn(|| queue.next.pop()).find(|(_, next)| is_here(*next));
            if next.is_none() && queue.bound < NO_OFFER {
                unknown.push(to);
            }
            (self.loss[pair], self.chunk[pair]) = next.unwrap_or((NO_OFFER, NONE));
        }
        unknown
    }

    /// Finds the best chunks to move from `from` to each of `to`. `members` are the chunks at
    /// `from`, each once; `losses(chunk, losses)` writes the loss of moving a chunk to each of
    /// `to`.
    pub(super) fn fill(
        &mut self,
        from: usize,
        to: &[usize],
        members: &[u32],
        mut losses: impl FnMut(u32, &mut [i64]),
    ) {
        let least = (members.len() / 16).clamp(QUEUE_MIN, QUEUE_MAX);
        let fresh = Queue { next: Vec::with_capacity(2 * least), room: 2 * least, bound: NO_OFFER };
        let mut queues = vec![fresh; to.len()];
        let mut row = vec![0; to.len()];
        for chunk in members {
            losses(*chunk, &mut row);
            for (queue, loss) in queues.iter_mut().zip(&row) {
                queue.keep_least((*loss, *chunk), least);
            }
        }
        for (to, mut queue) in to.iter().zip(queues) {
            let pair = from * self.servers + to;
            queue.next.sort_unstable_by(|a, b| b.cmp(a));
            (self.loss[pair], self.chunk[pair]) = queue.next.pop().unwrap_or((NO_OFFER, NONE));
            self.queues[pair] = queue;
        }
    }
}

impl Queue {
    /// Adds a chunk to an unsorted queue, which retains at least the `least` best ones.
    fn keep_least(&mut self, one: (i64, u32), least: usize) {
        if one.0 >= self.bound {
            return;
        }
        self.next.push(one);
        if self.next.len() > self.room {
            let (_, worst, _) = self.next.select_nth_unstable(least);
            self.bound = worst.0;
            self.next.truncate(least);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Chunks at server 0 of two, with what they lose by the move to server 1.
    fn agrees(offers: &Offers, here: &BTreeMap<u32, i64>) -> bool {
        let least = here.values().min().copied().unwrap_or(NO_OFFER);
        let best = offers.best(0, 1);
        offers.losses(0)[1] == least && (here.is_empty() || here.get(&best) == Some(&least))
    }

    proptest! {
        #[test]
        fn the_best_is_the_least_of_all_that_are_here(
            // Most of the time far more are here than a queue holds.
            steps in prop::collection::vec((0_u32..300, 0_u8..12), 1..1_500),
            losses in prop::collection::vec(-200_i64..200, 300),
        ) {
            let mut offers = Offers::new(2);
            let mut here = BTreeMap::new();
            for (chunk, kind) in steps {
                let loss = losses[chunk as usize];
                // The best chunk leaves more often than chance would have it; other chunks, which
                // may be queued, leave and come back too.
                let leaves = kind < 5;
                let leaving = if kind < 3 { offers.best(0, 1) } else { chunk };
                if leaves && here.remove(&leaving).is_some() {
                    let unknown = offers.leave(leaving, 0, |chunk| here.contains_key(&chunk));
                    if !unknown.is_empty() {
                        let members: Vec<u32> = here.keys().copied().collect();
                        offers.fill(0, &unknown, &members, |chunk, row| {
                            row[0] = losses[chunk as usize];
                        });
                    }
                } else if !leaves && here.insert(chunk, loss).is_none() {
                    offers.arrive(chunk, 0, &[loss, 0]);
                }
                prop_assert!(agrees(&offers, &here), "{offers:?} of {here:?}");
            }
        }
    }
}
