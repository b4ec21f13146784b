//! Real nodes of Cassandra, shared by the tests of one function.

use imago_testbed::find_cassandra;

use crate::reshard::dice::is_long;
use crate::standing::Standing;

/// Three nodes in three racks. None where they cannot or need not be started; that is said.
pub(super) fn ring() -> Option<Standing> {
    ring_of(3)
}

/// So many nodes, each in a rack of its own.
pub(super) fn ring_of(nodes: u8) -> Option<Standing> {
    if !is_long() {
        eprintln!("skipped: {nodes} nodes of Java are started by make test-long");
        return None;
    }
    if let Err(missing) = find_cassandra() {
        eprintln!("skipped: {missing}");
        return None;
    }
    let nodes = nodes.to_string();
    let up = ["cassandra", "--nodes", &nodes, "--racks", &nodes, "--heap-mb", "256"];
    Some(Standing::start("ring", &up))
}
