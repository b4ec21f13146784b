//! `imago verify`: proves that a copy equals its source, or says where it does not.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use bson::Document;
use imago_job::control::Control;
use imago_job::event;
use imago_job::id::JobId;
use imago_job::record::Limits;
use imago_job::reporter::Reporter;
use imago_mongo::collection::{Handle, list_all};
use imago_mongo::endpoint::Endpoint;
use imago_mongo::ext_json;
use imago_mongo::namespace::{Namespace, Selector};
use imago_mongo::order::Id;
use imago_mongo::verify::{
    Mode, Progress, Report, Retries, Spec, Straggler, StructureDifference, Watch, read_stragglers,
    verify,
};
use serde::Serialize;

use crate::context::Context;
use crate::exit::{Exit, Failure};

/// What may be typed.
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
    /// Compare the documents that this file of stragglers names.
    #[arg(long, value_name = "FILE", group = "mode")]
    ids_file: Option<PathBuf>,
    /// Compare only documents that match, at both sides; extended JSON.
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// How often a difference is looked at again before it is called one.
    #[arg(long, value_name = "N", default_value_t = Retries::default().rounds)]
    retries: u32,
    /// Write each document that differs to this file, for `imago repair --ids-file`.
    #[arg(long, value_name = "FILE")]
    stragglers: Option<PathBuf>,
    /// Do not compare options and indexes.
    #[arg(long)]
    documents_only: bool,
}

/// How large a sample is.
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

/// The result for all collections.
#[derive(Debug, Serialize)]
struct Outcome {
    clean: bool,
    differences: u64,
    collections: Vec<Report>,
}

/// Verifies each collection, prints the report, fails with exit code 3 if anything differs.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let filter = args.filter.as_deref().map(parse_filter).transpose()?;
    let control = control(context)?;
    let mut stragglers = args.stragglers.as_deref().map(create).transpose()?;
    let source = connect(&args.from, "source").await?;
    let destination = connect(&args.to, "destination").await?;
    let mut collections = Vec::new();
    for (from, to) in Box::pin(named(&source, &args.ns)).await? {
        let spec = Spec {
            mode: mode(&args, &from)?,
            filter: filter.clone(),
            retries: Retries { rounds: args.retries, ..Retries::default() },
            structure: !args.documents_only,
            ..Spec::default()
        };
        let reporter = context.reporter(JobId::generate(), "verify");
        reporter.phase(format!("verify {from}"));
        let source = Handle::new(source.clone(), from);
        let destination = Handle::new(destination.clone(), to);
        let mut watch = Shown { reporter, file: stragglers.as_mut() };
        let report = Box::pin(verify(&source, &destination, &spec, &control, &mut watch)).await;
        collections.push(report?);
    }
    if let (Some(file), Some(path)) = (stragglers.as_mut(), &args.stragglers) {
        file.flush().map_err(|cause| unwritable(path, &cause))?;
    }
    let outcome = Outcome {
        clean: collections.iter().all(Report::is_clean),
        differences: collections.iter().map(Report::document_differences).sum(),
        collections,
    };
    context.output.result(&outcome, text)?;
    if outcome.clean { Ok(()) } else { Err(verdict(&outcome, args.stragglers.as_deref())) }
}

fn verdict(outcome: &Outcome, stragglers: Option<&Path>) -> Failure {
    let structure: usize = outcome
        .collections
        .iter()
        .map(|report| report.options_differences.len() + report.index_differences.len())
        .sum();
    let is_incomplete = outcome.collections.iter().any(|report| report.incomplete.is_some());
    let more = if is_incomplete { ", and not everything was looked at" } else { "" };
    let failure = Failure::new(
        Exit::Differences,
        "differences",
        format!(
            "{} documents and {structure} options or indexes differ{more}",
            outcome.differences
        ),
    );
    match stragglers {
        _ if outcome.differences == 0 => failure,
        Some(path) => failure.help(format!(
            "imago repair --ids-file {} copies these documents again",
            path.display()
        )),
        None => failure.help("with --stragglers FILE they are listed for `imago repair`"),
    }
}

