//! Errors in the files (traces, measurements) and arguments that a user gives for advice.

/// Result of reading a user's file or of computing advice, with the error [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Reason why a user's file cannot be read, or why advice cannot be given from it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file is not valid CSV (or not valid output of the tool that it is imported from), or cannot be read
    /// completely.
    #[error("{file}: {reason}")]
    Table {
        /// Name of the file that cannot be read, as the user gave it.
        file: String,
        /// Message of the parser or of the operating system.
        reason: String,
    },
    /// The header of a file lacks a column, or has one twice, or has an unknown one.
    #[error("{file}: {problem}; its first line names the columns: {columns}")]
    Columns {
        /// Name of the file with the invalid header, as the user gave it.
        file: String,
        /// Description of the problem with the columns, for the message.
        problem: String,
        /// Names of the valid columns, separated by commas.
        columns: String,
    },
    /// A cell of a CSV file has an invalid value.
    #[error("{file}, line {line}: {column} is \"{value}\", and it must be {wanted}")]
    Value {
        /// Name of the file with the invalid value, as the user gave it.
        file: String,
        /// Number of the line with the invalid value; the first line is 1.
        line: u64,
        /// Name of the column with the invalid value.
        column: String,
        /// The invalid value, as it is in the file.
        value: String,
        /// Description of the values that the column accepts.
        wanted: &'static str,
    },
    /// The intervals of a trace are not in ascending order, or do not fit the length of an interval.
    #[error("{file}, line {line}: {problem}")]
    Order {
        /// Name of the trace, as the user gave it.
        file: String,
        /// Number of the line whose interval is out of order; the first line is 1.
        line: u64,
        /// Description of the problem with the interval's start time, for the message.
        problem: String,
    },
    /// The data of a file are insufficient or unsuitable for the request.
    #[error("{file}: {found}, and {needed}")]
    TooLittle {
        /// Name of the file with the unsuitable data, as the user gave it.
        file: String,
        /// Description of the data that the file has.
        found: String,
        /// Description of the data that the request needs.
        needed: String,
    },
    /// The user named a configuration that was not measured.
    #[error("no configuration is named {name}; there are {known}")]
    Unknown {
        /// Name of the configuration that was not measured.
        name: String,
        /// Names of the measured configurations, separated by commas.
        known: String,
    },
}
