//! What the record of a copy keeps of it, and whoever goes on with the job begins from.

use bson::{RawDocumentBuf, Timestamp, doc};
use imago_job::id::JobId;
use imago_job::record::Record;
use imago_job::run::Run;
use serde::{Deserialize, Serialize};

use crate::changes::Start;
use crate::error::{Error, Result};
use crate::lead::Checkpoint;
use crate::reshard::Block;

/// How far a copy is, as its record keeps it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// The source's time before anything was read: seconds and increment.
    pub t0: Option<(u32, u32)>,
    /// Where the stream is to be resumed, once something of it was applied.
    pub token: Option<String>,
    /// The source's time there.
    pub applied_to: Option<(u32, u32)>,
    /// Whether the indexes are built.
    pub is_indexed: bool,
    /// Whether writes at the source may be blocked for a cut-over that did not end: whoever goes on
    /// with the job lifts the block first.
    #[serde(default)]
    pub is_blocked: bool,
    /// The names of each collection's indexes at the source when they were last followed, once they
    /// are built: one of these that the source no longer has is dropped, also when it went while
    /// nobody worked at the job. Others at the destination are not the job's.
    #[serde(default)]
    pub followed_indexes: Vec<Vec<String>>,
    /// Whether the hook that moves the clients was begun, and nobody has written down how it ended:
    /// then nobody knows at which cluster the clients are.
    #[serde(default)]
    pub hook_begun: bool,
    /// In a job that leads back: whether the destination, which is the old cluster, refuses its
    /// users' writes while it follows. Whoever goes on with the job sees to it that it does.
    #[serde(default)]
    pub is_destination_blocked: bool,
    /// The job that keeps the old cluster following the new one, once cut over with `--reverse`.
    #[serde(default)]
    pub reverse_job: Option<JobId>,
    /// In a job that leads back: the job that it leads back from.
    #[serde(default)]
    pub leads_back_from: Option<JobId>,
    /// In a change of shape: the UUID of what takes the collection's name, once that was asked for.
    #[serde(default)]
    pub becomes: Option<String>,
    /// In a change of shape: how it was begun to keep writes from the collection at the commit.
    #[serde(default)]
    pub block: Option<Block>,
    /// In a change of shape: the collection's own validator, level and action, in extended JSON,
    /// while one that refuses everything may stand in their place.
    #[serde(default)]
    pub validation: Option<String>,
    /// In a change of shape: the source's time up to which the shadow is the collection, once the
    /// rename was asked for while deletes could still come, and until these are brought over.
    #[serde(default)]
    pub drained_to: Option<(u32, u32)>,
}

impl State {
    /// Refuses to go on while nobody knows where the clients are.
    ///
    /// # Errors
    /// A precondition that says how to tell it.
    pub fn refuse_undecided(&self, id: &JobId) -> Result<()> {
        if !self.hook_begun {
            return Ok(());
        }
        let command = match &self.leads_back_from {
            None => format!("imago cutover {id}"),
            Some(forward) => format!("imago cutover {forward} --rollback"),
        };
        Err(Error::precondition(
            format!(
                "a cut-over of job {id} died while its hook ran, so clients may be at either \
                 cluster"
            ),
            format!(
                "find out where they are, then: `{command} --clients-at source` lifts the block and \
                 the job can go on; `{command} --clients-at destination` says that it is cut over"
            ),
        ))
    }
}

/// The state of a job.
///
/// # Errors
/// When the record is not one of a copy.
pub fn state_of(record: &Record) -> Result<State> {
    serde_json::from_value(record.checkpoint.clone())
        .map_err(|e| Error::malformed("the job's state", e))
}

/// Saves how far the job is, unless it is to end.
pub(crate) async fn save(run: &Run, state: &State) -> Result<()> {
    let value = serde_json::to_value(state).map_err(|e| Error::malformed("the job's state", e))?;
    run.save(value).await.map_err(Error::from)
}

/// Saves what a successor must know, also when the job is to end; an error when it is no longer
/// this process's.
pub(crate) async fn save_at_last(run: &Run, state: &State) -> Result<()> {
    let value = serde_json::to_value(state).map_err(|e| Error::malformed("the job's state", e))?;
    run.save_at_last(value).await.map_err(Error::from)
}

/// Writes down how far the stream is applied.
pub(super) fn note(state: &mut State, checkpoint: &Checkpoint) {
    let text = checkpoint.token.get_str("_data").ok().map(str::to_owned);
    state.token = text.or(state.token.take());
    state.applied_to = Some((checkpoint.time.time, checkpoint.time.increment));
}

/// Where the stream is opened by whoever goes on from here.
pub(super) fn start_of(state: &State) -> Result<Start> {
    if let Some(token) = &state.token {
        let token = RawDocumentBuf::try_from(&doc! {"_data": token})
            .map_err(|e| Error::malformed("the job's resume token", e))?;
        return Ok(Start::After(token));
    }
    let (time, increment) =
        state.t0.ok_or_else(|| Error::malformed("the job's state", "it has no T0"))?;
    Ok(Start::At(Timestamp { time, increment }))
}
