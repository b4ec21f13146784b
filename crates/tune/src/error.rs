//! What can be wrong with what a user hands in.

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Why there is no advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file is no CSV, or ends too early.
    #[error("{file}: {reason}")]
    Table {
        /// The file, as it was named.
        file: String,
        /// What the reader says.
        reason: String,
    },
    /// A column is missing, or there is one that means nothing here.
    #[error("{file}: {problem}; its first line names the columns: {columns}")]
    Columns {
        /// The file, as it was named.
        file: String,
        /// What is wrong.
        problem: String,
        /// The columns that there may be.
        columns: String,
    },
    /// A value cannot be one.
    #[error("{file}, line {line}: {column} is \"{value}\", and it must be {wanted}")]
    Value {
        /// The file, as it was named.
        file: String,
        /// The line, from 1 on.
        line: u64,
        /// The column.
        column: String,
        /// The value.
        value: String,
        /// What it must be.
        wanted: &'static str,
    },
    /// Intervals are not one behind the other.
    #[error("{file}, line {line}: {problem}")]
    Order {
        /// The file, as it was named.
        file: String,
        /// The line, from 1 on.
        line: u64,
        /// What is wrong.
        problem: String,
    },
    /// Nothing can be told from so little.
    #[error("{file}: {found}, and {needed}")]
    TooLittle {
        /// The file, as it was named.
        file: String,
        /// What is there.
        found: String,
        /// What is needed.
        needed: String,
    },
    /// A configuration that is not among those that were measured.
    #[error("no configuration is named {name}; there are {known}")]
    Unknown {
        /// Its name.
        name: String,
        /// Those that there are.
        known: String,
    },
}
