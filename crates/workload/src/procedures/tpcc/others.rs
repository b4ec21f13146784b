//! Order-Status (clause 2.6), Delivery (clause 2.7) and Stock-Level (clause 2.8).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::payment::customer;
use super::rows::{self, Customer, District, Order, OrderLine, Stock};
use super::{DISTRICTS, DistrictId, Who};
use crate::procedures::{
    Access, Answer, Declared, Ended, Next, Part, Rows, Value, contradiction, decode, read_row,
};

/// Number of a district's last orders whose items Stock-Level counts.
const ORDERS_COUNTED: u32 = 20;
/// Maximum number of lines of an order.
const LINES_MAX: u8 = 15;

/// Order-Status: reads a customer's last order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderStatus {
    /// The customer's district.
    pub district: DistrictId,
    /// The customer.
    pub who: Who,
    /// Number of the order for which keys were declared.
    pub(super) number: u32,
}

impl OrderStatus {
    pub(super) fn next(&mut self, found: &[Vec<Value>]) -> Next {
        let number = match customer(self.district, &self.who, found) {
            Ok(number) => number,
            Err(next) => return next,
        };
        let reads = usize::from(matches!(self.who, Who::LastName(_)));
        if found.len() == reads {
            return Next::Read(vec![self.district.last_order(number)]);
        }
        let Some(order) = read_row::<u32>(found, reads, 0) else { return Next::Nothing };
        self.number = order;
        self.who = Who::Number(number);
        let mut declared = Declared::default();
        declared.read(self.district.customer(number));
        declared.read(self.district.last_order(number));
        declared.read(self.district.order(order));
        let (start, end) = (self.district.line(order, 0), self.district.line(order + 1, 0));
        let lines = (1..=LINES_MAX).map(|line| self.district.line(order, line));
        declared.read_adjacent(start, end, lines);
        Next::Run(declared)
    }

    /// Returns the number of the order's lines.
    pub(super) fn run<R: Rows>(&self, rows: &mut Access<'_, R>) -> Part<i64, R> {
        let Who::Number(number) = self.who else { unreachable!("its keys were declared") };
        let _: Customer = rows.get(&self.district.customer(number))?;
        if rows.get::<u32>(&self.district.last_order(number))? != self.number {
            return Err(Ended::With(Answer::Moved));
        }
        let order: Order = rows.get(&self.district.order(self.number))?;
        lines(rows, self.district, self.number, order.lines)?;
        Ok(i64::from(order.lines))
    }
}

/// Reads the lines of an order, all of which must exist.
fn lines<R: Rows>(
    rows: &mut Access<'_, R>,
    district: DistrictId,
    order: u32,
    lines: u8,
) -> Part<Vec<(String, OrderLine)>, R> {
    let keys: Vec<String> = (1..=lines).map(|line| district.line(order, line)).collect();
    let found = rows.find::<OrderLine>(&keys)?;
    let there = |(key, line): (String, Option<OrderLine>)| match line {
        Some(line) => Ok((key, line)),
        None => Err(contradiction(&key)),
    };
    keys.into_iter().zip(found).map(there).collect()
}

/// Delivery: delivers the oldest order of each district of a warehouse that has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Number of the warehouse.
    pub warehouse: u16,
    /// Number of the carrier, 1 to 10.
    pub carrier: u8,
    /// The orders for which keys were declared: district, order, customer.
    pub(super) orders: Vec<(DistrictId, u32, u32)>,
}

impl Delivery {
    fn districts(&self) -> impl Iterator<Item = DistrictId> {
        let warehouse = self.warehouse;
        (1..=DISTRICTS).map(move |district| DistrictId { warehouse, district })
    }

    pub(super) fn next(&mut self, found: &[Vec<Value>]) -> Next {
        if found.is_empty() {
            let keys = self.districts().flat_map(|one| [one.next_delivery(), one.row()]);
            return Next::Read(keys.collect());
        }
        let mut due = Vec::new();
        for (at, district) in self.districts().enumerate() {
            let next: Option<u32> = read_row(found, 0, 2 * at);
            let row: Option<District> = read_row(found, 0, 2 * at + 1);
            due.extend(
                next.zip(row)
                    .filter(|(next, row)| *next < row.next_order)
                    .map(|(next, _)| (district, next)),
            );
        }
        if due.is_empty() {
            return Next::Nothing;
        }
        let Some(orders) = found.get(1) else {
            return Next::Read(
                due.iter().map(|(district, order)| district.order(*order)).collect(),
            );
        };
        let (mut declared, mut all) = (Declared::default(), Vec::new());
        for ((district, number), order) in due.into_iter().zip(orders) {
            let Some(order) = order.as_ref().and_then(|order| decode::<Order>(order)) else {
                continue;
            };
            let writes = &mut declared.writes;
            writes.extend([
                district.next_delivery(),
                district.undelivered(number),
                district.order(number),
            ]);
            writes.push(district.customer(order.customer));
            writes.extend((1..=order.lines).map(|line| district.line(number, line)));
            all.push((district, number, order.customer));
        }
        self.orders = all;
        if self.orders.is_empty() { Next::Nothing } else { Next::Run(declared) }
    }

