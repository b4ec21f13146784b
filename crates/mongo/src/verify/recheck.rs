//! Retries of suspects: a document differs if every retry confirms the difference.
//!
//! All reads are at the primaries with majority read concern. A suspect that is equal once is resolved for good,
//! however often it changes. A suspect whose source document changed since the previous round may only be hot: it is
//! resolved when the destination equals one of its recent states ([`progress`]), else it is reported as changing.

use std::collections::HashMap;

use super::lookup::{Members, Verdict};
use super::{Difference, Progress, Report, Search, Suspects, Watch, progress};
use crate::bson::order::Id;
use crate::error::Result;

/// A difference of one document that every retry confirmed.
#[derive(Debug)]
pub(super) struct Confirmed {
    pub id: Id,
    pub kind: Difference,
    /// True if the source's document still changed between the last two rounds of retries.
    pub is_changing: bool,
}

pub(super) async fn recheck(
    search: &Search<'_>,
    suspects: Suspects,
    watch: &mut dyn Watch,
    report: &mut Report,
) -> Result<Vec<Confirmed>> {
    let mut ids = suspects.into_ids();
    let first = ids.len();
    let mut before: HashMap<Id, u64> = HashMap::new();
    let mut differing = compare_again(search, &ids, &before).await?;
    let retries = search.spec.retries;
    for round in 1..=retries.rounds {
        if differing.is_empty() {
            break;
        }
        search.control.sleep(retries.pause(round).unwrap_or_default()).await?;
        report.retries = round;
        watch.progress(Progress {
            compared: report.compared,
            expected: None,
            suspects: differing.len() as u64,
            retry: round,
        });
        before = differing
            .iter()
            .map(|seen| (seen.verdict.id.clone(), seen.verdict.source_digest))
            .collect();
        ids = differing.into_iter().map(|seen| seen.verdict.id).collect();
        differing = compare_again(search, &ids, &before).await?;
        let changing: Vec<Id> = differing
            .iter()
            .filter(|seen| seen.is_changing && seen.verdict.kind != Difference::Duplicate)
            .map(|seen| seen.verdict.id.clone())
            .collect();
        if !changing.is_empty() {
            let following = progress::follow(search, &changing).await?;
            differing.retain(|seen| !following.contains(&seen.verdict.id));
        }
    }
    report.resolved += (first - differing.len()) as u64;
    let mut settled: Vec<Confirmed> = differing
        .into_iter()
        .map(|Recheck { verdict, is_changing }| Confirmed {
            id: verdict.id,
            kind: verdict.kind,
            is_changing,
        })
        .collect();
    settled.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    Ok(settled)
}

struct Recheck {
    verdict: Verdict,
    is_changing: bool,
}

async fn compare_again(
    search: &Search<'_>,
    ids: &[Id],
    before: &HashMap<Id, u64>,
) -> Result<Vec<Recheck>> {
    let examined = search.lookup.examine(ids, Members::Primary, search.control).await?;
    let seen = |verdict: Verdict| {
        let digest = before.get(&verdict.id);
        let is_changing = digest.is_some_and(|digest| *digest != verdict.source_digest);
        Recheck { verdict, is_changing }
    };
    Ok(examined.differing.into_iter().map(seen).collect())
}
