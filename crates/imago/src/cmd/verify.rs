//! `imago verify`: checks that a copy equals its source, and reports each difference.

mod view;

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use imago_job::control::Control;
use imago_job::eta::Meter;
use imago_job::event;
use imago_job::id::JobId;
use imago_job::prediction::Interval;
use imago_job::record::Limits;
use imago_job::reporter::Reporter;
use imago_mongo::bson::input::parse_filter;
use imago_mongo::bson::order::Id;
use imago_mongo::copy::FollowedCollections;
use imago_mongo::namespace::{Namespace, Selector};
use imago_mongo::server::collection::{Handle, Kind, LeftOut, Listed, left_out_by, list_all};
use imago_mongo::server::endpoint::Endpoint;
use imago_mongo::verify::{
    Mismatch, Mode, Progress, Report, Retries, Spec, Watch, read_mismatches, verify,
};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit code 3 when differences remain. Sides that are still changing are \
                        fine: a difference is looked at again with growing pauses before it is \
                        called one.")]
pub struct Args {
    /// The cluster with the original: mongodb://[user:password@]host:port[,…]/[?options].
    #[arg(long, value_name = "URI", hide_env_values = true)]
    from: String,
    /// The cluster with the copy.
    #[arg(long, value_name = "URI", hide_env_values = true)]
    to: String,
    /// The collection, renamed as db.coll=db2.coll2; a pattern such as shop.*; or all. Repeatable.
    #[arg(long, value_name = "NS", required = true)]
    ns: Vec<Selector>,
    /// Compare about this many documents drawn at random from each side, or this share, as 5%.
    #[arg(long, value_name = "N|P%", group = "mode")]
    sample: Option<Sample>,
    /// Compare the documents that the source's last N operations wrote.
    #[arg(long, value_name = "N", group = "mode")]
    last_ops: Option<u64>,
    /// Compare the documents that this file of mismatches names.
    #[arg(long, value_name = "FILE", group = "mode")]
    ids_file: Option<PathBuf>,
    /// Compare only documents that match, at both sides; extended JSON.
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// Repeated comparisons of a difference before it is reported.
    #[arg(long, value_name = "N", default_value_t = Retries::default().rounds)]
    retries: u32,
    /// Write each document that differs to this file, for `imago repair --ids-file`.
    #[arg(long, value_name = "FILE")]
    mismatches: Option<PathBuf>,
    /// Do not compare options and indexes.
    #[arg(long)]
    documents_only: bool,
}

/// Size of a random sample of documents: a number of them, or a share of the collection from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sample {
    Count(u64),
    Share(f64),
}

impl std::str::FromStr for Sample {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is neither a number of documents nor a share such as 5%");
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.trim().parse().map_err(|_| bad())?;
            let in_range = percent > 0.0 && percent <= 100.0;
            return if in_range { Ok(Sample::Share(percent / 100.0)) } else { Err(bad()) };
        }
        match text.parse() {
            Ok(0) | Err(_) => Err(bad()),
            Ok(count) => Ok(Sample::Count(count)),
        }
    }
}

/// The result of the verification of all collections.
#[derive(Debug, Serialize)]
struct Outcome {
    clean: bool,
    differences: u64,
    collections: Vec<Report>,
    /// Collections that match the patterns and exist only at the destination. They are not counted as differences:
    /// the cluster may have other users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    only_at_destination: Vec<Namespace>,
    /// Collections at the source that match the patterns and are not compared, each with the reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<LeftOut>,
}

