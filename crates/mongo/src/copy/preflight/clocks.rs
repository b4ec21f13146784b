//! The difference between the clocks of two clusters: after a cut-over, documents expire by the destination's clock.
//!
//! Nothing else of a job depends on the difference: the ages of changes are measured by the source's clock, those of
//! leases and owners by the destination's.

use crate::error::Result;
use crate::server::endpoint::Endpoint;

/// Largest difference between the clocks of both clusters, in ms, that is not reported: even clusters without a time
/// service drift by less within a week.
const APART_MAX_MS: u64 = 30_000;

/// Returns a note for the operator if the clocks of both clusters differ by more than [`APART_MAX_MS`], else `None`.
///
/// # Errors
/// Fails if a cluster does not reply.
pub(super) async fn note(source: &Endpoint, destination: &Endpoint) -> Result<Option<String>> {
    let (source, destination) =
        tokio::try_join!(source.clock_ahead_ms(), destination.clock_ahead_ms())?;
    // Both values are relative to this machine's clock.
    Ok(of(source - destination))
}

/// Returns the note for a destination whose clock is `ahead_ms` ms ahead of the source's (negative if it is slow), or
/// `None` for a small difference.
fn of(ahead_ms: i64) -> Option<String> {
    let side = if ahead_ms > 0 { "ahead of" } else { "behind" };
    (ahead_ms.unsigned_abs() > APART_MAX_MS).then(|| {
        format!(
            "the destination's clock is {} s {side} the source's: once clients have moved, documents expire by the \
             destination's; set the clocks right before the cut-over",
            ahead_ms.unsigned_abs() / 1_000
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_that_differ_are_named_with_their_difference() {
        assert_eq!(of(29_000), None);
        assert_eq!(of(-29_000), None);
        assert!(of(3_600_000).unwrap().contains("is 3600 s ahead of the source's"));
        assert!(of(-3_600_000).unwrap().contains("is 3600 s behind the source's"));
    }
}
