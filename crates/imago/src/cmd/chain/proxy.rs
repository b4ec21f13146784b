//! `imago chain proxy`: a cache in front of a router.

use std::net::SocketAddr;

use imago_provision::chain::Namespace;
use imago_provision::chain::proxy::{Options, Proxy, Totals};
use serde_json::json;

use super::failure;
use super::reading::cache_options;
use crate::context::Context;
use crate::exit::Failure;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The proxy serves `find {_id: {$in: […]}}` on the collection, without projection, order or limit, from the cache, after \
the router has replied to such a find of the same connection's user. Writes are forwarded and do not update the cache: \
cache documents that do not change meanwhile, or set --cache-ttl. Ctrl-C stops the proxy, which then prints its \
counts.

Example:
  imago chain proxy --uri \"$ROUTER\" --ns shop.messages --cache redis://127.0.0.1:6379 --listen 127.0.0.1:27100 &
  imago chain run --uri mongodb://127.0.0.1:27100 --ns shop.messages --modulo 1000000 --keys 20000")]
pub(super) struct Args {
    /// The router, mongodb://HOST:PORT; clients log in through the proxy by themselves.
    #[arg(long, value_name = "URI")]
    uri: String,
    /// The collection whose documents are cached.
    #[arg(long, value_name = "DB.COLL")]
    ns: Namespace,
    /// The Redis: redis://USER:PASSWORD@HOST:PORT.
    #[arg(long, value_name = "URI")]
    cache: String,
    /// Fail reads if the cache fails, instead of going on without it.
    #[arg(long)]
    cache_required: bool,
    /// Time to live of cached documents, in seconds; without it they stay until the cache evicts them.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    cache_ttl: Option<u32>,
    /// The address to listen at; port 0 takes a free one.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
}

/// Runs `imago chain proxy`: prints the address of the proxy, serves until the process is stopped, and prints the
/// counts.
pub(super) async fn run(args: Args, context: &Context) -> Result<(), Failure> {
    let cache = cache_options(&args.cache, args.cache_required, args.cache_ttl);
    let options = Options { uri: args.uri, namespace: args.ns, cache, listen: args.listen };
    let proxy = Proxy::bind(&options).await.map_err(failure)?;
    let uri = format!("mongodb://{}", proxy.address());
    context.output.result(&json!({"uri": uri}), |_| format!("listening at {uri}"))?;
    let totals = proxy.totals();
    proxy.serve(context.cancel.clone()).await;
    context.output.result(&totals(), |totals: &Totals| {
        let Totals { finds, hits, misses, requests, refused, passed } = totals;
        format!(
            "{finds} finds: {hits} keys from the cache, {misses} from the router in {requests} requests, {refused} cached \
             values refused; {passed} requests passed on"
        )
    })
}
