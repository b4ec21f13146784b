//! `--adapt` of `imago store serve` and `router`, and `imago store explain`: the adaptation of a
//! store's design.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use imago_plan::store::guardrails::Limits;
use imago_plan::store::parameters::Parameters;
use imago_store::adapt::{
    AdaptReport, Adaptation, AtMost, DecisionReport, KeptReport, LimitsRequest, Mode, Options,
    Verdict,
};
use imago_store::admin::ChangeRequest;
use imago_store::engine::Store;
use imago_store::sampler::Sampler;

use super::admin::{self, Where};
use super::explain;
use crate::cmd::foresight::{By, Summary};
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The store's own changes of its design.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Adapt {
    /// The design changes only by command, and where a transaction requires it.
    Off,
    /// Changes that pay are reported, and not made: `imago store explain`.
    Advise,
    /// Changes that pay are made.
    On,
}

#[derive(Debug, clap::Args)]
pub struct AdaptArgs {
    /// Mode of adaptation: the store splits, merges, replicates and remasters partitions by itself,
    /// where that pays.
    #[arg(long, value_name = "MODE", value_enum, default_value_t = Adapt::Off)]
    adapt: Adapt,
    /// Time for which a change is credited with the time that it saves transactions, in s. [default: 10]
    #[arg(long, value_name = "S", value_parser = above_zero, allow_negative_numbers = true)]
    adapt_horizon: Option<f64>,
    /// The most partitions that adaptation makes. [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    partitions_max: Option<u32>,
    /// The most replicas that adaptation gives a partition, besides its master.
    #[arg(long, value_name = "N")]
    pub replicas_max: Option<u16>,
    /// The most bytes that adaptation lets a site hold, in MB of keys and values. It limits adaptation and drains only:
    /// what clients write is limited by --maxmemory of `imago store serve` and `site`.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    memory_max: Option<u64>,
    /// The most changes that adaptation makes a second, on average. [default: 10]
    #[arg(long, value_name = "N", value_parser = above_zero, allow_negative_numbers = true)]
    changes_s_max: Option<f64>,
}

/// The share of a core of each site of the process.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct SiteCpu {
    /// Hold the thread of each site to this share of a core: four sites then behave like four small machines.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub site_cpu: Option<f64>,
}

/// The place where the sites of a store run.
#[derive(Clone, Copy)]
pub enum SitesAt {
    /// The sites run in the process of the store, each limited to this share of a core; `None`: without a limit.
    Local(Option<f64>),
    /// The sites run in separate processes, which report their measurements to the router.
    Remote,
}

fn above_zero(typed: &str) -> Result<f64, String> {
    match typed.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("it is a number above 0".into()),
    }
}

fn share(typed: &str) -> Result<f64, String> {
    match typed.parse::<f64>() {
        Ok(share) if (0.01..=1.0).contains(&share) => Ok(share),
        _ => Err("it is a share of a core, from 0.01 to 1".into()),
    }
}

impl AdaptArgs {
    /// Starts the sampling of the store's sites and, unless it is off, the adaptation of the store's design, with the
    /// state in `folder` if there is one. Returns `None` if adaptation is off.
    pub async fn start(
        &self,
        store: &Arc<Store>,
        folder: Option<&Path>,
        at: SitesAt,
    ) -> Result<Option<Arc<Adaptation>>, Failure> {
        let sites = store.sites() as u16;
        let sampler = match at {
            SitesAt::Local(site_cpu) => Arc::new(Sampler::new(sites, site_cpu)),
            SitesAt::Remote => Arc::new(Sampler::remote(sites)),
        };
        let mode = match self.adapt {
            Adapt::Off => {
                if let SitesAt::Local(Some(_)) = at {
                    store.sample(sampler);
                }
                return Ok(None);
            }
            Adapt::Advise => Mode::Advise,
            Adapt::On => Mode::On,
        };
        let given = LimitsRequest {
            mode: Some(mode),
            horizon_s: self.adapt_horizon,
            partitions_max: self.partitions_max,
            replicas_max: self.replicas_max.map(AtMost::Some),
            memory_max_mb: self.memory_max.map(AtMost::Some),
            changes_s_max: self.changes_s_max,
        };
        let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (parameters, limits) = (Parameters::default(), Limits::default());
        let options = Options { mode, parameters, limits, seed };
        let adapts = Adaptation::in_folder(Arc::clone(store), sampler, options, &given, folder);
        adapts.await.map(Some).map_err(|fault| {
            Failure::new(Exit::Usage, "limits", fault.to_string()).help(
                "limits that were set while the store served are stored in its folder; flags \
                 override them",
            )
        })
    }
}

