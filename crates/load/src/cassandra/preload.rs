//! Fills a table before a load: the keys `0..rows`, with concurrent writes.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::stream::{StreamExt as _, TryStreamExt as _, iter};
use imago_tune::cassandra::error::failed;
use imago_tune::cassandra::{Error, Result};
use scylla::statement::Statement;

use super::CassandraTarget;

/// Number of rows that are written concurrently while a table is filled.
const WRITERS: usize = 64;
/// Number of rows that the server sends in one page while rows are counted.
const PAGE_ROWS: i32 = 5_000;
/// Number of inserted rows between two reports of progress.
const PROGRESS_ROWS: u64 = 500;

/// Inserts the rows of the keys `0..rows` into an empty table, each with `seq` equal to its key. Calls `progress`
/// with the number of rows inserted so far.
///
/// # Errors
/// Fails if the table is not empty, or with the error of the server. After an error of the server the table may hold
/// a part of the rows.
pub async fn preload(
    target: &CassandraTarget,
    rows: u64,
    progress: impl Fn(u64) + Sync,
) -> Result<()> {
    require_rows(target, 0).await?;
    let inserted = AtomicU64::new(0);
    let written = || {
        let so_far = inserted.fetch_add(1, Ordering::Relaxed) + 1;
        if so_far.is_multiple_of(PROGRESS_ROWS) {
            progress(so_far);
        }
    };
    write(target, 0..rows, written).await
}

/// Writes the rows of `keys` again, each with the content that [`preload`] wrote.
///
/// # Errors
/// Fails with the error of the server.
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

/// Checks that the table holds exactly `rows` rows.
///
/// # Errors
/// Fails if the number differs, or with the error of the server.
#[crate::boxed]
pub async fn require_rows(target: &CassandraTarget, rows: u64) -> Result<()> {
    let table = &target.table;
    // One row more is enough to show that there are too many.
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

/// Returns the number of rows of the table, but at most `limit`: counting ends there.
///
/// # Errors
/// Fails with the error of the server.
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