/// Verifies each requested collection and prints the report. Fails with exit code 3 if there are differences.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let filter = args.filter.as_deref().map(parse_filter).transpose()?;
    let control = control(context)?;
    let mut mismatches = args.mismatches.as_deref().map(create).transpose()?;
    let source = connect(&args.from, "source").await?;
    let destination = connect(&args.to, "destination").await?;
    let followed = FollowedCollections::of(&destination).await?;
    let mut collections = Vec::new();
    // The destination is listed first: a collection that the source creates now and a job copies is
    // then not reported as the destination's alone.
    let there = list_all(&destination).await?;
    let (named, mut left_out) = named(&source, &args).await?;
    let only_at_destination = only_at(&destination, there, &args.ns, &named).await?;
    for (from, to, mode) in modes(&args, named)? {
        let spec = Spec {
            mode,
            filter: filter.clone(),
            retries: Retries { rounds: args.retries, ..Retries::default() },
            structure: !args.documents_only,
            is_retention_suspended: followed.may_be(&to),
            ..Spec::default()
        };
        let reporter = context.reporter(JobId::generate(), "verify");
        reporter.phase(format!("verify {from}"));
        let is_named = is_named(&args, &from);
        let source = Handle::new(source.clone(), from);
        let destination = Handle::new(destination.clone(), to);
        let mut watch = Shown::new(reporter, mismatches.as_mut());
        let report = verify(&source, &destination, &spec, &control, &mut watch).await;
        let differs = !report.as_ref().is_ok_and(Report::is_clean);
        if differs && !is_named && source.definition().await?.is_none() {
            let why = "it was dropped at the source while it was to be compared".to_owned();
            left_out.push(LeftOut { ns: source.ns, why });
            continue;
        }
        collections.push(report?);
    }
    if let (Some(file), Some(path)) = (mismatches.as_mut(), &args.mismatches) {
        file.flush().map_err(|cause| unwritable(path, &cause))?;
    }
    let outcome = Outcome {
        clean: collections.iter().all(Report::is_clean),
        differences: collections.iter().map(Report::document_differences).sum(),
        collections,
        only_at_destination,
        left_out,
    };
    context.output.result(&outcome, view::text)?;
    if outcome.clean { Ok(()) } else { Err(verdict(&outcome, args.mismatches.as_deref())) }
}

fn verdict(outcome: &Outcome, mismatches: Option<&Path>) -> Failure {
    let structure: usize = outcome
        .collections
        .iter()
        .map(|report| report.options_differences.len() + report.index_differences.len())
        .sum();
    let missing = outcome.collections.iter().filter(|report| report.is_missing).count();
    let missing = match missing {
        0 => String::new(),
        1 => ", and the destination does not have one of the collections".to_owned(),
        n => format!(", and the destination does not have {n} of the collections"),
    };
    let is_incomplete = outcome.collections.iter().any(|report| report.incomplete.is_some());
    let more = if is_incomplete { ", and not everything was looked at" } else { "" };
    let failure = Failure::new(
        Exit::Differences,
        "differences",
        format!(
            "{} documents and {structure} options or indexes differ{missing}{more}",
            outcome.differences
        ),
    );
    match mismatches {
        _ if outcome.differences == 0 => failure,
        Some(path) => failure.help(format!(
            "imago repair --ids-file {} copies these documents again",
            path.display()
        )),
        None => failure.help("with --mismatches FILE they are listed for `imago repair`"),
    }
}

/// Connects to the cluster at `uri`; `role` (`source` or `destination`) names the cluster in errors.
pub async fn connect(uri: &str, role: &'static str) -> Result<Endpoint, Failure> {
    Endpoint::connect(uri, role).await.map_err(Failure::from)
}

/// Returns a control without speed limits that stops the work when the user requests it.
pub fn control(context: &Context) -> Result<Control, Failure> {
    Control::new(Limits::default(), context.cancel.clone())
        .map_err(|error| Failure::from_error(Exit::Usage, "limits", &error))
}

/// Returns the requested collections as pairs (source, destination), and those left out. Patterns leave out views if
/// only documents are compared, since a view has no documents of its own.
async fn named(
    source: &Endpoint,
    args: &Args,
) -> Result<(Vec<(Namespace, Namespace)>, Vec<LeftOut>), Failure> {
    let (mut named, mut left_out) = (Vec::new(), Vec::new());
    for selector in &args.ns {
        if let Selector::One { from, to } = selector {
            named.push((from.clone(), to.clone()));
            continue;
        }
        let mut all = list_all(source).await?;
        all.retain(|listed| !args.documents_only || listed.kind != Kind::View);
        left_out.extend(left_out_by(source, selector).await?);
        all.retain(|listed| listed.kind != Kind::TimeSeries);
        let matching: Vec<_> =
            all.into_iter().filter_map(|l| selector.select(&l.ns).map(|to| (l.ns, to))).collect();
        if matching.is_empty() {
            let what = format!("no collection at the source matches {selector}");
            return Err(Failure::new(Exit::Precondition, "precondition", what)
                .help("check the pattern; names are database.collection"));
        }
        named.extend(matching);
    }
    named.sort();
    named.dedup();
    left_out.sort();
    left_out.dedup();
    left_out.retain(|left_out| !named.iter().any(|(from, _)| *from == left_out.ns));
    Ok((named, left_out))
}

