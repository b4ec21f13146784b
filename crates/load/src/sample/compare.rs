//! The comparison of two configurations that take turns under one load; see [`imago_plan::tune::switchback`].
//!
//! The load ends before a change of the configuration, and begins again after it: a change under load would take several times as
//! long. If both differ in live settings alone, they change in the running nodes; otherwise nodes restart, or records are written
//! anew, and each turn warms up first. A turn's windows begin when throughput has settled. Afterwards the database has its first
//! configuration again. So it has after an error or an interruption.

use std::time::{Duration, Instant};

use imago_plan::tune::judge::Window;
use imago_plan::tune::sampling::is_plateau;
use imago_plan::tune::switchback::{self, BLOCKS_MIN, Block, Comparison, Side};
use imago_tune::cluster::{Error, Result};
use imago_workload::target::Target;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::load::Load;
use super::{Caller, Request, Sampled};

/// Maximum number of windows, and change of throughput from one to the next, after which a turn of a live change has settled.
const SETTLING_MAX: usize = 5;
const SETTLED: f64 = 0.1;

/// Bounds of a comparison.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// Maximum number of blocks of four turns; at least three.
    pub blocks_max: usize,
    /// Maximum time, after which no further block begins.
    pub duration_max: Duration,
    /// Difference of throughput, as a share, below which the configurations count as alike.
    pub alike: f64,
    /// Seed of the order of turns, and of the load; `None` draws one.
    pub seed: Option<u64>,
}

/// What a comparison says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The second configuration serves more.
    More,
    /// The second configuration serves less.
    Less,
    /// They differ by less than what counts.
    Alike,
    /// They cannot be told apart.
    Undecided,
}

impl From<switchback::Verdict> for Verdict {
    fn from(verdict: switchback::Verdict) -> Self {
        match verdict {
            switchback::Verdict::More => Self::More,
            switchback::Verdict::Less => Self::Less,
            switchback::Verdict::Alike => Self::Alike,
            switchback::Verdict::Undecided => Self::Undecided,
        }
    }
}

/// The reason why a comparison ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EndedBy {
    /// The verdict was clear.
    Verdict,
    /// The maximum number of blocks.
    Blocks,
    /// The maximum time.
    Time,
    /// The process was interrupted.
    Interrupted,
}

/// A change by the second configuration, as a share of the first one's value, with its 90 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// The change: 0.15 is 15 % more.
    pub change: f64,
    /// Lower and upper end of the 90 % interval.
    pub interval: [f64; 2],
}

impl From<switchback::Effect> for Effect {
    fn from(effect: switchback::Effect) -> Self {
        let switchback::Effect { change, interval, .. } = effect;
        Self { change, interval }
    }
}

/// A turn of a configuration.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Turn {
    /// Name of the configuration.
    pub configuration: String,
    /// Operations that ended per second, mean over the turn's windows.
    pub operations_s: f64,
    /// Time from the end of the turn before to the first window, in seconds: the change, and settling.
    pub settled_s: f64,
    /// Reason why the database was not warm after a restart, although the maximum time had passed; null if it was, or if the nodes
    /// were not restarted.
    pub not_warm: Option<String>,
}

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Names of both configurations; a gain is that of the second one.
    pub configurations: [String; 2],
    /// The mix of operations, as text.
    pub mix: String,
    /// Seed of the order of turns, and of the load.
    pub seed: u64,
    /// True if running nodes changed from one configuration to the other.
    pub is_live: bool,
    /// What the comparison says of throughput.
    pub verdict: Verdict,
    /// The reason why it ended.
    pub ended_by: EndedBy,
    /// Number of complete blocks.
    pub blocks: usize,
    /// Change of the operations served per second; null for fewer than two blocks.
    pub throughput: Option<Effect>,
    /// Change of the median of the time to a reply; null for fewer than two blocks.
    pub median: Option<Effect>,
    /// Change of the 99th percentile of the time to a reply; null for fewer than two blocks.
    pub p99: Option<Effect>,
    /// By how much throughput differs between two turns of the same configuration in nine of ten cases, as a share; null for
    /// fewer than two blocks.
    pub placebo: Option<f64>,
    /// Time of warming up before the first turn, in seconds.
    pub warm_s: f64,
    /// Reason why the database was not warm then; null if it was.
    pub not_warm: Option<String>,
    /// Time of all turns, in seconds.
    pub elapsed_s: f64,
    /// The turns, in their order.
    pub turns: Vec<Turn>,
}

