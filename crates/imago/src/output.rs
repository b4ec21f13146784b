//! The only writer to stdout: results, as text or as JSON.
//!
//! A reader that closes the pipe (`imago … | head`) ends the output, not the work.

use std::io::{ErrorKind, Write};
use std::sync::Mutex;

use serde::Serialize;

use crate::exit::{Exit, Failure};

/// The writer of a verb's results to stdout, as text or as JSON.
pub struct Output {
    json: bool,
    to: Mutex<Option<Box<dyn Write + Send>>>,
}

impl Output {
    /// Creates the writer to stdout, which writes JSON if `json` is true.
    pub fn stdout(json: bool) -> Self {
        Self { json, to: Mutex::new(Some(Box::new(std::io::stdout()))) }
    }

    /// Returns true if results are written as JSON, false if as text.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Writes a result to stdout as one line of JSON, or as the text that `text` makes of it.
    pub fn result<T: Serialize>(
        &self,
        result: &T,
        text: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        if !self.json {
            return self.text(&text(result));
        }
        let json = serde_json::to_string(result).map_err(|cause| {
            Failure::new(Exit::Failed, "output", "cannot write the result as JSON").because(&cause)
        })?;
        self.text(&json)
    }

    /// Writes text to stdout, and a line break if the text has none at its end.
    pub fn text(&self, text: &str) -> Result<(), Failure> {
        let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
        self.bytes(format!("{text}{end}").as_bytes())
    }

    /// Writes bytes unchanged to stdout, and flushes it. After the reader has closed the pipe, writes nothing.
    pub fn bytes(&self, bytes: &[u8]) -> Result<(), Failure> {
        let mut to = match self.to.lock() {
            Ok(to) => to,
            Err(poisoned) => poisoned.into_inner(),
        };
        let Some(open) = to.as_mut() else { return Ok(()) };
        match open.write_all(bytes).and_then(|()| open.flush()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                *to = None;
                Ok(())
            }
            Err(error) => {
                Err(Failure::new(Exit::Failed, "output", "cannot write to stdout").because(&error))
            }
        }
    }
}
