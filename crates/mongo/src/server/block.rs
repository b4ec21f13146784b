//! The write block: the source refuses the application's writes while a job is cut over.
//!
//! `setUserWriteBlockMode` (6.0 and newer) is cluster-wide: it refuses, with error 371, every write
//! of every user without `bypassWriteBlockingMode`, deletes included, in all databases but the
//! server's own. Without authorisation it stops no client, which is why that is an error here.

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

/// The way in which writes to the collection are blocked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Block {
    /// By the server, for every user without `bypassWriteBlockingMode`, in the whole cluster.
    #[default]
    UserWrites,
    /// By a validator of the collection that no document satisfies. Deletes go on.
    Validator,
    /// Not at all: the operator has stopped the writers.
    None,
}

/// Checks that `source` can block the writes of its users.
///
/// # Errors
/// A precondition that names the obstacle, and an alternative.
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

/// Checks that this user's own writes pass the block: a process that changes a cluster under its
/// block must be able to write there, its own record included, or the block could not even be
/// lifted in order.
///
/// # Errors
/// A precondition that names the missing right.
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

/// The connected user and its privileges.
pub(crate) async fn about_user(source: &Endpoint) -> Result<Document> {
    let ask = doc! {"connectionStatus": 1, "showPrivileges": true};
    let status = source.run("admin", ask).await?;
    Ok(status.get_document("authInfo").cloned().unwrap_or_default())
}

/// Which of these actions this user certainly lacks; none without authorisation.
///
/// # Errors
/// Fails if the source does not answer.
pub(crate) async fn lacking<'a>(source: &Endpoint, actions: &[&'a str]) -> Result<Vec<&'a str>> {
    let info = about_user(source).await?;
    if !has_users(&info) {
        return Ok(Vec::new());
    }
    Ok(actions.iter().copied().filter(|action| !may(&info, action)).collect())
}

/// True if the cluster authenticates its clients.
pub(crate) fn has_users(info: &Document) -> bool {
    info.get_array("authenticatedUsers").is_ok_and(|users| !users.is_empty())
}

/// True if the user has the right to the action, or the server does not tell: then the attempt
/// will.
fn may(info: &Document, action: &str) -> bool {
    let Ok(privileges) = info.get_array("authenticatedUserPrivileges") else { return true };
    privileges.iter().filter_map(Bson::as_document).any(|privilege| {
        let actions = privilege.get_array("actions").into_iter().flatten();
        actions.filter_map(Bson::as_str).any(|known| known == action || known == "anyAction")
    })
}

/// True if users' writes are blocked now; nothing if this user lacks the right to know it (the role
/// `clusterMonitor` has it).
///
/// # Errors
/// Fails if the source does not answer.
pub async fn is_set(source: &Endpoint) -> Result<Option<bool>> {
    // The servers' own record of it: on each member of a replica set, on a sharded cluster's config
    // servers.
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

/// Blocks the writes of a cluster's users. It has connected beforehand to the servers that have to
/// be watched meanwhile: no server can be reached any more once everything waits for a block.
pub struct Blocker<'a> {
    source: &'a Endpoint,
    sets: Sets,
}

impl<'a> Blocker<'a> {
    /// Reaches the servers, and blocks nothing yet.
    pub async fn reach(source: &'a Endpoint) -> Self {
        Self { source, sets: Sets::reach(source).await }
    }

    /// Blocks the writes of the source's users. Blocking twice changes nothing.
    ///
    /// # Errors
    /// Fails if the source refuses, or transactions keep the block from coming.
    pub async fn set(&self) -> Result<()> {
        command(self.source, true, || self.sets.watch()).await
    }
}

/// As [`Blocker::set`], at once.
///
/// # Errors
/// Fails if the source refuses, or transactions keep the block from coming.
pub async fn set(source: &Endpoint) -> Result<()> {
    Blocker::reach(source).await.set().await
}

/// Lifts the block, and insists on it. Lifting twice changes nothing.
///
/// # Errors
/// Fails if the source stays away for longer than three minutes.
pub async fn lift(source: &Endpoint) -> Result<()> {
    let control = Control::default();
    // Clients wait for it: the servers are reached only when it takes long.
    let watch = || async {
        tokio::time::sleep(LIFTED_WITHIN).await;
        Sets::reach(source).await.watch().await
    };
    retry("lift the write block", &PATIENCE, &control, Error::is_transient, |_| {
        command(source, false, watch)
    })
    .await
    .map_err(Error::from)
}

/// Most attempts to block or to lift, of which each but the last was killed while it waited at a
/// shard.
const KILLED_MAX: usize = 10;
/// A lift that takes longer may be waiting for something.
const LIFTED_WITHIN: Duration = Duration::from_secs(1);
/// Operations that waited behind the block go on meanwhile.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// The server's code for an operation that was killed.
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
