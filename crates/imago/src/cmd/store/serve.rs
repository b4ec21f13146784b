//! `imago store serve`: all sites of a store in one process; and the serving part of its router
//! process.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use imago_store::admin::{self, Token};
use imago_store::engine::{self, LogOptions, Options, Router, Store, StoreError, Tls, UnusedError};
use imago_store::kafka::{ClientConfig, KafkaSpec};
use imago_store::log::Sync;
use imago_store::resp::Settings;
use serde::Serialize;

use super::adapt::{AdaptArgs, SiteCpu, SitesAt};
use super::maxmemory;
use crate::cmd::secret;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::memory;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Clients use the Redis protocol (RESP2 and RESP3): redis-cli, redis-benchmark and the usual libraries. \
Commands over several keys, MULTI/EXEC with WATCH among them, are transactions under strong-session \
snapshot isolation, wherever their keys lie.

Without --data and --log the store lives in memory and ends with the process. With --data, what is \
acknowledged is in the log there first; with --sync always (the default) also on the disk.

With --log, the log is a topic of Kafka, and acknowledged commits are on all in-sync replicas of the topic: they are \
as durable as these, and with one replica as durable as that one broker. (The operating system of a broker decides \
when data reaches its disk.) With --data in addition, checkpoints go there, and a start reads the newest one and the \
records of the topic after it; without --data no checkpoints are made, and each start reads the topic from its first \
record on. While no broker responds nothing is acknowledged, and after two minutes the store ends. The topic is made \
if there is none, and nothing of it is ever deleted by Imago. Another process that is started on the topic takes it \
over: this one then ends.

Examples: imago store serve --sites 4 --data /var/lib/imago --listen 127.0.0.1:6379
          imago store serve --sites 4 --log kafka://k1:9092,k2:9092,k3:9092/imago?replicas=3")]
pub struct Args {
    /// Number of sites, each on a thread of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) sites: u16,
    /// Number of sites, the last ones, that get nothing until `imago store add`; at the first start, and of sites that
    /// are new.
    #[arg(long, value_name = "N", default_value_t = 0)]
    unused: u16,
    /// The folder of the log, or with --log only of its checkpoints.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// The log, if it is to be in Kafka: kafka://HOST:PORT[,HOST:PORT]/TOPIC[?replicas=N]. A topic that is
    /// made has N replicas, or one for each broker named here, three at most; of three, two must be in
    /// step.
    #[arg(long, value_name = "URL", conflicts_with_all = ["sync", "segment_mb"])]
    log: Option<KafkaSpec>,
    /// TLS, authentication and compression of the connections to Kafka: a file of properties with librdkafka's names, as
    /// kcat -F reads it (security.protocol, sasl.mechanism, sasl.username, sasl.password, ssl.ca.location,
    /// ssl.certificate.location, ssl.key.location, compression.type).
    #[arg(long, value_name = "FILE", requires = "log")]
    log_config: Option<PathBuf>,
    /// Time at which a commit is on the disk: before it is acknowledged (always), so many ms later at most,
    /// or whenever the system writes it (never).
    #[arg(long, value_name = "always|never|MS", default_value = "always", value_parser = sync)]
    sync: Sync,
    /// Size of a file of the log, in MB.
    #[arg(long, value_name = "MB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    segment_mb: u64,
    /// Address for clients of Redis; port 0 chooses a free one. An address that other machines can reach
    /// needs --password-file, or --insecure.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:6379")]
    listen: SocketAddr,
    /// Address for `imago store design`, `split` and the others, by HTTP, which is not encrypted. An
    /// address that other machines can reach needs --admin-token-file.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7379")]
    admin: SocketAddr,
    /// Require the token in this file, without the line's end, at the admin address, but for its metrics:
    /// the header `Authorization: Bearer TOKEN`, or --token-file of the other verbs.
    #[arg(long, value_name = "FILE")]
    admin_token_file: Option<PathBuf>,
    /// Ask clients of Redis for the password in this file, without the line's end.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// Let every client that reaches --listen read and write without a password.
    #[arg(long)]
    insecure: bool,
    /// Encrypt connections of Redis's clients, with the certificate in this file (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM).
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

/// A store with all its sites: what it shares with a router, and the share of a core of each site.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    serve: Args,
    #[command(flatten)]
    adapt: AdaptArgs,
    #[command(flatten)]
    site_cpu: SiteCpu,
    /// Refuse to write rows, with Redis's OOM error, while all rows take more than this: keys, values, and 140 bytes for
    /// each row; reads and DEL go on. As Redis's maxmemory with noeviction: 2gb, 500mb, or a number of bytes; 0: no limit.
    /// The process takes more, for requests, replies and the log.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = maxmemory::bytes)]
    maxmemory: u64,
}

