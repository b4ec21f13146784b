//! The consistency conditions of TPC-C (clause 3.3.2), over all rows after a load, and the presence of every
//! acknowledged order and payment.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::de::DeserializeOwned;

use super::rows::{Customer, District, History, Order, OrderLine, Warehouse};
use super::{DistrictId, Transaction};
use crate::procedures::decode;

/// Maximum number of contradictions that are listed.
const LISTED_MAX: usize = 20;

/// Sums over the rows of a district.
#[derive(Clone, Debug, Default)]
struct Sums {
    row: Option<District>,
    next_delivery: Option<u32>,
    payments_cents: i64,
    orders: HashMap<u32, OfOrder>,
    undelivered: HashSet<u32>,
    customers: HashMap<u32, Customer>,
    /// Payments of each customer at any district, in cents.
    paid_cents: HashMap<u32, i64>,
}

/// An order with the sums over its lines.
#[derive(Clone, Debug, Default)]
struct OfOrder {
    row: Option<Order>,
    lines: u32,
    delivered_lines: u32,
    cents: i64,
}

/// The check of the rows after a load. It takes all rows, in any order.
#[derive(Clone, Debug, Default)]
pub struct Check {
    warehouses: BTreeMap<u16, Warehouse>,
    districts: BTreeMap<DistrictId, Sums>,
    histories: HashSet<String>,
    /// Acknowledged orders: their district, number and unique number.
    ordered: Vec<(DistrictId, u32, u64)>,
    /// Keys of the payments that were acknowledged.
    paid: Vec<String>,
    delivered: u64,
}

fn row<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, String> {
    decode(value).ok_or_else(|| format!("the row {key} cannot be decoded"))
}

/// Returns the district at the front of a key after its first letter, and the rest of the key.
fn district(key: &str) -> Option<(DistrictId, &str)> {
    let (warehouse, rest) = (key.get(1..5)?, key.get(5..)?);
    let id =
        DistrictId { warehouse: warehouse.parse().ok()?, district: rest.get(..2)?.parse().ok()? };
    Some((id, rest.get(2..)?))
}

impl Check {
    /// Records an acknowledged transaction; `done` is the number that it returned.
    pub fn acknowledged(&mut self, transaction: &Transaction, done: i64) {
        match transaction {
            Transaction::NewOrder(order) => {
                let number = u32::try_from(done).unwrap_or(0);
                self.ordered.push((order.district, number, order.unique));
            }
            Transaction::Payment(payment) => self.paid.push(payment.history()),
            Transaction::Delivery(_) => self.delivered += u64::try_from(done).unwrap_or(0),
            Transaction::OrderStatus(_) | Transaction::StockLevel(_) => {}
        }
    }

    /// Takes a row into the check.
    ///
    /// # Errors
    /// Returns what is wrong with a row that is none of the benchmark's.
    pub fn row(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        let foreign = || format!("the row {key} is none of TPC-C's");
        let table = key.chars().next().ok_or_else(foreign)?;
        match table {
            'i' | 't' => return Ok(()),
            'w' => {
                let number = key[1..].parse().map_err(|_| foreign())?;
                self.warehouses.insert(number, row(key, value)?);
                return Ok(());
            }
            _ => {}
        }
        let (id, rest) = district(key).ok_or_else(foreign)?;
        let number = || rest.parse::<u32>().map_err(|_| foreign());
        if table == 'h' {
            let history: History = row(key, value)?;
            self.histories.insert(key.to_owned());
            let paid = &mut self.districts.entry(history.home).or_default().paid_cents;
            *paid.entry(history.customer).or_default() += history.cents;
            self.districts.entry(id).or_default().payments_cents += history.cents;
            return Ok(());
        }
        let sums = self.districts.entry(id).or_default();
        match table {
            'd' => sums.row = Some(row(key, value)?),
            'y' => sums.next_delivery = Some(row(key, value)?),
            'c' => _ = sums.customers.insert(number()?, row(key, value)?),
            'n' | 'x' => {}
            'o' => sums.orders.entry(number()?).or_default().row = Some(row(key, value)?),
            'v' => _ = sums.undelivered.insert(number()?),
            'l' => {
                let line: OrderLine = row(key, value)?;
                let of = rest.get(..7).and_then(|of| of.parse().ok()).ok_or_else(foreign)?;
                let order = sums.orders.entry(of).or_default();
                order.lines += 1;
                order.delivered_lines += u32::from(line.is_delivered);
                order.cents += line.cents;
            }
            _ => return Err(foreign()),
        }
        Ok(())
    }

