//! The server's own change of a shard key.

use std::time::Instant;

use bson::doc;

use crate::error::Result;
use crate::sharded_cluster::{KEYS, NATIVE_FLOOR, ShardedCluster};

/// The default of the floor.
const SHIPPED_MS: i64 = 300_000;

/// Changes the key by `reshardCollection`, and returns the seconds that it took.
pub(super) async fn change(cluster: &ShardedCluster, field: &str) -> Result<f64> {
    let command = doc! {"reshardCollection": cluster.ns.to_string(), "key": {field: 1}};
    let began = Instant::now();
    cluster.router.run_at_length("admin", command).await?;
    Ok(began.elapsed().as_secs_f64())
}

/// The same with the floor that the server is shipped with.
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
