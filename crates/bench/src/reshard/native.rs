//! The server's own change of a shard key.

use std::time::Instant;

use bson::doc;

use crate::error::Result;
use crate::sharded_cluster::{KEYS, NATIVE_FLOOR, ShardedCluster};

/// Default of the minimum duration of the server's own change, in ms.
const SHIPPED_MS: i64 = 300_000;

/// Changes the key by `reshardCollection`. Returns the time that it took, in seconds.
pub(super) async fn change(cluster: &ShardedCluster, field: &str) -> Result<f64> {
    let command = doc! {"reshardCollection": cluster.ns.to_string(), "key": {field: 1}};
    let began = Instant::now();
    cluster.router.run_at_length("admin", command).await?;
    Ok(began.elapsed().as_secs_f64())
}

/// Changes the key with the server's default minimum duration. Returns the time that it took, in seconds.
pub(super) async fn as_shipped(cluster: &ShardedCluster) -> Result<f64> {
    set_floor(cluster, SHIPPED_MS).await?;
    let took = change(cluster, KEYS[1]).await;
    set_floor(cluster, 0).await?;
    took
}

async fn set_floor(cluster: &ShardedCluster, ms: i64) -> Result<()> {
    let config = cluster.cluster.set_names().last().map(str::to_owned).unwrap_or_default();
    let config = cluster.set(&config).await?;
    config.run("admin", doc! {"setParameter": 1, NATIVE_FLOOR: ms}).await?;
    Ok(())
}
