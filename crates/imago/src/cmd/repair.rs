//! `imago repair`: copies again exactly the documents listed in a file of mismatches.

use std::path::PathBuf;

use imago_job::event;
use imago_job::id::JobId;
use imago_mongo::bson::input::parse_filter;
use imago_mongo::copy::repair::{RepairError, RepairReport, RepairSpec, repair};
use imago_mongo::verify::{Retries, read_mismatches};

use super::verify::{bad_line, connect, control, open};
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "The file is what `imago verify --mismatches` writes: one JSON object a \
                        line, {\"ns\": \"db.coll\", \"_id\": extended JSON}. Exit code 3 when a \
                        document could not be made equal.")]
pub struct Args {
    /// The cluster with the original: mongodb://[user:password@]host:port[,…]/[?options].
    #[arg(long, value_name = "URI", hide_env_values = true)]
    from: String,
    /// The cluster with the copy.
    #[arg(long, value_name = "URI", hide_env_values = true)]
    to: String,
    /// The file that names the documents.
    #[arg(long, value_name = "FILE")]
    ids_file: PathBuf,
    /// The filter of the copy: documents of the source that do not match it are deleted from the
    /// copy; extended JSON.
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// Repeated comparisons of a document before it is reported as still different.
    #[arg(long, value_name = "N", default_value_t = Retries::default().rounds)]
    retries: u32,
}

/// Copies the listed documents again, verifies them and prints the report. Fails with exit code 3 if some still
/// differ.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let spec = RepairSpec {
        filter: args.filter.as_deref().map(parse_filter).transpose()?,
        retries: Retries { rounds: args.retries, ..Retries::default() },
        ..RepairSpec::default()
    };
    let control = control(context)?;
    // Every line is checked before the first document is written.
    for mismatch in read_mismatches(open(&args.ids_file)?) {
        mismatch.map_err(|error| bad_line(&args.ids_file, &error))?;
    }
    let lines = read_mismatches(open(&args.ids_file)?);
    let source = connect(&args.from, "source").await?;
    let destination = connect(&args.to, "destination").await?;
    let reporter = context.reporter(JobId::generate(), "repair");
    reporter.phase("repair");
    let progress = |documents_done| {
        reporter.progress(event::Progress { documents_done, ..event::Progress::default() });
    };
    let done = repair(&source, &destination, lines, &spec, &control, progress).await;
    let report = done.map_err(|error| match error {
        RepairError::File(error) => bad_line(&args.ids_file, &error),
        RepairError::Cluster(error) => Failure::from(error),
    })?;
    context.output.result(&report, text)?;
    if report.is_clean() {
        return Ok(());
    }
    let what = format!("{} documents could not be made equal", report.refused + report.remaining);
    Err(Failure::new(Exit::Differences, "differences", what)
        .help("mend the causes that the report names and repair again"))
}

fn text(report: &RepairReport) -> String {
    let mut text = format!(
        "{} of {} documents are equal now; {} were written and {} deleted\n",
        report.repaired, report.named, report.written, report.deleted
    );
    let mut line = |line: String| text.extend([line.as_str(), "\n"]);
    for refused in &report.refusals {
        line(format!(
            "  refused   {} {}: {}",
            refused.mismatch.ns, refused.mismatch.id, refused.cause
        ));
        if let Some(help) = &refused.help {
            line(format!("            {help}"));
        }
    }
    for mismatch in &report.differences {
        line(format!("  {:<9} {} {}", mismatch.kind.word(), mismatch.ns, mismatch.id));
    }
    text
}
