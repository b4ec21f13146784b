//! Disabling the balancer for a collection while a job changes the collection's shape.
//!
//! The flag is the collection's own (`noBalance`), so the balancer continues with all others.

use bson::{Document, doc};

use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::server::endpoint::{Endpoint, answer};

/// Returns true if the balancer is disabled for the collection `ns`.
///
/// # Errors
/// Fails if the cluster does not reply.
#[crate::boxed]
pub async fn is_off(cluster: &Endpoint, ns: &Namespace) -> Result<bool> {
    let collections = cluster.client().database("config").collection::<Document>("collections");
    let doing = "reading config.collections";
    let found = collections.find_one(doc! {"_id": ns.to_string()}).into_future();
    let found = answer(doing, found).await?.map_err(|error| Error::server(doing, error))?;
    Ok(found.is_some_and(|found| found.get_bool("noBalance").unwrap_or(false)))
}

/// Disables the balancer for the collection `ns` if `off`, else enables it.
///
/// # Errors
/// Fails if the cluster rejects the update: the user needs to update config.collections (the role clusterManager).
pub async fn set_off(cluster: &Endpoint, ns: &Namespace, off: bool) -> Result<()> {
    let change = if off {
        doc! {"$set": {"noBalance": true}}
    } else {
        doc! {"$unset": {"noBalance": ""}}
    };
    let command = doc! {
        "update": "collections", "updates": [{"q": {"_id": ns.to_string()}, "u": change}],
        "writeConcern": {"w": "majority"},
    };
    let reply = cluster.run("config", command).await?;
    match reply.get_array("writeErrors").ok().and_then(|errors| errors.first()) {
        None => Ok(()),
        Some(error) => Err(Error::precondition(
            format!("the balancer cannot be kept from {ns}: {error}"),
            "connect with a user that has the role clusterManager",
        )),
    }
}
