//! Placement: deciding where new chunks go, so that least is moved (Morphus, §3).
//!
//! No server takes part: what is measured is the decision alone, from weights in memory to the
//! finished placement. It is compared with the paper's own algorithm, the textbook's Hungarian one
//! in O(m³), on sizes at which that ends; both have to move the same. At the size that is asked for,
//! where nothing else can be waited for, [`proof`] shows of each placement that none moves less.

mod pattern;
mod proof;

use std::time::Instant;

use imago_plan::hungarian;
use imago_plan::placement::{PlacementError, Shares, Weights, balanced, greedy, random};
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde::Serialize;

use crate::Header;
use crate::error::{Error, Result};
use crate::statistics::Figure;

pub use pattern::Pattern;

/// The most weights: chunks × servers. They take 12 bytes each, and as much again while rows of all
/// servers are made from them.
pub const WEIGHTS_MAX: u64 = 50_000_000;
/// The most chunks for the textbook's algorithm: beyond, its matrix alone takes hundreds of
/// megabytes, and a run minutes.
pub const HUNGARIAN_CHUNKS_MAX: u32 = 5_000;

/// Of the weights, and of the random placement beside the others.
const SEED: u64 = 3;

/// Size of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// New chunks to be placed.
    pub chunks: u32,
    /// Servers on which they lie, and on which they are placed, with equal shares.
    pub servers: u32,
    /// Runs of each measurement; figures are medians.
    pub runs: u32,
}

/// The measurements; seconds and ratios are medians of the runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The benchmark, its size, and the machine.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// The pattern of data that took longest; the seconds and what is moved are its own.
    pub pattern: Pattern,
    /// From the weights to the balanced placement.
    pub seconds: f64,
    /// Documents that the balanced placement moves.
    pub moved: u64,
    /// Documents that any placement as balanced has to move, as the solver says.
    pub moved_least: u64,
    /// True if the proof holds for every pattern: no placement as balanced moves less.
    pub is_least: bool,
    /// The time of the balanced placement, of that of the Hungarian algorithm: the largest ratio of
    /// all patterns, at the largest size at which both were measured.
    pub ratio_to_hungarian: f64,
    /// True if both moved the same number of documents in every comparison.
    pub costs_equal: bool,
    /// Each pattern at the full size.
    pub patterns: Vec<Placed>,
    /// The comparisons with the Hungarian algorithm, at sizes of their own.
    pub hungarian: Vec<Compared>,
}

/// A pattern at the full size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Placed {
    /// Distribution of the data over the servers.
    pub pattern: Pattern,
    /// Size of the measurement.
    #[serde(flatten)]
    pub size: Size,
    /// From the weights to the balanced placement.
    pub seconds: f64,
    /// Documents in all.
    pub documents: u64,
    /// Documents that the balanced placement moves.
    pub moved: u64,
    /// Documents that any placement as balanced has to move, as the solver says.
    pub moved_least: u64,
    /// True if the proof holds: no placement as balanced moves less.
    pub is_least: bool,
    /// Documents that the greedy placement moves, which heaps chunks up.
    pub moved_greedy: u64,
    /// Documents that a random placement moves.
    pub moved_random: u64,
    /// Chunks on the greedy placement's fullest server, of its share of them.
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

/// The same chunks placed by both algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Distribution of the data over the servers.
    pub pattern: Pattern,
    /// Size of the comparison.
    #[serde(flatten)]
    pub size: Size,
    /// The balanced placement.
    pub seconds: f64,
    /// The textbook's Hungarian algorithm on the same chunks.
    pub hungarian_seconds: f64,
    /// Time of the balanced placement, as a ratio to that of the Hungarian algorithm.
    pub ratio_to_hungarian: f64,
    /// Documents that the balanced placement moves.
    pub moved: u64,
    /// Documents that the Hungarian algorithm's placement moves.
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

/// Measures: `size`, and the comparison with `hungarian_chunks` chunks each on as many servers.
///
/// It computes without a pause, but lets go between measurements, so that it can be dropped there.
///
/// # Errors
/// Returns an error if the size makes no sense.
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

/// The textbook's input: what each chunk costs on each place. It is made before the clock runs, so
/// that the Hungarian algorithm does nothing but its own work.
struct Matrix {
    chunks: usize,
    /// On each server.
    places: usize,
    columns: usize,
    costs: Vec<i64>,
}

impl Matrix {
    fn of(weights: &Weights) -> Self {
        let (chunks, servers) = (weights.chunks(), weights.servers());
        let places = chunks.div_ceil(servers);
        let columns = servers * places;
        // Without the chunk's total, which is the same on each place, the same matching is cheapest.
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
