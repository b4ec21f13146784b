//! The map of a chain: it reads keys, fetches their documents, and writes the next keys, in the same order.
//!
//! A worker handles one batch at a time: it looks up the keys in the cache, reads the missing ones from the collection,
//! stores these documents in the cache, and hashes each document. Batches may end in any order; their results are
//! written in the order of the input, and the read-ahead for this is bounded.

use std::io::{BufRead, Write};
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _, stream};
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::draw::Next;
use super::error::{Error, Result};
use super::fetch::{Counts, Fetched, Fetcher};
use super::input::Lines;
use super::key::Key;
use super::merkle;

/// Maximum number of batches, per worker, that are in flight, or finished and waiting for an earlier one.
const BATCHES_PER_WORKER_MAX: usize = 4;
/// Number of batches of keys that are read from the input ahead of the workers.
const READ_AHEAD: usize = 2;

/// Options of a map of a chain.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Number of keys in a batch, which is read by one request.
    pub batch: usize,
    /// Number of batches that are in flight at once.
    pub workers: usize,
    /// Treatment of a key for which the collection has no document.
    pub missing: Missing,
}

/// Treatment of a key for which the collection has no document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
    /// The map ends with an error that names the key.
    Fails,
    /// The map writes no line for the key, and counts it.
    Skipped,
}

impl Options {
    /// Maximum value of `batch`: keys in a batch.
    pub const BATCH_MAX: usize = 100_000;
    /// Maximum value of `workers`: batches in flight at once.
    pub const WORKERS_MAX: usize = 256;
}

/// The computation of a map on the documents that it fetches.
#[derive(Clone, Debug)]
pub enum Work {
    /// Draws the key of the next phase from each document, by this rule.
    Draw(Next),
    /// Computes the leaf hash of each document for a Merkle tree; the lines of the input are `INDEX<TAB>KEY`.
    Leaves,
}

/// Keys that are read together by one request.
#[derive(Clone, Debug, Default)]
pub(super) struct Batch {
    /// The keys of the batch, in the order of the input.
    pub(super) keys: Vec<Key>,
    /// Index of each key's leaf in a Merkle tree, in the order of `keys`; empty if the map computes no tree.
    pub(super) indexes: Vec<u64>,
}

/// Reads keys from `input`, fetches their documents by `fetcher`, and writes one line for each document to `output`,
/// in the order of the input. `work` computes the line. Returns the counts of all batches.
///
/// # Errors
/// A line that is not a key, a key without a document (unless it is skipped), an error of the collection or of the
/// output. The lines written before the error are correct, but incomplete.
pub async fn map<R, W>(
    input: R,
    output: &mut W,
    work: Work,
    fetcher: &Fetcher,
    options: &Options,
    cancel: &CancellationToken,
) -> Result<Counts>
where
    R: BufRead + Send + 'static,
    W: Write,
{
    let (sender, receiver) = mpsc::channel(READ_AHEAD);
    let (size, is_indexed) = (options.batch, matches!(work, Work::Leaves));
    let reading = tokio::task::spawn_blocking(move || read(input, size, is_indexed, &sender));
    let batches = stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|batch| (batch, receiver))
    });
    let make = move |batch: &Batch, fetched: &Fetched| lines(&work, batch, fetched);
    let mut made = std::pin::pin!(ordered(batches, fetcher, options, make));
    let mut counts = Counts::default();
    loop {
        let next = tokio::select! {
            biased;
            () = cancel.cancelled() => return Err(Error::Interrupted),
            next = made.next() => next,
        };
        let Some(next) = next else { break };
        let (lines, read) = next?;
        output.write_all(&lines).map_err(Error::Write)?;
        counts += read;
    }
    output.flush().map_err(Error::Write)?;
    // The reader has ended, since its channel is closed. Its panic must not look like the end of the input.
    reading.await.map_err(|error| Error::Task(error.to_string()))?;
    Ok(counts)
}

/// Reads batches of `size` keys from `input` and sends them to `sender`, until the input ends, a line is invalid, or
/// the receiver is dropped. `is_indexed`: each line has the index of a leaf before its key.
fn read<R: BufRead>(input: R, size: usize, is_indexed: bool, sender: &mpsc::Sender<Result<Batch>>) {
    let mut lines = Lines::of(input);
    let mut batch = Batch::default();
    loop {
        let end = match next_key(&mut lines, is_indexed) {
            Ok(Some((index, key))) => {
                batch.keys.push(key);
                batch.indexes.extend(index);
                if batch.keys.len() < size {
                    continue;
                }
                None
            }
            Ok(None) => Some(None),
            Err(error) => Some(Some(error)),
        };
        let full = std::mem::take(&mut batch);
        if !full.keys.is_empty() && sender.blocking_send(Ok(full)).is_err() {
            return;
        }
        match end {
            None => {}
            Some(None) => return,
            Some(Some(error)) => return drop(sender.blocking_send(Err(error))),
        }
    }
}

