//! The state of a copy in its job's record. A process that resumes the job starts from it.

mod earlier;
mod job;

use std::collections::BTreeMap;

use bson::raw::RawBsonRef;
use bson::{RawDocument, RawDocumentBuf, Timestamp};
use imago_job::id::JobId;
use imago_job::record::Record;
use imago_job::run::Run;
use serde::{Deserialize, Serialize};

use super::KIND;
use super::catalog::{Gone, Joined};
use crate::bson::ext_json::{self, ExtJson};
use crate::copy::preflight::Planned;
use crate::error::{Error, Result};
use crate::replicate::changes::Start;
use crate::replicate::coordinator::Checkpoint;
use crate::server::retention::Retention;

use earlier::Flat;
pub use job::{Commit, CutOver, Job, ReverseJob, SourceBlock};

/// A resume token of a change stream as a job's record holds it: the whole document, as canonical extended JSON.
///
/// Besides `_data`, a token has `_typeBits` if an `_id` is a number whose type the key string alone does not determine
/// (a 64-bit integer, a double, a decimal), and servers refuse a token without them. Records of versions that stored
/// `_data` alone can be read: their stream starts at the time of the last applied change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResumeToken(String);

impl ResumeToken {
    fn of(token: &RawDocument) -> Result<Self> {
        let text = serde_json::to_string(&ExtJson(RawBsonRef::Document(token)));
        text.map(Self).map_err(|e| Error::malformed("a resume token", e))
    }

    /// Returns the token document as the server sent it.
    fn whole(&self) -> Result<RawDocumentBuf> {
        ext_json::parse_document(&self.0).map_err(|e| Error::malformed("the job's resume token", e))
    }

    /// Returns true for a token from the record of a version of Imago that stored `_data` alone.
    fn is_cut(&self) -> bool {
        !self.0.starts_with('{')
    }
}

/// The progress of a copy, persisted as the checkpoint of its record.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct State {
    /// The source's cluster time (seconds since 1970, and increment) at which the stream starts without a token: at
    /// first the time before any document was read; later, a time up to which all changes are applied. `None` until
    /// the copy is prepared.
    pub t0: Option<(u32, u32)>,
    /// The token from which the stream resumes; `None` until a change has been applied, and after a change of the set
    /// of collections or a settled cut-over, when the stream starts at `t0`.
    pub token: Option<ResumeToken>,
    /// The source's cluster time up to which all changes are applied: seconds since 1970, and increment; `None` until
    /// a position is saved.
    pub applied_to: Option<(u32, u32)>,
    /// True once the indexes of all collections, joined ones included, are built at the destination.
    pub is_indexed: bool,
    /// Collections that have joined since the plan was made, numbered after those of the plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined: Vec<Joined>,
    /// Views that have joined since the plan was made.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joined_views: Vec<Planned>,
    /// Collections of the job that the source no longer has, by their number.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub gone: BTreeMap<usize, Gone>,
    /// The names of each collection's indexes at the source when the job last followed them, once they are built. An
    /// index that is listed here and that the source no longer has is dropped, even if the source dropped it while no
    /// process worked at the job. Other indexes at the destination are not the job's.
    #[serde(default)]
    pub followed_indexes: Vec<Vec<String>>,
    /// The retention rules (expiry of documents) that each collection of the destination gets at the end of the job,
    /// by the collection's number. They are suspended while the job follows.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub retention: BTreeMap<usize, Retention>,
    /// The part of the state that only one kind of job has.
    pub job: Job,
}

impl State {
    /// Creates the initial state of a reshard job.
    #[must_use]
    pub fn of_reshard() -> Self {
        Self { job: Job::Reshard(Commit::default()), ..Self::default() }
    }

    /// Returns the state of the job's cut-over, or `None` for a reshard job.
    #[must_use]
    pub fn cut_over(&self) -> Option<&CutOver> {
        match &self.job {
            Job::Copy(cut_over) | Job::WayBack(ReverseJob { cut_over, .. }) => Some(cut_over),
            Job::Reshard(_) => None,
        }
    }

