//! The reading of rows: one row by its key, and all rows of a table for a check.

use futures_util::TryStreamExt as _;
use imago_tune::cassandra::Result;
use imago_tune::cassandra::error::failed;
use imago_workload::check::{Checker, Found};
use scylla::response::query_result::QueryResult;
use scylla::statement::{Consistency, Statement};

use super::{COLUMNS, CassandraTarget, Row};
use crate::Schema;

/// Number of rows that the server sends in one page while the whole table is read.
const PAGE_ROWS: i32 = 1_000;

/// The values of a row that was read, in the order of [`COLUMNS`]. A column that was not written is `None`.
type ReadRow = (
    String,
    Option<String>,
    Option<String>,
    Option<f64>,
    Option<String>,
    Option<String>,
    Option<String>,
    Option<f64>,
    Option<i64>,
    Option<String>,
    Option<String>,
    Option<i64>,
);

/// Returns the number (`seq`) of the write that left the row of `key`; `None` if the reply `answer` has no row. Fails
/// if the row is not exactly as that write leaves it.
pub(super) fn seen(
    answer: QueryResult,
    schema: Schema,
    key: u64,
) -> std::result::Result<Option<u64>, String> {
    let rows = answer.into_rows_result().map_err(|error| error.to_string())?;
    let row = rows.maybe_first_row::<ReadRow>().map_err(|error| error.to_string())?;
    let Some(row) = row else { return Ok(None) };
    let seq = row.11.and_then(|seq| u64::try_from(seq).ok());
    match seq {
        Some(seq) if row == written(schema.row(key, seq)) => Ok(Some(seq)),
        _ => Err("the row that was read is not as any write left it".into()),
    }
}

fn written(row: Row) -> ReadRow {
    let (id, a, b, c, d, e, f, g, h, i, j, k) = row;
    let (a, b, c, d, e) = (Some(a), Some(b), Some(c), Some(d), Some(e));
    (id, a, b, c, d, e, Some(f), Some(g), Some(h), Some(i), Some(j), Some(k))
}

/// Passes every row of the table, read at consistency level QUORUM, to the check. Returns the number of rows.
///
/// The load must have ended, so that the content is final.
///
/// # Errors
/// Fails with the error of the server.
#[crate::boxed]
pub async fn show_content(target: &CassandraTarget, checker: &mut Checker) -> Result<u64> {
    let doing = format!("reading {}", target.table);
    let mut statement = Statement::new(format!("SELECT {COLUMNS} FROM {}", target.table));
    statement.set_page_size(PAGE_ROWS);
    statement.set_is_idempotent(true);
    statement.set_consistency(Consistency::Quorum);
    let pages = target.session.query_iter(statement, ()).await.map_err(failed(&*doing))?;
    let mut rows = pages.rows_stream::<ReadRow>().map_err(failed(&*doing))?;
    let mut shown = 0;
    while let Some(row) = rows.try_next().await.map_err(failed(&*doing))? {
        show(target.schema, row, checker);
        shown += 1;
    }
    Ok(shown)
}

fn show(schema: Schema, row: ReadRow, checker: &mut Checker) {
    let Some(key) = schema.id_form.key(&row.0) else {
        return checker.add_foreign_document(&row.0, "its id is not one that this load makes");
    };
    let Some(seq) = row.11.and_then(|seq| u64::try_from(seq).ok()) else {
        return checker.add_foreign_document(&row.0, "it lacks seq");
    };
    let intact = row == written(schema.row(key, seq));
    checker.add_document(Found { key, seq, n: 0, intact });
}
