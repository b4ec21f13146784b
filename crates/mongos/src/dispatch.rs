//! Selection of the function that executes each command.

use bson::{Document, doc};

use super::answer::{Answer, Failure, code};
use super::caller::{Caller, pause};
use super::core::{Namespace, Repeat, STALE_ROUNDS};
use super::message::Request;
use super::transactions::Transaction;

/// Executes one command of the client `caller`, within its transaction or outside of one.
pub(super) async fn run(caller: &Caller, mut request: Request) -> Result<Answer, Failure> {
    caller.complete(&mut request.body).await?;
    match request.name() {
        "commitTransaction" => return caller.commit(&request.body).await,
        "abortTransaction" => return caller.abort(&request.body).await,
        "insert" | "update" | "delete" if request.body.contains_key("autocommit") => {}
        "insert" | "update" | "delete" => return caller.write(request, None).await,
        _ => {}
    }
    match caller.transaction_of(&request.body)? {
        Some(transaction) => in_transaction(caller, request, &transaction).await,
        None => plain(caller, request.body).await,
    }
}

/// Executes a statement of a client's transaction. A statement that fails ends the transaction, except that stale
/// routing data is read again and the transaction restarted if the client has received no result of it yet.
async fn in_transaction(
    caller: &Caller,
    request: Request,
    transaction: &Transaction,
) -> Result<Answer, Failure> {
    let mut round = 0;
    loop {
        let statement =
            Request { body: request.body.clone(), sequence: request.sequence.clone(), ..request };
        let outcome = run_statement(caller, statement, transaction).await;
        let failure = match outcome {
            Ok(answer) if answer.raw().get_array("writeErrors").is_err() => {
                transaction.succeeded();
                return with_token(answer, transaction);
            }
            outcome => {
                caller.give_up(transaction).await;
                match outcome {
                    Ok(refused) => {
                        transaction.failed();
                        return Ok(refused);
                    }
                    Err(failure) => failure,
                }
            }
        };
        let stale = code::is_stale(failure.code());
        if stale && transaction.may_restart() && round < STALE_ROUNDS {
            // No result has been returned to the client yet, so the shards may begin again under the same number.
            round += 1;
            if let Ok(namespace) = Namespace::of(&request.body) {
                caller.core.forget(&namespace, failure.code());
            }
            pause(round).await;
            continue;
        }
        transaction.failed();
        let transient = stale || code::is_retryable(failure.code());
        let transient = transient || failure.code() == code::SHARD_NOT_FOUND;
        return Err(if transient {
            failure.labelled("TransientTransactionError")
        } else {
            failure
        });
    }
}

fn with_token(answer: Answer, transaction: &Transaction) -> Result<Answer, Failure> {
    match transaction.recovery_token() {
        Some(token) => answer.appended("recoveryToken", &token),
        None => Ok(answer),
    }
}

async fn run_statement(
    caller: &Caller,
    request: Request,
    transaction: &Transaction,
) -> Result<Answer, Failure> {
    match request.name() {
        "insert" | "update" | "delete" => caller.write(request, Some(transaction)).await,
        "find" | "aggregate" => caller.read_in(transaction, request.body).await,
        "getMore" => caller.get_more(request.body).await,
        "killCursors" => caller.kill_cursors(request.body).await,
        "findAndModify" | "findandmodify" => {
            caller.find_and_modify(&request.body, Some(transaction)).await
        }
        "distinct" => caller.distinct_in(transaction, request.body).await,
        other => {
            let message = format!("Cannot run '{other}' in a multi-document transaction.");
            Err(Failure::new(code::NOT_IN_TRANSACTION, message))
        }
    }
}

