//! Benchmark of placement: deciding to which servers new chunks go, so that the least data is moved (Morphus, §3).
//!
//! No server takes part: only the decision is measured, from weights in memory to the finished placement. It is
//! compared with the paper's own algorithm, the textbook's Hungarian algorithm in O(m³), at sizes at which that one
//! ends in reasonable time; both have to move the same amount. At the requested size, where no other algorithm ends
//! in reasonable time, [`proof`] shows for each placement that no other one moves less.

mod pattern;
mod proof;

use std::time::Instant;

use imago_plan::reshard::hungarian;
use imago_plan::reshard::placement::{PlacementError, Shares, Weights, balanced, greedy, random};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Serialize;

use crate::Header;
use crate::error::{Error, Result};
use crate::statistics::Figure;

pub use pattern::Pattern;

/// Maximum number of weights: chunks × servers. Each takes 12 bytes, and as much again while the weights are built
/// from rows of all servers.
pub const WEIGHTS_MAX: u64 = 50_000_000;
/// Maximum number of chunks for the textbook's algorithm. Above it, the matrix alone takes hundreds of megabytes, and
/// a run takes minutes.
pub const HUNGARIAN_CHUNKS_MAX: u32 = 5_000;

/// Seed of the weights, and of the random placement that is compared.
const SEED: u64 = 3;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Number of new chunks to place.
    pub chunks: u32,
    /// Number of servers on which the data lies and on which the chunks are placed, with equal shares.
    pub servers: u32,
    /// Number of runs of each measurement; figures are medians.
    pub runs: u32,
}

/// The measurements; seconds and ratios are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// The pattern of data that took the longest time; the fields down to `moved_least` are of this pattern.
    pub pattern: Pattern,
    /// Time from the weights to the balanced placement, in seconds.
    pub seconds: f64,
    /// Number of documents that the balanced placement moves.
    pub moved: u64,
    /// The solver's lower bound on the number of documents that any equally balanced placement moves.
    pub moved_least: u64,
    /// True if the proof holds for every pattern: no equally balanced placement moves less.
    pub is_least: bool,
    /// Time of the balanced placement divided by the time of the Hungarian algorithm: the largest ratio of all
    /// patterns, at the largest size at which both were measured.
    pub ratio_to_hungarian: f64,
    /// True if both algorithms moved the same number of documents in every comparison.
    pub costs_equal: bool,
    /// Results of each pattern at the full size.
    pub patterns: Vec<Placed>,
    /// Comparisons with the Hungarian algorithm, at sizes of their own.
    pub hungarian: Vec<Compared>,
}

/// Results of a pattern at the full size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Placed {
    /// Distribution of the data over the servers.
    pub pattern: Pattern,
    /// Size of the measurement.
    #[serde(flatten)]
    pub size: Size,
    /// Time from the weights to the balanced placement, in seconds.
    pub seconds: f64,
    /// Number of documents in total.
    pub documents: u64,
    /// Number of documents that the balanced placement moves.
    pub moved: u64,
    /// The solver's lower bound on the number of documents that any equally balanced placement moves.
    pub moved_least: u64,
    /// True if the proof holds: no equally balanced placement moves less.
    pub is_least: bool,
    /// Number of documents that the greedy placement moves. It may put many chunks on one server.
    pub moved_greedy: u64,
    /// Number of documents that a random placement moves.
    pub moved_random: u64,
    /// Number of chunks on the fullest server of the greedy placement, divided by that server's share of the chunks.
    pub greedy_imbalance: f64,
    /// The figures with their extremes over the runs.
    pub spread: PlacedSpread,
}

/// A pattern's figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PlacedSpread {
    /// See [`Placed::seconds`].
    pub seconds: Figure,
}

