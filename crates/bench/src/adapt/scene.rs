//! One load on one store: starts the store, applies a design, fills it, observes it under the load, and checks the
//! rows.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_plan::store::guardrails::Limits;
use imago_plan::store::parameters::Parameters;
use imago_store::adapt::{AdaptReport, Adaptation, HeatReport, Mode, Options};
use imago_store::engine::{self, Store};
use imago_store::record::Site;
use imago_store::sampler::Sampler;
use imago_workload::timeline::Latency;
use serde::Serialize;
use tokio::runtime::Runtime;

use super::clients::{Checked, Clients, Load};
use super::designs::{self, Part};
use super::workload::{self, Kind, Workload};
use crate::error::{Error, Result, process};

/// Number of tasks that fill a store concurrently. Each writes the rows of one user at a time.
const FILLERS: u64 = 32;
/// Number of transactions whose routing is timed.
const ROUTED: usize = 20_000;
/// Length of a column of the heat report.
const HEAT_COLUMN: Duration = Duration::from_secs(2);

/// The parameters of a load.
#[derive(Clone, Debug)]
pub struct LoadSpec {
    /// Number of sites of the store.
    pub sites: u16,
    /// Fraction of a core that each site may use; `None` for no limit.
    pub site_cpu: Option<f64>,
    /// Number of clients, each with one transaction in progress.
    pub clients: u64,
    /// Arrival rate of all clients together, in transactions per second; `None` if each client begins its next
    /// transaction at once.
    pub open_rate_s: Option<f64>,
    /// Time since the start of the load after which latencies are recorded.
    pub warm: Duration,
    /// The duration of the load.
    pub lasts: Duration,
    /// Workload of the clients.
    pub workload: Workload,
    /// Design at the start of the load.
    pub design: Vec<Part>,
    /// True if the store adapts.
    pub adapts: bool,
    /// Seed of the clients and of the planner.
    pub seed: u64,
}

/// Results of a load.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Throughput in each second of the load, in transactions per second.
    pub throughput_s: Vec<f64>,
    /// Latencies, measured from the times at which transactions were due. Empty if transactions were not due at a
    /// rate.
    pub latency: Latency,
    /// Results of the checks.
    pub checked: Checked,
    /// State of adaptation at the end of the load; `None` if the store does not adapt.
    #[serde(skip)]
    pub report: Option<AdaptReport>,
    /// Number of changes of the design in each second of the load.
    pub changes_s: Vec<u64>,
    /// CPU time of this process over the load, in seconds.
    pub cpu_s: f64,
    /// Number of partitions at the end of the load.
    pub partitions: usize,
    /// Number of transactions for which the design had to be changed before a site could run them.
    pub brought_together: u64,
    /// CPU time that each site used over the load without its first second, as a fraction of its limit, or of a core
    /// without a limit.
    pub site_shares: Vec<f64>,
    /// CPU time of routing one transaction by the design at the end of the load, in µs.
    pub route_us: f64,
}

impl Outcome {
    /// Returns the mean throughput from second `from` of the load up to second `to`, which is excluded, in
    /// transactions per second.
    pub fn mean_s(&self, from: usize, to: usize) -> f64 {
        let of =
            &self.throughput_s[from.min(self.throughput_s.len())..to.min(self.throughput_s.len())];
        of.iter().sum::<f64>() / of.len().max(1) as f64
    }

    /// Returns the number of seconds from second `from` of the load until three consecutive seconds have a mean
    /// throughput of at least `least`; `None` if this does not happen.
    pub fn reaches_s(&self, from: usize, least: f64) -> Option<usize> {
        let seconds = self.throughput_s.get(from..)?;
        seconds.windows(3).position(|three| three.iter().sum::<f64>() / 3.0 >= least)
    }
}

/// A second of a running load.
pub struct Second<'a> {
    /// Number of the second, from 0 on.
    pub number: usize,
    /// Throughput in this second, in transactions per second.
    pub rate_s: f64,
    /// State of adaptation at the end of this second; `None` if the store does not adapt.
    pub report: Option<&'a AdaptReport>,
    adaptation: Option<&'a Adaptation>,
}

