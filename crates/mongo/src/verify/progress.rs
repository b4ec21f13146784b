//! Comparison of documents that change continuously.
//!
//! A document that is written every few milliseconds differs whenever the two sides are read one after the other,
//! however closely the copy follows, and no retry finds it equal. The source is therefore read repeatedly, at short
//! intervals, and the states of the document there are recorded; the destination is correct if it has one of them.
//!
//! Two equal reads in a row would be no better evidence: there too, the destination would only have a state that the
//! source had a moment before. This applies only to a document that changed at the source meanwhile; an unchanged one
//! must be equal.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use super::Search;
use crate::bson::order::Id;
use crate::error::Result;

/// Maximum number of documents that are followed at once. A longer list would be read too slowly to record every
/// state of each document.
const IDS_MAX: usize = 64;
/// Number of reads of the source before each read of the destination.
const SOURCE_READS: usize = 8;
const FOLLOW_MAX: Duration = Duration::from_secs(2);

/// Returns those of `ids` whose document at the destination equals a state that the source's document had recently.
pub(super) async fn follow(search: &Search<'_>, ids: &[Id]) -> Result<HashSet<Id>> {
    let mut found = HashSet::new();
    for ids in ids.chunks(IDS_MAX) {
        found.extend(follow_few(search, ids).await?);
    }
    Ok(found)
}

async fn follow_few(search: &Search<'_>, ids: &[Id]) -> Result<HashSet<Id>> {
    let began = Instant::now();
    let mut left: Vec<Id> = ids.to_vec();
    let mut found = HashSet::new();
    let mut seen: HashMap<Id, HashSet<Option<u64>>> = HashMap::new();
    while !left.is_empty() && began.elapsed() < FOLLOW_MAX {
        search.control.checkpoint().await?;
        for _ in 0..SOURCE_READS {
            let states = search.lookup.source_states(&left, search.control).await?;
            for id in &left {
                seen.entry(id.clone()).or_default().insert(states.get(id).copied());
            }
        }
        let states = search.lookup.destination_states(&left, search.control).await?;
        left.retain(|id| {
            let follows = seen[id].contains(&states.get(id).copied());
            if follows {
                found.insert(id.clone());
            }
            !follows
        });
    }
    Ok(found)
}