/// Compares the first two configurations of `request` under its first mix; at last the database has the first one.
///
/// # Errors
/// Returns an error if the database cannot be rolled or loaded.
///
/// # Panics
/// If the request has fewer than two configurations, or no mix.
pub async fn compare<D: Sampled>(
    database: &mut D,
    request: &Request,
    bounds: &Bounds,
    caller: &Caller<'_>,
) -> Result<Compared> {
    assert!(request.configurations.len() >= 2 && !request.mixes.is_empty(), "two, under a mix");
    database.prepare(request, caller).await?;
    let is_live = D::can_take_turns(&request.configurations[0], &request.configurations[1])?;
    let mut turns = Turns {
        present: usize::MAX,
        load: None,
        is_live,
        said: Vec::new(),
        last_end: Instant::now(),
        not_warm: None,
        warm_s: 0.0,
    };
    let compared = turns.run(database, request, bounds, caller).await;
    // Operations may have failed: the error of the comparison says so.
    let stopped = turns.stop(request).await;
    let restored = turns.restore(database, request, caller).await;
    match (compared.and_then(|compared| stopped.map(|()| compared)), restored) {
        (Ok(compared), restored) => restored.map(|()| compared),
        (Err(error), Ok(())) => Err(error),
        (Err(error), Err(left)) => Err(Error::Failed {
            what: format!("{error}; and {left}"),
            help: "roll it out (`imago tune roll`)".into(),
        }),
    }
}

/// The turns of a comparison, and their load.
struct Turns<T: Target> {
    /// Index of the configuration that the database has.
    present: usize,
    /// The running load; `None` while there is none.
    load: Option<Load<T>>,
    is_live: bool,
    said: Vec<Turn>,
    /// End of the last turn.
    last_end: Instant,
    /// The result of the first warming up.
    not_warm: Option<String>,
    warm_s: f64,
}

impl<T: Target> Turns<T> {
    async fn run<D: Sampled<Target = T>>(
        &mut self,
        database: &mut D,
        request: &Request,
        bounds: &Bounds,
        caller: &Caller<'_>,
    ) -> Result<Compared> {
        let mix = request.mixes[0];
        (caller.say)(format!("rolling out {}", request.configurations[0].name));
        database.roll(request, 0, caller).await?;
        self.present = 0;
        let seed = bounds.seed.unwrap_or_else(rand::random);
        let mut load = Load::start(database, request, mix, seed).await?;
        (caller.say)("warming up".into());
        let warmth = load.warm(database, request, caller.cancel).await?;
        (self.warm_s, self.not_warm) = (warmth.warm_s, warmth.not_warm);
        self.load = Some(load);
        let began = Instant::now();
        self.last_end = began;
        let mut rng = StdRng::seed_from_u64(seed);
        let blocks_max = bounds.blocks_max.max(BLOCKS_MIN);
        let mut blocks = Vec::new();
        let (mut comparison, mut verdict) = (None::<Comparison>, switchback::Verdict::Undecided);
        let ended_by = loop {
            if blocks.len() >= blocks_max {
                break EndedBy::Blocks;
            }
            if began.elapsed() >= bounds.duration_max {
                break EndedBy::Time;
            }
            let first = Side::drawn(&mut rng);
            let Some(block) = self.block(first, database, request, caller).await? else {
                break EndedBy::Interrupted;
            };
            blocks.push(block);
            comparison = switchback::compare(&blocks, &|_| 1.0);
            let Some(comparison) = comparison else { continue };
            verdict = comparison.verdict(blocks_max, bounds.alike);
            (caller.say)(described(&comparison, request));
            if verdict != switchback::Verdict::Undecided {
                break EndedBy::Verdict;
            }
        };
        Ok(Compared {
            configurations: [0, 1].map(|number: usize| request.configurations[number].name.clone()),
            mix: mix.to_string(),
            seed,
            is_live: self.is_live,
            verdict: verdict.into(),
            ended_by,
            blocks: blocks.len(),
            throughput: comparison.map(|one| one.throughput.into()),
            median: comparison.and_then(|one| one.median).map(Effect::from),
            p99: comparison.and_then(|one| one.slowest).map(Effect::from),
            placebo: comparison.map(|one| one.placebo),
            warm_s: self.warm_s,
            not_warm: self.not_warm.clone(),
            elapsed_s: began.elapsed().as_secs_f64(),
            turns: std::mem::take(&mut self.said),
        })
    }

