//! Writer of `.imt` files: blocks are appended, each by one write to the operating system.
//!
//! A process that is killed loses at most the reads since the last block or [`Writer::flush`].

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use super::format::{self, Closing};
use super::{Ending, Error, Header, Key, Requests, Span, values};

/// An `.imt` file that is being written.
///
/// Dropping the writer without [`Writer::finish`] leaves a torn file, as the death of the process does.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
    /// Payload of the block of reads that is being filled.
    reads: Vec<u8>,
    /// Number of reads in the current phase.
    phase_reads: u64,
    /// Totals of the file so far, for the closing block.
    totals: Closing,
}

impl Writer {
    /// Creates the `.imt` file `path` and writes its head, with the header of the trace.
    ///
    /// # Errors
    /// The file already exists, cannot be created, or the header is longer than 64 KiB.
    pub fn create(path: &Path, header: &Header) -> Result<Self, Error> {
        let unwritable = |what: String| Error::Unwritable { path: path.to_owned(), what };
        let json = serde_json::to_vec(header).map_err(|error| unwritable(error.to_string()))?;
        if json.len() > format::HEADER_BYTES_MAX {
            return Err(unwritable(format!("its header would have {} bytes", json.len())));
        }
        let file = File::options().write(true).create_new(true).open(path);
        let file = file.map_err(Error::io("create", path))?;
        let totals = Closing {
            phases: 0,
            reads: 0,
            documents: 0,
            document_bytes: 0,
            other_reads: 0,
            ending: Ending::Complete,
        };
        let mut writer = Self {
            path: path.to_owned(),
            file,
            reads: Vec::with_capacity(format::BLOCK_BYTES + 64),
            phase_reads: 0,
            totals,
        };
        writer.append(&format::head(&json))?;
        Ok(writer)
    }

    /// Adds a read to the current phase. `document_bytes` is the document's size in bytes; `None` if the read found
    /// no document.
    ///
    /// # Errors
    /// The file cannot be written, or the key is longer than the maximum size of a document.
    pub fn read(&mut self, key: &Key, document_bytes: Option<u32>) -> Result<(), Error> {
        let value = key.value();
        if value.len() > format::KEY_BYTES_MAX {
            let what = format!("a key has {} bytes, and 16 MiB is the most", value.len());
            return Err(Error::Unwritable { path: self.path.clone(), what });
        }
        self.reads.push(key.kind());
        values::put(&mut self.reads, value.len() as u64);
        self.reads.extend_from_slice(value);
        values::put(&mut self.reads, document_bytes.map_or(0, |bytes| u64::from(bytes) + 1));
        self.phase_reads += 1;
        self.totals.reads += 1;
        if let Some(bytes) = document_bytes {
            self.totals.documents += 1;
            self.totals.document_bytes += u64::from(bytes);
        }
        if self.reads.len() >= format::BLOCK_BYTES { self.flush() } else { Ok(()) }
    }

    /// Writes all reads so far to the operating system, where they survive the death of this process.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.reads.is_empty() {
            return Ok(());
        }
        let block = format::block(format::READS, &self.reads);
        self.reads.clear();
        self.append(&block)
    }

    /// Ends the current phase, which took place in `span`; the next read begins another one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end_phase(&mut self, span: Span) -> Result<(), Error> {
        self.flush()?;
        let mut payload = Vec::with_capacity(64);
        for number in [self.totals.phases, self.phase_reads, span.began_us, span.ended_us] {
            values::put(&mut payload, number);
        }
        if let Some(Requests { count, waited_us, at_once }) = span.requests {
            for number in [count, waited_us, u64::from(at_once)] {
                values::put(&mut payload, number);
            }
        }
        self.totals.phases += 1;
        self.phase_reads = 0;
        self.append(&format::block(format::PHASE_END, &payload))
    }

    /// Adds `reads` to the number of reads that are not in the trace because they were not by `_id`.
    pub fn count_other_reads(&mut self, reads: u64) {
        self.totals.other_reads += reads;
    }

    /// Returns the number of reads written so far, in all phases.
    #[must_use]
    pub fn reads(&self) -> u64 {
        self.totals.reads
    }

    /// Returns the number of reads written so far in the current phase.
    #[must_use]
    pub fn phase_reads(&self) -> u64 {
        self.phase_reads
    }

    /// Returns the number of phases that have ended so far.
    #[must_use]
    pub fn phases(&self) -> u64 {
        self.totals.phases
    }

    /// Ends the current phase if it has reads, writes the closing block with `ending`, and syncs the file to disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self, ending: &Ending) -> Result<(), Error> {
        if self.phase_reads > 0 {
            self.end_phase(Span::default())?;
        }
        self.totals.ending = ending.clone();
        let json = serde_json::to_vec(&self.totals);
        let json = json.map_err(|error| Error::Unwritable {
            path: self.path.clone(),
            what: error.to_string(),
        })?;
        self.append(&format::block(format::CLOSING, &json))?;
        self.file.sync_all().map_err(Error::io("write", &self.path))
    }

    /// Appends bytes to the file, by one write.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(Error::io("write", &self.path))
    }
}
