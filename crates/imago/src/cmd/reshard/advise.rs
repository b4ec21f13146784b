//! `imago reshard advise`: the shard keys that suit what clients do, before anything moves.

mod confirm;
mod view;

use std::path::PathBuf;
use std::time::Duration;

use imago_bench::key_trial;
use imago_job::control::Control;
use imago_mongo::namespace::Namespace;
use imago_mongo::replicate::pace::{self, PaceGuard};
use imago_mongo::reshard::advise::{self, Advice, COSTS, Origin, Request};
use imago_mongo::reshard::plan::SAMPLE;
use imago_mongo::server::endpoint::Endpoint;
use imago_plan::shard_key::Costs;
use serde::Serialize;

use crate::cmd::process::process;
use crate::cmd::speed::Speed;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::values::{duration, share};

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Leaves the collection as it is; --profile sets the profilers of shards, and restores them. Reads a sample of the collection, at a pace that spares \
                        clients, and what the source has of its operations."
)]
pub struct Args {
    /// The cluster's router: mongodb://[user:password@]host:port[,…]/[?options].
    #[arg(long, value_name = "URI", hide_env_values = true)]
    uri: String,
    /// The collection, as db.coll.
    #[arg(long, value_name = "NS")]
    ns: Namespace,
    /// A key to judge in any case, as extended JSON, such as '{"userID": 1}'. Repeatable.
    #[arg(long, value_name = "JSON")]
    key: Vec<String>,
    /// Number of shards to judge for; without it, those of the cluster.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    shards: Option<u16>,
    /// Try the present key and the best two out on a testbed of this machine, with a sample of the
    /// documents (20,000, read at once) and of the operations, and show predicted beside measured.
    #[arg(long)]
    confirm: bool,
    #[command(flatten)]
    judge: Judge,
}

/// Advice, and what a trial of it measured.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    advice: Advice,
    /// What a trial measured; `None` if none was requested.
    confirmed: Option<key_trial::Confirmed>,
}

/// What keys are judged by.
#[derive(Debug, clap::Args)]
pub(super) struct Judge {
    #[command(flatten)]
    source: Source,
    /// With --profile: share of the operations that is recorded; without it, such that each shard
    /// writes some 20 entries a second, or 1,000 in all.
    #[arg(long, value_name = "SHARE", value_parser = share, requires = "profile")]
    profile_rate: Option<f64>,
    /// Number of documents that are read.
    #[arg(long, value_name = "N", default_value_t = SAMPLE, value_parser = clap::value_parser!(u64).range(100..=1_000_000))]
    sample: u64,
    /// Processor time of a shard for a request, in µs.
    #[arg(long, value_name = "US", default_value_t = COSTS.request_us)]
    request_us: f64,
    /// Processor time of a shard for each document that is returned, in µs.
    #[arg(long, value_name = "US", default_value_t = COSTS.document_us)]
    document_us: f64,
    /// Processor time of a shard for each document that is written, in µs.
    #[arg(long, value_name = "US", default_value_t = COSTS.write_us)]
    write_us: f64,
    #[command(flatten)]
    speed: Speed,
}

/// Where the operations of clients come from.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// Recording by `imago reshard record`.
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
    /// Switch the profilers of the shards on for this time, for a random part of the operations on
    /// the collection; their settings are restored.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    profile: Option<Duration>,
    /// What the cluster has sampled (`configureQueryAnalyzer`, MongoDB 7.0 and newer).
    #[arg(long)]
    sampled_queries: bool,
    /// Log of a mongod or mongos of the cluster: its slow operations. Repeatable.
    #[arg(long, value_name = "FILE")]
    log: Vec<PathBuf>,
}

impl Source {
    /// Returns the source of these arguments.
    fn parsed(self, rate: Option<f64>) -> Origin {
        match (self.recording, self.profile) {
            (Some(recording), _) => Origin::Recording(recording),
            (None, Some(within)) => Origin::Profilers { within, rate },
            (None, None) if self.sampled_queries => Origin::SampledQueries,
            (None, None) => Origin::Logs(self.log),
        }
    }
}

