//! Full comparison: merges over ranges of `_id`s, several concurrently.
//!
//! Both sides of a range are read in `_id` order, ahead of the comparison, and merged. Where a merge is impossible (a
//! collation orders the `_id`s of a side, or a side is not in the known order), the documents of each side are looked
//! up at the other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bson::RawBsonRef;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::feed::{BATCH_BYTES, Chunk, Feed, Scan, batch_documents, id_of};
use super::lookup::{Members, documents};
use super::merge::{Block, Merge, MergeCounts, Misaligned, Need};
use super::read_retry::retry_transient;
use super::shards::{Reader, Shards};
use super::{Progress, Report, Search, Suspects, Watch};
use crate::bson::order::Id;
use crate::error::Result;
use crate::replicate::split_points::cut;
use crate::server::collection::Size;

/// Target number of documents in a range of `_id`s.
const RANGE_DOCUMENTS: u64 = 50_000;
const RANGES_MAX: u64 = 64;
/// Maximum number of differing documents that are compared again at once. Most of them were read while a change was
/// being copied, and need not become suspects.
const RECHECK_LEN: usize = 500;
const TICK: Duration = Duration::from_millis(250);

/// Result of comparing the documents of one range of `_id`s; `suspects` differed twice.
#[derive(Debug, Default)]
struct Outcome {
    suspects: Vec<Id>,
    /// Number of documents that differed at first and were equal when they were compared again.
    resolved: u64,
}

#[derive(Debug, Default)]
struct Counters {
    compared: AtomicU64,
    source_bytes: AtomicU64,
}

pub(super) async fn compare(
    search: &Search<'_>,
    suspects: &mut Suspects,
    watch: &mut dyn Watch,
    report: &mut Report,
) -> Result<()> {
    // The sizes only determine batches and ranges, so a server that does not report them is tolerated.
    let size = search.lookup.source.size().await.unwrap_or_default();
    let expected = (size.documents > 0 && search.spec.filter.is_none()).then_some(size.documents);
    let counters = Counters::default();
    let ranges = if search.collated { vec![(None, None)] } else { ranges(search, size).await? };
    suspects.extend(compare_max_key(search, &counters).await?);
    let mut waiting = ranges.into_iter();
    let mut running = FuturesUnordered::new();
    let mut tick = tokio::time::interval(TICK);
    loop {
        let paced = search.control.throttle().is_paced();
        let at_once = if paced { 1 } else { search.spec.workers.max(1) };
        while running.len() < at_once && !suspects.is_full() {
            let Some(range) = waiting.next() else { break };
            running.push(Box::pin(compare_range(search, range, size, &counters)));
        }
        tokio::select! {
            done = running.next() => {
                let Some(outcome) = done else { break };
                let outcome = outcome?;
                report.suspected += outcome.resolved;
                report.resolved += outcome.resolved;
                suspects.extend(outcome.suspects);
            }
            _ = tick.tick() => {}
        }
        watch.progress(Progress {
            compared: counters.compared.load(Ordering::Relaxed),
            expected,
            suspects: suspects.len() as u64,
            retry: 0,
        });
    }
    report.compared += counters.compared.load(Ordering::Relaxed);
    report.compared_bytes += counters.source_bytes.load(Ordering::Relaxed);
    Ok(())
}

/// Compares the document with the `_id` `MaxKey`, which is in no range (see [`super::feed`]), and returns its `_id`
/// if it differs.
async fn compare_max_key(search: &Search<'_>, counters: &Counters) -> Result<Vec<Id>> {
    let max_key = [Id::from_raw(RawBsonRef::MaxKey)];
    let examined = search.lookup.examine(&max_key, Members::Any, search.control).await?;
    let is_there = examined.source_bytes > 0 || !examined.differing.is_empty();
    counters.compared.fetch_add(u64::from(is_there), Ordering::Relaxed);
    counters.source_bytes.fetch_add(examined.source_bytes, Ordering::Relaxed);
    Ok(examined.differing.into_iter().map(|verdict| verdict.id).collect())
}

