//! Which command is carried out where.

use bson::{Document, doc};

use super::answer::{Answer, Failure, code};
use super::caller::Caller;
use super::message::Request;
use super::core::Repeat;

/// Runs one command of a client.
pub(super) async fn run(caller: &Caller, request: Request) -> Result<Answer, Failure> {
    let name = request.name().to_owned();
    let body = request.body;
    match &*name {
        "insert" | "update" | "delete" => {
            Box::pin(caller.write(Request { body, ..request }, None)).await
        }
        "find" | "aggregate" => Box::pin(caller.open_cursor(body)).await,
        "getMore" => caller.get_more(body).await,
        "killCursors" => caller.kill_cursors(body).await,
        "count" => Box::pin(caller.count(&body)).await,
        "distinct" => Box::pin(caller.distinct(&body)).await,
        "buildInfo" | "buildinfo" => caller.on_shard(body).await,
        "endSessions" => Answer::try_from(doc! { "ok": 1.0 }),
        _ => Err(unknown(&name)),
    }
}

impl Caller {
    /// Runs a command unchanged on the primary of one shard.
    pub(super) async fn on_shard(&self, body: Document) -> Result<Answer, Failure> {
        let shard = self.core.route(self.seat).await?;
        self.core.on_primary(self.user.as_ref(), &shard, body, None, Repeat::Safe).await
    }
}

fn unknown(name: &str) -> Failure {
    let message = format!(
        "no such command: '{name}' (the testbed's router stands in for mongos and does not \
         support it)"
    );
    Failure::new(code::COMMAND_NOT_FOUND, message)
}
