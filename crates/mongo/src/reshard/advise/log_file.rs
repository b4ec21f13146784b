//! Operations from the logs of servers: lines of JSON, of which those of slow operations repeat the command.
//!
//! A server logs operations that took longer than `slowms` (100 ms by default), so a log shows the slow ones only, unless
//! that was set to less.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;

use bson::RawDocumentBuf;
use serde::Deserialize;

use super::operation::of_profile;
use super::source::{Observed, Source, SourceFacts};
use crate::bson::ext_json;
use crate::error::{Error, Result};
use crate::namespace::Namespace;

/// Number of the message of a slow operation, the same in all versions.
const SLOW_QUERY: u32 = 51_803;
/// Largest length of a line that is read; servers shorten attributes to 10 KB.
const LINE_MAX: usize = 1 << 20;

/// The logs of a cluster's servers.
pub(super) struct Logs {
    paths: Vec<PathBuf>,
    ns: Namespace,
    operations: u64,
    unreadable: u64,
}

/// The parts of a line that decide whether it is a slow operation on the collection.
#[derive(Deserialize)]
struct Line<'a> {
    #[serde(default)]
    id: u32,
    #[serde(borrow)]
    attr: Option<Attributes<'a>>,
}

#[derive(Deserialize)]
struct Attributes<'a> {
    #[serde(borrow, default)]
    ns: Option<std::borrow::Cow<'a, str>>,
}

impl Logs {
    /// Opens the logs at `paths` for the operations on the collection `ns`.
    ///
    /// # Errors
    /// Usage if a file cannot be opened.
    pub(super) fn open(paths: &[PathBuf], ns: &Namespace) -> Result<Self> {
        for path in paths {
            let file = File::open(path).map_err(|cause| unreadable(path, &cause))?;
            let is_file = file.metadata().is_ok_and(|about| about.is_file());
            if !is_file {
                // It is read twice.
                let cause = std::io::Error::other("it is no regular file");
                return Err(unreadable(path, &cause));
            }
        }
        Ok(Self { paths: paths.to_vec(), ns: ns.clone(), operations: 0, unreadable: 0 })
    }

    fn read_line(
        &mut self,
        line: &str,
        each: &mut dyn FnMut(Observed<'_>) -> Result<()>,
    ) -> Result<()> {
        let Ok(head) = serde_json::from_str::<Line<'_>>(line) else {
            self.unreadable += u64::from(!line.trim().is_empty());
            return Ok(());
        };
        let ns = head.attr.and_then(|attributes| attributes.ns);
        if head.id != SLOW_QUERY || ns.as_deref() != Some(&self.ns.to_string()) {
            return Ok(());
        }
        let document: std::result::Result<RawDocumentBuf, _> = ext_json::parse_document(line);
        let Ok(document) = document else {
            self.unreadable += 1;
            return Ok(());
        };
        let Ok(attributes) = document.get_document("attr") else { return Ok(()) };
        for operation in of_profile(attributes, &self.ns.coll) {
            self.operations += 1;
            each(Observed { operation: &operation, shard: None })?;
        }
        Ok(())
    }
}

fn unreadable(path: &std::path::Path, cause: &std::io::Error) -> Error {
    Error::usage(
        format!("the log {} cannot be read: {cause}", path.display()),
        "name the log file of a mongod or mongos with --log",
    )
}

impl Source for Logs {
    fn read(&mut self, each: &mut dyn FnMut(Observed<'_>) -> Result<()>) -> Result<()> {
        (self.operations, self.unreadable) = (0, 0);
        for path in self.paths.clone() {
            let file = File::open(&path).map_err(|cause| unreadable(&path, &cause))?;
            let mut file = BufReader::new(file);
            let mut line = Vec::new();
            loop {
                line.clear();
                let read = read_line(&mut file, &mut line);
                if read.map_err(|cause| unreadable(&path, &cause))? == 0 {
                    break;
                }
                match std::str::from_utf8(&line) {
                    Ok(text) => self.read_line(text, each)?,
                    Err(_) => self.unreadable += 1,
                }
            }
        }
        Ok(())
    }

    fn facts(&self) -> SourceFacts {
        let names: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        let mut notes = vec![
            "a log has the operations that were slower than slowms, 100 ms by default".to_owned(),
        ];
        if self.paths.len() > 1 {
            notes.push("an operation that several logs show counts once for each".to_owned());
        }
        if self.unreadable > 0 {
            notes.push(format!("{} lines cannot be read", self.unreadable));
        }
        SourceFacts {
            source: format!("log {}", names.join(", ")),
            operations: self.operations,
            share: None,
            seconds: None,
            notes,
        }
    }
}

/// Reads one line without its end; of a longer line than [`LINE_MAX`] the beginning, which then is no JSON. Returns the
/// number of bytes that were read.
fn read_line(file: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<usize> {
    let mut read = 0;
    loop {
        let buffer = file.fill_buf()?;
        if buffer.is_empty() {
            return Ok(read);
        }
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let part = end.map_or(buffer, |end| &buffer[..end]);
        let room = LINE_MAX.saturating_sub(line.len());
        line.extend_from_slice(&part[..part.len().min(room)]);
        let used = part.len() + usize::from(end.is_some());
        file.consume(used);
        read += used;
        if end.is_some() {
            return Ok(read);
        }
    }
}
