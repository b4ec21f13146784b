//! The exit codes of the program, and the failure that carries one of them to `main`.

use std::error::Error;
use std::fmt;
use std::io::Write as _;
use std::process::ExitCode;

use serde_json::json;

mod cluster;
mod library_errors;

pub use cluster::cluster_failure;

/// The exit codes of the program. They are documented for scripts, so they never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The request was completed without a failure.
    Done = 0,
    /// The request failed; the message gives the reason.
    Failed = 1,
    /// An argument or a setting is invalid; no work was started.
    Usage = 2,
    /// Verification found differences, or a check found acknowledged operations contradicted.
    Differences = 3,
    /// A precondition of the work does not hold; nothing was written.
    Precondition = 4,
    /// The work was stopped before its end. A job can then be resumed from its persisted state; other work has to be
    /// repeated.
    Interrupted = 5,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// The failure of a verb: its exit code, a stable code for programs, a message that names the problem and its object,
/// a remedy, and the causes.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    code: &'static str,
    message: String,
    help: Option<String>,
    source: Option<Reason>,
}

/// One cause of a failure, and the cause of that cause. It owns its text, so that it can be made from any error.
#[derive(Debug)]
struct Reason {
    text: String,
    next: Option<Box<Reason>>,
}

/// The format in which a failure is printed.
#[derive(Clone, Copy, Debug)]
pub struct Rendering {
    /// True for one JSON object on one line; false for text.
    pub json: bool,
    /// True for colours in the text.
    pub colour: bool,
}

impl Failure {
    /// Creates a failure with a stable `code` (a word or two in snake case, for programs) and a
    /// `message` that names the problem and its object.
    pub fn new(exit: Exit, code: &'static str, message: impl Into<String>) -> Self {
        Self { exit, code, message: message.into(), help: None, source: None }
    }

    /// Creates a failure with the message and causes of `error`. A cause that the message already
    /// quotes is not repeated.
    pub fn from_error(exit: Exit, code: &'static str, error: &(dyn Error + 'static)) -> Self {
        let failure = Self::new(exit, code, error.to_string());
        let quoted = |cause: &&dyn Error| failure.message.contains(&cause.to_string());
        let mut causes = std::iter::successors(error.source(), |&cause| cause.source());
        let source = Reason::chain(causes.find(|cause| !quoted(&(*cause as _))));
        Self { source, ..failure }
    }

    /// Adds a remedy to the failure: a sentence that tells the user what to do.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Adds the cause of the failure, with its own causes.
    pub fn because(mut self, cause: &(dyn Error + 'static)) -> Self {
        self.source = Reason::chain(Some(cause));
        self
    }

    /// Returns the exit code with which the process ends.
    pub fn exit(&self) -> Exit {
        self.exit
    }

    /// Returns the failure as one JSON object, `{"error": {code, exit, message, causes, help}}`.
    pub fn to_json(&self) -> serde_json::Value {
        let causes = std::iter::successors(self.source.as_ref(), |reason| reason.next.as_deref());
        let causes: Vec<&str> = causes.map(|reason| reason.text.as_str()).collect();
        json!({ "error": {
            "code": self.code,
            "exit": self.exit as u8,
            "message": self.message,
            "causes": causes,
            "help": self.help,
        }})
    }

    /// Writes the failure to stderr in the given format. If stderr is gone, the exit code is unaffected.
    pub fn print(&self, rendering: Rendering) {
        let text = if rendering.json {
            format!("{}\n", self.to_json())
        } else {
            self.to_text(rendering.colour)
        };
        drop(std::io::stderr().lock().write_all(text.as_bytes()));
    }

    fn to_text(&self, colour: bool) -> String {
        let theme = if colour {
            miette::GraphicalTheme::unicode()
        } else {
            miette::GraphicalTheme::unicode_nocolor()
        };
        let mut text = String::new();
        let handler = miette::GraphicalReportHandler::new_themed(theme).with_links(false);
        match handler.render_report(&mut text, self) {
            Ok(()) => text,
            Err(fmt::Error) => format!("{self}\n"),
        }
    }
}

impl Reason {
    fn chain(error: Option<&(dyn Error + 'static)>) -> Option<Self> {
        // A chain of causes is short; the bound guards against a cyclic one.
        const CAUSES_MAX: usize = 32;
        let mut texts: Vec<String> = std::iter::successors(error, |&error| error.source())
            .take(CAUSES_MAX)
            .map(ToString::to_string)
            .collect();
        // Some libraries' errors repeat their cause's text.
        texts.dedup();
        texts
            .into_iter()
            .rev()
            .fold(None, |next, text| Some(Self { text, next: next.map(Box::new) }))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Reason {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.next.as_deref().map(|next| next as _)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Failure {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl miette::Diagnostic for Failure {
    fn code<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        Some(Box::new(self.code))
    }

    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.help.as_ref().map(|help| Box::new(help) as _)
    }
}
