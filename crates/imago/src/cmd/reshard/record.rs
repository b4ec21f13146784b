//! `imago reshard record`: records the operations of clients on a collection, by a proxy before the router.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use imago_mongo::namespace::Namespace;
use imago_mongo::reshard::advise::{Pending, Recorder};
use imago_mongo::server::endpoint::Endpoint;
use imago_provision::record::{self, Job, JobEnd, Target};
use imago_provision::wire::{self, Handler, Message, Upstream};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::render::grouped;
use crate::values::duration;

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Either CMD runs behind a proxy, or clients connect to one at --listen in place of the router. CMD gets \
the proxy's URI in the environment (IMAGO_RECORD_URI), and {uri} in its arguments is replaced by it. The proxy passes \
everything on unchanged; TLS is not supported (exit code 4).

Values are kept as hashes with their position among the collection's documents, since keys may be personal data; a hash \
still tells whether a value that is known occurs.

Examples:
  imago reshard record --uri mongodb://127.0.0.1:27017 --ns shop.reviews --out ops.bson -- ./clients.sh {uri}
  imago reshard record --uri mongodb://127.0.0.1:27017 --ns shop.reviews --out ops.bson --listen 127.0.0.1:27100 --for 1h
  imago reshard advise --uri mongodb://127.0.0.1:27017 --ns shop.reviews --recording ops.bson")]
pub struct Args {
    /// The cluster's router: mongodb://[user:password@]host:port[,…]/[?options].
    #[arg(long, value_name = "URI", hide_env_values = true)]
    uri: String,
    /// The collection, as db.coll.
    #[arg(long, value_name = "NS")]
    ns: Namespace,
    /// The file to make.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Keep the values of conditions, and not hashes of them.
    #[arg(long)]
    keep_values: bool,
    /// Address at which clients connect in place of the router.
    #[arg(
        long,
        value_name = "HOST:PORT",
        conflicts_with = "command",
        required_unless_present = "command"
    )]
    listen: Option<SocketAddr>,
    /// Time for which clients at --listen are recorded; without it, until Ctrl-C.
    #[arg(long = "for", id = "time", value_name = "TIME", value_parser = duration, requires = "listen")]
    time: Option<Duration>,
    /// The program whose operations are recorded, with its arguments.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// The outcome of a recording.
#[derive(Debug, Serialize)]
struct Report {
    /// Path of the file.
    recording: PathBuf,
    /// The collection.
    ns: String,
    /// Number of recorded operations.
    operations: u64,
    /// Number of operations that the server refused; they are not in the file.
    refused: u64,
    /// Time of the recording, in seconds.
    seconds: f64,
    /// The reason why the program's operations are not complete; `None` if they are.
    incomplete: Option<String>,
}

/// Inspects the messages of one client connection.
struct Tap {
    recorder: Arc<Recorder>,
    pending: Pending,
}

impl Handler for Tap {
    async fn request(
        &mut self,
        request: &Message,
        _: &mut Upstream,
    ) -> io::Result<Option<Message>> {
        self.pending = Pending::default();
        if let Ok(Some(command)) = request.command() {
            // Damaged documents are the server's to refuse.
            let documents: Vec<_> = { command.sequences.iter() }
                .flat_map(|sequence| sequence.documents().map_while(Result::ok))
                .collect();
            self.pending = self.recorder.command(command.database(), command.body, &documents);
            if request.is_more_to_come() {
                self.recorder.unacknowledged(std::mem::take(&mut self.pending));
            }
        }
        Ok(None)
    }

    async fn reply(&mut self, _: &Message, reply: &Message) -> io::Result<()> {
        if let Ok(Some(reply)) = reply.command() {
            self.recorder.reply(std::mem::take(&mut self.pending), reply.body);
        }
        Ok(())
    }
}

/// Records operations and prints how many there were.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let target = Target::find(&args.uri).await.map_err(|error| refused(&error))?;
    let cluster = Endpoint::connect(&args.uri, "cluster").await?;
    let recorder = Recorder::create(&cluster, &args.ns, &args.out, args.keep_values).await?;
    let recorder = Arc::new(recorder);
    let taps = {
        let recorder = Arc::clone(&recorder);
        move || Tap { recorder: Arc::clone(&recorder), pending: Pending::default() }
    };
    let end = match args.listen {
        Some(at) => listen(at, args.time, &target, taps, &recorder, context).await?,
        None => {
            let output_to_stderr = context.output.is_json();
            let job = Job { command: &args.command, output_to_stderr };
            record::behind_proxy(&target, job, taps, || recorder.flush(), &context.cancel)
                .await
                .map_err(|error| refused(&error))?
        }
    };
    let (operations, refused) = recorder.finish()?;
    let report = Report {
        recording: args.out,
        ns: args.ns.to_string(),
        operations,
        refused,
        seconds: end.seconds,
        incomplete: end.incomplete,
    };
    context.output.result(&report, text)?;
    let Some(why) = &report.incomplete else { return Ok(()) };
    let message = format!("{why}; {} has the operations up to there", report.recording.display());
    let exit = if context.cancel.is_cancelled() { Exit::Interrupted } else { Exit::Failed };
    Err(Failure::new(exit, "job_failed", message))
}

/// Serves clients at `at` for `time`, or until Ctrl-C, which is the end of a recording without a time.
async fn listen(
    at: SocketAddr,
    time: Option<Duration>,
    target: &Target,
    taps: impl Fn() -> Tap + Send + 'static,
    recorder: &Recorder,
    context: &Context,
) -> Result<JobEnd, Failure> {
    let listener = TcpListener::bind(at).await.map_err(|cause| {
        Failure::new(Exit::Precondition, "listen", format!("cannot listen at {at}: {cause}"))
    })?;
    let at = listener.local_addr().unwrap_or(at);
    eprintln!("recording: clients connect to {at} in place of the router");
    let stop = CancellationToken::new();
    let serving = wire::serve(listener, target.addresses().to_vec(), taps, stop.clone());
    let serving = tokio::spawn(serving);
    let started = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let mut is_interrupted = false;
    while time.is_none_or(|time| started.elapsed() < time) && !is_interrupted {
        tokio::select! {
            _ = ticks.tick() => recorder.flush(),
            () = context.cancel.cancelled() => is_interrupted = true,
        }
    }
    stop.cancel();
    // The proxy's task ends after `stop`; a panic in it has been reported already.
    let _ = serving.await;
    let incomplete =
        (is_interrupted && time.is_some()).then(|| "the recording was interrupted".to_owned());
    Ok(JobEnd { seconds: started.elapsed().as_secs_f64(), exit_code: None, incomplete })
}

fn text(report: &Report) -> String {
    let mut text = format!(
        "{}: {} operations on {} in {:.1} s\n",
        report.recording.display(),
        grouped(report.operations),
        report.ns,
        report.seconds,
    );
    if report.refused > 0 {
        text += &format!("{} were refused and are not in it\n", grouped(report.refused));
    }
    if report.operations == 0 {
        text += "nothing was recorded: do clients use the proxy's URI?\n";
    }
    text
}

fn refused(error: &record::Error) -> Failure {
    crate::cmd::provision::record::failure(error)
}
