//! The reading of all records of a load, for a check.

use std::collections::HashSet;

use imago_tune::cluster::{Error, Result};
use imago_workload::check::{Checker, Found};

use super::RedisTarget;
use super::outcome::Failure;

/// Number of keys that one SCAN requests.
const NAMES_AT_ONCE: u32 = 500;

/// Passes every record, read from its master, to the check. Returns the number of records.
///
/// The load must have ended and slots must not move, so that the content is final.
///
/// # Errors
/// Fails with the error of the server.
#[crate::boxed(?Send)]
pub async fn show_content(target: &RedisTarget, checker: &mut Checker) -> Result<u64> {
    let mut shown = 0;
    each_name(target, u64::MAX, async |node, names| {
        let records = target.records(node, names).await.map_err(|why| failed(target, why))?;
        for (name, record) in names.iter().zip(records) {
            let id = &name[target.prefix.len()..];
            shown += 1;
            let Some(key) = target.schema.id_form.key(id) else {
                checker.add_foreign_document(id, "its name is not one that this load makes");
                continue;
            };
            match target.schema.write_of(key, &record) {
                Some((seq, intact)) => checker.add_document(Found { key, seq, n: 0, intact }),
                None => checker.add_foreign_document(id, "it lacks seq"),
            }
        }
        Ok(())
    })
    .await?;
    Ok(shown)
}

/// Calls `each` with the address of a master and a batch of the keys of its records, for all masters and each key
/// once, until the number of keys reaches `limit`. Returns that number.
pub(super) async fn each_name(
    target: &RedisTarget,
    limit: u64,
    mut each: impl AsyncFnMut(&str, &[String]) -> Result<()>,
) -> Result<u64> {
    let mut count = 0;
    for node in target.nodes.masters() {
        // A node returns a name more than once if its hash table grows or shrinks during the scan.
        let mut seen = HashSet::new();
        let mut cursor = 0;
        loop {
            let told = target.names(&node, cursor, NAMES_AT_ONCE).await;
            let (next, mut names) = told.map_err(|why| failed(target, why))?;
            names.retain(|name| seen.insert(name.clone()));
            each(&node, &names).await?;
            count += names.len() as u64;
            if next == 0 {
                break;
            }
            if count >= limit {
                return Ok(count);
            }
            cursor = next;
        }
    }
    Ok(count)
}

pub(super) fn failed(target: &RedisTarget, failure: Failure) -> Error {
    Error::Failed {
        what: format!("{} cannot be read or filled: {}", target.label, failure.message),
        help: "are all nodes up?".into(),
    }
}
