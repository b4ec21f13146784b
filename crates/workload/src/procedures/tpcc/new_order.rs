//! New-Order (clause 2.4): an order of 5 to 15 items, of which 1 % name an item that does not exist and are rolled
//! back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::DistrictId;
use super::rows::{self, Customer, District, Item, Order, OrderLine, Stock, Warehouse};
use crate::procedures::{
    Access, Answer, Declared, Ended, Next, Part, Rows, Value, contradiction, read_row,
};

/// Number of order numbers for which a transaction declares keys, from the district's next one on: other orders may
/// come before it.
const NUMBERS_DECLARED: u32 = 4;

/// A line of an order to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Number of the item.
    pub item: u32,
    /// Warehouse that supplies the item.
    pub supply_warehouse: u16,
    /// Number of pieces.
    pub quantity: u8,
}

/// The transaction's inputs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewOrder {
    /// The customer's district.
    pub district: DistrictId,
    /// Number of the customer.
    pub customer: u32,
    /// The lines, 5 to 15.
    pub lines: Vec<Line>,
    /// Unique number of the transaction.
    pub unique: u64,
    /// The first order number for which keys were declared.
    pub(super) first_number: u32,
}

impl NewOrder {
    pub(super) fn next(&mut self, found: &[Vec<Value>]) -> Next {
        if found.is_empty() {
            return Next::Read(vec![self.district.row()]);
        }
        let Some(district) = read_row::<District>(found, 0, 0) else { return Next::Nothing };
        self.first_number = district.next_order;
        let mut declared = Declared::default();
        declared.read(rows::warehouse(self.district.warehouse));
        declared.read(self.district.customer(self.customer));
        self.lines.iter().for_each(|line| declared.read(rows::item(line.item)));
        let writes = &mut declared.writes;
        writes.extend([self.district.row(), self.district.last_order(self.customer)]);
        writes.extend(self.stocks());
        for number in self.first_number..self.first_number + NUMBERS_DECLARED {
            writes.extend([self.district.order(number), self.district.undelivered(number)]);
            let lines = 1..=self.lines.len() as u8;
            writes.extend(lines.map(|line| self.district.line(number, line)));
        }
        Next::Run(declared)
    }

    fn stocks(&self) -> Vec<String> {
        self.lines.iter().map(|line| rows::stock(line.supply_warehouse, line.item)).collect()
    }

    /// Returns the number of the order.
    pub(super) fn run<R: Rows>(&self, rows: &mut Access<'_, R>) -> Part<i64, R> {
        let home = self.district;
        let mut district: District = rows.get(&home.row())?;
        let number = district.next_order;
        if !(self.first_number..self.first_number + NUMBERS_DECLARED).contains(&number) {
            return Err(Ended::With(Answer::Moved));
        }
        let _: Warehouse = rows.get(&rows::warehouse(home.warehouse))?;
        let _: Customer = rows.get(&home.customer(self.customer))?;
        let items: Vec<String> = self.lines.iter().map(|line| rows::item(line.item)).collect();
        let items = rows.find::<Item>(&items)?;
        let Some(items) = items.into_iter().collect::<Option<Vec<Item>>>() else {
            return Err(Ended::With(Answer::RolledBack));
        };
        let keys = self.stocks();
        // An item may be ordered by two lines.
        let mut stocks: BTreeMap<&String, Stock> = BTreeMap::new();
        for (key, stock) in keys.iter().zip(rows.find::<Stock>(&keys)?) {
            stocks.insert(key, stock.ok_or_else(|| contradiction(key))?);
        }
        let mut lines = Vec::with_capacity(self.lines.len());
        for ((line, key), item) in self.lines.iter().zip(&keys).zip(&items) {
            let Some(stock) = stocks.get_mut(key) else { return Err(contradiction(key)) };
            let is_remote = line.supply_warehouse != home.warehouse;
            take(stock, line.quantity, is_remote);
            lines.push(OrderLine {
                item: line.item,
                supply_warehouse: line.supply_warehouse,
                is_delivered: false,
                quantity: line.quantity,
                cents: i64::from(line.quantity) * item.price_cents,
                district_info: district_info(stock, home.district),
            });
        }
        district.next_order += 1;
        rows.put(&home.row(), &district)?;
        rows.put(&home.last_order(self.customer), &number)?;
        let order = Order {
            customer: self.customer,
            entry: self.unique,
            carrier: None,
            lines: lines.len() as u8,
            is_all_local: self.lines.iter().all(|line| line.supply_warehouse == home.warehouse),
        };
        rows.put(&home.order(number), &order)?;
        rows.put(&home.undelivered(number), &())?;
        for (key, stock) in &stocks {
            rows.put(key, stock)?;
        }
        for (at, line) in (1..).zip(&lines) {
            rows.put(&home.line(number, at), line)?;
        }
        Ok(i64::from(number))
    }
}

/// Takes pieces from a stock, which is filled up when fewer than ten would be left (clause 2.4.2.2).
fn take(stock: &mut Stock, quantity: u8, is_remote: bool) {
    let left = stock.quantity - i32::from(quantity);
    stock.quantity = if left >= 10 { left } else { left + 91 };
    stock.ytd += u64::from(quantity);
    stock.orders += 1;
    stock.remote_orders += u32::from(is_remote);
}

fn district_info(stock: &Stock, district: u8) -> String {
    let from = 24 * usize::from(district - 1);
    stock.district_infos.get(from..from + 24).unwrap_or_default().to_owned()
}
