//! The transportation problem behind balanced placement, solved exactly.
//!
//! Chunks are the supplies and servers the demands; the weight that stays in place is maximised.
//! There are thousands of chunks for each server, so the search runs over servers only. Each server
//! has a *price*, and each chunk lies where its weight minus the price is largest. If that puts
//! more on a server than its cap, the excess is pushed to a server with room along a shortest path
//! of moves (one chunk from each server on the path to the next), found by Dijkstra's algorithm
//! over losses reduced by the prices. This is the method of successive shortest paths (Ahuja,
//! Magnanti and Orlin, *Network Flows*, §9.7), on a graph from which the chunks are eliminated.
//! Unused capacity is filled by *spare* weightless load that moves at no cost, so that every server
//! is exactly full.
//!
//! Most of the excess never arises, because the initial prices are nearly right: the same problem
//! is first solved for half of the chunks, selected by a hash of their number, with half of the
//! caps, and that problem in turn starts from a solution for half of its chunks.
//!
//! Invariant: each part of a chunk lies where weight minus price is largest, and spare load where
//! the price is smallest. When no excess is left, this proves the placement optimal: the prices are
//! a solution of the dual problem with the same value.

use std::collections::BTreeMap;

use super::offers::{NO_OFFER, Offers};
use super::weights::Weights;

/// Marks a chunk that has no server yet.
const UNPLACED: u32 = u32::MAX;
/// Marks a chunk that is split over several servers.
const SPLIT: u32 = u32::MAX - 1;

/// The amount that each chunk uses of the cap of its server.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sizes<'a> {
    /// One unit each: caps count chunks, and no chunk is ever split.
    One,
    /// A number of units for each chunk; [`Weights`] are weights per unit. A chunk may be split.
    Units(&'a [u64]),
}

impl Sizes<'_> {
    pub(super) fn of(self, chunk: usize) -> u64 {
        match self {
            Self::One => 1,
            Self::Units(sizes) => sizes[chunk],
        }
    }
}

/// An optimal placement, with the prices that prove it optimal.
#[derive(Debug)]
pub(super) struct Solution {
    /// Index of the server of each chunk; for a split chunk, of a server that holds a part of it.
    pub server_of: Vec<u32>,
    /// Parts of the split chunks, by chunk, as (server, units) with positive units.
    pub split: BTreeMap<u32, Vec<(u32, u64)>>,
    /// Price of each server, the smallest of them zero. A server with unused capacity has price
    /// zero.
    pub prices: Vec<i64>,
}

/// Places chunks on servers such that the most weight stays where it is, and no server holds more than its cap.
///
/// # Panics
/// If the caps have no room for all sizes, or a cap is zero: the caller leaves such servers out.
pub(super) fn solve(weights: &Weights, sizes: Sizes<'_>, caps: &[u64]) -> Solution {
    let chunks = weights.chunks();
    assert!(caps.len() == weights.servers() && caps.iter().all(|cap| *cap > 0), "caps: {caps:?}");
    let mut order: Vec<u32> = (0..chunks as u32).collect();
    order.sort_unstable_by_key(|chunk| scatter(u64::from(*chunk)));
    let load = |chunks: &[u32]| -> u128 {
        chunks.iter().map(|chunk| u128::from(sizes.of(*chunk as usize))).sum()
    };
    let total = load(&order);
    assert!(caps.iter().map(|cap| u128::from(*cap)).sum::<u128>() >= total, "no room for all");

    let mut levels = vec![chunks];
    while levels[levels.len() - 1] > 4 * caps.len() {
        levels.push(levels[levels.len() - 1].div_ceil(2));
    }
    let mut prices = vec![0; caps.len()];
    let mut placing = None;
    for taken in levels.into_iter().rev().map(|level| &order[..level]) {
        let part = load(taken);
        let cap = |cap: &u64| i128::from(*cap).min(total as i128);
        let caps = caps.iter().map(cap).map(|cap| match total {
            0 => cap,
            _ => (cap as u128 * part).div_ceil(total) as i128,
        });
        let mut level = Placing::new(weights, sizes, prices, caps.collect());
        level.place(taken);
        level.push_excess();
        prices = level.prices.clone();
        placing = Some(level);
    }
    placing.expect("there is always one level").into_solution()
}