impl Judge {
    /// Checks what needs no cluster.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let is_cost = |cost: f64| cost.is_finite() && cost >= 0.0;
        if ![self.request_us, self.document_us, self.write_us].into_iter().all(is_cost)
            || self.request_us <= 0.0
        {
            let message = "processor times are 0 or more, and that of a request is more than 0";
            return Err(Failure::new(Exit::Usage, "cost", message.to_owned()));
        }
        self.speed.parsed().map(|_| ())
    }

    /// Judges the keys of `ns`, candidates and those of `keys`.
    pub(super) async fn judge(
        self,
        cluster: &Endpoint,
        ns: Namespace,
        keys: Vec<String>,
        context: &Context,
    ) -> Result<Advice, Failure> {
        let (request, control, _pace) = self.request((ns, keys, None), cluster, context).await?;
        Ok(advise::advise(cluster, &request, &control).await?)
    }

    /// Returns the request to judge the keys of a collection: candidates and those that are named, for so many shards or for those
    /// that there are, and the guard of the pace at which documents are read.
    async fn request(
        self,
        (ns, keys, shards): (Namespace, Vec<String>, Option<u16>),
        cluster: &Endpoint,
        context: &Context,
    ) -> Result<(Request, Control, PaceGuard), Failure> {
        let limits = self.speed.parsed()?;
        let control = Control::new(limits, context.cancel.clone())
            .map_err(|error| Failure::from_error(Exit::Usage, "limit", &error))?;
        let watched = pace::SparedCluster::of(cluster.clone(), ns.clone());
        let pace = pace::watch(vec![watched], control.clone(), None);
        if limits.is_paced {
            control.or_stop(pace.known()).await.map_err(imago_mongo::error::Error::from)?;
        }
        let request = Request {
            ns,
            from: self.source.parsed(self.profile_rate),
            process: process(),
            keys,
            shards,
            sample: self.sample,
            costs: Costs {
                request_us: self.request_us,
                document_us: self.document_us,
                write_us: self.write_us,
            },
        };
        Ok((request, control, pace))
    }
}

/// Judges shard keys and prints them.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    args.judge.check()?;
    let cluster = Endpoint::connect(&args.uri, "cluster").await?;
    let wanted = (args.ns.clone(), args.key, args.shards);
    let (request, control, _pace) = args.judge.request(wanted, &cluster, context).await?;
    if !args.confirm {
        let advice = advise::advise(&cluster, &request, &control).await?;
        return print(&Report { advice, confirmed: None }, context);
    }
    // Before anything is recorded.
    imago_testbed::find_mongod().map_err(|error| {
        Failure::from_error(Exit::Precondition, "testbed", &error)
            .help("--confirm starts servers on this machine; `make setup` installs them")
    })?;
    let (advice, trial) = advise::advise_for_trial(&cluster, &request, &control).await?;
    let Some(trial) = trial else {
        print(&Report { advice, confirmed: None }, context)?;
        let message = "no key was tried out: the last note says why";
        return Err(Failure::new(Exit::Precondition, "trial", message));
    };
    let possible = advice.keys.iter().filter(|key| key.is_possible());
    let keys: Vec<_> = possible.map(|key| key.key.clone()).collect();
    let confirmed = key_trial::confirm(&args.ns, &keys, &trial, &request.process, &context.cancel);
    // The testbed ends with the future.
    let confirmed = tokio::select! {
        confirmed = confirmed => confirmed.map_err(Failure::from),
        () = context.cancel.cancelled() => {
            let message = "the trial was stopped; its testbed is gone, and the collection as it was";
            Err(Failure::new(Exit::Interrupted, "interrupted", message))
        }
    };
    match confirmed {
        Ok(confirmed) => print(&Report { advice, confirmed: Some(confirmed) }, context),
        // What was judged is printed all the same.
        Err(failure) => print(&Report { advice, confirmed: None }, context).and(Err(failure)),
    }
}

fn print(report: &Report, context: &Context) -> Result<(), Failure> {
    context.output.result(report, |report| {
        let confirmed = report.confirmed.as_ref().map(confirm::text);
        view::text(&report.advice) + &confirmed.unwrap_or_default()
    })
}
