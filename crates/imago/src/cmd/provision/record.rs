//! `imago provision record`: records the reads of a job as a trace.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use imago_provision::chain::Namespace;
use imago_provision::record::{self, Error, Report, Request};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::values::duration;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
CMD runs with a proxy between it and the database. It gets the proxy's URI in the environment (IMAGO_RECORD_URI), and \
{uri} in its arguments is replaced by it. The proxy records find by _id (equal to a value, or $in) with the sizes of the \
documents; other reads are counted. It passes everything on unchanged.

Record without a cache: reads that a cache serves do not reach the database.

Phases are separated by a time without reads (--gap), or by the job itself: a find with the comment \"imago phase K\" \
belongs to phase K.

With a replica set CMD gets a direct connection to the primary, so that the driver does not connect to other members \
without the proxy: all reads go to the primary while the job is recorded. TLS between the proxy and the database is \
not supported (exit code 4).

CMD's output stays its own; with --json it goes to stderr, and stdout has the report. If CMD fails, or is interrupted, the \
trace is kept and marked as incomplete.

Examples:
  imago provision record --uri mongodb://127.0.0.1:27017 --ns shop.messages --out chain.imt -- ./job.sh {uri}
  imago provision record --uri mongodb://127.0.0.1:27017 --gap 500ms --out chain.imt -- python3 job.py")]
pub(super) struct Args {
    /// The database: mongodb://HOST:PORT of a router, a replica set or a server.
    #[arg(long, value_name = "URI")]
    uri: String,
    /// The file to make.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// The collection whose reads are recorded; without it the first that is read by _id.
    #[arg(long, value_name = "DB.COLL")]
    ns: Option<Namespace>,
    /// The time without reads that ends a phase.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = duration)]
    gap: Duration,
    /// The job.
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs `imago provision record`: runs the job, records its reads and prints the report. Fails if the trace does not
/// contain the whole job.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let request = Request {
        uri: args.uri,
        out: args.out,
        namespace: args.ns.map(|namespace| namespace.to_string()),
        gap: args.gap,
        command: args.command,
        output_to_stderr: context.output.is_json(),
        when: imago_provision::utc::now(),
    };
    let report = record::run(&request, &context.cancel).await.map_err(|error| failure(&error))?;
    if context.output.is_json() {
        context.output.result(&report, text)?;
    } else {
        eprint!("{}", text(&report));
    }
    let Some(why) = &report.incomplete else { return Ok(()) };
    let told = format!("{why}; {} has its reads up to there", report.trace.display());
    let exit = if context.cancel.is_cancelled() { Exit::Interrupted } else { Exit::Failed };
    Err(Failure::new(exit, "job_failed", told))
}

/// Formats the report of a recording as text.
fn text(report: &Report) -> String {
    let totals = &report.totals;
    let mut text = format!(
        "{}: {} phases, {} reads of {}, {} of them with a document ({:.1} MB), in {:.1} s\n",
        report.trace.display(),
        totals.phases,
        totals.reads,
        if report.namespace.is_empty() { "no collection" } else { &report.namespace },
        totals.documents,
        totals.document_bytes as f64 / 1e6,
        report.seconds,
    );
    let all = totals.reads + totals.other_reads;
    if totals.other_reads > 0 {
        let percent = 100.0 * totals.other_reads as f64 / all as f64;
        text += &format!("{percent:.0} % of the reads are not by _id and are not in the trace\n");
    }
    for (count, what) in [
        (totals.elsewhere_reads, "reads of other collections are not in the trace"),
        (totals.failed_reads, "reads failed and are not in the trace"),
        (totals.late_reads, "reads ended after their phase and are in the next one"),
    ] {
        if count > 0 {
            text += &format!("{count} {what}\n");
        }
    }
    if totals.reads == 0 {
        text += "nothing was read by _id: does the job use the URI of IMAGO_RECORD_URI or {uri}?\n";
    }
    text
}

/// Converts an error of the recording into a failure, with an exit code and a code for programs.
pub fn failure(error: &Error) -> Failure {
    let (exit, code) = match error {
        Error::Uri(_) => (Exit::Usage, "usage"),
        Error::Exists(_) => (Exit::Usage, "file_exists"),
        Error::Unsupported { .. } => (Exit::Precondition, "unsupported"),
        Error::Unreachable { .. } => (Exit::Precondition, "unreachable"),
        Error::Port(_) => (Exit::Precondition, "listen"),
        Error::Start { .. } => (Exit::Usage, "command"),
        Error::Wait(_) => (Exit::Failed, "command"),
        Error::Trace(_) => (Exit::Failed, "trace"),
    };
    Failure::from_error(exit, code, error)
}
