//! Reads the progress of a job's slices.
//!
//! The progress is read every second while changes are applied, so the read is small. The `_id`s that a slice left to
//! the applier may be ten thousand, and are read once, when the slice is first found copied.

use std::collections::HashMap;

use bson::{Document, Timestamp, doc};
use imago_plan::copy::pending_changes::SliceState;

use super::{Leases, SLICES, id_of, parse_slice};
use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::server::collection::number;

/// State of one slice of a job when it was read.
#[derive(Clone, Debug)]
pub struct SliceSnapshot {
    /// Number of the slice's collection in the job, from 0.
    pub ns: usize,
    /// Number of the slice in its collection, from 0.
    pub n: usize,
    /// Progress of the slice's copy.
    pub state: SliceState,
    /// Number of documents that were copied from the slice, once it is copied; 0 before.
    pub documents: u64,
    /// Size of these documents in bytes, once the slice is copied; 0 before.
    pub bytes: u64,
    /// The `_id`s that the slice left to the applier, if the read includes them; else empty.
    pub leftovers: Vec<Id>,
}

impl Leases {
    /// Returns the state of every slice of the job at or after the destination's cluster time `after` (`None`: any
    /// majority-committed state), without leftovers.
    ///
    /// # Errors
    /// Fails if the destination does not answer.
    #[crate::boxed]
    pub async fn states_after(&self, after: Option<Timestamp>) -> Result<Vec<SliceSnapshot>> {
        let all = self.find(doc! {"job": self.job.to_string()}, 0, after).await?;
        all.iter().map(parse_slice_snapshot).collect()
    }

    /// Returns the states as [`Leases::states_after`] does, with the leftovers of those slices that are copied and
    /// that `known`, indexed by collection and slice, does not mark as copied. Leftovers may be many, and no longer
    /// change.
    ///
    /// # Errors
    /// Fails if the destination does not answer, or a member that lags answers.
    #[crate::boxed]
    pub async fn states_with_leftovers_after(
        &self,
        after: Option<Timestamp>,
        known: &[Vec<bool>],
    ) -> Result<Vec<SliceSnapshot>> {
        let mut all = self.states_after(after).await?;
        let is_known =
            |seen: &SliceSnapshot| known.get(seen.ns).and_then(|ns| ns.get(seen.n)) == Some(&true);
        let is_new = |seen: &SliceSnapshot| seen.state == SliceState::Copied && !is_known(seen);
        let new: Vec<&mut SliceSnapshot> = all.iter_mut().filter(|seen| is_new(seen)).collect();
        self.add_leftovers(new).await?;
        Ok(all)
    }

    async fn add_leftovers(&self, copied: Vec<&mut SliceSnapshot>) -> Result<()> {
        if copied.is_empty() {
            return Ok(());
        }
        let ids: Vec<String> = copied.iter().map(|seen| self.id(seen.ns, seen.n)).collect();
        let filter = doc! {"_id": {"$in": &ids}, "state": "copied"};
        let projection = doc! {"leftovers": 1};
        let mut leftovers = HashMap::new();
        for found in self.find_in(SLICES, filter, projection, 0, None).await? {
            let values = found.get_array("leftovers").into_iter().flatten();
            let id = found.get_str("_id").unwrap_or_default().to_owned();
            leftovers.insert(id, values.map(id_of).collect::<Result<Vec<Id>>>()?);
        }
        for (seen, id) in copied.into_iter().zip(ids) {
            // The second read returned an older state than the first, which is possible for a moment after an
            // election.
            seen.leftovers = leftovers.remove(&id).ok_or_else(|| Error::Transient {
                doing: "reading what the slices left over".into(),
                cause: format!("slice {id} is not copied yet, and was"),
            })?;
        }
        Ok(())
    }
}

fn parse_slice_snapshot(document: &Document) -> Result<SliceSnapshot> {
    let slice = parse_slice(document)?;
    let state = match document.get_str("state") {
        Ok("untouched") => SliceState::Untouched,
        Ok("leased") => SliceState::Leased,
        Ok("copied") => SliceState::Copied,
        other => return Err(Error::malformed("a slice's state", format!("{other:?}"))),
    };
    Ok(SliceSnapshot {
        ns: slice.ns,
        n: slice.n,
        state,
        documents: number(document, "documents"),
        bytes: number(document, "bytes"),
        leftovers: Vec::new(),
    })
}
