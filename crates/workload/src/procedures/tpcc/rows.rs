//! The rows of TPC-C and their keys (clause 1.3). Amounts are in cents, taxes and discounts in hundredths of a percent.

use serde::{Deserialize, Serialize};

use super::DistrictId;

/// WAREHOUSE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warehouse {
    /// Name, street, city, state and code: `W_NAME` to `W_ZIP`.
    pub address: String,
    pub tax: u16,
    pub ytd_cents: i64,
}

/// DISTRICT.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct District {
    /// Name, street, city, state and code: `D_NAME` to `D_ZIP`.
    pub address: String,
    pub tax: u16,
    pub ytd_cents: i64,
    /// `D_NEXT_O_ID`.
    pub next_order: u32,
}

/// CUSTOMER.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Customer {
    pub first: String,
    pub last: String,
    /// Street, city, state, code and telephone: `C_STREET_1` to `C_PHONE`.
    pub address: String,
    /// `C_CREDIT`: true for `BC`.
    pub has_bad_credit: bool,
    pub limit_cents: i64,
    pub discount: u16,
    pub balance_cents: i64,
    pub ytd_payment_cents: i64,
    pub payments: u32,
    pub deliveries: u32,
    pub data: String,
}

/// HISTORY: a payment. Its district is that of the payment, in its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    pub home: DistrictId,
    pub customer: u32,
    pub cents: i64,
    pub data: String,
}

/// ORDER.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub customer: u32,
    /// The unique number of the New-Order that made the order; 0 for an order of the start. It takes the place of
    /// `O_ENTRY_D`.
    pub entry: u64,
    pub carrier: Option<u8>,
    pub lines: u8,
    pub is_all_local: bool,
}

/// ORDER-LINE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderLine {
    pub item: u32,
    pub supply_warehouse: u16,
    /// `OL_DELIVERY_D` is set.
    pub is_delivered: bool,
    pub quantity: u8,
    pub cents: i64,
    pub district_info: String,
}

/// ITEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    pub name: String,
    pub price_cents: i64,
    pub data: String,
}

/// STOCK.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stock {
    pub quantity: i32,
    /// `S_DIST_01` to `S_DIST_10`, 24 letters each.
    pub district_infos: String,
    pub ytd: u64,
    pub orders: u32,
    pub remote_orders: u32,
    pub data: String,
}

pub fn warehouse(warehouse: u16) -> String {
    format!("w{warehouse:04}")
}

impl DistrictId {
    fn key(self, table: char) -> String {
        format!("{table}{:04}{:02}", self.warehouse, self.district)
    }

    pub(super) fn row(self) -> String {
        self.key('d')
    }

    pub(super) fn next_delivery(self) -> String {
        self.key('y')
    }

    pub(super) fn customer(self, customer: u32) -> String {
        format!("{}{customer:05}", self.key('c'))
    }

    pub(super) fn last_name(self, name: &str) -> String {
        format!("{}{name}", self.key('n'))
    }

    pub(super) fn last_order(self, customer: u32) -> String {
        format!("{}{customer:05}", self.key('x'))
    }

    pub(super) fn history(self, unique: u64) -> String {
        format!("{}{unique:016x}", self.key('h'))
    }

    pub(super) fn order(self, order: u32) -> String {
        format!("{}{order:07}", self.key('o'))
    }

    pub(super) fn undelivered(self, order: u32) -> String {
        format!("{}{order:07}", self.key('v'))
    }

    /// Returns the key of a line, from 1 on. Line 0 is the start of the order's lines.
    pub(super) fn line(self, order: u32, line: u8) -> String {
        format!("{}{order:07}{line:02}", self.key('l'))
    }
}

pub fn item(item: u32) -> String {
    format!("i{item:06}")
}

pub fn stock(warehouse: u16, item: u32) -> String {
    format!("t{warehouse:04}{item:06}")
}