/// The same chunks, placed by both algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Distribution of the data over the servers.
    pub pattern: Pattern,
    /// Size of the comparison.
    #[serde(flatten)]
    pub size: Size,
    /// Time of the balanced placement, in seconds.
    pub seconds: f64,
    /// Time of the textbook's Hungarian algorithm on the same chunks, in seconds.
    pub hungarian_seconds: f64,
    /// Time of the balanced placement, as a ratio to that of the Hungarian algorithm.
    pub ratio_to_hungarian: f64,
    /// Number of documents that the balanced placement moves.
    pub moved: u64,
    /// Number of documents that the placement of the Hungarian algorithm moves.
    pub hungarian_moved: u64,
    /// True if both moved the same number of documents.
    pub costs_equal: bool,
    /// The figures with their extremes over the runs.
    pub spread: ComparedSpread,
}

/// A comparison's figures with their extremes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ComparedSpread {
    /// See [`Compared::seconds`].
    pub seconds: Figure,
    /// See [`Compared::hungarian_seconds`].
    pub hungarian_seconds: Figure,
    /// See [`Compared::ratio_to_hungarian`].
    pub ratio_to_hungarian: Figure,
}

/// Measures the placement at `size`, and compares it with the Hungarian algorithm at each number of chunks in
/// `hungarian_chunks`, with the same number of servers.
///
/// The function computes without a pause, but yields between measurements, so that it can be cancelled there.
///
/// # Errors
/// Returns an error if the size is invalid.
#[crate::boxed]
pub async fn run(size: Size, hungarian_chunks: &[u32]) -> Result<Report> {
    check(size, hungarian_chunks)?;
    let (mut patterns, mut hungarian) = (Vec::new(), Vec::new());
    for pattern in Pattern::ALL {
        patterns.push(placed(size, pattern).await?);
        for chunks in hungarian_chunks {
            let size = Size { chunks: *chunks, ..size };
            hungarian.push(compared(size, pattern).await?);
        }
    }
    let slowest = patterns.iter().max_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let slowest = *slowest.expect("there is a pattern");
    let largest = hungarian_chunks.iter().max();
    let there = hungarian.iter().filter(|compared| Some(&compared.size.chunks) == largest);
    Ok(Report {
        header: Header::of("placement", size),
        pattern: slowest.pattern,
        seconds: slowest.seconds,
        moved: slowest.moved,
        moved_least: slowest.moved_least,
        is_least: patterns.iter().all(|placed| placed.is_least),
        ratio_to_hungarian: Figure::of(there.map(|compared| compared.ratio_to_hungarian)).max,
        costs_equal: hungarian.iter().all(|compared| compared.costs_equal),
        patterns,
        hungarian,
    })
}

fn check(size: Size, hungarian_chunks: &[u32]) -> Result<()> {
    let refuse = |why: String| Err(Error::Size(why));
    if size.chunks == 0 || size.servers == 0 || size.runs == 0 {
        return refuse("a placement needs at least 1 chunk, 1 server and 1 run".into());
    }
    let weights = u64::from(size.chunks) * u64::from(size.servers);
    if weights > WEIGHTS_MAX {
        let (chunks, servers) = (size.chunks, size.servers);
        return refuse(format!(
            "{chunks} chunks on {servers} servers have {weights} weights, more than {WEIGHTS_MAX}"
        ));
    }
    if hungarian_chunks.is_empty() {
        return refuse("there is nothing to compare with: name at least one size".into());
    }
    match hungarian_chunks.iter().find(|chunks| !(1..=HUNGARIAN_CHUNKS_MAX).contains(*chunks)) {
        None => Ok(()),
        Some(chunks) => refuse(format!(
            "the comparison is with 1 to {HUNGARIAN_CHUNKS_MAX} chunks, not with {chunks}"
        )),
    }
}

async fn placed(size: Size, pattern: Pattern) -> Result<Placed> {
    let (weights, shares) = given(size, pattern)?;
    let mut seconds = Vec::new();
    let mut placement = None;
    for _ in 0..size.runs {
        tokio::task::yield_now().await;
        let (placed, placed_s) = timed(|| balanced(&weights, &shares));
        seconds.push(placed_s);
        placement = Some(placed.map_err(refused)?);
    }
    let placement = placement.expect("there is a run");
    let caps = shares.caps(u64::from(size.chunks));
    let is_least = proof::is_least(&weights, &caps, &placement.server_of);
    let greedy = greedy(&weights, &shares).map_err(refused)?;
    let mut rng = StdRng::seed_from_u64(SEED);
    let random = random(&weights, &shares, &mut rng).map_err(refused)?;
    let seconds = Figure::of(seconds);
    tracing::info!(?pattern, seconds = seconds.median, is_least, "one pattern of placement");
    Ok(Placed {
        pattern,
        size,
        seconds: seconds.median,
        documents: weights.total(),
        moved: placement.moved,
        moved_least: placement.moved_least,
        is_least,
        moved_greedy: greedy.moved,
        moved_random: random.moved,
        greedy_imbalance: shares.imbalance(&greedy.chunks),
        spread: PlacedSpread { seconds },
    })
}