/// Executes a command that is not part of a transaction and not insert, update or delete.
async fn plain(caller: &Caller, body: Document) -> Result<Answer, Failure> {
    if let Some(outcome) = caller.administrate(&body).await {
        return outcome;
    }
    let name = body.keys().next().cloned().unwrap_or_default();
    match &*name {
        "find" | "aggregate" => caller.open_cursor(body).await,
        "getMore" => caller.get_more(body).await,
        "killCursors" => caller.kill_cursors(body).await,
        "count" => caller.count(&body).await,
        "distinct" => caller.distinct(&body).await,
        "findAndModify" | "findandmodify" => caller.find_and_modify(&body, None).await,
        "explain" => caller.explain(&body).await,

        "create" => caller.create(&body).await,
        "drop" => caller.drop_collection(&body).await,
        "dropDatabase" => caller.drop_database(&body).await,
        "renameCollection" => caller.rename(&body).await,
        "collMod" => caller.coll_mod(&body).await,
        "createIndexes" => caller.create_indexes(&body).await,
        "dropIndexes" | "deleteIndexes" => caller.drop_indexes(&body).await,
        "listIndexes" => caller.list_indexes(&body).await,
        "listCollections" => caller.list_collections(&body).await,
        "listDatabases" => caller.list_databases(&body).await,
        "collStats" | "collstats" | "dataSize" => caller.coll_stats(&body).await,
        "dbStats" | "dbstats" => caller.db_stats(&body).await,

        "enableSharding" | "enablesharding" => caller.enable_sharding(&body).await,
        "shardCollection" | "shardcollection" => caller.shard_collection(&body).await,
        "split" => caller.split(&body).await,
        "moveChunk" | "moveRange" => caller.move_range(&body).await,
        "mergeChunks" => caller.merge_chunks(&body).await,
        "listShards" => caller.list_shards().await,
        "flushRouterConfig" => caller.flush(&body),
        "isdbgrid" => Answer::try_from(doc! { "isdbgrid": 1, "hostname": "localhost", "ok": 1.0 }),

        "serverStatus" => caller.server_status(body).await,
        // Any one node can answer for the cluster.
        "buildInfo" | "buildinfo" | "hostInfo" | "getParameter" | "getCmdLineOpts"
        | "connectionStatus" | "startSession" | "validateDBMetadata" | "listCommands"
        | "getLog" => caller.on_shard(body).await,
        // The config server has the users, roles and settings of the cluster.
        "usersInfo" | "rolesInfo" | "getDefaultRWConcern" | "getClusterParameter" => {
            caller.on_config(body, Repeat::Safe).await
        }
        "setDefaultRWConcern" => caller.set_defaults(body).await,
        // Each node has its own state for these.
        "setParameter" | "refreshSessions" | "killSessions" | "fsync" | "appendOplogNote" => {
            caller.run_on_all_shards(&body).await
        }
        // Drivers send this when they end and ignore the reply; the shards' sessions time out by themselves.
        "endSessions" => Answer::try_from(doc! { "ok": 1.0 }),
        _ => Err(unknown(&name)),
    }
}

impl Caller {
    /// Runs the command `body` unchanged on the primary of the shard that belongs to this connection.
    pub(super) async fn on_shard(&self, body: Document) -> Result<Answer, Failure> {
        let shard = self.core.route(self.connection_number).await?;
        self.core.on_primary(self.user.as_ref(), &shard, body, None, Repeat::Safe).await
    }

    /// Runs `explain` of find and aggregate; other commands are refused, because shards do not explain routed writes.
    async fn explain(&self, body: &Document) -> Result<Answer, Failure> {
        let explained = body.get_document("explain").map_err(Failure::malformed)?;
        let name = explained.keys().next().map_or("", String::as_str);
        let routed = match name {
            "find" => "clusterFind",
            "aggregate" => "clusterAggregate",
            other => {
                let message =
                    format!("the testbed's router explains find and aggregate, not {other}");
                return Err(Failure::new(code::COMMAND_NOT_SUPPORTED, message));
            }
        };
        let mut command = body.clone();
        command.insert("explain", super::caller::renamed(explained, routed));
        self.routed(command, None, Repeat::Safe).await
    }
}

fn unknown(name: &str) -> Failure {
    let message = format!(
        "no such command: '{name}' (the testbed's router stands in for mongos and does not \
         support it)"
    );
    Failure::new(code::COMMAND_NOT_FOUND, message)
}