/// Parses the next line into a key and, if `is_indexed`, the index of its leaf; `None` at the end of the input.
fn next_key<R: BufRead>(
    lines: &mut Lines<R>,
    is_indexed: bool,
) -> Result<Option<(Option<u64>, Key)>> {
    let Some((line, text)) = lines.next()? else { return Ok(None) };
    let wrong = |problem| Error::Input { line, problem };
    let (index, text) = if is_indexed {
        let parts = text.split_once('\t').and_then(|(index, key)| {
            let index = index.parse::<u64>().ok().filter(|index| *index < merkle::LEAVES_MAX)?;
            Some((index, key))
        });
        let wanted = || wrong(format!("`{text}` is no leaf: write INDEX<TAB>KEY"));
        let (index, key) = parts.ok_or_else(wanted)?;
        (Some(index), key)
    } else {
        (None, text)
    };
    let key = Key::parse(text).map_err(wrong)?;
    Ok(Some((index, key)))
}

/// Returns the output lines of a map for one batch, one for each key that has a document.
fn lines(work: &Work, batch: &Batch, fetched: &Fetched) -> Vec<u8> {
    let mut lines = Vec::new();
    for at in 0..batch.keys.len() {
        let Some(document) = fetched.document(at) else { continue };
        match work {
            Work::Draw(next) => {
                next.keys().write(next.rank(document), &mut lines);
                lines.push(b'\n');
            }
            Work::Leaves => {
                merkle::write_child(batch.indexes[at], &merkle::leaf(document), &mut lines);
            }
        }
    }
    lines
}

/// Fetches each batch, up to `options.workers` at once, and applies `make` to the batch and its documents. Returns
/// the results and the counts of the reads, in the order of the batches.
pub(super) fn ordered<T: Send + 'static>(
    batches: impl Stream<Item = Result<Batch>>,
    fetcher: &Fetcher,
    options: &Options,
    make: impl Fn(&Batch, &Fetched) -> T + Send + Sync + 'static,
) -> impl Stream<Item = Result<(T, Counts)>> {
    let (workers, missing) = (options.workers, options.missing);
    let permits = Arc::new(Semaphore::new(workers));
    let make = Arc::new(make);
    let fetcher = fetcher.clone();
    let begun = batches.map(move |batch| {
        let (permits, fetcher, make) = (Arc::clone(&permits), fetcher.clone(), Arc::clone(&make));
        let work = async move {
            let batch = batch?;
            let _permit = permits.acquire().await.expect("the semaphore is never closed");
            let fetched = fetcher.fetch(&batch.keys).await?;
            if missing == Missing::Fails && fetched.counts.missing > 0 {
                let at = (0..batch.keys.len()).find(|at| fetched.document(*at).is_none());
                let key = at.map(|at| batch.keys[at].to_string()).unwrap_or_default();
                let namespace = fetcher.source().namespace().to_string();
                return Err(Error::Missing { key, namespace });
            }
            Ok((make(&batch, &fetched), fetched.counts))
        };
        let task = AbortOnDropHandle::new(tokio::spawn(work));
        async move { task.await.unwrap_or_else(|error| Err(Error::Task(error.to_string()))) }
    });
    begun.buffered(workers * BATCHES_PER_WORKER_MAX)
}

/// Runs the map of a level of a Merkle tree above its leaves, which fetches nothing: it reads `INDEX<TAB>HASH` for
/// each node and writes the input of the reduce. Returns the number of nodes.
///
/// # Errors
/// A line that is not a node, or an error of the output.
pub fn map_nodes<R: BufRead, W: Write>(input: R, output: &mut W) -> Result<u64> {
    let mut lines = Lines::of(input);
    let (mut nodes, mut made) = (0, Vec::new());
    while let Some((line, text)) = lines.next()? {
        let node = merkle::read_node(text).filter(|(index, _)| *index < merkle::LEAVES_MAX);
        let problem = || format!("`{text}` is no node: write INDEX<TAB>HASH");
        let (index, hash) = node.ok_or_else(|| Error::Input { line, problem: problem() })?;
        made.clear();
        merkle::write_child(index, &hash, &mut made);
        output.write_all(&made).map_err(Error::Write)?;
        nodes += 1;
    }
    output.flush().map_err(Error::Write)?;
    Ok(nodes)
}