    /// Returns the state of the job's cut-over, to be changed. The job must not be a reshard job.
    pub(crate) fn cut_over_mut(&mut self) -> &mut CutOver {
        match &mut self.job {
            Job::Copy(cut_over) | Job::WayBack(ReverseJob { cut_over, .. }) => cut_over,
            Job::Reshard(_) => unreachable!("a change of shape has no cut-over"),
        }
    }

    /// Returns the part of the state that a reverse job has, or `None` if the job is not one.
    #[must_use]
    pub fn reverse_job_state(&self) -> Option<&ReverseJob> {
        match &self.job {
            Job::WayBack(back) => Some(back),
            Job::Copy(_) | Job::Reshard(_) => None,
        }
    }

    /// Returns the state without the write block that an attempt at the cut-over had set at the source, after that
    /// block was lifted.
    #[must_use]
    pub fn with_block_lifted(mut self) -> Self {
        self.cut_over_mut().block = SourceBlock::None;
        self
    }

    /// Returns the state of a reshard job's commit, or `None` for other jobs.
    #[must_use]
    pub fn commit(&self) -> Option<&Commit> {
        match &self.job {
            Job::Reshard(commit) => Some(commit),
            Job::Copy(_) | Job::WayBack(_) => None,
        }
    }

    /// Returns the state of the job's commit, to be changed. The job must be a reshard job.
    pub(crate) fn commit_mut(&mut self) -> &mut Commit {
        match &mut self.job {
            Job::Reshard(commit) => commit,
            Job::Copy(_) | Job::WayBack(_) => unreachable!("only a change of shape commits"),
        }
    }

    /// Returns true if this is a reverse job whose destination, the old cluster, refuses its users' writes while it
    /// follows.
    #[must_use]
    pub fn is_destination_blocked(&self) -> bool {
        self.reverse_job_state().is_some_and(|back| back.is_destination_blocked)
    }

    /// Records that a reverse job's destination, the old cluster, admits its users' writes again.
    pub(crate) fn unblock_destination(&mut self) {
        if let Job::WayBack(back) = &mut self.job {
            back.is_destination_blocked = false;
        }
    }