/// Returns the collections at the destination that match the patterns and are not in `named`. Only
/// those in `there` that still exist are considered.
async fn only_at(
    destination: &Endpoint,
    there: Vec<Listed>,
    selectors: &[Selector],
    named: &[(Namespace, Namespace)],
) -> Result<Vec<Namespace>, Failure> {
    let patterns = selectors.iter().filter(|of| !matches!(of, Selector::One { .. }));
    let patterns: Vec<&Selector> = patterns.collect();
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    let named: HashSet<&Namespace> = named.iter().map(|(_, to)| to).collect();
    let is_matched = |ns: &Namespace| patterns.iter().any(|of| of.select(ns).is_some());
    let all = there.into_iter().map(|listed| listed.ns);
    let mut only = Vec::new();
    for ns in all.filter(|ns| is_matched(ns) && !named.contains(ns)) {
        if Handle::new(destination.clone(), ns.clone()).definition().await?.is_some() {
            only.push(ns);
        }
    }
    Ok(only)
}

/// Returns true if the source's collection `ns` was requested by its own name, not only by a pattern.
fn is_named(args: &Args, ns: &Namespace) -> bool {
    args.ns.iter().any(|asked| matches!(asked, Selector::One { from, .. } if from == ns))
}

/// Returns, for each pair of collections, the documents to compare. A collection requested by its own name must have
/// an entry in the file of ids; one that matches a pattern and is not in the file is left out.
fn modes(
    args: &Args,
    named: Vec<(Namespace, Namespace)>,
) -> Result<Vec<(Namespace, Namespace, Mode)>, Failure> {
    let Some(path) = &args.ids_file else {
        let mode = match (args.sample, args.last_ops) {
            (Some(Sample::Count(count)), _) => Mode::Sample(count),
            (Some(Sample::Share(share)), _) => Mode::Fraction(share),
            (_, Some(wanted)) => Mode::LastOps(wanted),
            _ => Mode::Full,
        };
        return Ok(named.into_iter().map(|(from, to)| (from, to, mode.clone())).collect());
    };
    let mut modes = Vec::new();
    for (from, to) in named {
        match ids(path, &from)? {
            ids if !ids.is_empty() => modes.push((from, to, Mode::Ids(ids))),
            _ if is_named(args, &from) => return Err(names_nothing(path, &from.to_string())),
            _ => {}
        }
    }
    if modes.is_empty() { Err(names_nothing(path, "what --ns names")) } else { Ok(modes) }
}

fn names_nothing(path: &Path, what: &str) -> Failure {
    let message = format!("{} names no document of {what}", path.display());
    Failure::new(Exit::Usage, "ids_file", message)
        .help("check --ns: a file of mismatches names collections as they are at the source")
}

fn ids(path: &Path, ns: &Namespace) -> Result<Vec<Id>, Failure> {
    let mut ids = Vec::new();
    for mismatch in read_mismatches(open(path)?) {
        let mismatch = mismatch.map_err(|error| bad_line(path, &error))?;
        if mismatch.ns == *ns {
            ids.push(mismatch.id);
        }
    }
    Ok(ids)
}

/// Opens a file of mismatches for reading.
pub fn open(path: &Path) -> Result<BufReader<File>, Failure> {
    let opened = File::open(path).map_err(|cause| {
        Failure::new(Exit::Usage, "ids_file", format!("cannot read {}", path.display()))
            .because(&cause)
    })?;
    Ok(BufReader::new(opened))
}

/// Makes the failure for an invalid line of the file of mismatches at `path`.
pub fn bad_line(path: &Path, error: &imago_mongo::verify::MismatchFileError) -> Failure {
    Failure::new(Exit::Usage, "ids_file", format!("{}: {error}", path.display()))
}

fn create(path: &Path) -> Result<BufWriter<File>, Failure> {
    File::create(path).map(BufWriter::new).map_err(|cause| unwritable(path, &cause))
}

fn unwritable(path: &Path, cause: &std::io::Error) -> Failure {
    Failure::new(Exit::Usage, "mismatches", format!("cannot write {}", path.display()))
        .because(cause)
        .help("name a file in a folder that this user may write")
}

/// The observer of a verification: reports progress as events, and writes mismatches as lines of a file if one is
/// given.
struct Shown<'a> {
    reporter: Reporter,
    file: Option<&'a mut BufWriter<File>>,
    meter: Meter,
    began: Instant,
}

