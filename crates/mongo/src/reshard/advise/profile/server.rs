//! One server whose profiler is set, and the way back to its settings.

use bson::{Document, RawDocumentBuf, doc};
use mongodb::Client;

use super::REPLY_MAX;
use crate::error::{Error, Result, redacted_message};
use crate::server::collection::number;
use crate::server::endpoint::answer_within;

/// One server, without the other members of its replica set, and the database whose profiler is set.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) client: Client,
    /// Name in messages.
    pub(super) name: String,
    pub(super) db: String,
}

impl Server {
    pub(super) fn failed(&self, doing: &str, cause: &mongodb::error::Error) -> Error {
        Error::precondition(
            format!("{doing} the profiler of {}: {}", self.name, redacted_message(cause)),
            format!(
                "it takes the roles dbAdmin and read on {} and clusterMonitor at each shard; --log and \
                 --recording need none",
                self.db
            ),
        )
    }

    pub(super) async fn run(&self, doing: &str, command: Document) -> Result<Document> {
        let database = self.client.database(&self.db);
        let what = format!("{doing} the profiler of {}", self.name);
        let ran = answer_within(REPLY_MAX, &what, database.run_command(command).into_future());
        ran.await?.map_err(|cause| self.failed(doing, &cause))
    }

    /// Restores what `note` says, unless the profiler has been set otherwise meanwhile.
    pub(super) async fn restore(&self, note: &Document) -> Result<()> {
        let now = self.run("reading", doc! {"profile": -1}).await?;
        let until = note.get_datetime("until").map_or(0, |until| until.timestamp_millis());
        let present = now.get_document("filter").ok().map(bytes_of).transpose()?;
        // The filter that was set has the time of the recording's end in it.
        let has_end = |filter: &Vec<u8>| {
            filter.windows(size_of::<i64>()).any(|bytes| bytes == until.to_le_bytes())
        };
        if !present.as_ref().is_some_and(has_end) {
            tracing::warn!(server = self.name, "the profiler has other settings, which stay");
            return Ok(());
        }
        let mut command = doc! {"profile": number(note, "was") as i32, "filter": "unset"};
        if let Ok(filter) = note.get_binary_generic("filter") {
            let filter = RawDocumentBuf::from_bytes(filter.clone()).and_then(Document::try_from);
            let filter = filter.map_err(|cause| Error::malformed("a profiler's filter", cause))?;
            command.insert("filter", filter);
        }
        self.run("restoring", command).await.map(|_| ())
    }
}

/// Returns a filter as the bytes of its document: a note must not have its names, which have dots and dollars.
pub(super) fn bytes_of(filter: &Document) -> Result<Vec<u8>> {
    let raw = RawDocumentBuf::try_from(filter);
    raw.map(RawDocumentBuf::into_bytes)
        .map_err(|cause| Error::malformed("a profiler's filter", cause))
}
