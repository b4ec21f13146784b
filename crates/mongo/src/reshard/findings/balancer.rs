//! Check whether the server's balancer would undo the plan.
//!
//! While the shape is changed, Imago disables the balancer for the collection and its shadow. Afterwards the balancer
//! is enabled again, if it was before, and evens out the bytes on the shards. It moves nothing to shards that are to
//! leave the cluster (`draining`).

use super::{Finding, warning};
use crate::namespace::Namespace;
use crate::reshard::plan::survey::Shard;
use crate::server::collection::Size;

/// Difference between the content of two shards, in chunk sizes, from which on the balancer moves chunks (since
/// MongoDB 6.0.3; earlier versions count chunks).
const CHUNKS_APART: u64 = 3;

/// Returns a warning if the predicted content of the shards, `after`, is so uneven that the balancer would move
/// chunks.
pub(in crate::reshard) fn balancer_finding(
    ns: &Namespace,
    shards: &[Shard],
    chunk_bytes: u64,
    after: &[Size],
) -> Option<Finding> {
    let held = || shards.iter().zip(after).filter(|(shard, _)| !shard.is_draining);
    let (full, most) = held().max_by_key(|(_, size)| size.bytes)?;
    let (empty, least) = held().min_by_key(|(_, size)| size.bytes)?;
    let apart = most.bytes - least.bytes;
    (apart >= chunk_bytes.saturating_mul(CHUNKS_APART)).then(|| {
        warning(
            "balancer",
            format!(
                "shard {} will hold {apart} bytes more than {}, and the balancer is on: it will \
                 move chunks of {ns} until they are even",
                full.name, empty.name
            ),
            format!(
                "to keep the placement of the plan, run sh.disableBalancing(\"{ns}\") first; use \
                 removeShard for a shard that is to leave the cluster"
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(after: [u64; 3], leaving: &str) -> Option<String> {
        let shard = |name: &str| Shard {
            name: name.into(),
            host: "h".into(),
            is_draining: name == leaving,
            stored: Size::default(),
            orphans: 0,
            index_bytes: 0,
        };
        let after = after.map(|bytes| Size { documents: 1, bytes });
        let ns = Namespace::new("d", "c");
        balancer_finding(&ns, &["a", "b", "c"].map(shard), 10, &after).map(|finding| finding.what)
    }

    #[test]
    fn what_the_balancer_would_undo_is_told() {
        assert_eq!(found([100, 110, 129], ""), None);
        let what = found([100, 0, 129], "").unwrap();
        assert!(what.starts_with("shard c will hold 129 bytes more than b"), "{what}");
        assert_eq!(found([100, 0, 129], "b"), None);
    }
}
