//! Counts the rows of tables by the sizes that nodes store, in O(log n) for each table.

use super::{Child, Node, Rows};
use crate::key::{Key, KeyRange, Table};

impl Rows {
    /// Returns the number of rows of each table that has rows, in the order of the tables' numbers.
    #[must_use]
    pub fn by_table(&self) -> Vec<(Table, u64)> {
        let (mut tables, mut before, mut from) = (Vec::new(), 0, Key::least());
        loop {
            let rest = KeyRange { start: from, end: None };
            let Some((table, _)) = self.range(&rest).next().and_then(|(key, _)| key.row()) else {
                return tables;
            };
            let Some(next) = table.0.checked_add(1) else {
                tables.push((table, self.size().rows - before));
                return tables;
            };
            from = Key::new(Table(next), b"");
            let upto = self.rows_before(&from);
            tables.push((table, upto - before));
            before = upto;
        }
    }

    /// Returns the number of rows whose keys are less than this key.
    fn rows_before(&self, key: &Key) -> u64 {
        self.0.as_ref().map_or(0, |tree| before(&tree.root, key))
    }
}

/// Returns the number of rows below a node whose keys are less than this key.
fn before(child: &Child, key: &Key) -> u64 {
    match &*child.node {
        Node::Leaf(rows) => {
            let (Ok(at) | Err(at)) = rows.place(key);
            at as u64
        }
        Node::Inner(children) => {
            let at = children.way(key);
            let passed = children[..at].iter().map(|child| child.size.rows).sum::<u64>();
            passed + before(&children[at], key)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::rows::Row;

    proptest! {
        #[test]
        fn tables_have_the_rows_that_counting_each_finds(
            keys in prop::collection::btree_set((prop::sample::select(vec![0, 1, 2, 15, u32::MAX]), 0..2_000_u16), 0..400),
        ) {
            let (mut rows, mut expected) = (Rows::default(), BTreeMap::<Table, u64>::new());
            for (table, row) in keys {
                let key = Key::new(Table(table), &row.to_be_bytes());
                rows.insert(key, Row { version: 1, value: vec![0].into() });
                *expected.entry(Table(table)).or_default() += 1;
            }
            prop_assert_eq!(rows.by_table(), expected.into_iter().collect::<Vec<_>>());
        }
    }
}