type Range = (Option<Id>, Option<Id>);

/// Returns ranges of `_id`s that cover all `_id`s and contain about equal numbers of the source's documents, of which
/// there are as many as `size` says; the ranges are those of [`super::Spec::cuts`] if that is not empty.
async fn ranges(search: &Search<'_>, size: Size) -> Result<Vec<Range>> {
    let mut cuts = search.spec.cuts.clone();
    if cuts.is_empty() {
        let count = (size.documents / RANGE_DOCUMENTS).clamp(1, RANGES_MAX);
        let cut = || cut(&search.lookup.source, size.documents, count);
        cuts = retry_transient("look where to cut", search.control, cut).await?;
    }
    let starts = std::iter::once(None).chain(cuts.iter().cloned().map(Some));
    let ends = cuts.iter().cloned().map(Some).chain(std::iter::once(None));
    Ok(starts.zip(ends).collect())
}

async fn compare_range(
    search: &Search<'_>,
    (min, max): Range,
    size: Size,
    counters: &Counters,
) -> Result<Outcome> {
    let lookup = search.lookup;
    let batch_bytes = search.control.throttle().batch_bytes(BATCH_BYTES);
    let batch = batch_documents(size, batch_bytes);
    let source = lookup.source_scan(min.clone(), max.clone(), batch);
    let destination = lookup.destination_scan(min, max, batch);
    if search.collated {
        return look_up_range(search, source, destination, counters).await;
    }
    if let Some(route) = &search.spec.route {
        let look = || Shards::read(route);
        let shards = retry_transient("look at the chunks", search.control, look).await?;
        let mut sides =
            (shards.source(&source, batch_bytes), shards.destination(&destination, batch_bytes));
        let mut tally = Tally::new(counters);
        let merged = merge_range(search, &mut sides, &mut tally).await?;
        let still = || shards.is_current();
        match merged {
            Ok(outcome) if retry_transient("look at the chunks", search.control, still).await? => {
                return Ok(outcome);
            }
            _ => tracing::info!("chunks were moved: a range is compared again, by the router"),
        }
        tally.discard();
    }
    let mut sides =
        (Reader::One(Feed::start(source.clone())), Reader::One(Feed::start(destination.clone())));
    let mut tally = Tally::new(counters);
    match merge_range(search, &mut sides, &mut tally).await? {
        Ok(outcome) => return Ok(outcome),
        Err(Misaligned) => tracing::warn!(
            ns = %lookup.source.ns,
            "a range is not in _id order: its documents are looked up one by one"
        ),
    }
    tally.discard();
    look_up_range(search, source, destination, counters).await
}

/// The counts that one read of a range has added to the totals of the comparison.
struct Tally<'a> {
    counters: &'a Counters,
    seen: MergeCounts,
}

impl<'a> Tally<'a> {
    fn new(counters: &'a Counters) -> Self {
        Self { counters, seen: MergeCounts::default() }
    }

    fn set(&mut self, seen: MergeCounts) {
        let (compared, bytes) = (&self.counters.compared, &self.counters.source_bytes);
        compared.fetch_add(seen.compared - self.seen.compared, Ordering::Relaxed);
        bytes.fetch_add(seen.source_bytes - self.seen.source_bytes, Ordering::Relaxed);
        self.seen = seen;
    }

    /// Subtracts the counts of this read from the totals: the range is read once more, and counted then.
    fn discard(self) {
        self.counters.compared.fetch_sub(self.seen.compared, Ordering::Relaxed);
        self.counters.source_bytes.fetch_sub(self.seen.source_bytes, Ordering::Relaxed);
    }
}

