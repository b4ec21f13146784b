//! The write block: the source refuses its users' writes during a cut-over.
//!
//! `setUserWriteBlockMode` (6.0 and newer) applies to the whole cluster: the cluster refuses, with error 371, every
//! write of every user without `bypassWriteBlockingMode`, deletes included, in all databases but the server's own.
//! Without authorisation the command stops no client, so that case is an error here.

use std::convert::Infallible;
use std::time::Duration;

use bson::{Bson, Document, doc};
use imago_job::control::Control;
use imago_job::retry::retry;

use crate::error::{Error, Result, code};
use crate::server::endpoint::Endpoint;
use crate::server::timing::PATIENCE;
use serde::{Deserialize, Serialize};

mod stall;

use stall::Sets;

/// The way in which writes to a collection are blocked during a cut-over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Block {
    /// The server refuses the writes of every user without `bypassWriteBlockingMode`, in the whole cluster.
    #[default]
    UserWrites,
    /// A validator of the collection that no document satisfies refuses inserts and updates. Deletes are admitted.
    Validator,
    /// Writes are not blocked: the operator has stopped the writers.
    None,
}

/// Checks that the cluster `source` can block the writes of its users, and that the connected user may request it.
///
/// # Errors
/// Returns a precondition error that names the obstacle, and an alternative.
#[crate::boxed]
pub async fn check(source: &Endpoint) -> Result<()> {
    if source.version() < [6, 0, 0] {
        return Err(Error::precondition(
            "the source is older than MongoDB 6.0, which cannot block writes",
            "stop the writers yourself, then use --block none",
        ));
    }
    let info = about_user(source).await?;
    if !has_users(&info) {
        return Err(Error::precondition(
            "the source runs without authorisation, where a write block stops no client",
            "stop the writers yourself, then use --block none",
        ));
    }
    if may(&info, "setUserWriteBlockMode") { Ok(()) } else { Err(forbidden()) }
}

/// Returns the obstacle to a write block at the cluster `source`, in words for the operator; `None` if there is no
/// obstacle, or if the check fails for another reason.
#[crate::boxed]
pub async fn obstacle(source: &Endpoint) -> Option<String> {
    match check(source).await {
        Err(Error::Precondition { what, help }) => {
            Some(format!("{what}: for the cut-over, {help}"))
        }
        Ok(()) | Err(_) => None,
    }
}

/// Checks that the connected user's own writes bypass a write block of `cluster`. A process that changes a cluster
/// under a write block must be able to write there, including its own record; otherwise it could not even lift the
/// block in order.
///
/// # Errors
/// Returns a precondition error that names the missing privilege.
pub async fn check_bypass(cluster: &Endpoint) -> Result<()> {
    if may(&about_user(cluster).await?, "bypassWriteBlockingMode") {
        return Ok(());
    }
    Err(Error::precondition(
        "the write block would stop this user's own writes too",
        "connect with a user that has the action bypassWriteBlockingMode on the cluster (the role \
         restore), or stop the writers yourself and use --block none",
    ))
}

/// Reads the `authInfo` of `connectionStatus`: the users of the connection to `source`, and their privileges.
pub(crate) async fn about_user(source: &Endpoint) -> Result<Document> {
    let ask = doc! {"connectionStatus": 1, "showPrivileges": true};
    let status = source.run("admin", ask).await?;
    Ok(status.get_document("authInfo").cloned().unwrap_or_default())
}

/// Returns those of `actions` that the connected user may perform on no resource of `source`; empty without
/// authorisation.
///
/// # Errors
/// Fails if the source does not reply.
pub(crate) async fn lacking<'a>(source: &Endpoint, actions: &[&'a str]) -> Result<Vec<&'a str>> {
    let info = about_user(source).await?;
    if !has_users(&info) {
        return Ok(Vec::new());
    }
    Ok(actions.iter().copied().filter(|action| !may(&info, action)).collect())
}

/// Returns true if `info`, the `authInfo` of `connectionStatus`, shows that the client is authenticated.
pub(crate) fn has_users(info: &Document) -> bool {
    info.get_array("authenticatedUsers").is_ok_and(|users| !users.is_empty())
}

/// Returns true if `info`, the `authInfo` of `connectionStatus`, has the action, or if the server does not report
/// privileges: then the attempt decides.
fn may(info: &Document, action: &str) -> bool {
    let Ok(privileges) = info.get_array("authenticatedUserPrivileges") else { return true };
    privileges.iter().filter_map(Bson::as_document).any(|privilege| {
        let actions = privilege.get_array("actions").into_iter().flatten();
        actions.filter_map(Bson::as_str).any(|known| known == action || known == "anyAction")
    })
}

