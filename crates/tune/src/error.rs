//! Errors in files and arguments of the user.

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why advice cannot be given.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The file is not valid CSV, or cannot be read completely.
    #[error("{file}: {reason}")]
    Table {
        /// File name, as the user gave it.
        file: String,
        /// Error of the reader.
        reason: String,
    },
    /// A column is missing, duplicate or unknown.
    #[error("{file}: {problem}; its first line names the columns: {columns}")]
    Columns {
        /// File name, as the user gave it.
        file: String,
        /// Description of the problem.
        problem: String,
        /// Names of the valid columns.
        columns: String,
    },
    /// A value is invalid.
    #[error("{file}, line {line}: {column} is \"{value}\", and it must be {wanted}")]
    Value {
        /// File name, as the user gave it.
        file: String,
        /// Line number, from 1.
        line: u64,
        /// Name of the column.
        column: String,
        /// The invalid value.
        value: String,
        /// Description of valid values.
        wanted: &'static str,
    },
    /// Intervals are not in order.
    #[error("{file}, line {line}: {problem}")]
    Order {
        /// File name, as the user gave it.
        file: String,
        /// Line number, from 1.
        line: u64,
        /// Description of the problem.
        problem: String,
    },
    /// The data are insufficient or unsuitable.
    #[error("{file}: {found}, and {needed}")]
    TooLittle {
        /// File name, as the user gave it.
        file: String,
        /// Description of the data.
        found: String,
        /// Requirement.
        needed: String,
    },
    /// A configuration was not measured.
    #[error("no configuration is named {name}; there are {known}")]
    Unknown {
        /// Name of the configuration.
        name: String,
        /// Names of the measured configurations.
        known: String,
    },
}