async fn merge_range(
    search: &Search<'_>,
    (left, right): &mut (Reader, Reader),
    tally: &mut Tally<'_>,
) -> Result<Result<Outcome, Misaligned>> {
    let mut merge = Merge::new();
    let mut outcome = Outcome::default();
    loop {
        let mut looked = Vec::new();
        let need = match merge.run(RECHECK_LEN, |document| looked.push(id_of(document))) {
            Ok(need) => need,
            Err(Misaligned) => return Ok(Err(Misaligned)),
        };
        tally.set(merge.seen());
        recheck(search, looked.into_iter().collect::<Result<_>>()?, &mut outcome).await?;
        let is_too_many = outcome.suspects.len() > search.spec.suspects_max;
        match need {
            _ if is_too_many => return Ok(Ok(outcome)),
            None => {}
            Some(Need::Source) => merge.feed_source(paced(search, left).await?),
            Some(Need::Destination) => merge.feed_destination(paced(search, right).await?),
            Some(Need::Nothing) => return Ok(Ok(outcome)),
        }
    }
}

/// Returns the next chunk of one side, no sooner than the pace allows. Reading a document at both sides costs the
/// servers about as much as reading and writing it does.
async fn paced(search: &Search<'_>, reader: &mut Reader) -> Result<Option<Chunk>> {
    let chunk = search.control.or_stop(reader.next()).await??;
    let bytes = chunk.as_ref().map_or(0, Chunk::bytes);
    search.control.take_paced(0, bytes as u64 / 2).await?;
    Ok(chunk)
}

async fn next(search: &Search<'_>, feed: &mut Feed) -> Result<Option<Chunk>> {
    search.control.or_stop(feed.next()).await?
}

/// Compares the documents `ids` again, at the primaries. Those that still differ become suspects in `outcome`.
async fn recheck(search: &Search<'_>, ids: Vec<Id>, outcome: &mut Outcome) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let examined = search.lookup.examine(&ids, Members::Primary, search.control).await?;
    let differing = examined.differing.len();
    outcome.resolved += ids.len().saturating_sub(differing) as u64;
    outcome.suspects.extend(examined.differing.into_iter().map(|verdict| verdict.id));
    Ok(())
}

/// Compares a range without a merge: looks up the source's documents at the destination, and the destination's `_id`s
/// at the source.
async fn look_up_range(
    search: &Search<'_>,
    source: Scan,
    destination: Scan,
    counters: &Counters,
) -> Result<Outcome> {
    let ids_only = Scan { ids_only: true, ..destination };
    let mut outcome = Outcome::default();
    let mut feed = Feed::start(source);
    while let Some(chunk) = next(search, &mut feed).await? {
        let documents = documents(&chunk)?;
        let compare = || search.lookup.against_destination(&documents, Members::Any);
        let differing = retry_transient("compare documents", search.control, compare).await?;
        counters.compared.fetch_add(documents.len() as u64, Ordering::Relaxed);
        let bytes: u64 = documents.iter().map(|(_, document)| document.len() as u64).sum();
        counters.source_bytes.fetch_add(bytes, Ordering::Relaxed);
        let ids = differing.into_iter().map(|verdict| verdict.id).collect();
        recheck(search, ids, &mut outcome).await?;
        if outcome.suspects.len() > search.spec.suspects_max {
            return Ok(outcome);
        }
    }
    let mut feed = Feed::start(ids_only);
    while let Some(chunk) = next(search, &mut feed).await? {
        let ids: Vec<Id> = chunk.documents().map(id_of).collect::<Result<_>>()?;
        assert!(ids.len() == chunk.len(), "each document has one _id");
        let look = || search.lookup.absent_at_source(&ids, Members::Any);
        let absent = retry_transient("look documents up", search.control, look).await?;
        counters.compared.fetch_add(absent.len() as u64, Ordering::Relaxed);
        recheck(search, absent, &mut outcome).await?;
        if outcome.suspects.len() > search.spec.suspects_max {
            return Ok(outcome);
        }
    }
    Ok(outcome)
}
