//! All records of a load, for a check.

use std::collections::HashSet;

use imago_tune::cluster::{Error, Result};
use imago_workload::check::{Checker, Found};

use super::RedisTarget;
use super::outcome::Failure;

/// Names that are asked for at once.
const NAMES_AT_ONCE: u32 = 500;

/// Shows every record, as its master has it, to the check. Returns how many.
///
/// The load must have ended, and slots must stay where they are: content that still changes is no final content.
///
/// # Errors
/// The server's message.
#[crate::boxed(?Send)]
pub async fn show_content(target: &RedisTarget, checker: &mut Checker) -> Result<u64> {
    let mut shown = 0;
    each_name(target, u64::MAX, async |node, names| {
        let records = target.records(node, names).await.map_err(|why| failed(target, why))?;
        for (name, record) in names.iter().zip(records) {
            let id = &name[target.prefix.len()..];
            shown += 1;
            let Some(key) = target.schema.id_form.key(id) else {
                checker.saw_stranger(id, "its name is not one that this load makes");
                continue;
            };
            match target.schema.write_of(key, &record) {
                Some((seq, intact)) => checker.saw(Found { key, seq, n: 0, intact }),
                None => checker.saw_stranger(id, "it lacks seq"),
            }
        }
        Ok(())
    })
    .await?;
    Ok(shown)
}

/// Calls `each` with all names, some at a time, each name once, until there were as many as the limit. Returns how many.
pub(super) async fn each_name(
    target: &RedisTarget,
    limit: u64,
    mut each: impl AsyncFnMut(&str, &[String]) -> Result<()>,
) -> Result<u64> {
    let mut count = 0;
    for node in target.nodes.masters() {
        // A node tells a name more than once when its table grows or shrinks meanwhile.
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