/// Permutes 64-bit numbers pseudorandomly (the last step of splitmix64).
fn scatter(number: u64) -> u64 {
    let mixed = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[derive(Debug)]
struct Placing<'a> {
    weights: &'a Weights,
    sizes: Sizes<'a>,
    prices: Vec<i64>,
    caps: Vec<i128>,
    /// Excess of each server's load over its cap, spare load included; negative if there is room.
    excess: Vec<i128>,
    spare: Vec<i128>,
    home: Vec<u32>,
    split: BTreeMap<u32, Vec<(u32, u64)>>,
    /// Chunks at each server. An entry may be out of date if its chunk has left, and duplicated if
    /// its chunk returned.
    members: Vec<Vec<u32>>,
    offers: Offers,
    row: Vec<i64>,
}

/// One move on a path from a server with excess load to one with room.
#[derive(Clone, Copy, Debug)]
struct Step {
    from: usize,
    to: usize,
    /// The chunk of which units move; `None` moves spare load.
    chunk: Option<u32>,
}

impl<'a> Placing<'a> {
    fn new(weights: &'a Weights, sizes: Sizes<'a>, prices: Vec<i64>, caps: Vec<i128>) -> Self {
        let servers = caps.len();
        Self {
            weights,
            sizes,
            prices,
            excess: caps.iter().map(|cap| -cap).collect(),
            caps,
            spare: vec![0; servers],
            home: vec![UNPLACED; weights.chunks()],
            split: BTreeMap::new(),
            members: vec![Vec::new(); servers],
            offers: Offers::new(servers),
            row: vec![0; servers],
        }
    }

    /// Puts each chunk where weight minus price is largest, and spare load where the price is
    /// smallest.
    fn place(&mut self, chunks: &[u32]) {
        let least = self.prices.iter().copied().min().unwrap_or(0);
        let cheapest: Vec<usize> =
            (0..self.caps.len()).filter(|server| self.prices[*server] == least).collect();
        for chunk in chunks {
            let server = self.best_server(*chunk, &cheapest);
            self.home[*chunk as usize] = server as u32;
            let size = self.sizes.of(*chunk as usize);
            self.excess[server] += i128::from(size);
            if size > 0 {
                self.arrive(*chunk, server);
            }
        }
        let mut spare = -self.excess.iter().sum::<i128>();
        for server in &cheapest {
            let fits = (-self.excess[*server]).clamp(0, spare);
            self.add_spare(*server, fits);
            spare -= fits;
        }
        self.add_spare(cheapest[0], spare);
    }

    /// Returns the server at which the chunk's weight minus the server's price is largest; among equals, the one with
    /// the most room. `cheapest` are the servers with the lowest price.
    fn best_server(&self, chunk: u32, cheapest: &[usize]) -> usize {
        let value = |server: usize, weight: u64| {
            (weight as i64 - self.prices[server], -self.excess[server], std::cmp::Reverse(server))
        };
        // Among the servers that hold no part of the chunk, only the cheapest can be best.
        let empty = cheapest.iter().map(|server| (value(*server, 0), *server));
        let holding = self.weights.row(chunk as usize);
        let holding = holding.map(|(server, weight)| (value(server, weight), server));
        empty.chain(holding).max().map_or(0, |(_, server)| server)
    }

    fn add_spare(&mut self, server: usize, amount: i128) {
        self.spare[server] += amount;
        self.excess[server] += amount;
    }

    /// Pushes all excess load to servers with room.
    fn push_excess(&mut self) {
        for server in 0..self.caps.len() {
            while self.excess[server] > 0 {
                let path = self.shortest_path(server);
                self.push(&path);
            }
        }
    }

    /// Returns the moves from a server with excess to the nearest one with room, the last move
    /// first. Raises the prices of the nearer servers, so that reduced losses stay non-negative and
    /// those of the path become zero.
    fn shortest_path(&mut self, from: usize) -> Vec<Step> {
        let servers = self.caps.len();
        let mut distance = vec![i64::MAX; servers];
        let mut before = vec![from; servers];
        let mut open: Vec<usize> = (0..servers).collect();
        let mut done = Vec::new();
        distance[from] = 0;
        let to = loop {
            let rank = |at: &usize| (distance[open[*at]], self.excess[open[*at]] >= 0);
            let at = (0..open.len()).min_by_key(rank).expect("caps have room for all");
            let server = open.swap_remove(at);
            if self.excess[server] < 0 {
                break server;
            }
            done.push(server);
            let free = if self.spare[server] > 0 { 0 } else { NO_OFFER };
            let base = distance[server] - self.prices[server];
            let losses = self.offers.losses(server);
            for next in &open {
                let loss = losses[*next].min(free);
                if loss < NO_OFFER && base + loss + self.prices[*next] < distance[*next] {
                    distance[*next] = base + loss + self.prices[*next];
                    before[*next] = server;
                }
            }
        };
        for server in done {
            self.prices[server] += distance[to] - distance[server];
        }
        let mut path = Vec::new();
        let mut to = to;
        while to != from {
            let from = before[to];
            let by_chunk = self.spare[from] == 0 || self.offers.losses(from)[to] < 0;
            let chunk = by_chunk.then(|| self.offers.best(from, to));
            path.push(Step { from, to, chunk });
            to = from;
        }
        path
    }

