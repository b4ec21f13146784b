//! The options with which a chained job reads (the cluster, the cache, the batches), and those with which it draws
//! the next keys.

use std::path::PathBuf;

use imago_provision::chain::map::{Missing, Options};
use imago_provision::chain::{Fetcher, Job, Keys, Namespace, Next, Reads, Result, Source, cache};

/// Where and how documents are read.
#[derive(Debug, clap::Args)]
pub(super) struct Reading {
    /// The cluster: mongodb://USER:PASSWORD@HOST:PORT.
    #[arg(long, value_name = "URI")]
    uri: String,
    /// The collection.
    #[arg(long, value_name = "DB.COLL")]
    ns: Namespace,
    /// A Redis that is read before the cluster, as a cache: redis://USER:PASSWORD@HOST:PORT.
    #[arg(long, value_name = "URI")]
    cache: Option<String>,
    /// Fail if the cache fails, instead of going on without it.
    #[arg(long, requires = "cache")]
    cache_required: bool,
    /// Time to live of cached documents, in seconds; without it they stay until the cache evicts them.
    #[arg(long, value_name = "SECONDS", requires = "cache", value_parser = clap::value_parser!(u32).range(1..))]
    cache_ttl: Option<u32>,
    /// The members of a shard to read from: primary, or nearest.
    #[arg(long, value_name = "WHICH", default_value = "primary")]
    reads: Reads,
    #[command(flatten)]
    batches: Batches,
}

/// How keys are read at once.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct Batches {
    /// Keys of one batch: of one MGET, and one find.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=Options::BATCH_MAX as i64))]
    batch: u32,
    /// Batches under way at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=Options::WORKERS_MAX as i64))]
    workers: u32,
    /// Action for a key without a document: fail reports the key and ends; skip leaves it out, and
    /// counts it.
    #[arg(long, value_enum, value_name = "HOW", default_value = "fail")]
    missing: OnMissing,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum OnMissing {
    Fail,
    Skip,
}

impl Batches {
    pub(super) fn options(self) -> Options {
        Options {
            batch: self.batch as usize,
            workers: self.workers as usize,
            missing: match self.missing {
                OnMissing::Fail => Missing::Fails,
                OnMissing::Skip => Missing::Skipped,
            },
        }
    }
}

impl Reading {
    pub(super) fn options(&self) -> Options {
        self.batches.options()
    }

    pub(super) async fn fetcher(&self) -> Result<Fetcher> {
        let source = Source::connect(&self.uri, self.ns.clone(), self.reads).await?;
        let cache = match &self.cache {
            Some(uri) => {
                let options = cache_options(uri, self.cache_required, self.cache_ttl);
                Some(cache::Cache::connect(&options, &self.ns).await?)
            }
            None => None,
        };
        Ok(Fetcher::new(source, cache))
    }
}

pub(super) fn cache_options(uri: &str, is_required: bool, ttl_s: Option<u32>) -> cache::Options {
    cache::Options { uri: uri.to_owned(), is_required, ttl_s }
}

/// How the next keys are drawn.
#[derive(Debug, clap::Args)]
pub(super) struct Drawing {
    /// Job that computes the next key from a document: hash, zipf or merkle.
    #[arg(long, value_name = "JOB", default_value = "hash")]
    pub(super) job: Job,
    #[command(flatten)]
    pub(super) all: AllKeys,
    /// The shape of the Zipf distribution.
    #[arg(long, value_name = "S", default_value_t = 1.1)]
    shape: f64,
}

/// All keys of a collection.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct AllKeys {
    /// The `_id`s are the integers from 0 to N - 1; a next key is a hash modulo N. Of a Merkle tree, N leaves.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=i64::MAX as u64))]
    modulo: Option<u64>,
    /// The `_id`s are those in this file, one a line; a next key is the line at a hash modulo their number.
    #[arg(long, value_name = "FILE")]
    key_list: Option<PathBuf>,
}

impl AllKeys {
    pub(super) fn keys(&self) -> Result<Keys> {
        match (&self.key_list, self.modulo) {
            (Some(path), _) => Keys::read(path),
            (None, modulo) => Ok(Keys::Numbers(modulo.unwrap_or(0))),
        }
    }
}

impl Drawing {
    pub(super) fn next(&self) -> Result<Next> {
        Next::new(self.job, self.all.keys()?, self.shape)
    }
}
