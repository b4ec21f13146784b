//! Payment (clause 2.5): a customer pays; 60 % are found by last name, 15 % pay at another warehouse than their own.

use serde::{Deserialize, Serialize};

use super::rows::{self, Customer, District, History, Warehouse};
use super::{DistrictId, Who};
use crate::procedures::{Access, Declared, Next, Part, Rows, Value, read_row};

/// Maximum length of `C_DATA`, in bytes.
const DATA_MAX: usize = 500;

/// The transaction's inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Payment {
    /// The district at which the customer pays.
    pub at: DistrictId,
    /// The customer's own district.
    pub home: DistrictId,
    /// The customer.
    pub who: Who,
    /// Amount, in cents.
    pub cents: i64,
    /// Unique number of the transaction, by which its row of HISTORY is known.
    pub unique: u64,
}

/// Returns the number of the customer, once it is known; otherwise the row to read for it.
pub(super) fn customer(home: DistrictId, who: &Who, found: &[Vec<Value>]) -> Result<u32, Next> {
    match who {
        Who::Number(number) => Ok(*number),
        Who::LastName(name) if found.is_empty() => Err(Next::Read(vec![home.last_name(name)])),
        Who::LastName(_) => {
            let numbers: Vec<u32> = read_row(found, 0, 0).unwrap_or_default();
            let middle = numbers.len().div_ceil(2).saturating_sub(1);
            numbers.get(middle).copied().ok_or(Next::Nothing)
        }
    }
}

impl Payment {
    pub(super) fn next(&mut self, found: &[Vec<Value>]) -> Next {
        let number = match customer(self.home, &self.who, found) {
            Ok(number) => number,
            Err(next) => return next,
        };
        self.who = Who::Number(number);
        let writes = vec![
            rows::warehouse(self.at.warehouse),
            self.at.row(),
            self.home.customer(number),
            self.history(),
        ];
        Next::Run(Declared { writes, ..Declared::default() })
    }

    /// Returns the key of the row of HISTORY.
    pub(super) fn history(&self) -> String {
        self.at.history(self.unique)
    }

    /// Returns the amount, in cents.
    pub(super) fn run<R: Rows>(&self, rows: &mut Access<'_, R>) -> Part<i64, R> {
        let Who::Number(number) = self.who else { unreachable!("its keys were declared") };
        let mut warehouse: Warehouse = rows.get(&rows::warehouse(self.at.warehouse))?;
        let mut district: District = rows.get(&self.at.row())?;
        let mut customer: Customer = rows.get(&self.home.customer(number))?;
        warehouse.ytd_cents += self.cents;
        district.ytd_cents += self.cents;
        customer.balance_cents -= self.cents;
        customer.ytd_payment_cents += self.cents;
        customer.payments += 1;
        if customer.has_bad_credit {
            let DistrictId { warehouse, district } = self.at;
            let home = self.home;
            customer.data = format!(
                "{number} {} {} {district} {warehouse} {}|{}",
                home.district, home.warehouse, self.cents, customer.data
            );
            customer.data.truncate(DATA_MAX);
        }
        let names = (&warehouse.address, &district.address);
        let history = History {
            home: self.home,
            customer: number,
            cents: self.cents,
            data: format!(
                "{}    {}",
                names.0.get(..10).unwrap_or(names.0),
                names.1.get(..10).unwrap_or(names.1)
            ),
        };
        rows.put(&rows::warehouse(self.at.warehouse), &warehouse)?;
        rows.put(&self.at.row(), &district)?;
        rows.put(&self.home.customer(number), &customer)?;
        rows.put(&self.history(), &history)?;
        Ok(self.cents)
    }
}
