//! The plan of collections of stored functions (`system.js`) that a request names.

use super::{Planned, Request, check_not_itself};
use crate::error::{Error, Result};
use crate::namespace::Namespace;
use crate::namespace::Selector;
use crate::server::collection::{FUNCTIONS, Handle, Size};
use crate::server::endpoint::Endpoint;

/// Largest size, in bytes, of a collection of stored functions: each comparison reads all of them.
pub(in crate::copy) const BYTES_MAX: usize = 4 << 20;

/// Checks the preconditions of the copy of each collection of stored functions that the request names, and returns
/// their entries in the plan.
///
/// # Errors
/// Returns a precondition error that names the first obstacle, or a server's error.
pub(super) async fn plan(
    source: &Endpoint,
    destination: &Endpoint,
    request: &Request,
) -> Result<Vec<Planned>> {
    let mut functions = Vec::new();
    for selector in &request.selectors {
        let Selector::One { from, to } = selector else { continue };
        if to.coll.starts_with("system.") && to.coll != from.coll {
            return Err(Error::precondition(
                format!("{from} cannot become {to}, which is a system collection"),
                "choose another name",
            ));
        }
        if from.coll != FUNCTIONS {
            continue;
        }
        if to.coll != FUNCTIONS {
            return Err(Error::precondition(
                format!("the stored functions {from} cannot become the collection {to}"),
                format!("only another database may be named: --ns {from}={}.{FUNCTIONS}", to.db),
            ));
        }
        check_not_itself(source, destination, from, to)?;
        if request.filter.is_some() {
            return Err(Error::precondition(
                format!("a filter does not apply to the stored functions {from}"),
                "copy them by a job of their own, without --filter",
            ));
        }
        let here = Handle::new(source.clone(), from.clone());
        if here.definition().await?.is_none() {
            return Err(Error::precondition(
                format!("the source has no stored functions {from}"),
                "leave it out of --ns",
            ));
        }
        if here.size().await?.bytes > BYTES_MAX as u64 {
            return Err(too_large(from));
        }
        let there = Handle::new(destination.clone(), to.clone());
        if !there.is_empty().await? {
            return Err(Error::precondition(
                format!("the destination has stored functions in {to} already"),
                "delete them there first: those that the source deletes later could not be told from \
                 them",
            ));
        }
        functions.push(Planned {
            from: from.clone(),
            to: to.clone(),
            size: Size::default(),
            indexes: 0,
            sharded_by: None,
            creates: true,
            gone: None,
            holds_name: false,
        });
    }
    Ok(functions)
}

/// Returns the error that refuses the collection `ns` of stored functions, which is larger than [`BYTES_MAX`].
pub(in crate::copy) fn too_large(ns: &Namespace) -> Error {
    Error::precondition(
        format!("{ns} holds more than {} MB of functions", BYTES_MAX >> 20),
        "move them with mongodump and mongorestore, and leave them out of --ns",
    )
}
