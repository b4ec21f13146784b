//! Reader of the input of a map or a reduce: one line at a time, each of bounded length.

use std::io::{BufRead, Read as _};

use super::error::{Error, Result};
use super::key::LINE_BYTES_MAX;

/// Reads the lines of the input of a map or a reduce.
#[derive(Debug)]
pub(super) struct Lines<R> {
    input: R,
    /// The bytes of the current line; the buffer is used again for the next one.
    line: Vec<u8>,
    /// Number of lines read so far.
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// Makes a reader of the lines of `input`.
    pub(super) fn of(input: R) -> Self {
        Self { input, line: Vec::new(), number: 0 }
    }

    /// Reads the next line. Returns its number, from 1 on, and its text without the line break and without a final tab,
    /// which Hadoop appends to a key without a value. Returns `None` at the end of the input.
    pub(super) fn next(&mut self) -> Result<Option<(u64, &str)>> {
        self.line.clear();
        let mut bounded = (&mut self.input).take(LINE_BYTES_MAX as u64 + 1);
        let read = bounded.read_until(b'\n', &mut self.line);
        let read = read.map_err(|cause| Error::Read { what: "the input".into(), cause })?;
        if read == 0 {
            return Ok(None);
        }
        self.number += 1;
        let line = self.number;
        let wrong = |problem: String| Error::Input { line, problem };
        match self.line.pop_if(|last| *last == b'\n') {
            None if read > LINE_BYTES_MAX => {
                Err(wrong(format!("it is longer than {LINE_BYTES_MAX} bytes")))
            }
            // The last line may lack a line break.
            Some(_) | None => {
                self.line.pop_if(|last| *last == b'\t');
                let text = std::str::from_utf8(&self.line);
                let text = text.map_err(|error| wrong(format!("it is no UTF-8: {error}")))?;
                if text.is_empty() {
                    return Err(wrong("it is empty".into()));
                }
                Ok(Some((line, text)))
            }
        }
    }
}
