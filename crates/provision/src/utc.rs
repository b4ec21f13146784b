//! The current time, in the format that files and reports use.

/// Returns the current time as RFC 3339 in UTC: `2026-01-31T12:00:00.25Z`. Returns an empty string if the clock of this
/// machine is beyond the year 9999.
#[must_use]
pub fn now() -> String {
    bson::DateTime::now().try_to_rfc3339_string().unwrap_or_default()
}