/// Connects to a cluster.
pub async fn connect(uri: &str, role: &'static str) -> Result<Endpoint, Failure> {
    Box::pin(Endpoint::connect(uri, role)).await.map_err(Failure::from)
}

/// What ends the work when the user asks to stop.
pub fn control(context: &Context) -> Result<Control, Failure> {
    Control::new(Limits::default(), context.cancel.clone())
        .map_err(|error| Failure::from_error(Exit::Usage, "limits", &error))
}

/// A filter as it was typed.
pub fn parse_filter(text: &str) -> Result<Document, Failure> {
    let bad = |cause: &dyn std::fmt::Display| {
        Failure::new(Exit::Usage, "filter", format!("the filter cannot be read: {cause}"))
            .help(r#"write it as extended JSON, for example {"at": {"$gt": {"$date": "2026-01-01T00:00:00Z"}}}"#)
    };
    let raw = ext_json::parse_document(text).map_err(|error| bad(&error))?;
    Document::try_from(raw.as_ref()).map_err(|error| bad(&error))
}

/// The collections that `selectors` name, with their names at the destination.
async fn named(
    source: &Endpoint,
    selectors: &[Selector],
) -> Result<Vec<(Namespace, Namespace)>, Failure> {
    let mut named = Vec::new();
    for selector in selectors {
        if let Selector::One { from, to } = selector {
            named.push((from.clone(), to.clone()));
            continue;
        }
        let all = list_all(source).await?;
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
    Ok(named)
}

fn mode(args: &Args, ns: &Namespace) -> Result<Mode, Failure> {
    Ok(match (args.sample, args.last_ops, &args.ids_file) {
        (Some(Sample::Count(count)), _, _) => Mode::Sample(count),
        (Some(Sample::Share(share)), _, _) => Mode::Fraction(share),
        (_, Some(wanted), _) => Mode::LastOps(wanted),
        (_, _, Some(path)) => Mode::Ids(ids(path, ns)?),
        _ => Mode::Full,
    })
}

fn ids(path: &Path, ns: &Namespace) -> Result<Vec<Id>, Failure> {
    let mut ids = Vec::new();
    for straggler in read_stragglers(open(path)?) {
        let straggler = straggler.map_err(|error| bad_line(path, &error))?;
        if straggler.ns == *ns {
            ids.push(straggler.id);
        }
    }
    Ok(ids)
}

/// Opens a file of stragglers.
pub fn open(path: &Path) -> Result<BufReader<File>, Failure> {
    let opened = File::open(path).map_err(|cause| {
        Failure::new(Exit::Usage, "ids_file", format!("cannot read {}", path.display()))
            .because(&cause)
    })?;
    Ok(BufReader::new(opened))
}

/// The failure that a line of a file of stragglers is.
pub fn bad_line(path: &Path, error: &imago_mongo::verify::StragglerFileError) -> Failure {
    Failure::new(Exit::Usage, "ids_file", format!("{}: {error}", path.display()))
}

fn create(path: &Path) -> Result<BufWriter<File>, Failure> {
    File::create(path).map(BufWriter::new).map_err(|cause| unwritable(path, &cause))
}

fn unwritable(path: &Path, cause: &std::io::Error) -> Failure {
    Failure::new(Exit::Usage, "stragglers", format!("cannot write {}", path.display()))
        .because(cause)
        .help("name a file in a folder that this user may write")
}

/// Progress as events, stragglers as lines of a file.
struct Shown<'a> {
    reporter: Reporter,
    file: Option<&'a mut BufWriter<File>>,
}

impl Watch for Shown<'_> {
    fn progress(&mut self, progress: Progress) {
        let doing = match progress.retry {
            0 => format!("comparing; {} look different so far", progress.suspects),
            retry => format!("retry {retry}: {} still look different", progress.suspects),
        };
        self.reporter.progress(event::Progress {
            documents_done: progress.compared,
            documents_total: progress.expected,
            doing,
            ..event::Progress::default()
        });
    }

    fn straggler(&mut self, straggler: &Straggler) -> std::io::Result<()> {
        match self.file.as_mut() {
            Some(file) => writeln!(file, "{}", straggler.line()),
            None => Ok(()),
        }
    }
}