impl Second<'_> {
    /// Returns the heat of key ranges so far, in columns of 2 s; `None` if the store does not adapt.
    #[must_use]
    pub fn heat(&self) -> Option<HeatReport> {
        self.adaptation.map(Adaptation::heat)
    }
}

fn runtime() -> Result<Runtime> {
    let built = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build();
    built.map_err(process("start threads"))
}

/// Runs a load and blocks until it ends. Calls `see` after each second with the number of the second, the throughput
/// in transactions per second, and the state of adaptation.
///
/// # Errors
/// Fails if the store refuses an operation, or if a client receives a malformed reply.
pub fn run(
    setting: &LoadSpec,
    mut see: impl FnMut(usize, f64, Option<&AdaptReport>),
) -> Result<Outcome> {
    watch(setting, |second| {
        see(second.number, second.rate_s, second.report);
        ControlFlow::Continue(())
    })
}

/// Runs a load as [`run`] does. Calls `see` after each second; the load ends early if `see` returns `Break`. Blocks.
///
/// # Errors
/// Fails in the same cases as [`run`].
pub fn watch(
    setting: &LoadSpec,
    mut see: impl FnMut(&Second<'_>) -> ControlFlow<()>,
) -> Result<Outcome> {
    let options = engine::Options { sites: setting.sites, log: None };
    let store = Store::start(&options).map_err(|error| Error::Wrong(error.to_string()))?;
    let store = Arc::new(store);
    // The planner has its own thread, as in a server with spare CPU time, so that clients do not delay it.
    let (clients, planner) = (runtime()?, runtime()?);
    clients.block_on(designs::lay_out(&store, &setting.design))?;
    clients.block_on(fill(&store, setting.workload.users))?;
    let sampler = Arc::new(Sampler::new(setting.sites, setting.site_cpu));
    let sites = Arc::clone(&sampler);
    let worked = || (0..setting.sites).map(|site| sites.cpu(Site(site))).collect::<Vec<_>>();
    let adaptation = if setting.adapts {
        let options = Options {
            mode: Mode::On,
            parameters: Parameters::default(),
            limits: Limits::default(),
            seed: setting.seed,
        };
        let adaptation = Adaptation::new(Arc::clone(&store), sampler, options);
        adaptation.heat_columns(HEAT_COLUMN);
        planner.spawn(Arc::clone(&adaptation).run());
        Some(adaptation)
    } else {
        // Sites with a CPU limit report their CPU time to the sampler. Other sites need no sampler.
        if setting.site_cpu.is_some() {
            store.sample(sampler);
        }
        None
    };
    let LoadSpec { clients: many, open_rate_s, warm, seed, .. } = *setting;
    let of_load = Clients { many, open_rate_s, warm, seed };
    // A site reports all of its CPU time so far when it first works under the load, that of filling included.
    let mut worked_before = (worked(), Instant::now());
    let (cpu_before, brought) = (cpu_s(), store.brought_together());
    let load = clients.block_on(async { Load::start(&store, setting.workload, of_load) });
    let mut outcome = Outcome {
        throughput_s: Vec::new(),
        latency: Latency::default(),
        checked: Checked::default(),
        report: None,
        changes_s: Vec::new(),
        cpu_s: 0.0,
        partitions: 0,
        brought_together: 0,
        site_shares: Vec::new(),
        route_us: 0.0,
    };
    let mut changes = 0;
    for second in 0..setting.lasts.as_secs() as usize {
        let until = load.began() + Duration::from_secs(second as u64 + 1);
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        let rate_s = load.rate_s(second * 10, second * 10 + 10);
        if second == 0 && setting.lasts.as_secs() > 1 {
            worked_before = (worked(), Instant::now());
        }
        let report = adaptation.as_ref().map(|adaptation| adaptation.report());
        let all = report.as_ref().map_or(0, |report| report.changes);
        outcome.throughput_s.push(rate_s);
        outcome.changes_s.push(all - changes);
        changes = all;
        let (report, adaptation) = (report.as_ref(), adaptation.as_deref());
        if see(&Second { number: second, rate_s, report, adaptation }).is_break() {
            break;
        }
    }
    outcome.cpu_s = cpu_s() - cpu_before;
    outcome.latency = load.latency();
    let (worked_before, since) = worked_before;
    let had_s = since.elapsed().as_secs_f64() * setting.site_cpu.unwrap_or(1.0);
    let share = |(now, before): (Duration, Duration)| (now - before).as_secs_f64() / had_s;
    outcome.site_shares = worked().into_iter().zip(worked_before).map(share).collect();
    outcome.checked = clients.block_on(load.finish())?;
    outcome.report = adaptation.map(|adaptation| adaptation.report());
    outcome.brought_together = store.brought_together() - brought;
    outcome.partitions = store.map().design.partitions().count();
    outcome.route_us = route_us(&store, setting);
    drop(planner);
    drop(clients);
    Ok(outcome)
}

/// Returns the mean CPU time of routing a transaction, in µs.
fn route_us(store: &Store, setting: &LoadSpec) -> f64 {
    let mut drawing = setting.workload.drawing(setting.seed);
    let kinds: Vec<Kind> = (0..ROUTED).map(|_| drawing.next(setting.lasts)).collect();
    let before = cpu_s();
    for kind in kinds {
        std::hint::black_box(match kind {
            Kind::Count(user) => store.site_for(&[], &workload::rows(user)),
            Kind::Scan(user, users) => store.site_for(&[workload::scanned(user, users)], &[]),
        });
    }
    (cpu_s() - before) * 1e6 / ROUTED as f64
}

fn cpu_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Writes the rows of every user once, with a count of 0.
async fn fill(store: &Arc<Store>, users: u64) -> Result<()> {
    let filler = |n: u64| {
        let mut session = store.session();
        tokio::spawn(async move {
            for user in (n..users).step_by(FILLERS as usize) {
                let procedure = Box::new(workload::fill(user));
                let done = session.run(Vec::new(), workload::rows(user), procedure).await;
                done.map_err(|abort| Error::Wrong(abort.to_string()))?;
            }
            Ok::<(), Error>(())
        })
    };
    let fillers: Vec<_> = (0..FILLERS).map(filler).collect();
    for filler in fillers {
        filler.await.map_err(|_| Error::Wrong("a client panicked".into()))??;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::Popularity;
    use super::*;

    #[test]
    fn a_load_ends_when_it_is_told_to_and_each_transaction_ran_at_one_site() {
        let popularity = Popularity::Zipf(0.99);
        let workload =
            Workload { users: 400, scans: 0.5, popularity, shift_every_s: None, places: None };
        let setting = LoadSpec {
            sites: 2,
            site_cpu: None,
            clients: 8,
            open_rate_s: None,
            warm: Duration::ZERO,
            lasts: Duration::from_secs(600),
            workload,
            design: designs::random(400, 8, 2, 3),
            adapts: true,
            seed: 1,
        };
        let mut begins_ms = Vec::new();
        let seen = |second: &Second<'_>| {
            begins_ms = second.heat().expect("it adapts").begins_ms;
            if begins_ms.len() < 2 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let outcome = watch(&setting, seen).unwrap();
        assert!(outcome.throughput_s.len() < 600);
        assert_eq!(begins_ms[1] - begins_ms[0], HEAT_COLUMN.as_millis() as u64);
        let Checked { acknowledged, single_site, lost, anomalies } = outcome.checked;
        assert!(acknowledged > 0);
        assert_eq!((single_site, lost, anomalies), (acknowledged, 0, 0));
    }

    #[test]
    fn a_load_is_back_where_three_seconds_in_a_row_are() {
        let mut outcome = Outcome {
            latency: Latency::default(),
            site_shares: Vec::new(),
            route_us: 0.0,
            throughput_s: vec![10.0, 9.5, 2.0, 4.0, 12.0, 3.0, 9.0, 9.0, 9.0],
            checked: Checked::default(),
            report: None,
            changes_s: Vec::new(),
            cpu_s: 0.0,
            partitions: 0,
            brought_together: 0,
        };
        assert_eq!(outcome.reaches_s(2, 9.0), Some(4), "from the sixth second on");
        assert_eq!(outcome.mean_s(6, usize::MAX), 9.0);
        outcome.throughput_s.truncate(4);
        assert_eq!(outcome.reaches_s(2, 9.0), None);
        assert_eq!(outcome.reaches_s(7, 9.0), None, "beyond its end");
    }
}
