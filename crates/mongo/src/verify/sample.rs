//! Comparing some documents: drawn at random from both sides, or named.

use bson::{Document, RawDocumentBuf, Timestamp, doc};
use futures_util::StreamExt;

use super::feed::{Chunk, id_of};
use super::lookup::Members;
use super::{Mode, Progress, Report, Search, Suspects, Watch};
use crate::collection::Handle;
use crate::converge::{ReadAt, read_concern};
use crate::endpoint::prefer_secondary;
use crate::error::{Error, Result};
use crate::order::Id;

/// `_id`s that are compared between two reports of progress.
const STEP: usize = 5_000;

/// Draws from the source, for what is missing or different, and from the destination, for what is
/// extra.
pub(super) async fn compare(
    search: &Search<'_>,
    suspects: &mut Suspects,
    watch: &mut dyn Watch,
    report: &mut Report,
) -> Result<()> {
    let lookup = search.lookup;
    let sides =
        [(&lookup.source, lookup.source_since), (&lookup.destination, lookup.destination_since)];
    for (side, since) in sides {
        Box::pin(compare_drawn(search, side, since, suspects, watch, report)).await?;
    }
    Ok(())
}

async fn compare_drawn(
    search: &Search<'_>,
    side: &Handle,
    since: Timestamp,
    suspects: &mut Suspects,
    watch: &mut dyn Watch,
    report: &mut Report,
) -> Result<()> {
    let doing = || format!("aggregate with a sample on {}", side.ns);
    let command = doc! {
        "aggregate": &side.ns.coll,
        "pipeline": pipeline(&search.spec.mode, search.spec.filter.as_ref()),
        "cursor": {},
        "allowDiskUse": true,
    };
    let mut command = RawDocumentBuf::try_from(&command)
        .map_err(|e| Error::usage(e.to_string(), "simplify the filter"))?;
    command.append(bson::raw::cstr!("readConcern"), read_concern(ReadAt::After(since)));
    let db = side.endpoint.client().database(&side.ns.db);
    let opened =
        db.run_raw_cursor_command(command).selection_criteria(prefer_secondary()).batch().await;
    let mut cursor = opened.map_err(|error| Error::server(doing(), error))?;
    while let Some(batch) = search.control.or_stop(cursor.next()).await? {
        let chunk = Chunk::new(batch.map_err(|error| Error::server(doing(), error))?, &side.ns)?;
        let ids: Vec<Id> = chunk.documents().map(id_of).collect::<Result<_>>()?;
        Box::pin(compare_ids(search, &ids, suspects, watch, report)).await?;
        if suspects.is_full() {
            break;
        }
    }
    Ok(())
}

fn pipeline(mode: &Mode, filter: Option<&Document>) -> Vec<Document> {
    let mut stages: Vec<Document> =
        filter.map(|filter| doc! {"$match": filter}).into_iter().collect();
    stages.push(match mode {
        Mode::Sample(size) => doc! {"$sample": {"size": i64::try_from(*size).unwrap_or(i64::MAX)}},
        Mode::Fraction(rate) => doc! {"$match": {"$sampleRate": *rate}},
        mode => unreachable!("{mode:?} draws nothing"),
    });
    stages.push(doc! {"$project": {"_id": 1}});
    stages
}

/// Compares the documents that `ids` names.
pub(super) async fn compare_ids(
    search: &Search<'_>,
    ids: &[Id],
    suspects: &mut Suspects,
    watch: &mut dyn Watch,
    report: &mut Report,
) -> Result<()> {
    for step in ids.chunks(STEP) {
        let examined = Box::pin(search.lookup.examine(step, Members::Any, search.control)).await?;
        report.compared += step.len() as u64;
        report.compared_bytes += examined.source_bytes;
        suspects.extend(examined.differing.into_iter().map(|verdict| verdict.id));
        watch.progress(Progress {
            compared: report.compared,
            expected: None,
            suspects: suspects.len() as u64,
            retry: 0,
        });
        if suspects.is_full() {
            break;
        }
    }
    Ok(())
}
