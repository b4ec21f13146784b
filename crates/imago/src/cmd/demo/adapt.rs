//! `imago demo adapt`: a store of four small sites under a skewed load whose hotspot moves, first
//! with a fixed random initial design, then again from that design with adaptation. Every
//! acknowledged transaction is checked.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::time::Duration;

use imago_bench::adapt::{LoadSpec, Outcome, Popularity, Workload, random, watch};
use serde::Serialize;

use super::load::Clock;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::values::share;

mod figures;
mod view;

use figures::{Span, learned, mean_s, recover_s};
use view::{Screen, View};

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The same load runs twice on a store of four sites in this process, each limited to a share of a core. Clients scan 200 \
to 1,000 rows or change three; the popularity of users follows Zipf's law (0.99), and popular users are neighbours. \
Both runs begin with 32 partitions of equal size, with random masters and without replicas, and half-way the hotspot \
moves.

throughput_off is the mean without adaptation, except the first second; throughput_on the mean of the second halves of \
the times before and after the move, when most has been learned; recover_s the time from the move until three seconds \
have on average 90 % of the best three before. On a terminal a map of reads by key and time is drawn while it runs.

Exit code 3: an acknowledged write is missing, or a reply contradicts the history.

Example: imago demo adapt --json")]
pub struct Args {
    /// Seconds with adaptation; half-way the hotspot moves.
    #[arg(long, value_name = "N", default_value_t = 80, value_parser = clap::value_parser!(u32).range(8..=600))]
    seconds: u32,
    /// Seconds without adaptation, before; half-way the hotspot moves.
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(4..=600))]
    off_seconds: u32,
    /// Clients, each of which has one transaction under way.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,
    /// Users; each has three rows of 100 bytes.
    #[arg(long, value_name = "N", default_value_t = 40_000, value_parser = clap::value_parser!(u32).range(1_000..=1_000_000))]
    users: u32,
    /// The share of transactions that scan, 0 to 1; the others change a user's rows.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5, value_parser = share)]
    scans: f64,
    /// The share of a core that each site has.
    #[arg(long, value_name = "SHARE", default_value_t = 0.15, value_parser = cpu_share)]
    site_cpu: f64,
    /// The seed of the random design, the clients' transactions, and the planner.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

fn cpu_share(text: &str) -> Result<f64, String> {
    let cpu = share(text)?;
    if cpu >= 0.01 { Ok(cpu) } else { Err("a site needs 0.01 of a core at least".to_owned()) }
}

/// The result of the demo: throughput without and with adaptation, and the check of all acknowledged transactions.
#[derive(Debug, Serialize)]
struct Summary {
    sites: u16,
    /// Mean throughput of the load without adaptation, in transactions/s, over the seconds in
    /// `throughput_off_seconds`; `throughput_on` is that of the load with adaptation.
    throughput_off: f64,
    throughput_on: f64,
    throughput_ratio: f64,
    throughput_off_seconds: Vec<Span>,
    throughput_on_seconds: Vec<Span>,
    /// Second of the load with adaptation in which the hotspot moved, counted from the start of that load.
    shift_s: u32,
    /// Time from the move of the hotspot until throughput recovered, in seconds; `None` if it had not recovered at
    /// the end of the load.
    recover_s: Option<usize>,
    /// Number of changes of the store's design that adaptation made, of which it reverted `undone`.
    changes: u64,
    undone: u64,
    partitions: usize,
    /// Number of acknowledged transactions in both loads together; all further fields are also of both loads.
    acknowledged: u64,
    /// Share of the acknowledged transactions whose procedure ran at one site, from 0 to 1.
    single_site_share: f64,
    /// Number of transactions that needed a change of the store's design before any site could run them.
    brought_together: u64,
    anomalies: u64,
    lost: u64,
    total_s: f64,
}

const SITES: u16 = 4;
/// Number of partitions of the store's random initial design.
const PARTITIONS: u64 = 32;

impl Args {
    fn setting(&self, adapts: bool) -> LoadSpec {
        let seconds = if adapts { self.seconds } else { self.off_seconds };
        let users = u64::from(self.users);
        LoadSpec {
            sites: SITES,
            site_cpu: Some(self.site_cpu),
            clients: u64::from(self.clients),
            open_rate_s: None,
            warm: Duration::ZERO,
            lasts: Duration::from_secs(u64::from(seconds)),
            workload: Workload {
                users,
                scans: self.scans,
                popularity: Popularity::Zipf(0.99),
                shift_every_s: Some(f64::from(seconds) / 2.0),
                places: None,
            },
            design: random(users, PARTITIONS, SITES, self.seed),
            adapts,
            seed: self.seed,
        }
    }
}

