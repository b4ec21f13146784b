//! The cluster's default read and write concern.
//!
//! A shard applies no defaults of its own but relies on the router: a write without a `writeConcern` would be
//! acknowledged before it is durable. The defaults are stored on the config server. They are read again after some
//! time, and at once when a client of this router sets them.

use std::sync::PoisonError;
use std::time::Duration;

use bson::{Bson, Document, doc};
use tokio::time::Instant;

use super::answer::{Answer, Failure};
use super::caller::Caller;
use super::concerns::Concerns;
use super::core::{Core, Repeat};

/// Time for which defaults that another router has set may remain unnoticed by this one, as with a `mongos`.
const FRESH: Duration = Duration::from_secs(30);

const WRITES: [&str; 10] = [
    "insert",
    "update",
    "delete",
    "findAndModify",
    "findandmodify",
    "create",
    "createIndexes",
    "commitTransaction",
    "abortTransaction",
    "renameCollection",
];
const READS: [&str; 4] = ["find", "aggregate", "count", "distinct"];

impl Core {
    async fn default_concerns(&self) -> Result<Concerns, Failure> {
        let known = self.defaults.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((since, concerns)) = known
            && since.elapsed() < FRESH
        {
            return Ok(concerns);
        }
        let ask = doc! { "getDefaultRWConcern": 1, "$db": "admin" };
        let answer = self.on_config(self.own_user.as_ref(), ask, Repeat::Safe).await?;
        let answer = answer.document()?;
        let concern = |name: &str| answer.get_document(name).ok().cloned();
        let concerns = Concerns {
            read: concern("defaultReadConcern").filter(|concern| {
                // A shard's own default need not be sent.
                concern.get_str("level").is_ok_and(|level| level != "local")
            }),
            write: concern("defaultWriteConcern"),
        };
        *self.defaults.0.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((Instant::now(), concerns.clone()));
        Ok(concerns)
    }
}

impl Caller {
    /// Adds the cluster's default read and write concern to the command `body`, as far as it takes them and states
    /// none.
    pub(super) async fn complete(&self, body: &mut Document) -> Result<(), Failure> {
        let name = body.keys().next().map_or("", String::as_str);
        let in_transaction = body.contains_key("autocommit");
        let ends = matches!(name, "commitTransaction" | "abortTransaction");
        let begins = body.get_bool("startTransaction").unwrap_or(false);
        let writes = (WRITES.contains(&name) || writes_out(body)) && (!in_transaction || ends);
        let reads = READS.contains(&name) && !in_transaction || begins;
        let lacks_write = writes && !body.contains_key("writeConcern");
        let lacks_read = reads && !states_level(body);
        if !lacks_write && !lacks_read {
            return Ok(());
        }
        let concerns = self.core.default_concerns().await?;
        if let Some(concern) = concerns.write.filter(|_| lacks_write) {
            body.insert("writeConcern", concern);
        }
        if let Some(concern) = concerns.read.filter(|_| lacks_read) {
            let mut stated = body.get_document("readConcern").cloned().unwrap_or_default();
            stated.extend(concern);
            body.insert("readConcern", stated);
        }
        Ok(())
    }

    /// Runs `setDefaultRWConcern` on the config server, and discards the cached defaults.
    pub(super) async fn set_defaults(&self, body: Document) -> Result<Answer, Failure> {
        let answer = self.on_config(body, Repeat::Safe).await;
        *self.core.defaults.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        answer
    }
}

fn states_level(body: &Document) -> bool {
    body.get_document("readConcern").is_ok_and(|concern| concern.contains_key("level"))
}

/// Returns true if the last stage of the pipeline of `body` writes to a collection (`$out` or `$merge`).
pub(super) fn writes_out(body: &Document) -> bool {
    let last = body.get_array("pipeline").ok().and_then(|stages| stages.last());
    let last = last.and_then(Bson::as_document);
    last.is_some_and(|stage| stage.contains_key("$out") || stage.contains_key("$merge"))
}
