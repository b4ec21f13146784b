//! Mixed updates and inserts, encoded as bulk commands: the operations of the replay benchmark and of its floor.
//!
//! Half of the operations update a document of the initial collection, drawn uniformly. The other half insert a new
//! document. Each key belongs to one writer, so that the order of its operations is preserved.

use bson::raw::RawArrayBuf;
use bson::{RawDocumentBuf, rawdoc};
use imago_load::Schema;
use imago_workload::scatter::Stream;

use crate::cluster_pair::COLL;
use crate::fill::{Command, Commands, WRITERS, insert};

/// Mean number of operations of one writer in a pair of commands, one of updates and one of inserts.
const GROUP_LEN: u64 = 1_000;

/// A generator of operations over a collection whose first documents have the keys `0..documents`.
pub(crate) struct Operations {
    schema: Schema,
    documents: u64,
    inserted: u64,
    stream: Stream,
}

impl Operations {
    pub(crate) fn new(schema: Schema, documents: u64) -> Self {
        Self { schema, documents, inserted: 0, stream: Stream::new(documents, 7) }
    }

    /// Returns the number of documents in the collection after all operations generated so far.
    pub(crate) fn documents(&self) -> u64 {
        self.documents + self.inserted
    }

    /// Generates the next operations; each writer gets about one half of them.
    pub(crate) fn bulk(&mut self, operations: u64) -> Commands {
        let mut commands: Commands = Default::default();
        let mut left = operations;
        while left > 0 {
            let group = left.min(GROUP_LEN * WRITERS as u64);
            let groups = self.group(group);
            for (commands, group) in commands.iter_mut().zip(groups) {
                commands.extend(group);
            }
            left -= group;
        }
        commands
    }

    /// Generates up to two commands for each writer, with `operations` operations in total.
    pub(crate) fn group(&mut self, operations: u64) -> [Vec<Command>; WRITERS] {
        let mut updates: [(RawArrayBuf, u64); WRITERS] = Default::default();
        let mut inserts: [(RawArrayBuf, u64); WRITERS] = Default::default();
        for turn in 0..operations {
            let (lists, key, statement) = if turn % 2 == 0 {
                let key = self.stream.below(self.documents);
                (&mut updates, key, self.update(key))
            } else {
                let key = self.documents + self.inserted;
                self.inserted += 1;
                (&mut inserts, key, self.schema.document(key, key, 0))
            };
            let list = &mut lists[usize::from(key % 2 == 1)];
            list.0.push(statement);
            list.1 += 1;
        }
        let mut commands: [Vec<Command>; WRITERS] = Default::default();
        for (commands, ((updates, updated), (inserts, inserted))) in
            commands.iter_mut().zip(updates.into_iter().zip(inserts))
        {
            if updated > 0 {
                commands.push(update(updates, updated));
            }
            if inserted > 0 {
                commands.push(insert(inserts, inserted));
            }
        }
        commands
    }

    fn update(&mut self, key: u64) -> RawDocumentBuf {
        let seq = self.stream.below(1 << 40);
        let seq = i64::try_from(seq).expect("forty bits");
        rawdoc! {
            "q": {"_id": self.schema.id(key)},
            "u": {"$set": {"seq": seq, "price": self.schema.reviews.price(seq.unsigned_abs())}, "$inc": {"n": 1_i64}},
        }
    }
}

fn update(statements: RawArrayBuf, len: u64) -> Command {
    let body = rawdoc! {
        "update": COLL, "ordered": false, "writeConcern": {"w": "majority"}, "updates": statements,
    };
    Command { name: "update", body, len }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_as_many_as_asked_for_and_half_of_them_insert() {
        let schema = crate::fill::schema(400).unwrap();
        let mut operations = Operations::new(schema, 100);
        let commands = operations.bulk(5_000);
        let of = |name| {
            let all = commands.iter().flatten().filter(|command| command.name == name);
            all.map(|command| command.len).sum::<u64>()
        };
        assert_eq!((of("insert"), of("update")), (2_500, 2_500));
        assert_eq!(operations.documents(), 2_600);
    }
}