/// Runs the load without adaptation, then with it, and prints the result. Fails if the store contradicts an
/// acknowledged transaction.
pub async fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let clock = Clock::start();
    // Cleared when the demo is interrupted.
    let screen = Screen::new(context);
    screen.say(
        &clock,
        &format!(
            "a store of {SITES} sites with {} of a core each, {PARTITIONS} partitions with random masters",
            args.site_cpu
        ),
    );
    let view = View::new(&screen, args.off_seconds, args.seconds);
    screen.say(&clock, &format!("without adaptation, for {} s:", args.off_seconds));
    let (off, view) = load(args.setting(false), view, context).await?;
    screen
        .say(&clock, &format!("the same from the start with adaptation, for {} s:", args.seconds));
    let (on, view) = load(args.setting(true), view, context).await?;
    view.end();
    screen.keep();

    let summary = summary(args, &off, &on, clock.elapsed_s());
    context.output.result(&summary, in_words)?;
    if summary.lost == 0 && summary.anomalies == 0 {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Differences,
        "differences",
        "the store contradicts the acknowledged operations",
    ))
}

/// Runs a load on a thread of its own and shows each second in `view`. The load ends early if the process is
/// interrupted. Returns the outcome and the view.
async fn load(
    setting: LoadSpec,
    mut view: View,
    context: &Context,
) -> Result<(Outcome, View), Failure> {
    let cancel = context.cancel.clone();
    let run = move || {
        let outcome = watch(&setting, |second| {
            if cancel.is_cancelled() {
                return ControlFlow::Break(());
            }
            view.show(second);
            ControlFlow::Continue(())
        });
        outcome.map(|outcome| (outcome, view))
    };
    let ran = tokio::task::spawn_blocking(run).await;
    ran.map_err(|error| failed(&error))?.map_err(|error| failed(&error))
}

fn failed(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::from_error(Exit::Failed, "demo", error)
}

fn summary(args: &Args, off: &Outcome, on: &Outcome, total_s: f64) -> Summary {
    let off_spans = vec![Span(1, args.off_seconds as usize)];
    let on_spans = learned(args.seconds as usize);
    let throughput_off = mean_s(&off.throughput_s, &off_spans);
    let throughput_on = mean_s(&on.throughput_s, &on_spans);
    let (changes, undone) =
        on.report.as_ref().map_or((0, 0), |report| (report.changes, report.undone));
    let acknowledged = off.checked.acknowledged + on.checked.acknowledged;
    let single_site = off.checked.single_site + on.checked.single_site;
    Summary {
        sites: SITES,
        throughput_off,
        throughput_on,
        throughput_ratio: throughput_on / throughput_off.max(f64::MIN_POSITIVE),
        throughput_off_seconds: off_spans,
        throughput_on_seconds: on_spans,
        shift_s: args.seconds / 2,
        recover_s: recover_s(&on.throughput_s, args.seconds as usize / 2),
        changes,
        undone,
        partitions: on.partitions,
        acknowledged,
        single_site_share: single_site as f64 / acknowledged.max(1) as f64,
        brought_together: off.brought_together + on.brought_together,
        anomalies: off.checked.anomalies + on.checked.anomalies,
        lost: off.checked.lost + on.checked.lost,
        total_s,
    }
}

fn in_words(summary: &Summary) -> String {
    let mut text = String::new();
    let mut line = |what: &str, value: String| {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "  {what:<34} {value}");
    };
    line("transactions/s without adaptation", format!("{:.0}", summary.throughput_off));
    let spans: Vec<String> = summary.throughput_on_seconds.iter().map(Span::to_string).collect();
    line(
        "with it, once it has learned",
        format!("{:.0} (seconds {})", summary.throughput_on, spans.join(" and ")),
    );
    line("ratio", format!("{:.2}", summary.throughput_ratio));
    line(
        "recovery to 90 % after the move",
        match summary.recover_s {
            Some(seconds) => format!("after {seconds} s"),
            None => format!("not before the end (the move was at second {})", summary.shift_s),
        },
    );
    line("changes of the design", format!("{}, {} undone", summary.changes, summary.undone));
    line("partitions then", summary.partitions.to_string());
    line("acknowledged transactions", summary.acknowledged.to_string());
    line("of them at a single site", format!("{} %", 100.0 * summary.single_site_share));
    line("design changes for a transaction", format!("{} times", summary.brought_together));
    line("lost writes", summary.lost.to_string());
    line("anomalies", summary.anomalies.to_string());
    line("all in", format!("{:.1} s", summary.total_s));
    text
}