/// The line that the process prints once clients can connect to the store.
#[derive(Serialize)]
struct Serving {
    listen: String,
    admin: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    peers: Option<String>,
    sites: u16,
    partitions: usize,
}

impl Serving {
    fn in_words(&self) -> String {
        let peers = self.peers.as_ref();
        let peers = peers.map(|at| format!(" Processes of sites: {at}.")).unwrap_or_default();
        format!(
            "{} sites, {} partitions. Redis's clients: {}. Changes of the design: {}.{peers} Ctrl-C ends it.",
            self.sites, self.partitions, self.listen, self.admin
        )
    }
}

pub(super) fn sync(typed: &str) -> Result<Sync, String> {
    match typed {
        "always" => Ok(Sync::Always),
        "never" => Ok(Sync::Never),
        _ => match typed.parse() {
            Ok(0) | Err(_) => Err("it is always, never, or a number of ms above 0".into()),
            Ok(ms) => Ok(Sync::Every(Duration::from_millis(ms))),
        },
    }
}

/// The options of a router process: its address for site processes, the secret that it shares with them, the engine's
/// options, and the least number of replicas of a partition.
pub(super) struct RouterArgs {
    pub peers: SocketAddr,
    pub secret: String,
    pub options: engine::RouterOptions,
    pub replicas_min: u16,
}

/// The role of a process of a store.
pub(super) enum Process {
    /// The process runs all sites of the store; the field is the memory limit of their rows, in bytes, and 0 means no
    /// limit.
    Whole(u64),
    /// The process is the router of sites that run in other processes.
    Router(RouterArgs),
}

pub async fn run(args: ServeArgs, context: &Context) -> Result<(), Failure> {
    let at = SitesAt::Local(args.site_cpu.site_cpu);
    serve(args.serve, Process::Whole(args.maxmemory), (args.adapt, at), context).await
}

