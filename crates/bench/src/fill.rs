//! Inserting documents from memory: it fills collections, and it is the floor of a copy.
//!
//! The commands are encoded beforehand, so that the measured time is the time that the servers need for them.

use std::time::Instant;

use bson::raw::RawArrayBuf;
use bson::{RawDocumentBuf, rawdoc};
use imago_load::Schema;
use imago_mongo::server::endpoint::Endpoint;
use imago_workload::history::IdForm;
use imago_workload::review::Reviews;

use crate::Size;
use crate::cluster_pair::COLL;
use crate::error::{Error, Result};

/// Number of writers that send commands at the same time, here and wherever data is written in bulk from memory. Two
/// keep the server busy; more only wait for each other.
pub(crate) const WRITERS: usize = 2;
/// Maximum size of the documents of one command, in bytes: large enough that a command costs no measurable round
/// trip.
const COMMAND_BYTES: usize = 4 * 1024 * 1024;

/// Commands by writer.
pub(crate) type Commands = [Vec<Command>; WRITERS];

/// One encoded command.
pub(crate) struct Command {
    pub name: &'static str,
    pub body: RawDocumentBuf,
    /// Number of documents that it inserts or updates.
    pub len: u64,
}

/// Returns the schema of the documents.
pub(crate) fn schema(size_bytes: u32) -> Result<Schema> {
    let reviews = Reviews { size_bytes, ..Reviews::default() };
    reviews.validate().map_err(|error| Error::Size(error.to_string()))?;
    Ok(Schema { id_form: IdForm::Integer, reviews })
}

/// Returns the insert commands for the keys `0..documents`: each writer has one half of the keys, in order.
pub(crate) fn inserts(size: Size) -> Result<Commands> {
    let schema = schema(size.size_bytes)?;
    let half = size.documents / 2;
    let shares = [0..half, half..size.documents];
    Ok(shares.map(|keys| {
        let mut commands = Vec::new();
        let (mut documents, mut bytes, mut len) = (RawArrayBuf::new(), 0, 0);
        for key in keys {
            let document = schema.document(key, key, 0);
            if bytes + document.as_bytes().len() > COMMAND_BYTES {
                commands.push(insert(std::mem::take(&mut documents), len));
                (bytes, len) = (0, 0);
            }
            bytes += document.as_bytes().len();
            len += 1;
            documents.push(document);
        }
        if len > 0 {
            commands.push(insert(documents, len));
        }
        commands
    }))
}

/// Returns an insert command of `len` documents.
pub(crate) fn insert(documents: RawArrayBuf, len: u64) -> Command {
    let body = rawdoc! {
        "insert": COLL, "ordered": false, "writeConcern": {"w": "majority"}, "documents": documents,
    };
    Command { name: "insert", body, len }
}

/// Sends all commands, those of each writer in order. Returns the time that it took, in seconds.
pub(crate) async fn send(to: &Endpoint, db: &str, commands: &Commands) -> Result<f64> {
    let began = Instant::now();
    let [first, second] = commands;
    tokio::try_join!(write(to, db, first), write(to, db, second))?;
    Ok(began.elapsed().as_secs_f64())
}

async fn write(to: &Endpoint, db: &str, commands: &[Command]) -> Result<()> {
    for command in commands {
        send_one(to, db, command).await?;
    }
    Ok(())
}

/// Sends one command. Returns an error if any part of it fails.
pub(crate) async fn send_one(to: &Endpoint, db: &str, command: &Command) -> Result<()> {
    let reply = to.run_raw(db, command.name, command.body.clone()).await?;
    let done = reply.get_i32("n").unwrap_or(0);
    let is_whole = u64::try_from(done).is_ok_and(|done| done == command.len);
    if is_whole && !reply.contains_key("writeErrors") && !reply.contains_key("writeConcernError") {
        return Ok(());
    }
    let (name, len) = (command.name, command.len);
    Err(Error::Wrong(format!("{name} did {done} of {len} documents: {reply}")))
}