    /// Runs the four turns of a block; `None` if the process was interrupted.
    async fn block<D: Sampled<Target = T>>(
        &mut self,
        first: Side,
        database: &mut D,
        request: &Request,
        caller: &Caller<'_>,
    ) -> Result<Option<Block>> {
        let mut turns: [Vec<Window>; 4] = Default::default();
        for (turn, side) in turns.iter_mut().zip(first.block()) {
            let number = usize::from(side == Side::New);
            let not_warm = self.settle(number, database, request, caller).await?;
            let settled_s = self.last_end.elapsed().as_secs_f64();
            let load = self.load.as_mut().expect("it was started");
            while turn.len() < request.windows {
                if caller.cancel.is_cancelled() {
                    return Ok(None);
                }
                turn.push(load.window(request.window).await);
            }
            self.last_end = Instant::now();
            let sum = turn.iter().map(|window| window.rate_s).sum::<f64>();
            let configuration = request.configurations[number].name.clone();
            let operations_s = sum / turn.len() as f64;
            (caller.say)(format!("{configuration} serves {operations_s:.0}/s"));
            self.said.push(Turn { configuration, operations_s, settled_s, not_warm });
        }
        Ok(Some(Block { first, turns }))
    }

    /// Gives the database the configuration at the index `number`, if it has another one, and loads it until throughput has
    /// settled. Returns the reason why the database is not warm after a restart, if it is not.
    async fn settle<D: Sampled<Target = T>>(
        &mut self,
        number: usize,
        database: &mut D,
        request: &Request,
        caller: &Caller<'_>,
    ) -> Result<Option<String>> {
        let is_changed = self.present != number;
        let mut not_warm = None;
        if is_changed {
            self.stop(request).await?;
            // A change that fails leaves nodes of both configurations.
            self.present = usize::MAX;
            self.change(number, database, request, caller).await?;
            self.present = number;
            let seed = self.said.len() as u64 + 1;
            let mut load = Load::start(database, request, request.mixes[0], seed).await?;
            if !self.is_live {
                not_warm = load.warm(database, request, caller.cancel).await?.not_warm;
            }
            self.load = Some(load);
        }
        let load = self.load.as_mut().expect("it was started");
        let mut rates: Vec<f64> = Vec::new();
        while rates.len() < SETTLING_MAX && !caller.cancel.is_cancelled() {
            rates.push(load.window(request.window).await.rate_s);
            let has_settled = match rates[..] {
                [.., before, last] => (last - before).abs() <= SETTLED * before,
                _ => !is_changed,
            };
            if has_settled || is_plateau(&rates) {
                break;
            }
        }
        Ok(not_warm)
    }

    /// Gives the database the configuration at the index `number`, also if the process is interrupted meanwhile: a roll that
    /// is broken off would have to be resumed before the first configuration can be there again.
    async fn change<D: Sampled<Target = T>>(
        &self,
        number: usize,
        database: &mut D,
        request: &Request,
        caller: &Caller<'_>,
    ) -> Result<()> {
        let cancel = CancellationToken::new();
        let caller = Caller { cancel: &cancel, ..*caller };
        if self.is_live {
            database.switch(request, number, &caller).await
        } else {
            database.roll(request, number, &caller).await
        }
    }

    /// Ends the load, if one is running.
    async fn stop(&mut self, request: &Request) -> Result<()> {
        let name = |number: usize| request.configurations.get(number).map(|one| &*one.name);
        match self.load.take() {
            Some(load) => load.stop(name(self.present).unwrap_or("a change")).await,
            None => Ok(()),
        }
    }

    /// Gives the database its first configuration again, also if the process was interrupted.
    async fn restore<D: Sampled<Target = T>>(
        &mut self,
        database: &mut D,
        request: &Request,
        caller: &Caller<'_>,
    ) -> Result<()> {
        if self.present == 0 {
            return Ok(());
        }
        let name = &request.configurations[0].name;
        (caller.say)(format!("rolling out {name} again"));
        self.change(0, database, request, caller).await.map_err(|error| Error::Failed {
            what: format!("the database does not have {name} again: {error}"),
            help: "roll it out (`imago tune roll`)".into(),
        })
    }
}

/// Describes the comparison so far, for people.
fn described(comparison: &Comparison, request: &Request) -> String {
    let Comparison { throughput, blocks, .. } = comparison;
    let [low, high] = throughput.interval.map(|end| 100.0 * end);
    format!(
        "after {blocks} blocks {} serves {:+.1} % ({low:+.1} to {high:+.1} %)",
        request.configurations[1].name,
        100.0 * throughput.change,
    )
}
