//! Changes between two snapshots of a design, made by adaptation, by command or by the router.

use crate::store::layout::{Key, Layout, Operator};

/// Returns the operators that lead from the design `before` to the design `after`, as far as the two snapshots show
/// them: a partition that was split and merged in between counts as unchanged.
#[must_use]
pub fn differences<K: Key>(before: &Layout<K>, after: &Layout<K>) -> Vec<Operator<K>> {
    let mut found = Vec::new();
    for (start, _) in before.partitions().filter(|(start, _)| after.at(start).is_none()) {
        // The key at which two partitions were merged.
        found.push(Operator::Merge(start.clone()));
    }
    for (start, is) in after.partitions() {
        if before.at(start).is_none() {
            found.push(Operator::Split(start.clone()));
        }
        let was = before.of(start).1;
        for site in is.replicas.difference(was.copies()).iter() {
            found.push(Operator::AddReplica(start.clone(), site));
        }
        if was.master != is.master {
            if !was.replicas.contains(is.master) {
                found.push(Operator::AddReplica(start.clone(), is.master));
            }
            found.push(Operator::Remaster(start.clone(), is.master));
            if !is.replicas.contains(was.master) {
                found.push(Operator::RemoveReplica(start.clone(), was.master));
            }
        }
        for site in was.replicas.difference(is.copies()).iter() {
            found.push(Operator::RemoveReplica(start.clone(), site));
        }
    }
    found
}
