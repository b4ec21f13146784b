//! The operations of clients, stored by columns: ten million of them take some hundred megabytes.
//!
//! Operations of equal form share a [`Shape`]; what remains of each are its values, and the number of documents that it
//! read or wrote.

use std::collections::HashMap;

use super::{Field, Value};

/// Number of forms that are kept free for operations of which only the kind is known.
const OPAQUE_MAX: usize = 16;

/// The kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A find, a count, a distinct, or an aggregation.
    Read,
    /// An insert of one document.
    Insert,
    /// An update or replacement of at most one document.
    UpdateOne,
    /// A delete of at most one document.
    DeleteOne,
    /// An update or delete of all matching documents.
    WriteMany,
    /// A `findAndModify`.
    FindAndModify,
}

impl Kind {
    /// Returns true for an operation that changes documents.
    #[must_use]
    pub fn is_write(self) -> bool {
        self != Self::Read
    }
}

/// A condition on one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// The field equals one value.
    Equal,
    /// The field equals one of some values.
    In,
    /// The field is between two values, both included.
    Between,
}

/// The form of an operation: everything but its values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Kind of the operation.
    pub kind: Kind,
    /// The fields with a condition, in the order of the operation's values. Of an insert, the document's fields.
    pub conditions: Vec<(Field, Condition)>,
    /// Fields that the operation changes.
    pub sets: Vec<Field>,
    /// True if the operation inserts a document when nothing matches.
    pub is_upsert: bool,
    /// True if the conditions are unknown, or the router cannot use them, as under a collation: the operation goes to all
    /// shards.
    pub is_opaque: bool,
}

/// An operation of a [`Workload`].
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    /// Form of the operation.
    pub shape: &'a Shape,
    /// Values of the conditions, one after another: one of [`Condition::Equal`], two of [`Condition::Between`], and of
    /// [`Condition::In`] their number, as a rank, and the values.
    pub values: Values<'a>,
    /// Number of documents that were returned or written.
    pub documents: u32,
}

/// Values of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    ranks: &'a [u32],
    hashes: &'a [i64],
}

impl Values<'_> {
    /// Returns the value at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Value {
        Value { rank: self.ranks[index], hash: self.hashes[index] }
    }
}

/// The operations of clients, in the order of their times.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    shapes: Vec<Shape>,
    shape_of: Vec<u16>,
    /// Index of the operation's first value in the two columns below.
    starts: Vec<u32>,
    documents: Vec<u32>,
    ranks: Vec<u32>,
    hashes: Vec<i64>,
    /// Number of each transaction's operation, by index of the operation; few operations are in transactions.
    transactions: Vec<(u32, u64)>,
    numbers: HashMap<Shape, u16>,
}

/// A workload cannot take an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadFull {
    /// Operations have more forms than are told apart.
    #[error("operations have more than {} forms", Workload::SHAPES_MAX)]
    Shapes,
    /// Operations have more values than are stored.
    #[error("operations have more than {} values", Workload::VALUES_MAX)]
    Values,
}

impl Workload {
    /// Largest number of forms of operations.
    pub const SHAPES_MAX: usize = 1 << 16;
    /// Largest number of values of all operations.
    pub const VALUES_MAX: usize = 1 << 26;

    /// Adds an operation. `values` are as in [`Operation::values`]; `transaction` tells which operations belong to one
    /// transaction.
    ///
    /// # Errors
    /// [`WorkloadFull`]: nothing is added.
    pub fn push(
        &mut self,
        shape: &Shape,
        values: &[Value],
        documents: u32,
        transaction: Option<u64>,
    ) -> Result<(), WorkloadFull> {
        let number = match self.numbers.get(shape) {
            Some(number) => *number,
            None => self.add_shape(shape)?,
        };
        let start = u32::try_from(self.ranks.len()).map_err(|_| WorkloadFull::Values)?;
        if self.ranks.len() + values.len() > Self::VALUES_MAX {
            return Err(WorkloadFull::Values);
        }
        if let Some(transaction) = transaction {
            let index = u32::try_from(self.shape_of.len()).map_err(|_| WorkloadFull::Values)?;
            self.transactions.push((index, transaction));
        }
        self.shape_of.push(number);
        self.starts.push(start);
        self.documents.push(documents);
        self.ranks.extend(values.iter().map(|value| value.rank));
        self.hashes.extend(values.iter().map(|value| value.hash));
        Ok(())
    }

    fn add_shape(&mut self, shape: &Shape) -> Result<u16, WorkloadFull> {
        // Forms without conditions always have room: there are few.
        let room = if shape.is_opaque { 0 } else { OPAQUE_MAX };
        if self.shapes.len() + room >= Self::SHAPES_MAX {
            return Err(WorkloadFull::Shapes);
        }
        let number = self.shapes.len() as u16;
        self.shapes.push(shape.clone());
        self.numbers.insert(shape.clone(), number);
        Ok(number)
    }

    /// Returns the operations for whose index `factor` returns a factor, with their documents multiplied by it.
    #[must_use]
    pub fn filtered(&self, factor: impl Fn(usize) -> Option<u32>) -> Self {
        let mut kept =
            Self { shapes: self.shapes.clone(), numbers: self.numbers.clone(), ..Self::default() };
        let mut transactions = self.transactions.iter().peekable();
        for index in 0..self.len() {
            let transaction = transactions.next_if(|(at, _)| *at as usize == index);
            let Some(factor) = factor(index) else { continue };
            let values = self.get(index).values;
            if let Some((_, transaction)) = transaction {
                kept.transactions.push((kept.shape_of.len() as u32, *transaction));
            }
            kept.shape_of.push(self.shape_of[index]);
            kept.starts.push(kept.ranks.len() as u32);
            kept.documents.push(self.documents[index].saturating_mul(factor));
            kept.ranks.extend_from_slice(values.ranks);
            kept.hashes.extend_from_slice(values.hashes);
        }
        kept
    }

    /// Returns the number of operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape_of.len()
    }

    /// Returns true if there is no operation.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shape_of.is_empty()
    }

    /// Returns the operation at `index`.
    #[must_use]
    pub fn get(&self, index: usize) -> Operation<'_> {
        let start = self.starts[index] as usize;
        let end = self.starts.get(index + 1).map_or(self.ranks.len(), |end| *end as usize);
        Operation {
            shape: &self.shapes[usize::from(self.shape_of[index])],
            values: Values { ranks: &self.ranks[start..end], hashes: &self.hashes[start..end] },
            documents: self.documents[index],
        }
    }

    /// Returns the index of the form of the operation at `index`, in [`Workload::shapes`].
    #[must_use]
    pub(super) fn shape_at(&self, index: usize) -> usize {
        usize::from(self.shape_of[index])
    }

    /// Returns the forms of the operations.
    #[must_use]
    pub fn shapes(&self) -> &[Shape] {
        &self.shapes
    }

    /// Returns the number of operations of each form, in the order of [`Workload::shapes`].
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        let mut counts = vec![0; self.shapes.len()];
        for shape in &self.shape_of {
            counts[usize::from(*shape)] += 1;
        }
        counts
    }

    /// Returns the operations that belong to transactions, in order: their indexes, and the transaction of each.
    pub(super) fn transactions(&self) -> &[(u32, u64)] {
        &self.transactions
    }
}
