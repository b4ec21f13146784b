//! `imago store adapt`: shows the limits of a store's adaptation, and changes them while the store serves.

use std::fmt::Write as _;

use imago_store::adapt::{AtMost, LimitsReport, LimitsRequest, Mode, Unlimited};

use super::admin::{self, Where};
use crate::context::Context;
use crate::exit::Failure;

/// The use of a plan that pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ModeArg {
    /// Changes that pay are reported, and not made: `imago store explain`.
    Advise,
    /// Changes that pay are made.
    On,
}

impl From<ModeArg> for Mode {
    fn from(typed: ModeArg) -> Self {
        match typed {
            ModeArg::Advise => Self::Advise,
            ModeArg::On => Self::On,
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Without options the command shows the present limits. Limits are changed together or, if one of them is not valid, not \
at all. They apply from the next decision on, and after a restart if the store has a folder, unless the store is then \
started with the flag of the same name. A limit below the present number removes nothing; only a memory limit below \
what a site holds is refused.

Example: imago store adapt --mode on --partitions-max 64 --memory-max none")]
pub struct LimitsArgs {
    /// Report plans that pay, or execute them.
    #[arg(long, value_name = "MODE", value_enum)]
    mode: Option<ModeArg>,
    /// For how long a change is credited with the time that it saves transactions, in s.
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    horizon: Option<f64>,
    /// The most partitions that adaptation makes.
    #[arg(long, value_name = "N")]
    partitions_max: Option<u32>,
    /// The most replicas that adaptation gives a partition, besides its master; or none: any number.
    #[arg(long, value_name = "N|none", value_parser = at_most::<u16>)]
    replicas_max: Option<AtMost<u16>>,
    /// The most that adaptation and drains let a site hold, in MB of keys and values; or none: any amount. It is no limit of
    /// what clients write: that is --maxmemory of `imago store serve` and `site`.
    #[arg(long, value_name = "MB|none", value_parser = at_most::<u64>)]
    memory_max: Option<AtMost<u64>>,
    /// The most changes that adaptation makes a second, on average.
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    changes_s_max: Option<f64>,
    #[command(flatten)]
    store: Where,
}

fn at_most<T: std::str::FromStr>(typed: &str) -> Result<AtMost<T>, String> {
    match typed {
        "none" => Ok(AtMost::Any(Unlimited::None)),
        _ => typed.parse().map(AtMost::Some).map_err(|_| "it is a number, or none".into()),
    }
}

pub async fn limits(args: LimitsArgs, context: &Context) -> Result<(), Failure> {
    let LimitsArgs {
        mode,
        horizon,
        partitions_max,
        replicas_max,
        memory_max,
        changes_s_max,
        store,
    } = args;
    let request = LimitsRequest {
        mode: mode.map(Mode::from),
        horizon_s: horizon,
        partitions_max,
        replicas_max,
        memory_max_mb: memory_max,
        changes_s_max,
    };
    let answer = match request == LimitsRequest::default() {
        true => admin::ask(&store, "adapt/limits", None).await?,
        false => admin::post(&store, "adapt/limits", serde_json::json!(request)).await?,
    };
    let report: LimitsReport = admin::understood(answer)?;
    context.output.result(&report, in_words)
}

fn in_words(report: &LimitsReport) -> String {
    let limits = &report.limits;
    let most = |most: Option<u64>| most.map_or_else(|| "none".to_owned(), |most| most.to_string());
    let mode = match limits.mode {
        Mode::Advise => "advise",
        Mode::On => "on",
    };
    let rows = [
        ["mode".to_owned(), mode.to_owned()],
        ["horizon".to_owned(), format!("{} s", limits.horizon_s)],
        ["partitions-max".to_owned(), limits.partitions_max.to_string()],
        ["replicas-max".to_owned(), most(limits.replicas_max.map(u64::from))],
        ["memory-max (MB)".to_owned(), most(limits.memory_max_mb)],
        ["changes-s-max".to_owned(), limits.changes_s_max.to_string()],
    ];
    let mut text = crate::table::table(&["limit", "now"], rows, &[]);
    for note in &report.notes {
        _ = writeln!(text, "{note}");
    }
    text
}
