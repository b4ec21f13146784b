//! Proof that a placement moves the least amount, without solving the problem again.
//!
//! A placement of chunks on servers with caps is a flow. A flow is cheapest if and only if its residual network has
//! no cycle of negative cost (Klein's theorem). Here a cycle is a ring of servers, each of which hands a chunk to the
//! next one. It may also begin at one server and end at another one that has room: an additional node, joined to all
//! servers, closes such a path to a cycle. In each step only the chunk that loses least matters, so N + 1 nodes
//! suffice for any number of chunks.

use imago_plan::reshard::placement::Weights;

/// Returns true if the placement is within the caps, and no placement within them moves less.
pub(super) fn is_least(weights: &Weights, caps: &[u64], server_of: &[usize]) -> bool {
    let mut held = vec![0; caps.len()];
    server_of.iter().for_each(|server| held[*server] += 1);
    let is_within = held.iter().zip(caps).all(|(held, cap)| held <= cap);
    let is_whole = server_of.len() == weights.chunks();
    is_whole && is_within && !gains(&residual(weights, caps, &held, server_of))
}

/// The loss of each step, by the two nodes that it joins; `None` if there is no such step. The last node stands for
/// room.
type Residual = Vec<Vec<Option<i128>>>;

fn residual(weights: &Weights, caps: &[u64], held: &[u64], server_of: &[usize]) -> Residual {
    let servers = caps.len();
    let mut losses: Residual = vec![vec![None; servers + 1]; servers + 1];
    let mut row = vec![0; servers];
    for (chunk, from) in server_of.iter().enumerate() {
        row.fill(0);
        weights.row(chunk).for_each(|(server, weight)| row[server] = i128::from(weight));
        for (to, weight) in row.iter().enumerate() {
            let loss = row[*from] - weight;
            let least = &mut losses[*from][to];
            *least = Some(least.map_or(loss, |least| least.min(loss)));
        }
    }
    for server in 0..servers {
        losses[servers][server] = Some(0);
        losses[server][servers] = (held[server] < caps[server]).then_some(0);
    }
    losses
}

/// Returns true if the residual network has a cycle of negative loss (Bellman and Ford).
fn gains(losses: &Residual) -> bool {
    let mut distance = vec![0_i128; losses.len()];
    for _ in 0..losses.len() {
        let mut shortened = false;
        for (from, steps) in losses.iter().enumerate() {
            for (to, loss) in steps.iter().enumerate() {
                if let Some(loss) = loss
                    && distance[from] + loss < distance[to]
                {
                    distance[to] = distance[from] + loss;
                    shortened = true;
                }
            }
        }
        if !shortened {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    const CHUNKS: usize = 5;
    const SERVERS: usize = 3;

    /// Returns all placements, within the caps or not.
    fn placements() -> impl Iterator<Item = Vec<usize>> {
        (0..SERVERS.pow(CHUNKS as u32)).map(|number| {
            let digit = |chunk: usize| number / SERVERS.pow(chunk as u32) % SERVERS;
            (0..CHUNKS).map(digit).collect()
        })
    }

    #[test]
    fn of_all_placements_those_that_keep_most_are_shown_to_move_least() {
        let mut rng = StdRng::seed_from_u64(1);
        for _ in 0..40 {
            let rows: Vec<[u64; SERVERS]> =
                (0..CHUNKS).map(|_| std::array::from_fn(|_| rng.random_range(0..6))).collect();
            let weights = Weights::dense(SERVERS, &rows).unwrap();
            let caps: Vec<u64> = (0..SERVERS).map(|_| rng.random_range(2..5)).collect();
            let is_within = |placement: &Vec<usize>| {
                let held = |server| placement.iter().filter(|at| **at == server).count() as u64;
                (0..SERVERS).all(|server| held(server) <= caps[server])
            };
            let kept = |placement: &Vec<usize>| {
                placement.iter().enumerate().map(|(chunk, at)| rows[chunk][*at]).sum::<u64>()
            };
            let most = placements().filter(is_within).map(|placement| kept(&placement)).max();
            for placement in placements() {
                let expected = is_within(&placement) && Some(kept(&placement)) == most;
                assert_eq!(is_least(&weights, &caps, &placement), expected, "{placement:?}");
            }
        }
    }
}