    /// Returns a precondition error if it is unknown which cluster the clients use, because the hook of a cut-over
    /// began and its end is not recorded: the job `id` must not resume then.
    ///
    /// # Errors
    /// Returns a precondition error that says how the operator resolves this.
    pub fn refuse_undecided(&self, id: &JobId) -> Result<()> {
        if !self.cut_over().is_some_and(|cut_over| cut_over.hook_begun) {
            return Ok(());
        }
        let command = match self.reverse_job_state() {
            None => format!("imago cutover {id}"),
            Some(back) => format!("imago cutover {} --rollback", back.from),
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

/// Reads the state of a job from its record, also in the format of earlier versions.
///
/// # Errors
/// Fails if the state cannot be parsed, or belongs to another kind of job than the record.
pub fn state_of(record: &Record) -> Result<State> {
    let malformed = |e: serde_json::Error| Error::malformed("the job's state", e);
    let mut kept = record.checkpoint.clone();
    let is_copy = record.kind == KIND;
    if let Some(fields) = kept.as_object_mut().filter(|fields| !fields.contains_key("job")) {
        let flat: Flat = serde_json::from_value(record.checkpoint.clone()).map_err(malformed)?;
        let job = serde_json::to_value(flat.of_kind(is_copy)).map_err(malformed)?;
        fields.insert("job".into(), job);
    }
    let state: State = serde_json::from_value(kept).map_err(malformed)?;
    if state.commit().is_some() == is_copy {
        let what = format!("it is not that of a {}", record.kind);
        return Err(Error::malformed("the job's state", what));
    }
    Ok(state)
}

/// Saves the state as the checkpoint of the job's record. Fails if the job is stopped or was taken over.
pub(crate) async fn save(run: &Run, state: &State) -> Result<()> {
    let value = serde_json::to_value(state).map_err(|e| Error::malformed("the job's state", e))?;
    run.save(value).await.map_err(Error::from)
}

/// Saves the state as the checkpoint of the job's record for a successor, even if the job is to end. Fails if this
/// process no longer owns the job.
pub(crate) async fn save_final(run: &Run, state: &State) -> Result<()> {
    let value = serde_json::to_value(state).map_err(|e| Error::malformed("the job's state", e))?;
    run.save_final(value).await.map_err(Error::from)
}

/// Records in `state` the position of the stream up to which changes are applied.
pub(super) fn note(state: &mut State, checkpoint: &Checkpoint) -> Result<()> {
    state.token = Some(ResumeToken::of(&checkpoint.token)?);
    state.applied_to = Some((checkpoint.time.time, checkpoint.time.increment));
    Ok(())
}

/// Returns the position at which a process that resumes from `state` opens the change stream.
pub(super) fn start_of(state: &State) -> Result<Start> {
    let time = match &state.token {
        Some(token) if !token.is_cut() => return Ok(Start::After(token.whole()?)),
        // Changes are idempotent: applying some of them twice is harmless.
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
        let mut old = earlier(KIND, r#""token": "8265A1B2C3", "applied_to": [1, 3]"#).unwrap();
        let Ok(Start::At(begins)) = start_of(&old) else { panic!("{old:?}") };
        assert_eq!(begins, Timestamp { time: 1, increment: 3 });
        old.token = Some(kept);
        let Ok(Start::After(after)) = start_of(&old) else { panic!("{old:?}") };
        assert_eq!(after, token);
    }
    fn earlier(kind: &str, fields: &str) -> Result<State> {
        let kept = format!(r#"{{"t0": [1, 2], "is_indexed": false, {fields}}}"#);
        let mut record = Record::new(kind, serde_json::Value::Null, 1_764_000_000_000);
        record.checkpoint = serde_json::from_str(&kept).unwrap();
        let state = state_of(&record)?;
        record.checkpoint = serde_json::to_value(&state).unwrap();
        let again = state_of(&record).unwrap();
        assert_eq!(serde_json::to_value(&again).unwrap(), record.checkpoint, "{state:?}");
        Ok(state)
    }

    #[test]
    fn state_of_earlier_versions_is_read_by_the_kind_of_its_job() {
        let died = r#""is_blocked": true, "blocked_at_ms": 1764000000123, "hook_begun": true"#;
        let copy = earlier(KIND, died).unwrap();
        let cut_over = copy.cut_over().unwrap();
        assert_eq!(cut_over.block, SourceBlock::MayStand { since_ms: Some(1_764_000_000_123) });
        assert!(cut_over.hook_begun && copy.reverse_job_state().is_none());
        copy.refuse_undecided(&JobId::generate()).unwrap_err();

        let left = earlier(KIND, r#""block_left": true"#).unwrap();
        assert_eq!(left.cut_over().unwrap().block, SourceBlock::Left);

        let id = JobId::generate();
        let back = format!(r#""leads_back_from": "{id}", "is_destination_blocked": true"#);
        let back = earlier(KIND, &back).unwrap();
        assert!(back.is_destination_blocked());
        assert_eq!(back.reverse_job_state().unwrap().from, id);

        let renames = r#""hook_begun": true, "becomes": "6f1d", "drained_to": [1764000000, 7]"#;
        let renames = earlier("reshard", renames).unwrap();
        let commit = renames.commit().unwrap();
        assert!(commit.rename_requested && !commit.is_blocked);
        assert_eq!(commit.drained_to, Some((1_764_000_000, 7)));
        renames.refuse_undecided(&id).unwrap();
    }

    #[test]
    fn the_state_of_another_kind_of_job_is_refused() {
        let mut record = Record::new(KIND, serde_json::Value::Null, 1_764_000_000_000);
        record.checkpoint = serde_json::to_value(State::of_reshard()).unwrap();
        let refused = state_of(&record).unwrap_err().to_string();
        assert!(refused.contains("it is not that of a copy"), "{refused}");
    }
}
