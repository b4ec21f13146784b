//! TPC-C (revision 5.11): order entry at warehouses. All five transactions, the population of clause 4.3, the random
//! values of clauses 2.1.6 and 4.3.2, and the consistency conditions of clause 3.3.2.
//!
//! Rows, by the first letter of their keys (`w` a warehouse in four digits, `d` a district in two, `c` a customer in
//! five, `o` an order in seven, `l` a line in two, `i` an item in six):
//!
//! | key | row |
//! |---|---|
//! | `w`w | warehouse |
//! | `d`wd | district, with the number of its next order |
//! | `y`wd | number of the district's next order to deliver |
//! | `c`wdc | customer |
//! | `n`wd and a last name | numbers of the customers of that name, by first name |
//! | `x`wdc | number of the customer's last order |
//! | `h`wd and a unique number | payment (HISTORY) |
//! | `o`wdo | order |
//! | `v`wdo | mark of an order that is not delivered (NEW-ORDER) |
//! | `l`wdol | order line |
//! | `i`i | item |
//! | `t`wi | stock of an item |
//!
//! `n`, `x` and `y` are indexes, which the specification leaves to the implementation. Differences from it: terminals
//! neither think nor key in, since clients are a closed loop; Stock-Level counts over the orders that there were when
//! its keys were declared, which its isolation level allows (clause 3.4.1).

mod check;
mod draw;
mod fill;
mod new_order;
mod others;
mod payment;
mod rows;

use serde::{Deserialize, Serialize};

use super::{Access, Kind, Next, Part, Rows, Value};
pub use check::Check;
pub use new_order::NewOrder;
pub use others::{Delivery, OrderStatus, StockLevel};
pub use payment::Payment;
#[cfg(test)]
pub(crate) use rows::{Customer, OrderLine, Warehouse};

/// Number of districts of a warehouse (clause 1.2.1).
pub const DISTRICTS: u8 = 10;

/// The shares of the transaction types.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mix {
    /// 45 % New-Order, 45 % Payment, 10 % Stock-Level (MorphoSys §7.2).
    #[default]
    Three,
    /// 45 % New-Order, 43 % Payment, and 4 % each of Order-Status, Delivery and Stock-Level (clause 5.2.3).
    Five,
}

/// Parameters of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Number of warehouses, the scale factor; at least 1.
    pub warehouses: u16,
    /// Number of items; the specification demands 100,000.
    pub items: u32,
    /// Number of customers of a district, and of its orders at the start; the specification demands 3,000.
    pub customers: u32,
    /// Shares of the transaction types.
    pub mix: Mix,
    /// Share of the New-Order and Payment transactions that access a second warehouse, from 0 to 1. `None` for the
    /// specification's: 1 % of the order lines (about 10 % of the New-Orders), and 15 % of the Payments.
    pub cross_warehouse: Option<f64>,
}

impl Default for Parameters {
    fn default() -> Self {
        let (items, customers) = (100_000, 3_000);
        Self { warehouses: 1, items, customers, mix: Mix::default(), cross_warehouse: None }
    }
}

/// A district, by its warehouse and its number there, both from 1 on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DistrictId {
    /// Number of the warehouse.
    pub warehouse: u16,
    /// Number of the district.
    pub district: u8,
}

/// The customer of a transaction, of a district.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    /// The customer with this number.
    Number(u32),
    /// The customer in the middle of those with this last name (clauses 2.5.2.2 and 2.6.2.2).
    LastName(String),
}

/// A transaction with its inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the specification's own names")]
pub enum Transaction {
    NewOrder(NewOrder),
    Payment(Payment),
    OrderStatus(OrderStatus),
    Delivery(Delivery),
    StockLevel(StockLevel),
}

impl Transaction {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::NewOrder(_) => Kind::NewOrder,
            Self::Payment(_) => Kind::Payment,
            Self::OrderStatus(_) => Kind::OrderStatus,
            Self::Delivery(_) => Kind::Delivery,
            Self::StockLevel(_) => Kind::StockLevel,
        }
    }

    pub(super) fn next(&mut self, found: &[Vec<Value>]) -> Next {
        match self {
            Self::NewOrder(transaction) => transaction.next(found),
            Self::Payment(transaction) => transaction.next(found),
            Self::OrderStatus(transaction) => transaction.next(found),
            Self::Delivery(transaction) => transaction.next(found),
            Self::StockLevel(transaction) => transaction.next(found),
        }
    }

    pub(super) fn run<R: Rows>(&self, rows: &mut Access<'_, R>) -> Part<i64, R> {
        match self {
            Self::NewOrder(transaction) => transaction.run(rows),
            Self::Payment(transaction) => transaction.run(rows),
            Self::OrderStatus(transaction) => transaction.run(rows),
            Self::Delivery(transaction) => transaction.run(rows),
            Self::StockLevel(transaction) => transaction.run(rows),
        }
    }
}
