//! Comparison of some documents: drawn at random from both sides, or given by `_id`.

use bson::{Document, RawDocumentBuf, Timestamp, doc};
use futures_util::StreamExt;

use super::feed::{Chunk, id_of};
use super::lookup::Members;
use super::read_retry::ReadRetry;
use super::{Mode, Progress, Report, Search, Suspects, Watch};
use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::replicate::apply::{ReadAt, read_concern};
use crate::server::collection::Handle;
use crate::server::endpoint::{answer_within, prefer_secondary};
use crate::server::timing::SEARCH_MAX;

/// Number of `_id`s that are compared between two progress reports.
const STEP: usize = 5_000;
/// Maximum number of draws of one side, if all but the last are cut short.
const DRAWS_MAX: u32 = 30;

/// Compares documents drawn from the source, which finds missing and different ones, and documents drawn from the
/// destination, which finds extra ones.
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
        compare_drawn(search, side, since, suspects, watch, report).await?;
    }
    Ok(())
}

/// Draws documents of `side` and compares them, until a draw was read to its end. A draw that a lost server cut short
/// cannot be continued: a new draw replaces it, and the counts of the first are discarded.
async fn compare_drawn(
    search: &Search<'_>,
    side: &Handle,
    since: Timestamp,
    suspects: &mut Suspects,
    watch: &mut dyn Watch,
    report: &mut Report,
) -> Result<()> {
    let mut read_retry = ReadRetry::default();
    let what = format!("draw documents of {}", side.ns);
    let before = (report.compared, report.compared_bytes);
    for _ in 0..DRAWS_MAX {
        let drawn = draw(search, side, since, &mut read_retry, suspects, watch, report);
        let Err(error) = drawn.await else { return Ok(()) };
        search.control.sleep(read_retry.after(&what, error)?).await?;
        (report.compared, report.compared_bytes) = before;
    }
    Err(Error::Transient { doing: what, cause: format!("{DRAWS_MAX} draws were cut short") })
}

async fn draw(
    search: &Search<'_>,
    side: &Handle,
    since: Timestamp,
    read_retry: &mut ReadRetry,
    suspects: &mut Suspects,
    watch: &mut dyn Watch,
    report: &mut Report,
) -> Result<()> {
    let doing = format!("aggregate with a sample on {}", side.ns);
    let failed = |error| Error::server(doing.clone(), error);
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
    let opened = db.run_raw_cursor_command(command).selection_criteria(prefer_secondary()).batch();
    let opened = answer_within(SEARCH_MAX, &doing, opened.into_future());
    let mut cursor = search.control.or_stop(opened).await??.map_err(failed)?;
    loop {
        let batch = answer_within(SEARCH_MAX, &doing, cursor.next());
        let Some(batch) = search.control.or_stop(batch).await?? else { return Ok(()) };
        let chunk = Chunk::new(batch.map_err(failed)?, &side.ns)?;
        read_retry.renew();
        let ids: Vec<Id> = chunk.documents().map(id_of).collect::<Result<_>>()?;
        compare_ids(search, &ids, suspects, watch, report).await?;
        if suspects.is_full() {
            return Ok(());
        }
    }
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

/// Compares the documents with these `ids`. Those that differ become `suspects`; `report` gets the counts.
pub(super) async fn compare_ids(
    search: &Search<'_>,
    ids: &[Id],
    suspects: &mut Suspects,
    watch: &mut dyn Watch,
    report: &mut Report,
) -> Result<()> {
    for step in ids.chunks(STEP) {
        let examined = search.lookup.examine(step, Members::Any, search.control).await?;
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
