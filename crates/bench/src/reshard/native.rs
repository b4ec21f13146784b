//! The server's own change of a shard key.

use std::time::Instant;

use bson::doc;

use super::{Bed, seconds};
use crate::error::Result;

/// The config server's parameter: the least time that a change of a shard key takes, in ms.
pub(super) const FLOOR: &str = "reshardingMinimumOperationDurationMillis";
/// What it is unless somebody changes it.
pub(super) const SHIPPED_MS: i64 = 300_000;

/// Changes the key by `reshardCollection`, and returns the seconds that it took.
pub(super) async fn change(bed: &Bed, field: &str) -> Result<f64> {
    let command = doc! {"reshardCollection": bed.ns.to_string(), "key": {field: 1}};
    let began = Instant::now();
    bed.router.run_at_length("admin", command).await?;
    Ok(seconds(began))
}

pub(super) async fn set_floor(bed: &Bed, ms: i64) -> Result<()> {
    let config = bed.cluster.set_names().last().map(str::to_owned).unwrap_or_default();
    let config = Box::pin(bed.set(&config)).await?;
    config.run("admin", doc! {"setParameter": 1, FLOOR: ms}).await?;
    Ok(())
}
