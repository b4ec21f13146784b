//! `imago store router` and `imago store site`: a store in several processes.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use imago_store::engine::{self, SiteProcess, SiteProcessError, SiteProcessEvent};
use imago_store::record::Site;
use imago_store::resp::Settings;
use serde::Serialize;

use super::adapt::{AdaptArgs, SiteCpu, SitesAt};
use super::maxmemory;
use super::serve::{self, Process};
use crate::cmd::secret as secrets;
use crate::context::Context;
use crate::exit::{Exit, Failure};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The router has the log (--data), the connections of clients and the map; sites connect to it with `imago store site`, \
one process for each, on this machine or on others. A site stores nothing on disk. A silent site is declared dead: \
replicas of the partitions that it mastered become masters, acknowledged commits are kept, and when the site is back \
it rebuilds its copies from the log. Any process that knows the secret may register as a site, and connections between \
sites and the router are not encrypted: use a network that you trust.

Example: imago store router --sites 2 --data /var/lib/imago --peers 10.0.0.1:7380 --secret-file secret")]
pub struct RouterArgs {
    #[command(flatten)]
    serve: serve::Args,
    #[command(flatten)]
    adapt: AdaptArgs,
    /// Address for the processes of sites; port 0 chooses a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7380")]
    peers: SocketAddr,
    /// Accept only sites that know the secret in this file. Without it --peers must be an address
    /// of this machine only.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Time without a message after which a site is declared dead, in ms.
    #[arg(long, value_name = "MS", default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(1_000..=600_000))]
    site_timeout_ms: u64,
    /// Minimum number of replicas of each partition at other sites, besides its master, in other
    /// racks if sites name theirs (--rack of `imago store site`). It is maintained when sites die,
    /// are drained or join, with --adapt or without. With 0 the keys of a site that dies are
    /// unavailable until it is back; 2 is recommended.
    #[arg(long, value_name = "N", default_value_t = 0)]
    replicas_min: u16,
    /// Number of threads for clients; by default one for each processor.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: Option<u16>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A site needs no disk: it builds its copies from the router's log, and does so again whenever it has lost the router. \
Where the log is in Kafka another router may take it over; a site that is given the addresses of both finds it.

Examples: imago store site --number 1 --router 10.0.0.1:7380 --secret-file secret
          imago store site --number 1 --router 10.0.0.1:7380,10.0.0.2:7380 --secret-file secret")]
pub struct SiteArgs {
    /// Number of the site, from 0 on.
    #[arg(long, value_name = "N")]
    number: u16,
    /// Address at which the router accepts sites (`imago store router --peers`); several addresses
    /// are separated by commas: the site uses the router that accepts it.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7380", value_delimiter = ',')]
    router: Vec<String>,
    /// The file with the secret of the router.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// The rack, or the zone, that the site is in: replicas for --replicas-min of the router are put into different ones.
    #[arg(long, value_name = "NAME")]
    rack: Option<String>,
    /// Refuse to write rows, with Redis's OOM error, while the site's copies take more than this: keys, values, and 140
    /// bytes for each row; reads and DEL go on. 2gb, 500mb, or a number of bytes; 0: no limit.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = maxmemory::bytes)]
    maxmemory: u64,
    /// Time to search for an absent router before the site fails, in s.
    #[arg(long, value_name = "S", default_value_t = 600)]
    patience_s: u64,
    #[command(flatten)]
    site_cpu: SiteCpu,
}

pub async fn router(args: RouterArgs, context: &Context) -> Result<(), Failure> {
    let RouterArgs {
        serve: args,
        adapt,
        peers,
        secret_file,
        site_timeout_ms,
        replicas_min,
        threads,
    } = args;
    check_replicas(replicas_min, args.sites, adapt.replicas_max)?;
    if secret_file.is_none() && !peers.ip().is_loopback() {
        let message = format!("any process that reaches {peers} could register as a site");
        return Err(Failure::new(Exit::Usage, "secret_file", message)
            .help("give a secret with --secret-file, or an address of this machine only"));
    }
    let cores = || std::thread::available_parallelism().map_or(1, |many| many.get().min(64) as u16);
    let client_threads = threads.unwrap_or_else(cores);
    let silence = Duration::from_millis(site_timeout_ms);
    let options = engine::RouterOptions { client_threads, silence };
    let secret = secret(secret_file.as_deref())?;
    let router = serve::RouterArgs { peers, secret, options, replicas_min };
    serve::serve(args, Process::Router(router), (adapt, SitesAt::Remote), context).await
}

/// Fails if `least`, the required number of replicas of a partition, is impossible with this number of sites, or
/// above the limit `most`.
fn check_replicas(least: u16, sites: u16, most: Option<u16>) -> Result<(), Failure> {
    let refused = |message: String, help: &str| {
        Err(Failure::new(Exit::Usage, "replicas_min", message).help(help))
    };
    if least >= sites.max(1) {
        let message = format!(
            "with {sites} sites a partition has at most {} replicas, and --replicas-min is {least}",
            sites.saturating_sub(1)
        );
        return refused(message, "give more --sites, or a lower --replicas-min");
    }
    if let Some(most) = most.filter(|most| *most < least) {
        let message = format!("--replicas-max {most} is below --replicas-min {least}");
        return refused(message, "raise --replicas-max, or lower --replicas-min");
    }
    Ok(())
}

fn secret(file: Option<&Path>) -> Result<String, Failure> {
    file.map_or(Ok(String::new()), |file| secrets::read(file, "secret_file", "secret"))
}

/// The line that a site process prints when it starts to serve, or has lost its router.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum SiteStatus {
    Serves { site: u16, epoch: u64 },
    Alone { site: u16, why: String },
}