/// Serves a store, with all its sites or as their router, until the process is interrupted or the store ends.
pub(super) async fn serve(
    args: Args,
    process: Process,
    (adapt, at): (AdaptArgs, SitesAt),
    context: &Context,
) -> Result<(), Failure> {
    let mut settings = settings(&args)?;
    let router = match process {
        Process::Whole(maxmemory) => {
            settings.maxmemory = maxmemory;
            None
        }
        Process::Router(router) => Some(router),
    };
    let tls = tls(&args)?;
    let token = token(&args)?;
    let (listener, admin) = (bind(args.listen)?, bind(args.admin)?);
    let router =
        router.map(|router| Ok::<_, Failure>((bind(router.peers)?, router))).transpose()?;
    let log = log_options(&args)?;
    let help = help_after_an_end(log.as_ref());
    let replicas_min = router.as_ref().map(|(_, router)| router.replicas_min);
    let (folder, unused) = (args.data.clone(), args.unused);
    let options = Options { sites: args.sites, log };
    let started = tokio::task::spawn_blocking(move || Running::start(&options, router));
    let running = match started.await {
        Ok(started) => started.map_err(|error| failure(&error))?,
        Err(cause) => return Err(Failure::from_error(Exit::Failed, "store", &cause)),
    };
    let store = running.store();
    store.declare_unused(folder.as_deref(), unused).map_err(|error| undeclared(&error))?;
    store.require_replicas(replicas_min.unwrap_or(0));
    if replicas_min == Some(0) {
        tracing::warn!(
            "without --replicas-min the keys of a site that dies cannot be used until it is back; 2 is recommended"
        );
    }
    let adaptation = adapt.start(store, folder.as_deref(), at).await?;
    let (output, input_quota) = (Arc::clone(&settings.output), Arc::clone(&settings.input_quota));
    let held = move || output.bytes() + input_quota.bytes();
    let listen = store.listen(listener, settings, tls).map_err(|error| failure(&error))?;
    let admin_address = admin.local_addr().map_err(|error| unbound(args.admin, &error))?;
    let admin = admin
        .set_nonblocking(true)
        .and_then(|()| tokio::net::TcpListener::from_std(admin))
        .map_err(|error| unbound(args.admin, &error))?;
    let serving = Serving {
        listen: listen.to_string(),
        admin: admin_address.to_string(),
        peers: running.peers().map(|peers| peers.to_string()),
        sites: args.sites,
        partitions: store.map().design.partitions().count(),
    };
    context.output.result(&serving, Serving::in_words)?;
    let gives_back = tokio::spawn(memory::release_freed(held));
    let replicated = Arc::clone(store);
    let keeps = tokio::spawn(async move { replicated.maintain_replicas().await });
    let adapts = adaptation.clone().map(|adaptation| tokio::spawn(adaptation.run()));
    let serves = tokio::spawn(admin::serve(Arc::clone(store), adaptation.clone(), admin, token));
    let ended = wait_for_end(store, help, context).await;
    gives_back.abort();
    keeps.abort();
    _ = keeps.await;
    serves.abort();
    _ = serves.await;
    if let Some(adapts) = adapts {
        adapts.abort();
        _ = adapts.await;
    }
    if let Some(adaptation) = adaptation {
        _ = tokio::task::spawn_blocking(move || adaptation.write_latest()).await;
    }
    // Submitted log entries are written before the process ends.
    _ = tokio::task::spawn_blocking(move || drop(running)).await;
    ended
}

/// A running store with all its sites in this process, or a running router with its store.
enum Running {
    Store(Arc<Store>),
    Router(Router),
}

impl Running {
    fn start(
        options: &Options,
        router: Option<(TcpListener, RouterArgs)>,
    ) -> Result<Self, StoreError> {
        let Some((listener, router)) = router else {
            return Store::start(options).map(|store| Self::Store(Arc::new(store)));
        };
        Router::start(options, &router.options, listener, router.secret).map(Self::Router)
    }

    fn store(&self) -> &Arc<Store> {
        match self {
            Self::Store(store) => store,
            Self::Router(router) => router.store(),
        }
    }

    fn peers(&self) -> Option<SocketAddr> {
        match self {
            Self::Store(_) => None,
            Self::Router(router) => Some(router.peers()),
        }
    }
}

/// Waits for an interrupt, or for the end of the store, which is a failure with the remedy `help`.
async fn wait_for_end(store: &Store, help: &str, context: &Context) -> Result<(), Failure> {
    loop {
        tokio::select! {
            () = context.cancel.cancelled() => return Ok(()),
            () = tokio::time::sleep(Duration::from_millis(100)) => {}
        }
        if let Some(why) = store.end() {
            let what = format!("the store ended: {why}");
            return Err(Failure::new(Exit::Failed, "store_ended", what).help(help));
        }
    }
}

fn tls(args: &Args) -> Result<Option<Tls>, Failure> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
    let tls = Tls::read(certificate, key);
    tls.map(Some).map_err(|error| Failure::from_error(Exit::Usage, "tls", &error))
}

