//! Three real nodes of Cassandra, shared by the tests of one function.

use imago_testbed::find_cassandra;

use crate::reshard::dice::is_long;
use crate::standing::Standing;

/// Three nodes in three racks; none where they cannot or need not be started; that is said.
pub(super) fn ring() -> Option<Standing> {
    if !is_long() {
        eprintln!("skipped: three nodes of Java are started by make test-long");
        return None;
    }
    if let Err(missing) = find_cassandra() {
        eprintln!("skipped: {missing}");
        return None;
    }
    let up = ["cassandra", "--nodes", "3", "--racks", "3", "--heap-mb", "256"];
    Some(Standing::start("ring", &up))
}
