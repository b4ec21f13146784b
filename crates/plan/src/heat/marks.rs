//! Changes of a design between two looks at it, by adaptation, by command or by the router.

use crate::design::layout::{Key, Layout, Operator};

/// The operators that lead from one design to another, as far as that can be seen from both: a partition that was split
/// and merged again in between was not changed.
#[must_use]
pub fn differences<K: Key>(before: &Layout<K>, after: &Layout<K>) -> Vec<Operator<K>> {
    let mut found = Vec::new();
    for (start, _) in before.partitions().filter(|(start, _)| after.at(start).is_none()) {
        // The key at which two partitions became one.
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