/// Returns true if users' writes are blocked at the cluster `source` now, or `None` if the connected user lacks the
/// privilege to read that (the role `clusterMonitor` has it).
///
/// # Errors
/// Fails if the source does not reply.
#[crate::boxed]
pub async fn is_set(source: &Endpoint) -> Result<Option<bool>> {
    // The servers' own record of the block: on each member of a replica set, or on a sharded cluster's config servers.
    let find = doc! {
        "find": "user_writes_critical_sections", "filter": {"blockUserWrites": true}, "limit": 1,
        "singleBatch": true,
    };
    match source.run("config", find).await {
        Ok(reply) => {
            let batch =
                reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
            Ok(batch.ok().map(|batch| !batch.is_empty()))
        }
        Err(Error::Server { cause, .. }) if code(&cause) == Some(13) => Ok(None),
        Err(error) => Err(error),
    }
}

fn forbidden() -> Error {
    Error::precondition(
        "the source's user may not block writes",
        "connect with a user that has the action setUserWriteBlockMode on the cluster (the role \
         hostManager or restore), or stop the writers yourself and use --block none",
    )
}

/// Blocks the writes of a cluster's users. A blocker connects in advance to the servers that must be watched
/// meanwhile, since no server can be reached once all operations wait for a write block.
pub struct Blocker<'a> {
    source: &'a Endpoint,
    sets: Sets,
}

impl<'a> Blocker<'a> {
    /// Connects to the servers of the cluster `source` that must be watched, and blocks nothing yet.
    #[crate::boxed]
    pub async fn reach(source: &'a Endpoint) -> Self {
        Self { source, sets: Sets::reach(source).await }
    }

    /// Blocks the writes of the source's users until [`lift`]. The operation is idempotent.
    ///
    /// # Errors
    /// Fails if the source refuses, or if transactions prevent the write block.
    #[crate::boxed]
    pub async fn set(&self) -> Result<()> {
        command(self.source, true, || self.sets.watch()).await
    }
}

/// Connects to the servers of the cluster `source` and blocks its users' writes, as [`Blocker::set`] does.
///
/// # Errors
/// Fails if the source refuses, or if transactions prevent the write block.
#[crate::boxed]
pub async fn set(source: &Endpoint) -> Result<()> {
    Blocker::reach(source).await.set().await
}

/// Lifts the write block of the cluster `source`, and retries until it is lifted. The operation is idempotent.
///
/// # Errors
/// Fails if the source stays unavailable for longer than 330 s, or if transactions prevent the lift.
#[crate::boxed]
pub async fn lift(source: &Endpoint) -> Result<()> {
    let control = Control::default();
    retry("lift the write block", &PATIENCE, &control, Error::is_transient, |_| lift_once(source))
        .await
        .map_err(Error::from)
}

/// Lifts the write block of the cluster `source` as [`lift`] does, without a retry while the source is unavailable.
///
/// # Errors
/// Fails if the source is unavailable, or if transactions prevent the lift.
pub(crate) async fn lift_once(source: &Endpoint) -> Result<()> {
    // Clients wait for the lift, so the servers are connected only if it takes long.
    let watch = || async {
        tokio::time::sleep(LIFTED_WITHIN).await;
        Sets::reach(source).await.watch().await
    };
    command(source, false, watch).await
}

/// Maximum number of attempts to set or lift the write block; an attempt that was killed while it waited at a shard
/// is followed by the next.
const KILLED_MAX: usize = 10;
/// Time after which a command that lifts the write block may be waiting for a lock.
const LIFTED_WITHIN: Duration = Duration::from_secs(1);
/// Pause after an attempt that was killed, in which operations that queued after the write block continue.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Server error code `Interrupted`: the operation was killed.
const INTERRUPTED: i32 = 11601;

async fn command<W: Future<Output = Infallible>>(
    source: &Endpoint,
    is_blocked: bool,
    watch: impl Fn() -> W,
) -> Result<()> {
    let command: Document = doc! {"setUserWriteBlockMode": 1, "global": is_blocked};
    for _ in 0..KILLED_MAX {
        let done = tokio::select! {
            done = source.run("admin", command.clone()) => done,
            never = watch() => match never {},
        };
        match done {
            Ok(_) => return Ok(()),
            Err(Error::Server { cause, .. }) if code(&cause) == Some(13) => {
                return Err(forbidden());
            }
            Err(Error::Server { cause, .. }) if code(&cause) == Some(INTERRUPTED) => {
                tokio::time::sleep(AGAIN_AFTER).await;
            }
            Err(error) => return Err(error),
        }
    }
    Err(Error::precondition(
        format!("the write block waited for a transaction {KILLED_MAX} times, and was ended"),
        "a transaction is open for long, or clients begin one over several shards all the time: end \
         these for the moment of the block",
    ))
}