/// Half-life of the rate of compared documents, in ms.
const RATE_MS: u64 = 5_000;
/// The time of comparing again what looked different, with its 90 % interval, in ms: it is unknown beforehand how much that is.
const RECHECK_MS: (f64, f64, f64) = (10.0, 200.0, 3_000.0);

impl<'a> Shown<'a> {
    fn new(reporter: Reporter, file: Option<&'a mut BufWriter<File>>) -> Self {
        Self { reporter, file, meter: Meter::new(RATE_MS), began: Instant::now() }
    }

    /// Returns the time until the first comparison and the next one are over, in ms; `None` if it is unknown.
    fn left_ms(&mut self, progress: &Progress) -> Option<Interval> {
        if progress.retry > 0 {
            return None;
        }
        let now_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.meter.observe(now_ms, progress.compared);
        let (low, expected, high) = RECHECK_MS;
        let left = self.meter.left_ms(progress.expected)?;
        Some(left.plus(Interval::new(low, expected, high)))
    }
}

impl Watch for Shown<'_> {
    fn progress(&mut self, progress: Progress) {
        let left = self.left_ms(&progress);
        let doing = match progress.retry {
            0 => format!("comparing; {} look different so far", progress.suspects),
            retry => format!("retry {retry}: {} still look different", progress.suspects),
        };
        self.reporter.progress(event::Progress {
            documents_done: progress.compared,
            documents_total: progress.expected,
            rate_documents_s: self.meter.rate_s(),
            eta_ms: left.map(|left| left.expected as u64),
            eta_interval_ms: left.map(|left| (left.low as u64, left.high as u64)),
            doing,
            ..event::Progress::default()
        });
    }

    fn mismatch(&mut self, mismatch: &Mismatch) -> std::io::Result<()> {
        match self.file.as_mut() {
            Some(file) => writeln!(file, "{}", mismatch.line()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_a_number_or_a_share() {
        assert_eq!("1000".parse(), Ok(Sample::Count(1000)));
        assert_eq!("2.5%".parse(), Ok(Sample::Share(0.025)));
        for bad in ["0", "-1", "0%", "101%", "x", "%"] {
            assert!(bad.parse::<Sample>().is_err(), "{bad:?}");
        }
    }

    /// The collections that are compared when `--ids-file` names one document of shop.orders.
    fn listed(ns: &[&str]) -> Result<Vec<String>, Exit> {
        #[derive(clap::Parser)]
        struct Typed {
            #[command(flatten)]
            args: Args,
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mismatches");
        std::fs::write(&path, "{\"ns\": \"shop.orders\", \"_id\": 7, \"kind\": \"missing\"}\n")
            .unwrap();
        let mut typed = vec!["verify", "--from", "a", "--to", "b", "--ids-file"];
        typed.push(path.to_str().unwrap());
        typed.extend(ns.iter().flat_map(|ns| ["--ns", ns]));
        let args = <Typed as clap::Parser>::parse_from(typed).args;
        let there = ["shop.orders", "shop.users"].map(|ns| ns.parse::<Namespace>().unwrap());
        let selected = |ns: &Namespace| args.ns.iter().find_map(|selector| selector.select(ns));
        let named = there.into_iter().filter_map(|ns| selected(&ns).map(|to| (ns, to))).collect();
        let modes = modes(&args, named).map_err(|failure| failure.exit())?;
        Ok(modes.into_iter().map(|(from, ..)| from.to_string()).collect())
    }

    #[test]
    fn a_file_that_names_nothing_of_a_collection_is_a_usage_error() {
        assert_eq!(listed(&["shop.orders"]), Ok(vec!["shop.orders".to_owned()]));
        assert_eq!(listed(&["shop.users"]), Err(Exit::Usage));
        assert_eq!(listed(&["shop.orders", "shop.users"]), Err(Exit::Usage));
        assert_eq!(listed(&["shop.*"]), Ok(vec!["shop.orders".to_owned()]));
        assert_eq!(listed(&["shop.u*"]), Err(Exit::Usage));
    }

    #[test]
    fn a_filter_that_is_no_document_is_a_usage_error() {
        let exit = |text| parse_filter(text).map_err(|error| Failure::from(error).exit());
        assert!(exit(r#"{"a": {"$gt": 1}}"#).is_ok() && exit("{a: 1}").is_ok());
        assert_eq!(exit("[1]"), Err(Exit::Usage));
        assert_eq!(exit("{a: 1"), Err(Exit::Usage));
    }
}
