//! IMAGO.CALL runs a procedure in Rust, which the program around the store has registered under a name, at the
//! transaction's site. It is used like a script, where a script would be too slow.
//!
//! As with EVAL, the keys must be known in advance: a call that uses a key which is not among its keys ends
//! the transaction. All of the keys count as written; for IMAGO.CALL_RO they count as read only, and IMAGO.CALL_RW has
//! both, which matters to the design: rows that are written together must have one master, rows that are only read may
//! be those of replicas. Unlike a script, a procedure that fails is rolled back as a whole.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Settings;
use super::answer::Answer;
use super::keys::{count_keys, key};
use super::parse::Arguments;
use super::rows::Rows;
use crate::key::{Key, Table};
use crate::transaction::{Abort, View};

/// Maximum length of a registered procedure's name, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The code of a registered procedure.
type Run = dyn Fn(&mut View<'_>, &[Key], &[Vec<u8>]) -> Result<Vec<u8>, Abort> + Send + Sync;

/// The procedures in Rust that IMAGO.CALL can run, by their names. Where sites are in separate processes, each
/// process must register them.
#[derive(Default)]
pub struct Procedures(BTreeMap<String, Arc<Run>>);

impl Procedures {
    /// Registers the procedure `run` under a name. The store calls it with the keys and arguments from the client, in
    /// their order, and sends the bytes that it returns as the answer. The text of its [`Abort::Refused`] is the
    /// error that the client gets; by convention the first word of the text is an error code: `ERR …`.
    ///
    /// A site runs one transaction at a time, so a procedure delays all others at its site: its run time is not
    /// limited.
    ///
    /// # Panics
    /// Panics if a procedure with the name is registered already, or the name is longer than 256 bytes.
    pub fn register<F>(&mut self, name: &str, run: F)
    where
        F: Fn(&mut View<'_>, &[Key], &[Vec<u8>]) -> Result<Vec<u8>, Abort> + Send + Sync + 'static,
    {
        assert!(name.len() <= NAME_BYTES_MAX, "{name}: at most {NAME_BYTES_MAX} bytes");
        let before = self.0.insert(name.to_owned(), Arc::new(run));
        assert!(before.is_none(), "there are two procedures called {name}");
    }
}

/// A client's call of a registered procedure.
#[derive(Serialize, Deserialize)]
pub(super) struct Call {
    name: String,
    /// The keys that the procedure may write and those that it only reads, in the order in which the client sent them.
    keys: Vec<Key>,
    /// Number of the keys that the procedure may write; they are the first ones.
    written: usize,
    arguments: Vec<Vec<u8>>,
    /// The procedures that are registered in the process that runs the call.
    #[serde(skip)]
    pub procedures: Arc<Procedures>,
}

/// The type of a function that parses a request to call a procedure, in a database.
pub(super) type Understand = fn(&Arguments<'_>, Table, &Arc<Settings>) -> Result<Call, Answer>;

pub(super) fn call(
    arguments: &Arguments<'_>,
    table: Table,
    settings: &Arc<Settings>,
) -> Result<Call, Answer> {
    let count = count_keys(arguments, 2)?;
    let keys = arguments.from(3).take(count);
    understood(arguments, table, settings, (keys, count), 3 + count)
}

pub(super) fn call_ro(
    arguments: &Arguments<'_>,
    table: Table,
    settings: &Arc<Settings>,
) -> Result<Call, Answer> {
    let count = count_keys(arguments, 2)?;
    let keys = arguments.from(3).take(count);
    understood(arguments, table, settings, (keys, 0), 3 + count)
}

pub(super) fn call_rw(
    arguments: &Arguments<'_>,
    table: Table,
    settings: &Arc<Settings>,
) -> Result<Call, Answer> {
    let written = count_keys(arguments, 2)?;
    let at = 3 + written;
    if arguments.get(at).is_none() {
        return Err(Answer::error("ERR the number of keys that are only read is missing"));
    }
    let read = count_keys(arguments, at)?;
    let keys = arguments.from(3).take(written).chain(arguments.from(at + 1).take(read));
    understood(arguments, table, settings, (keys, written), at + 1 + read)
}

/// Builds a call with these keys, the first of which the procedure may write, so many, and with the arguments from
/// the index `from` on.
fn understood<'a>(
    arguments: &Arguments<'_>,
    table: Table,
    settings: &Settings,
    (keys, written): (impl Iterator<Item = &'a [u8]>, usize),
    from: usize,
) -> Result<Call, Answer> {
    let name = arguments.at(1);
    let name = std::str::from_utf8(&name[..name.len().min(NAME_BYTES_MAX + 1)]);
    let name = name.map_err(|_| Answer::error("ERR the name of a procedure is no text"))?;
    Ok(Call {
        name: name.to_owned(),
        keys: keys.map(|name| key(table, name)).collect::<Result<_, _>>()?,
        written,
        arguments: arguments.from(from).map(<[u8]>::to_vec).collect(),
        procedures: Arc::clone(&settings.procedures),
    })
}

impl Call {
    /// Adds the call's keys to `writes` or `reads`.
    pub fn declare(&self, reads: &mut Vec<Key>, writes: &mut Vec<Key>) {
        // The bytes may come from another process.
        let (written, read) = self.keys.split_at(self.written.min(self.keys.len()));
        writes.extend_from_slice(written);
        reads.extend_from_slice(read);
    }

    pub fn run(&self, rows: &mut Rows<'_, '_>) -> Result<Answer, Abort> {
        let Some(run) = self.procedures.0.get(&self.name) else {
            let name = &self.name;
            let text = format!("ERR there is no procedure called '{name}' where it would be run");
            return Ok(Answer::error(text));
        };
        rows.with_view(|view| {
            // A panic ends only this transaction, not the site's thread; its writes are dropped with the
            // view.
            let ran = catch_unwind(AssertUnwindSafe(|| run(view, &self.keys, &self.arguments)));
            let text = || format!("ERR procedure '{}' panicked, and nothing happened", self.name);
            ran.unwrap_or_else(|_| Err(Abort::Refused(text())))
        })
        .map(Answer::bulk)
    }
}