pub async fn site(args: SiteArgs, context: &Context) -> Result<(), Failure> {
    let SiteArgs { number, router, secret_file, rack, maxmemory, patience_s, site_cpu } = args;
    let SiteCpu { site_cpu } = site_cpu;
    let member = SiteProcess {
        site: Site(number),
        routers: router.clone(),
        secret: secret(secret_file.as_deref())?,
        rack,
        maxmemory,
        patience: Duration::from_secs(patience_s),
        settings: Settings {
            procedures: super::procedures(),
            ..Settings::new(env!("CARGO_PKG_VERSION"), 0)
        },
        site_cpu,
    };
    let (told, mut events) = tokio::sync::mpsc::unbounded_channel();
    let is_stopped = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&is_stopped);
    let tell = move |event| _ = told.send(event);
    let mut serving = tokio::task::spawn_blocking(move || member.serve(&tell, &stopped));
    let ended = loop {
        tokio::select! {
            () = context.cancel.cancelled() => {
                is_stopped.store(true, Ordering::Relaxed);
                break serving.await;
            }
            Some(event) = events.recv() => {
                let became = match event {
                    SiteProcessEvent::Serves(epoch) => SiteStatus::Serves { site: number, epoch },
                    SiteProcessEvent::Alone(why) => SiteStatus::Alone { site: number, why },
                };
                context.output.result(&became, |became| match became {
                    SiteStatus::Serves { epoch, .. } => {
                        format!("site {number} serves, in its epoch {epoch}. Ctrl-C ends it.")
                    }
                    SiteStatus::Alone { why, .. } => {
                        let routers = router.join(", ");
                        format!("site {number} has no router, and looks for one at {routers}: {why}")
                    }
                })?;
            }
            ended = &mut serving => break ended,
        }
    };
    match ended {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            let exit = match &error {
                SiteProcessError::Refused { .. } => Exit::Precondition,
                SiteProcessError::NoRouter { .. } => Exit::Failed,
            };
            Err(Failure::from_error(exit, "site", &error))
        }
        Err(cause) => Err(Failure::from_error(Exit::Failed, "site", &cause)),
    }
}
