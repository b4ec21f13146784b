//! The read of one batch of keys: documents come from the cache; those that it lacks are read from the collection,
//! and then stored in the cache.

use std::collections::HashMap;
use std::ops::AddAssign;

use serde::Serialize;

use super::cache::{Cache, Found};
use super::error::{Error, Result};
use super::key::{Key, identity_of_document};
use super::source::Source;

/// Counts of the reads of one or more batches of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of keys that were read; a key that a batch repeats counts once.
    pub keys: u64,
    /// Number of these keys whose document the cache returned.
    pub hits: u64,
    /// Number of these keys that were requested from the collection.
    pub misses: u64,
    /// Number of the misses for which the collection has no document.
    pub missing: u64,
    /// Number of cached values that were truncated or another document's; their keys count as misses too.
    pub refused: u64,
    /// Number of documents read from the collection that the cache did not accept, because it is full or has failed.
    pub not_cached: u64,
    /// Total size of the documents that were found, in bytes of BSON.
    pub document_bytes: u64,
    /// Number of finds that were sent to the collection: one for each batch with misses.
    pub requests: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.keys += other.keys;
        self.hits += other.hits;
        self.misses += other.misses;
        self.missing += other.missing;
        self.refused += other.refused;
        self.not_cached += other.not_cached;
        self.document_bytes += other.document_bytes;
        self.requests += other.requests;
    }
}

/// The documents that the read of one batch of keys found.
#[derive(Debug)]
pub struct Fetched {
    /// The document of each distinct key of the batch, as BSON; `None` if the collection has none.
    documents: Vec<Option<Vec<u8>>>,
    /// For each key of the batch, the index of its document in `documents`: repeated keys share one document.
    places: Vec<usize>,
    /// Counts of the reads of the batch.
    pub counts: Counts,
}

impl Fetched {
    /// Returns the document of the key at `index` of the batch, as BSON; `None` if the collection has no such
    /// document.
    #[must_use]
    pub fn document(&self, index: usize) -> Option<&[u8]> {
        self.documents[self.places[index]].as_deref()
    }
}

/// Reads batches of keys from a collection, through a cache if there is one.
#[derive(Clone, Debug)]
pub struct Fetcher {
    /// The collection to read from.
    source: Source,
    /// The cache to look documents up in; `None`: all documents are read from the collection.
    cache: Option<Cache>,
}

impl Fetcher {
    /// Makes a fetcher that reads from `source` through `cache`.
    #[must_use]
    pub fn new(source: Source, cache: Option<Cache>) -> Self {
        Self { source, cache }
    }

    /// Returns a copy of the fetcher whose reads of the collection carry a comment that names the phase `phase` (from
    /// 0 on).
    #[must_use]
    pub fn in_phase(&self, phase: u32) -> Self {
        Self { source: self.source.in_phase(phase), cache: self.cache.clone() }
    }

    /// Returns the cache; `None` if the fetcher reads without one.
    #[must_use]
    pub fn cache(&self) -> Option<&Cache> {
        self.cache.as_ref()
    }

    /// Returns the collection that the fetcher reads from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Fetches the documents of a batch of keys, which may contain repeated keys, and counts the reads.
    ///
    /// # Errors
    /// An error of the collection, or of the cache if it is required; [`Error::UnrequestedDocument`] and
    /// [`Error::DuplicateDocument`].
    #[crate::boxed]
    pub async fn fetch(&self, keys: &[Key]) -> Result<Fetched> {
        let mut place_of: HashMap<&[u8], usize> = HashMap::with_capacity(keys.len());
        let mut different: Vec<&Key> = Vec::with_capacity(keys.len());
        let mut places = Vec::with_capacity(keys.len());
        for key in keys {
            let place = *place_of.entry(key.identity()).or_insert(different.len());
            if place == different.len() {
                different.push(key);
            }
            places.push(place);
        }
        let mut counts = Counts { keys: different.len() as u64, ..Counts::default() };
        let mut documents: Vec<Option<Vec<u8>>> = different.iter().map(|_| None).collect();
        if let Some(cache) = &self.cache {
            let identities: Vec<&[u8]> = different.iter().map(|key| key.identity()).collect();
            for (document, found) in documents.iter_mut().zip(cache.get(&identities).await?) {
                match found {
                    Found::Document(bytes) => *document = Some(bytes),
                    Found::Nothing => {}
                    Found::Refused => counts.refused += 1,
                }
            }
        }
        let unknown = different.iter().zip(&documents).filter(|(_, document)| document.is_none());
        let misses: Vec<&Key> = unknown.map(|(key, _)| *key).collect();
        counts.hits = (different.len() - misses.len()) as u64;
        counts.misses = misses.len() as u64;
        if !misses.is_empty() {
            counts.requests = 1;
            let mut fresh = Vec::with_capacity(misses.len());
            for document in self.source.fetch(&misses).await? {
                let place = identity_of_document(&document)
                    .and_then(|identity| place_of.get(&*identity))
                    .ok_or_else(|| self.unasked(&document))?;
                if documents[*place].replace(document.into_bytes()).is_some() {
                    let namespace = self.source.namespace().to_string();
                    return Err(Error::DuplicateDocument {
                        namespace,
                        id: different[*place].to_string(),
                    });
                }
                fresh.push(*place);
            }
            counts.missing = (misses.len() - fresh.len()) as u64;
            if let Some(cache) = &self.cache {
                let entry = |place: &usize| {
                    let document = documents[*place].as_deref()?;
                    Some((different[*place].identity(), document))
                };
                let entries: Vec<(&[u8], &[u8])> = fresh.iter().filter_map(entry).collect();
                counts.not_cached = entries.len() as u64 - cache.set(&entries).await?;
            }
        }
        counts.document_bytes =
            documents.iter().flatten().map(|document| document.len() as u64).sum();
        Ok(Fetched { documents, places, counts })
    }

    /// Makes the error for a document whose `_id` was not requested.
    fn unasked(&self, document: &bson::RawDocument) -> Error {
        let id = document.get("_id").ok().flatten();
        Error::UnrequestedDocument {
            namespace: self.source.namespace().to_string(),
            id: id.map_or_else(|| "(none)".into(), |id| format!("{id:?}")),
        }
    }
}
