//! The state of a copy in its job's record: what the next process begins from.

use std::collections::BTreeMap;

use bson::raw::RawBsonRef;
use bson::{RawDocument, RawDocumentBuf, Timestamp};
use imago_job::id::JobId;
use imago_job::record::Record;
use imago_job::run::Run;
use serde::{Deserialize, Serialize};

use super::catalog::{Gone, Joined};
use crate::bson::ext_json::{self, ExtJson};
use crate::copy::preflight::Planned;
use crate::error::{Error, Result};
use crate::replicate::changes::Start;
use crate::replicate::coordinator::Checkpoint;
use crate::server::block::Block;

/// A resume token as a record keeps it: the whole document, as canonical extended JSON.
///
/// Besides `_data` it has `_typeBits` wherever an `_id` is a number that its key string alone does not
/// tell (a 64-bit integer, a double, a decimal), and servers refuse a token without them. Records of
/// versions that kept `_data` alone are read: their stream begins at the time of the last change that
/// was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResumeToken(String);

impl ResumeToken {
    fn of(token: &RawDocument) -> Result<Self> {
        let text = serde_json::to_string(&ExtJson(RawBsonRef::Document(token)));
        text.map(Self).map_err(|e| Error::malformed("a resume token", e))
    }

    /// What the server gave.
    fn whole(&self) -> Result<RawDocumentBuf> {
        ext_json::parse_document(&self.0).map_err(|e| Error::malformed("the job's resume token", e))
    }

    /// Whether it is of a version that kept `_data` alone.
    fn is_cut(&self) -> bool {
        !self.0.starts_with('{')
    }
}

/// How far a copy is, as its record keeps it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// The source's time before anything was read: seconds and increment.
    pub t0: Option<(u32, u32)>,
    /// Where the stream is to be resumed, once something of it was applied.
    pub token: Option<ResumeToken>,
    /// The source's time there.
    pub applied_to: Option<(u32, u32)>,
    /// Whether the indexes are built.
    pub is_indexed: bool,
    /// Collections that joined since the plan was made, numbered behind those of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<Joined>,
    /// Views that joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined_views: Vec<Planned>,
    /// Collections that the source does not have any more, by their number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gone: BTreeMap<usize, Gone>,
    /// Whether writes at the source may be blocked for a cut-over that did not end: the next process of the
    /// job lifts the block first.
    #[serde(default)]
    pub is_blocked: bool,
    /// When that block was set, in ms since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked_at_ms: Option<u64>,
    /// How long writes were blocked by attempts at the cut-over that died, in ms.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub blocked_before_ms: u64,
    /// Whether the block that its cut-over set stands at the source since, for the operator to lift.
    #[serde(default)]
    pub block_left: bool,
    /// The names of each collection's indexes at the source when they were last followed, once they
    /// are built: one of these that the source no longer has is dropped, also when it went while
    /// no process worked at the job. Others at the destination are not the job's.
    #[serde(default)]
    pub followed_indexes: Vec<Vec<String>>,
    /// Whether the hook that moves the clients was begun, and its end is not recorded: then it is unknown at
    /// which cluster the clients are.
    #[serde(default)]
    pub hook_begun: bool,
    /// In a job that leads back: whether the destination, which is the old cluster, refuses its
    /// users' writes while it follows. The next process of the job renews that block.
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

fn is_zero(ms: &u64) -> bool {
    *ms == 0
}

impl State {
    /// Notes that the block of an attempt that died is lifted now.
    pub(crate) fn count_block(&mut self, now_ms: u64) {
        let since_ms = self.blocked_at_ms.take().map_or(0, |at_ms| now_ms.saturating_sub(at_ms));
        self.blocked_before_ms += since_ms;
        self.is_blocked = false;
    }

    /// Refuses to go on while it is unknown where the clients are.
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
pub(super) fn note(state: &mut State, checkpoint: &Checkpoint) -> Result<()> {
    state.token = Some(ResumeToken::of(&checkpoint.token)?);
    state.applied_to = Some((checkpoint.time.time, checkpoint.time.increment));
    Ok(())
}

/// Where a process that resumes from this state opens the stream.
pub(super) fn start_of(state: &State) -> Result<Start> {
    let time = match &state.token {
        Some(token) if !token.is_cut() => return Ok(Start::After(token.whole()?)),
        // What is applied twice is as if it had been applied once.
        Some(_) => state.applied_to,
        None => state.t0,
    };
    let (time, increment) =
        time.ok_or_else(|| Error::malformed("the job's state", "it has no time to begin at"))?;
    Ok(Start::At(Timestamp { time, increment }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::spec::BinarySubtype;
    use bson::{Binary, rawdoc};

    #[test]
    fn a_token_comes_back_as_it_was_and_one_of_an_old_record_is_read() {
        let bits = Binary { subtype: BinarySubtype::Generic, bytes: vec![0x82, 0x01] };
        let token = rawdoc! {"_data": "8265A1B2C3000000042B0229296E04", "_typeBits": bits};
        let kept = ResumeToken::of(&token).unwrap();
        assert_eq!(kept.whole().unwrap(), token);
        assert!(!kept.is_cut());
        let mut old: State = serde_json::from_str(
            r#"{"t0": [1, 2], "token": "8265A1B2C3", "applied_to": [1, 3], "is_indexed": false}"#,
        )
        .unwrap();
        let Ok(Start::At(begins)) = start_of(&old) else { panic!("{old:?}") };
        assert_eq!(begins, Timestamp { time: 1, increment: 3 });
        old.token = Some(kept);
        let Ok(Start::After(after)) = start_of(&old) else { panic!("{old:?}") };
        assert_eq!(after, token);
    }
}
