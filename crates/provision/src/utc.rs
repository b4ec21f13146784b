//! The present time, as files and reports have it.

/// Now, as RFC 3339 in UTC: `2026-01-31T12:00:00.25Z`. Empty if this machine's clock is beyond the year 9999.
#[must_use]
pub fn now() -> String {
    bson::DateTime::now().try_to_rfc3339_string().unwrap_or_default()
}