fn text(outcome: &Outcome) -> String {
    let mut text = String::new();
    for report in &outcome.collections {
        describe(report, &mut text);
    }
    text
}

fn describe(report: &Report, text: &mut String) {
    let verdict = if report.is_clean() { "equal" } else { "DIFFERENT" };
    let names = if report.source == report.destination {
        report.source.clone()
    } else {
        format!("{} = {}", report.source, report.destination)
    };
    let seconds = report.elapsed_ms / 1_000;
    let tenths = report.elapsed_ms % 1_000 / 100;
    let mut line = |line: String| text.extend([line.as_str(), "\n"]);
    line(format!("{names}: {verdict}"));
    line(format!("  {} documents compared in {seconds}.{tenths} s", report.compared));
    if let Some(last_ops) = &report.last_ops {
        line(format!(
            "  the last {} operations ({} were asked for, read from the {}) wrote {} documents",
            last_ops.found, last_ops.wanted, last_ops.read_from, last_ops.documents
        ));
    }
    if report.suspected > 0 {
        line(format!(
            "  {} looked different at first, {} of them no longer when looked at again",
            report.suspected, report.resolved
        ));
    }
    if report.document_differences() > 0 {
        line(format!(
            "  missing {}, extra {}, different {}, duplicate {}",
            report.missing, report.extra, report.different, report.duplicate
        ));
    }
    if report.unsettled > 0 {
        line(format!("  {} of these were still changing at the last look", report.unsettled));
    }
    for straggler in &report.differences {
        line(format!("    {:<9} {}", straggler.kind.word(), straggler.id));
    }
    let unlisted = report.document_differences() - report.differences.len() as u64;
    if unlisted > 0 {
        line(format!("    and {unlisted} more"));
    }
    for (what, differences) in
        [("option", &report.options_differences), ("index", &report.index_differences)]
    {
        for difference in differences {
            line(structural(what, difference));
        }
    }
    if let Some(reason) = &report.incomplete {
        line(format!("  incomplete: {reason}"));
    }
}

fn structural(what: &str, difference: &StructureDifference) -> String {
    let side = |value: &Option<String>| value.clone().unwrap_or_else(|| "absent".to_owned());
    format!(
        "    {what} {}: source {}, destination {}",
        difference.name,
        side(&difference.source),
        side(&difference.destination)
    )
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

    #[test]
    fn a_filter_that_is_no_document_is_a_usage_error() {
        assert!(parse_filter(r#"{"a": {"$gt": 1}}"#).is_ok());
        assert_eq!(parse_filter("[1]").map_err(|failure| failure.exit()), Err(Exit::Usage));
        assert_eq!(parse_filter("{a: 1}").map_err(|failure| failure.exit()), Err(Exit::Usage));
    }

    #[test]
    fn a_report_names_what_differs_and_how_much_is_not_listed() {
        let report = Report {
            source: "a.b".into(),
            destination: "c.d".into(),
            compared: 10,
            missing: 3,
            elapsed_ms: 1_250,
            ..Report::default()
        };
        let outcome = Outcome { clean: false, differences: 3, collections: vec![report] };
        assert_eq!(
            text(&outcome),
            "a.b = c.d: DIFFERENT\n  10 documents compared in 1.2 s\n  \
             missing 3, extra 0, different 0, duplicate 0\n    and 3 more\n"
        );
    }
}