    /// Returns the number of orders that were delivered.
    pub(super) fn run<R: Rows>(&self, rows: &mut Access<'_, R>) -> Part<i64, R> {
        let keys: Vec<String> = self.orders.iter().map(|(one, ..)| one.next_delivery()).collect();
        let next = rows.find::<u32>(&keys)?;
        if next.iter().zip(&self.orders).any(|(next, (_, number, _))| *next != Some(*number)) {
            return Err(Ended::With(Answer::Moved));
        }
        // Everything is read before anything is written.
        let mut read = Vec::with_capacity(self.orders.len());
        for (district, number, customer) in &self.orders {
            let order: Order = rows.get(&district.order(*number))?;
            let lines = lines(rows, *district, *number, order.lines)?;
            read.push((order, lines, rows.get::<Customer>(&district.customer(*customer))?));
        }
        for ((district, number, number_of_customer), (mut order, lines, mut customer)) in
            self.orders.iter().zip(read)
        {
            order.carrier = Some(self.carrier);
            rows.delete(&district.undelivered(*number))?;
            rows.put(&district.order(*number), &order)?;
            for (key, mut line) in lines {
                line.is_delivered = true;
                customer.balance_cents += line.cents;
                rows.put(&key, &line)?;
            }
            customer.deliveries += 1;
            rows.put(&district.customer(*number_of_customer), &customer)?;
            rows.put(&district.next_delivery(), &(number + 1))?;
        }
        Ok(self.orders.len() as i64)
    }
}

/// Stock-Level: counts the items of a district's last 20 orders of which there are few in stock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StockLevel {
    /// The district.
    pub district: DistrictId,
    /// Items with fewer pieces are counted; 10 to 20.
    pub threshold: i32,
    /// The orders that are counted: the first one, and the first one after them.
    pub(super) orders: (u32, u32),
}

impl StockLevel {
    pub(super) fn next(&mut self, found: &[Vec<Value>]) -> Next {
        if found.is_empty() {
            return Next::Read(vec![self.district.row()]);
        }
        let Some(district) = read_row::<District>(found, 0, 0) else { return Next::Nothing };
        let Some(lines) = found.get(1) else {
            let next = district.next_order;
            self.orders = (next.saturating_sub(ORDERS_COUNTED).max(1), next);
            return Next::Read(self.lines());
        };
        let lines = lines.iter().flatten().filter_map(|line| decode::<OrderLine>(line));
        let items: BTreeSet<u32> = lines.map(|line| line.item).collect();
        let mut declared = Declared::default();
        declared.read(self.district.row());
        let (first, after) = self.orders;
        let (start, end) = (self.district.line(first, 0), self.district.line(after, 0));
        declared.read_adjacent(start, end, self.lines().into_iter());
        items.iter().for_each(|item| declared.read(rows::stock(self.district.warehouse, *item)));
        Next::Run(declared)
    }

    /// Returns the keys of all lines that the counted orders can have.
    fn lines(&self) -> Vec<String> {
        let lines = |order| (1..=LINES_MAX).map(move |line| self.district.line(order, line));
        (self.orders.0..self.orders.1).flat_map(lines).collect()
    }

    /// Returns the number of items with fewer pieces than the threshold.
    pub(super) fn run<R: Rows>(&self, rows: &mut Access<'_, R>) -> Part<i64, R> {
        let _: District = rows.get(&self.district.row())?;
        let lines = rows.find::<OrderLine>(&self.lines())?;
        let items: BTreeSet<u32> = lines.into_iter().flatten().map(|line| line.item).collect();
        let stock = |item: &u32| rows::stock(self.district.warehouse, *item);
        let keys: Vec<String> = items.iter().map(stock).collect();
        let mut low = 0;
        for (key, stock) in keys.iter().zip(rows.find::<Stock>(&keys)?) {
            let stock = stock.ok_or_else(|| contradiction(key))?;
            low += i64::from(stock.quantity < self.threshold);
        }
        Ok(low)
    }
}
