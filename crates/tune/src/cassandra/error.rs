//! Conversion of the driver's errors.

use scylla::errors::{ExecutionError, NextRowError, PagerExecutionError, PrepareError};

pub use crate::cluster::error::{Error, Result};

/// Marker for the errors of Cassandra's driver that a statement can end with.
pub trait StatementError: std::error::Error + Send + Sync + 'static {}

impl StatementError for ExecutionError {}
impl StatementError for PrepareError {}
impl StatementError for scylla::errors::MetadataError {}
impl StatementError for PagerExecutionError {}
impl StatementError for NextRowError {}
impl StatementError for scylla::response::query_result::IntoRowsResultError {}
impl StatementError for scylla::response::query_result::RowsError {}
impl StatementError for scylla::errors::DeserializationError {}
impl StatementError for scylla::errors::TypeCheckError {}

/// Returns a function that converts a driver's error to [`Error::Statement`]; `doing` describes the statement.
pub fn failed<E: StatementError>(doing: impl Into<String>) -> impl FnOnce(E) -> Error {
    let doing = doing.into();
    move |source| Error::Statement { doing, source: Box::new(source) }
}