    /// Moves along the path the smallest of the excess, the room, and the amount available at each
    /// step.
    fn push(&mut self, path: &[Step]) {
        let (first, last) = (path[path.len() - 1].from, path[0].to);
        let there = |step: &Step| match step.chunk {
            None => self.spare[step.from],
            Some(chunk) => i128::from(self.units_at(chunk, step.from)),
        };
        let most = self.excess[first].min(-self.excess[last]);
        let amount = path.iter().map(there).fold(most, i128::min);
        assert!(amount > 0, "a path that moves nothing: {path:?}");
        for step in path.iter().rev() {
            match step.chunk {
                None => {
                    self.spare[step.from] -= amount;
                    self.spare[step.to] += amount;
                }
                // The amount is at most the units of a chunk.
                Some(chunk) => self.move_units(chunk, step.from, step.to, amount as u64),
            }
        }
        self.excess[first] -= amount;
        self.excess[last] += amount;
    }

    fn units_at(&self, chunk: u32, server: usize) -> u64 {
        match self.home[chunk as usize] {
            SPLIT => {
                let mut parts = self.split[&chunk].iter();
                parts.find(|(at, _)| *at as usize == server).map_or(0, |(_, units)| *units)
            }
            home if home as usize == server => self.sizes.of(chunk as usize),
            _ => 0,
        }
    }

    fn move_units(&mut self, chunk: u32, from: usize, to: usize, units: u64) {
        let left = self.units_at(chunk, from) - units;
        let had = self.units_at(chunk, to);
        if self.home[chunk as usize] != SPLIT {
            self.split.insert(chunk, Vec::new());
            self.home[chunk as usize] = SPLIT;
        }
        let parts = self.split.get_mut(&chunk).expect("it was split before, or just now");
        parts.retain(|(at, _)| *at as usize != from && *at as usize != to);
        if left > 0 {
            parts.push((from as u32, left));
        }
        parts.push((to as u32, had + units));
        if parts.len() == 1 {
            self.split.remove(&chunk);
            self.home[chunk as usize] = to as u32;
        }
        if left == 0 {
            self.leave(chunk, from);
        }
        if had == 0 {
            self.arrive(chunk, to);
        }
    }

    fn arrive(&mut self, chunk: u32, server: usize) {
        self.members[server].push(chunk);
        spread(self.weights, chunk, &mut self.row);
        self.offers.arrive(chunk, server, &self.row);
    }

    fn leave(&mut self, chunk: u32, server: usize) {
        let mut offers = std::mem::replace(&mut self.offers, Offers::new(0));
        let unknown = offers.leave(chunk, server, |other| self.units_at(other, server) > 0);
        if !unknown.is_empty() {
            let mut members = std::mem::take(&mut self.members[server]);
            members.sort_unstable();
            members.dedup();
            members.retain(|other| self.units_at(*other, server) > 0);
            let (weights, row) = (self.weights, &mut self.row);
            offers.fill(server, &unknown, &members, |chunk, losses| {
                // Reading a whole row costs far more than the few weights that are usually needed.
                if unknown.len() * 8 < row.len() {
                    let weight = |server| weights.get(chunk as usize, server) as i64;
                    let here = weight(server);
                    let losses = losses.iter_mut().zip(&unknown);
                    losses.for_each(|(loss, to)| *loss = here - weight(*to));
                    return;
                }
                spread(weights, chunk, row);
                for (loss, to) in losses.iter_mut().zip(&unknown) {
                    *loss = row[server] - row[*to];
                }
            });
            self.members[server] = members;
        }
        self.offers = offers;
    }

    fn into_solution(mut self) -> Solution {
        let least = self.prices.iter().copied().min().unwrap_or(0);
        self.prices.iter_mut().for_each(|price| *price -= least);
        for (chunk, parts) in &self.split {
            self.home[*chunk as usize] = parts[0].0;
        }
        Solution { server_of: self.home, split: self.split, prices: self.prices }
    }
}

/// Writes a chunk's weights on all servers into `row`.
fn spread(weights: &Weights, chunk: u32, row: &mut [i64]) {
    let held = weights.row(chunk as usize);
    if held.len() < row.len() {
        row.fill(0);
    }
    for (server, weight) in held {
        row[server] = weight as i64;
    }
}