async fn compared(size: Size, pattern: Pattern) -> Result<Compared> {
    let (weights, shares) = given(size, pattern)?;
    let matrix = Matrix::of(&weights);
    let (mut seconds, mut hungarian_seconds) = (Vec::new(), Vec::new());
    let mut moved = None;
    for _ in 0..size.runs {
        tokio::task::yield_now().await;
        let (placement, placed_s) = timed(|| balanced(&weights, &shares));
        let (server_of, hungarian_s) = timed(|| matrix.assign());
        seconds.push(placed_s);
        hungarian_seconds.push(hungarian_s);
        let kept = |(chunk, server): (usize, &usize)| weights.get(chunk, *server);
        let kept = server_of.iter().enumerate().map(kept).sum::<u64>();
        moved = Some((placement.map_err(refused)?.moved, weights.total() - kept));
    }
    let (moved, hungarian_moved) = moved.expect("there is a run");
    let ratios = seconds.iter().zip(&hungarian_seconds).map(|(ours, theirs)| ours / theirs);
    let spread = ComparedSpread {
        ratio_to_hungarian: Figure::of(ratios),
        seconds: Figure::of(seconds),
        hungarian_seconds: Figure::of(hungarian_seconds),
    };
    tracing::info!(
        ?pattern,
        chunks = size.chunks,
        seconds = spread.seconds.median,
        hungarian_seconds = spread.hungarian_seconds.median,
        "one comparison of placement"
    );
    Ok(Compared {
        pattern,
        size,
        seconds: spread.seconds.median,
        hungarian_seconds: spread.hungarian_seconds.median,
        ratio_to_hungarian: spread.ratio_to_hungarian.median,
        moved,
        hungarian_moved,
        costs_equal: moved == hungarian_moved,
        spread,
    })
}

fn given(size: Size, pattern: Pattern) -> Result<(Weights, Shares)> {
    let servers = size.servers as usize;
    let mut rng = StdRng::seed_from_u64(SEED);
    let weights = pattern.weights(size.chunks as usize, servers, &mut rng).map_err(refused)?;
    Ok((weights, Shares::equal(servers).map_err(refused)?))
}

fn refused(error: PlacementError) -> Error {
    Error::Size(error.to_string())
}

fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let began = Instant::now();
    let done = work();
    (done, began.elapsed().as_secs_f64())
}

/// Input of the textbook's algorithm: the cost of each chunk at each place. It is built before the clock starts, so
/// that the measured time of the Hungarian algorithm contains only its own work.
struct Matrix {
    chunks: usize,
    /// Number of places on each server.
    places: usize,
    columns: usize,
    costs: Vec<i64>,
}

impl Matrix {
    fn of(weights: &Weights) -> Self {
        let (chunks, servers) = (weights.chunks(), weights.servers());
        let places = chunks.div_ceil(servers);
        let columns = servers * places;
        // The chunk's total is left out of its cost. It is the same at each place, so the same matching is cheapest.
        let cost = |cell: usize| -(weights.get(cell / columns, cell % columns / places) as i64);
        let costs = (0..chunks * columns).map(cost).collect();
        Self { chunks, places, columns, costs }
    }

    fn assign(&self) -> Vec<usize> {
        let cost = |chunk: usize, place: usize| self.costs[chunk * self.columns + place];
        let place_of = hungarian::assign(self.chunks, self.columns, cost);
        place_of.into_iter().map(|place| place / self.places).collect()
    }
}
