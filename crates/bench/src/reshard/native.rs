//! The server's own change of a shard key.

use std::time::Instant;

use bson::doc;

use crate::bed::{Bed, KEYS, NATIVE_FLOOR};
use crate::error::Result;

/// What the floor is unless somebody changes it.
const SHIPPED_MS: i64 = 300_000;

/// Changes the key by `reshardCollection`, and returns the seconds that it took.
pub(super) async fn change(bed: &Bed, field: &str) -> Result<f64> {
    let command = doc! {"reshardCollection": bed.ns.to_string(), "key": {field: 1}};
    let began = Instant::now();
    bed.router.run_at_length("admin", command).await?;
    Ok(began.elapsed().as_secs_f64())
}

/// The same with the floor that the server is shipped with.
pub(super) async fn as_shipped(bed: &Bed) -> Result<f64> {
    set_floor(bed, SHIPPED_MS).await?;
    let took = Box::pin(change(bed, KEYS[1])).await;
    set_floor(bed, 0).await?;
    took
}

async fn set_floor(bed: &Bed, ms: i64) -> Result<()> {
    let config = bed.cluster.set_names().last().map(str::to_owned).unwrap_or_default();
    let config = Box::pin(bed.set(&config)).await?;
    config.run("admin", doc! {"setParameter": 1, NATIVE_FLOOR: ms}).await?;
    Ok(())
}