#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// Explain the placement of the partition that has this key, and list only decisions about it:
    /// TABLE:ROW, for example 0:user42; or the first key of a partition.
    key: Option<String>,
    /// Pause adaptation: it changes nothing until --resume.
    #[arg(long, conflicts_with = "resume")]
    pause: bool,
    /// Resume adaptation.
    #[arg(long)]
    resume: bool,
    /// Number of the last decisions to show.
    #[arg(long, value_name = "N", default_value_t = 20)]
    last: usize,
    #[command(flatten)]
    store: Where,
}

pub async fn explain(args: ExplainArgs, context: &Context) -> Result<(), Failure> {
    for verb in [(args.pause, "adapt/pause"), (args.resume, "adapt/resume")] {
        if let (true, path) = verb {
            admin::tell(&args.store, path).await?;
        }
    }
    let asked = match args.key {
        None => admin::ask(&args.store, "adapt", None).await?,
        Some(key) => {
            // `imago store design` shows the least key as "(first)".
            let key = if key == "(first)" { String::new() } else { key };
            let about = ChangeRequest { key, site: None };
            admin::ask(&args.store, "explain", Some(&about)).await?
        }
    };
    let mut report: AdaptReport = admin::understood(asked)?;
    let surplus = report.decisions.len().saturating_sub(args.last);
    report.decisions.drain(..surplus);
    context.output.result(&report, in_words)
}

/// Shows how good the predictions for the plans were that a store executed.
pub async fn foresight(store: Where, context: &Context) -> Result<(), Failure> {
    let report: AdaptReport = admin::understood(admin::ask(&store, "adapt", None).await?)?;
    context.output.result(&predictions(&report), Summary::in_words)
}

/// Returns the quality of the predictions for executed plans of a report.
fn predictions(report: &AdaptReport) -> Summary {
    let executed = report.decisions.iter().filter(|one| one.is_executed()).count();
    Summary::by(By::Plans(executed), report.predictions().iter())
}

fn in_words(report: &AdaptReport) -> String {
    let mode = match (report.mode, report.is_paused) {
        _ if report.has_ended => "over",
        (_, true) => "paused: no changes are made",
        (Mode::Advise, false) => "advise: changes that pay are reported, and not made",
        (Mode::On, false) => "on: changes that pay are made",
    };
    let mut text = report.explanation.as_ref().map_or_else(String::new, explain::in_words);
    _ = writeln!(text, "adaptation is {mode}");
    let latency = report.latency_us.map_or_else(|| "-".to_owned(), |us| format!("{us:.0} µs"));
    _ = writeln!(
        text,
        "{:.0} transactions/s, mean latency {latency}; decided by {} samples, over {} s",
        report.transactions_s, report.samples, report.horizon_s
    );
    _ = writeln!(text, "{} changes, {} plans undone", report.changes, report.undone);
    if let Some(why) = &report.distrust {
        _ = writeln!(text, "nothing is decided yet: {why}");
    }
    if let Some(failure) = &report.failure {
        _ = writeln!(text, "a failure: {failure}");
    }
    text += &kept(&report.kept);
    for site in &report.sites {
        _ = writeln!(
            text,
            "site {}: CPU {:.0} %, {:.0} % predicted",
            site.site,
            site.cpu * 100.0,
            site.predicted_cpu * 100.0
        );
    }
    if report.regimes > 1 {
        _ = writeln!(text, "{} recurring workloads (regimes) are remembered", report.regimes);
    }
    let squared =
        |of: Option<f64>| of.map_or_else(|| "-".into(), |squared| format!("{squared:.2}"));
    _ = writeln!(
        text,
        "R² of all predictions: {} for transactions, {} for operators",
        squared(report.r_squared_transactions),
        squared(report.r_squared_operators)
    );
    let title = ["function", "constant", "weights", "samples", "R²"];
    let rows = report.functions.iter().map(|function| {
        let weights: Vec<String> = function.weights.iter().map(|of| format!("{of:.3e}")).collect();
        [
            function.name.clone(),
            format!("{:.3}", function.constant),
            weights.join(" "),
            function.samples.to_string(),
            squared(function.r_squared),
        ]
    });
    text += &crate::table::table(&title, rows, &[]);
    for decision in &report.decisions {
        text += &decided(decision);
    }
    text
}

/// Formats the place where the planner's state is persisted, and failures of doing so.
fn kept(report: &KeptReport) -> String {
    let mut text = match &report.file {
        Some(file) => format!("state stored in {}\n", file.display()),
        None => "state not stored: without --data it is lost when the store ends\n".to_owned(),
    };
    for why in report.refused.iter().chain(&report.failure) {
        _ = writeln!(text, "{why}");
    }
    text
}

