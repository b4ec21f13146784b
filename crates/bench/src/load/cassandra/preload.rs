//! Filling a table before a load: the keys `0..rows`, as fast as a few writers can.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::stream::{StreamExt as _, TryStreamExt as _, iter};
use imago_tune::cassandra::error::failed;
use imago_tune::cassandra::{Error, Result};
use scylla::statement::Statement;

use super::CassandraTarget;

/// Rows that are written at once.
const WRITERS: usize = 64;
/// Rows of a page, when they are counted.
const PAGE_ROWS: i32 = 5_000;
/// The progress is told after so many rows.
const TOLD_ROWS: u64 = 500;

/// Inserts the rows of the keys `0..rows` into an empty table, each with `seq` = key. `progress` gets the number
/// inserted so far.
///
/// # Errors
/// The table is not empty; otherwise what the server said. The table then holds a part of the rows.
pub async fn preload(
    target: &CassandraTarget,
    rows: u64,
    progress: impl Fn(u64) + Sync,
) -> Result<()> {
    require_rows(target, 0).await?;
    let inserted = AtomicU64::new(0);
    let written = || {
        let so_far = inserted.fetch_add(1, Ordering::Relaxed) + 1;
        if so_far.is_multiple_of(TOLD_ROWS) {
            progress(so_far);
        }
    };
    write(target, 0..rows, written).await
}

/// Writes rows that are there once more, each with the content that it was filled with.
///
/// # Errors
/// What the server said.
pub async fn rewrite(target: &CassandraTarget, keys: impl Iterator<Item = u64>) -> Result<()> {
    write(target, keys, || {}).await
}

async fn write(
    target: &CassandraTarget,
    keys: impl Iterator<Item = u64>,
    written: impl Fn() + Sync,
) -> Result<()> {
    let written = &written;
    iter(keys)
        .map(|key| async move {
            let row = target.schema.row(key, key);
            let answer = target.session.execute_unpaged(&target.write, row).await;
            answer.map_err(failed(format!("filling {}", target.table)))?;
            written();
            Ok(())
        })
        .buffer_unordered(WRITERS)
        .try_collect::<()>()
        .await
}

/// Makes sure that the table holds exactly so many rows.
///
/// # Errors
/// It holds another number; otherwise what the server said.
#[crate::boxed]
pub async fn require_rows(target: &CassandraTarget, rows: u64) -> Result<()> {
    let table = &target.table;
    // One more is enough to know that there are too many.
    let (what, help) = match count_rows(target, rows.saturating_add(1)).await? {
        found if found == rows => return Ok(()),
        _ if rows == 0 => (format!("{table} is not empty"), "use another table, or drop this one"),
        found => (
            format!("{table} holds {found} rows or more, not {rows}"),
            "say how many it was filled with",
        ),
    };
    Err(Error::Precondition { what, help: help.into() })
}

/// The number of rows, counted up to a limit.
///
/// # Errors
/// What the server said.
pub async fn count_rows(target: &CassandraTarget, limit: u64) -> Result<u64> {
    let doing = format!("counting the rows of {}", target.table);
    let mut statement = Statement::new(format!("SELECT id FROM {} LIMIT {limit}", target.table));
    statement.set_page_size(PAGE_ROWS);
    statement.set_is_idempotent(true);
    let pages = target.session.query_iter(statement, ()).await.map_err(failed(&*doing))?;
    let mut ids = pages.rows_stream::<(String,)>().map_err(failed(&*doing))?;
    let mut found = 0;
    while ids.try_next().await.map_err(failed(&*doing))?.is_some() {
        found += 1;
    }
    Ok(found)
}
