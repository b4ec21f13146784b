//! `imago reshard plan`: predicts the effects of a reshard without making any change.

mod view;

use imago_mongo::namespace::Namespace;
use imago_mongo::reshard;
use imago_mongo::reshard::plan::{Engine, Finding, Flowing, Placing, Plan, Request, SAMPLE};
use imago_mongo::server::endpoint::Endpoint;

use super::speed;
use crate::cmd::speed::Speed;
use crate::context::Context;
use crate::exit::{Exit, Failure};

/// The command's arguments.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exit code 4 when an obstacle prevents the change; the plan is printed all \
                        the same. Reads a sample of the collection, and queries each shard for its \
                        disk and oplog."
)]
pub struct Args {
    /// The cluster's router: mongodb://[user:password@]host:port[,…]/[?options].
    #[arg(long, value_name = "URI", hide_env_values = true)]
    uri: String,
    /// The collection, as db.coll.
    #[arg(long, value_name = "NS")]
    ns: Namespace,
    /// The change of shape.
    #[command(flatten)]
    shape: Shape,
    /// Engine that would change the shape; it affects only the warnings.
    #[arg(long, value_enum, default_value = "shadow", value_name = "HOW")]
    engine: By,
    #[command(flatten)]
    speed: Speed,
}

/// Engine that changes a shape.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum By {
    /// Imago copies into a shadow, compares it, and has it take the collection's name.
    Shadow,
    /// The server's own reshardCollection, with Imago's placement.
    Native,
}

impl By {
    /// Converts the argument into the library's type of the engine that executes a reshard.
    pub fn parsed(self) -> Engine {
        match self {
            Self::Shadow => Engine::Shadow,
            Self::Native => Engine::Native,
        }
    }

    /// Adds to a plan the warnings that apply to this engine.
    pub fn warn_in(self, plan: &mut Plan) -> Result<(), Failure> {
        match self.parsed() {
            Engine::Shadow => Ok(()),
            Engine::Native => Ok(reshard::add_native_findings(plan)?),
        }
    }
}

/// The new shape of a collection.
#[derive(Debug, clap::Args)]
pub struct Shape {
    /// The new shard key, such as '{"userID": 1}'; extended JSON. Without it the key stays.
    #[arg(long, value_name = "JSON")]
    key: Option<String>,
    /// Number of chunks; without it, by their size, and two for each shard at least.
    #[arg(long, value_name = "N", conflicts_with = "chunk_size_mb", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    chunks: Option<u32>,
    /// Size of chunks, in MiB; without it, the cluster's setting.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    chunk_size_mb: Option<u32>,
    /// Rule by which chunks are placed.
    #[arg(long, value_enum, default_value = "balanced", value_name = "HOW")]
    placement: Placement,
    /// Rule by which connections are given to pairs of shards.
    #[arg(long, value_enum, default_value = "wfs", value_name = "HOW")]
    flows: Flows,
    /// Number of connections in all; without it, two for each pair of shards on average.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    sockets: Option<u32>,
    /// Number of documents that are read to weigh the chunks.
    #[arg(long, value_name = "N", default_value_t = SAMPLE, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    sample: u64,
    /// A shard that must exist and receive its share, such as a new one. Repeatable.
    #[arg(long, value_name = "NAME")]
    add_shard: Vec<String>,
    /// A shard that must not hold any part of the collection. Repeatable.
    #[arg(long, value_name = "NAME")]
    drain_shard: Vec<String>,
}

/// Rule by which chunks are placed.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Placement {
    /// The least movement with equal numbers of chunks on the shards.
    Balanced,
    /// The least movement of all, however full a shard becomes.
    Greedy,
    /// By chance, for comparison.
    Random,
}

/// Rule by which connections are given to pairs of shards.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Flows {
    /// By amount and latency.
    Wfs,
    /// By amount.
    Orchestra,
    /// One for each new chunk and shard that has something of it.
    ChunkBased,
    /// One for each pair of shards.
    Fixed,
}

impl Shape {
    /// Converts the arguments into the library's request to reshard the collection `ns`.
    pub fn request(self, ns: Namespace) -> Request {
        Request {
            ns,
            key: self.key,
            chunks: self.chunks.map(|chunks| chunks as usize),
            chunk_bytes: self.chunk_size_mb.map(|mb| u64::from(mb) * 1024 * 1024),
            add_shards: self.add_shard,
            drain_shards: self.drain_shard,
            placing: match self.placement {
                Placement::Balanced => Placing::Balanced,
                Placement::Greedy => Placing::Greedy,
                Placement::Random => Placing::Random,
            },
            flowing: match self.flows {
                Flows::Wfs => Flowing::Wfs,
                Flows::Orchestra => Flowing::Orchestra,
                Flows::ChunkBased => Flowing::ChunkBased,
                Flows::Fixed => Flowing::Fixed,
            },
            sockets: self.sockets.unwrap_or(0),
            sample: self.sample,
        }
    }
}

/// Makes the plan of a reshard and prints it. Fails with exit code 4 if the plan has obstacles.
pub async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let cluster = Endpoint::connect(&args.uri, "cluster").await?;
    let (limits, request) = (args.speed.parsed()?, args.shape.request(args.ns));
    let mut plan = speed::plan(&cluster, &request, limits, context).await?;
    args.engine.warn_in(&mut plan)?;
    context.output.result(&plan, view::text)?;
    unobstructed(&plan)
}

/// Fails if the plan of a reshard has obstacles, and names them.
pub fn unobstructed(plan: &Plan) -> Result<(), Failure> {
    let obstacles: Vec<&Finding> = plan.obstacles().collect();
    let help = match &obstacles[..] {
        [] => return Ok(()),
        [one] => one.help.as_str(),
        _ => "`imago reshard plan` shows the remedy for each obstacle",
    };
    let what = |obstacle: &&Finding| format!("{} ({})", obstacle.what, obstacle.code);
    let whats: Vec<String> = obstacles.iter().map(what).collect();
    let message = format!("{} cannot be resharded as requested: {}", plan.ns, whats.join("; "));
    Err(Failure::new(Exit::Precondition, "obstacles", message).help(help))
}