/// Formats a decision of the planner in two lines, or three if it reverts an earlier one.
fn decided(decision: &DecisionReport) -> String {
    let at_s = decision.at_ms as f64 / 1_000.0;
    let operators = match (&decision.redesign, &decision.operators[..]) {
        (Some(redesign), []) => format!("redesign: {redesign}"),
        (Some(redesign), all) => format!("redesign: {redesign} ({} operators)", all.len()),
        (None, []) => format!("run at site {}", decision.site),
        (None, operators) => operators.join(", then "),
    };
    let verdict = match &decision.verdict {
        Verdict::Done => "done".to_owned(),
        Verdict::Undone => "done, then undone because it made the latency worse".to_owned(),
        Verdict::Advised(why) => format!("pays: {why}"),
        Verdict::Rejected(why) => format!("not done: {why}"),
        Verdict::Failed(why) => format!("failed: {why}"),
    };
    let measured = decision.measured_us.map_or_else(String::new, |(before, after)| {
        let error = decision.measured_error_us.map(|error| format!(" (± {error:.0})"));
        let change = 100.0 * (after / before - 1.0);
        format!(
            "; measured {before:.0} -> {after:.0}{} µs ({change:+.0} %)",
            error.unwrap_or_default()
        )
    });
    let expected = decision.latency_ratio.map_or_else(String::new, |ratio| {
        let change = |ratio: f64| 100.0 * (ratio - 1.0);
        format!(
            " (expected {:+.0} %, in nine of ten cases {:+.0} to {:+.0} %)",
            change(ratio.expected),
            change(ratio.low),
            change(ratio.high)
        )
    });
    let operators_took = decision.operators_us.map_or_else(String::new, |us| {
        let took = decision.operators_took_us.map(|us| format!("; took {:.1} ms", us / 1_000.0));
        format!(
            " (operators in nine of ten cases {:.1} to {:.1} ms{})",
            us.low / 1_000.0,
            us.high / 1_000.0,
            took.unwrap_or_default()
        )
    });
    let ((before, after), (worked, works)) = (decision.predicted_us, decision.predicted_work_us);
    let discounted = if decision.realized < 0.995 {
        format!(
            " (counted: {:.0} % of what is predicted, as came true of such plans)",
            100.0 * decision.realized
        )
    } else {
        String::new()
    };
    let takes_back =
        decision.takes_back.as_ref().map_or_else(String::new, |why| format!("    {why}\n"));
    format!(
        "{at_s:.1} s: {operators}: {verdict}\n    predicted latency {before:.0} -> {after:.0} µs{expected}{measured}, processor \
         time {worked:.0} -> {works:.0} µs; saves {:.0} ms{discounted}, costs {:.1} \
         ms{operators_took}\n{takes_back}",
        decision.benefit_us / 1_000.0,
        decision.cost_us / 1_000.0
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn decision(verdict: Value, measured_us: Value) -> DecisionReport {
        let mut decision = json!({
            "at_ms": 12_300, "trigger": "1:customer-00004711", "site": 2,
            "operators": ["remaster 1:customer-00004000 --site 2"],
            "partitions": ["1:customer-00004000"], "predicted_us": [1_256.0, 1_004.8],
            "latency_ratio": {"low": 0.7, "expected": 0.8, "high": 0.95},
            "operators_us": {"low": 300.0, "expected": 700.0, "high": 1_900.0},
            "operators_took_us": 2_100.0,
            "benefit_us": 6_949_000.0, "cost_us": 500.0, "measured_us": measured_us,
        });
        let verdict = verdict.as_object().expect("a verdict has fields").clone();
        decision.as_object_mut().expect("it is an object").extend(verdict);
        serde_json::from_value(decision).expect("it is a decision")
    }

    #[test]
    fn executed_plans_count_with_what_was_measured() {
        let done = || json!({"verdict": "done"});
        let decisions = vec![
            decision(done(), json!([1_300.0, 1_105.0])),
            decision(done(), json!([1_300.0, 1_430.0])),
            decision(done(), Value::Null),
            decision(json!({"verdict": "rejected", "why": "it does not pay"}), Value::Null),
        ];
        let text = predictions(&AdaptReport { decisions, ..AdaptReport::default() }).in_words();
        assert!(text.contains("latency_ratio      3         2     1 (50 %)"), "{text}");
        assert!(text.contains("operators_us       3         3      0 (0 %)"), "{text}");
        assert!(text.ends_with("90 % are meant to be in their interval; plans: 3\n"), "{text}");
        let none = predictions(&AdaptReport::default()).in_words();
        assert!(none.contains("no plan"), "{none}");
    }

    #[test]
    fn a_decision_tells_what_is_expected_and_what_came() {
        let text = decided(&decision(json!({"verdict": "done"}), json!([1_300.0, 1_105.0])));
        assert!(text.contains("(expected -20 %, in nine of ten cases -30 to -5 %)"), "{text}");
        assert!(text.contains("measured 1300 -> 1105 µs (-15 %)"), "{text}");
    }
}