    /// Returns the conditions that do not hold, with their numbers in clause 3.3.2.
    #[must_use]
    pub fn contradictions(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (number, warehouse) in &self.warehouses {
            let own = self.districts.iter().filter(|(id, _)| id.warehouse == *number);
            let (mut ytd_cents, mut payments_cents) = (0, 0);
            for (_, sums) in own {
                ytd_cents += sums.row.as_ref().map_or(0, |row| row.ytd_cents);
                payments_cents += sums.payments_cents;
            }
            let warehouse_cents = warehouse.ytd_cents;
            if ytd_cents != warehouse_cents {
                found.push(format!(
                    "1: warehouse {number} has {warehouse_cents}, its districts {ytd_cents}"
                ));
            }
            if payments_cents != warehouse_cents {
                found.push(format!(
                    "8: warehouse {number} has {warehouse_cents}, its payments {payments_cents}"
                ));
            }
        }
        for (id, sums) in &self.districts {
            sums.contradictions(*id, &mut found);
        }
        let order = |id: &DistrictId, number: &u32| {
            self.districts.get(id)?.orders.get(number)?.row.as_ref()
        };
        for (id, number, unique) in &self.ordered {
            if order(id, number).is_none_or(|order| order.entry != *unique) {
                found.push(format!("the acknowledged order {} is lost", id.order(*number)));
            }
        }
        let lost = self.paid.iter().filter(|key| !self.histories.contains(*key));
        found.extend(lost.map(|key| format!("the acknowledged payment {key} is lost")));
        let orders = self.districts.values().flat_map(|sums| sums.orders.values());
        let of_start = |of: &&OfOrder| of.row.as_ref().is_some_and(|row| row.carrier.is_some());
        let delivered = orders.filter(of_start).count() as u64;
        if delivered < self.delivered {
            found.push(format!(
                "{} deliveries were acknowledged, {delivered} are there",
                self.delivered
            ));
        }
        let more = found.len().saturating_sub(LISTED_MAX);
        found.truncate(LISTED_MAX);
        if more > 0 {
            found.push(format!("and {more} more"));
        }
        found
    }
}

impl Sums {
    fn contradictions(&self, id: DistrictId, found: &mut Vec<String>) {
        let DistrictId { warehouse, district } = id;
        let mut say = |condition: &str, what: String| {
            found.push(format!("{condition}: warehouse {warehouse}, district {district}: {what}"));
        };
        let Some(row) = &self.row else {
            return say("2", "there is no row of the district".into());
        };
        let last = self.orders.keys().max().copied().unwrap_or(0);
        if row.next_order != last + 1 {
            say("2", format!("the next order is {}, the last one {last}", row.next_order));
        }
        let (least, most) = (self.undelivered.iter().min(), self.undelivered.iter().max());
        if let (Some(least), Some(most)) = (least, most) {
            if *most != last {
                say("2", format!("the last order is {last}, the last undelivered one {most}"));
            }
            if (most - least + 1) as usize != self.undelivered.len() {
                say(
                    "3",
                    format!("{} undelivered orders from {least} to {most}", self.undelivered.len()),
                );
            }
            if self.next_delivery != Some(*least) {
                say(
                    "3",
                    format!(
                        "the next delivery is {:?}, the oldest order {least}",
                        self.next_delivery
                    ),
                );
            }
        }
        if row.ytd_cents != self.payments_cents {
            say(
                "9",
                format!("the district has {}, its payments {}", row.ytd_cents, self.payments_cents),
            );
        }
        let mut delivered_cents: HashMap<u32, i64> = HashMap::new();
        for (number, of) in &self.orders {
            let Some(order) = &of.row else {
                say("6", format!("order {number} has lines and no row"));
                continue;
            };
            if u32::from(order.lines) != of.lines {
                say(
                    "4 and 6",
                    format!("order {number} has {} lines, not {}", of.lines, order.lines),
                );
            }
            let is_delivered = order.carrier.is_some();
            if is_delivered == self.undelivered.contains(number) {
                say("5", format!("order {number}: its carrier is {:?}", order.carrier));
            }
            if of.delivered_lines != if is_delivered { of.lines } else { 0 } {
                say(
                    "7",
                    format!(
                        "order {number}: {} of {} lines are delivered",
                        of.delivered_lines, of.lines
                    ),
                );
            }
            if is_delivered {
                *delivered_cents.entry(order.customer).or_default() += of.cents;
            }
        }
        for (number, customer) in &self.customers {
            let delivered = delivered_cents.get(number).copied().unwrap_or(0);
            let paid = self.paid_cents.get(number).copied().unwrap_or(0);
            if customer.balance_cents != delivered - paid {
                let balance = customer.balance_cents;
                say("10", format!("customer {number} has {balance}, got {delivered}, paid {paid}"));
            }
            if customer.balance_cents + customer.ytd_payment_cents != delivered {
                say("12", format!("customer {number}: balance and payments are not {delivered}"));
            }
        }
    }
}