fn log_options(args: &Args) -> Result<Option<LogOptions>, Failure> {
    let segment_bytes = args.segment_mb * 1024 * 1024;
    let (mut topic, folder) = (args.log.clone(), args.data.clone());
    if let (Some(topic), Some(file)) = (&mut topic, &args.log_config) {
        topic.client = ClientConfig::read(file).map_err(|error| {
            let failure = Failure::from_error(Exit::Usage, "log_config", &error);
            failure
                .help(format!("correct {}, or name another file by --log-config", file.display()))
        })?;
    }
    Ok(match (topic, folder) {
        (Some(topic), checkpoints) => {
            Some(LogOptions::Kafka { topic, checkpoints, checkpoint_bytes: segment_bytes })
        }
        (None, Some(folder)) => Some(LogOptions::Files { folder, sync: args.sync, segment_bytes }),
        (None, None) => None,
    })
}

/// Returns advice for the operator of a store that ended by itself, according to where its log is.
fn help_after_an_end(log: Option<&LogOptions>) -> &'static str {
    match log {
        Some(LogOptions::Kafka { .. }) => {
            "acknowledged writes are in the topic; check its brokers and the process that took it over, \
             and start again"
        }
        _ => "acknowledged writes are in the log; check its disk, and start again",
    }
}

fn settings(args: &Args) -> Result<Settings, Failure> {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let started_ms = u64::try_from(started.as_millis()).unwrap_or_default();
    let mut settings = Settings::new(env!("CARGO_PKG_VERSION"), started_ms);
    settings.procedures = super::procedures();
    if let Some(file) = &args.password_file {
        settings.passwords.push(secret::read(file, "password_file", "password")?);
    }
    let is_open = settings.passwords.is_empty() && !args.listen.ip().to_canonical().is_loopback();
    if is_open && !args.insecure {
        let message = format!(
            "--listen {} is reachable from other machines, and requires no password",
            args.listen
        );
        return Err(Failure::new(Exit::Usage, "listen_open", message).help(
            "give --password-file FILE, with a password in it, an address of this machine alone, \
             such as --listen 127.0.0.1:6379, or --insecure if the network is protected otherwise",
        ));
    }
    Ok(settings)
}

/// Returns the token of the admin address; `None` if none is required. An address that other machines can reach must
/// have one.
fn token(args: &Args) -> Result<Option<Token>, Failure> {
    let token = args.admin_token_file.as_deref().map(secret::token).transpose()?;
    if token.is_none() && !args.admin.ip().to_canonical().is_loopback() {
        let message = format!(
            "--admin {} is reachable from other machines, and requires no token",
            args.admin
        );
        return Err(Failure::new(Exit::Usage, "admin_open", message).help(
            "give --admin-token-file FILE, with a token in it, or an address of this machine alone, \
             such as --admin 127.0.0.1:7379",
        ));
    }
    Ok(token)
}

fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).map_err(|error| unbound(address, &error))
}

fn unbound(address: SocketAddr, cause: &std::io::Error) -> Failure {
    Failure::new(Exit::Precondition, "address", format!("cannot listen at {address}"))
        .because(cause)
        .help("choose an address of this machine and a free port, or port 0")
}

fn undeclared(error: &UnusedError) -> Failure {
    let exit = match error {
        UnusedError::NoneUsed { .. } => Exit::Usage,
        UnusedError::Io { .. } | UnusedError::Damaged { .. } | UnusedError::Holds(_) => {
            Exit::Precondition
        }
    };
    Failure::from_error(exit, "unused", error)
}

fn failure(error: &StoreError) -> Failure {
    let exit = match error {
        StoreError::Sites(_) | StoreError::NoLog => Exit::Usage,
        StoreError::Log(_) | StoreError::SitesMissing { .. } => Exit::Precondition,
        _ => Exit::Failed,
    };
    Failure::from_error(exit, "store", error)
}
