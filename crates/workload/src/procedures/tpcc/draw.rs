//! The random inputs of TPC-C's transactions (clauses 2.1.6, 2.4.1, 2.5.1, 2.6.1, 2.7.1 and 2.8.1).

use rand::RngExt as _;
use rand::rngs::StdRng;

use super::new_order::Line;
use super::{
    DISTRICTS, Delivery, DistrictId, Mix, NewOrder, OrderStatus, Parameters, Payment, StockLevel,
    Transaction, Who,
};

/// The syllables of last names (clause 4.3.2.3).
const SYLLABLES: [&str; 10] =
    ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"];
/// The constants C of the function NURand, while the rows are made and while the load runs: for last names they must
/// differ by 65 to 119, not by 96 or 112 (clause 2.1.6.1).
const C_FILL: u32 = 33;
const C_RUN: u32 = 133;

/// Returns the last name with a number from 0 to 999.
pub(super) fn last_name(number: u32) -> String {
    [number / 100, number / 10 % 10, number % 10].map(|at| SYLLABLES[at as usize]).concat()
}

/// Draws a number from `from` to `to`, some of which are drawn more often (the function NURand of clause 2.1.6).
fn uneven(rng: &mut StdRng, a: u32, c: u32, from: u32, to: u32) -> u32 {
    let mixed = rng.random_range(0..=a) | rng.random_range(from..=to);
    (mixed + c) % (to - from + 1) + from
}

/// Number of different last names among so many customers of a district.
fn names(customers: u32) -> u32 {
    customers.min(1_000)
}

/// Draws the number of a last name for a customer of the start beyond the first thousand.
pub(super) fn name_at_start(rng: &mut StdRng) -> u32 {
    uneven(rng, 255, C_FILL, 0, 999)
}

impl Parameters {
    /// Draws a transaction; `unique` is a number that no other transaction of the load has, and not 0.
    pub fn draw(&self, rng: &mut StdRng, unique: u64) -> Transaction {
        let of_hundred = rng.random_range(0..100);
        match self.mix {
            Mix::Three => match of_hundred {
                0..45 => self.new_order(rng, unique),
                45..90 => self.payment(rng, unique),
                _ => self.stock_level(rng),
            },
            Mix::Five => match of_hundred {
                0..45 => self.new_order(rng, unique),
                45..88 => self.payment(rng, unique),
                88..92 => self.order_status(rng),
                92..96 => self.delivery(rng),
                _ => self.stock_level(rng),
            },
        }
    }

    fn district(&self, rng: &mut StdRng) -> DistrictId {
        let warehouse = rng.random_range(1..=self.warehouses);
        DistrictId { warehouse, district: rng.random_range(1..=DISTRICTS) }
    }

    /// Draws another warehouse than this one; the same if there is only one.
    fn other_warehouse(&self, rng: &mut StdRng, than: u16) -> u16 {
        match self.warehouses {
            1 => than,
            all => (than - 1 + rng.random_range(1..all)) % all + 1,
        }
    }

    fn customer(&self, rng: &mut StdRng) -> u32 {
        uneven(rng, 1_023, C_RUN, 1, self.customers)
    }

    /// Draws a customer, 60 % by last name.
    fn who(&self, rng: &mut StdRng) -> Who {
        if rng.random_range(0..100) < 60 {
            Who::LastName(last_name(uneven(rng, 255, C_RUN, 0, names(self.customers) - 1)))
        } else {
            Who::Number(self.customer(rng))
        }
    }

    fn new_order(&self, rng: &mut StdRng, unique: u64) -> Transaction {
        let district = self.district(rng);
        let customer = self.customer(rng);
        let count: usize = rng.random_range(5..=15);
        let crosses = self.cross_warehouse.map(|share| rng.random::<f64>() < share);
        let mut lines: Vec<Line> = (0..count)
            .map(|at| {
                let is_remote = match crosses {
                    // One line of the order is enough to make it a cross-warehouse transaction.
                    Some(crosses) => crosses && at == 0,
                    None => rng.random_range(0..100) == 0,
                };
                let own = district.warehouse;
                Line {
                    item: uneven(rng, 8_191, C_RUN, 1, self.items),
                    supply_warehouse: if is_remote { self.other_warehouse(rng, own) } else { own },
                    quantity: rng.random_range(1..=10),
                }
            })
            .collect();
        if rng.random_range(0..100) == 0
            && let Some(last) = lines.last_mut()
        {
            last.item = self.items + 1;
        }
        Transaction::NewOrder(NewOrder { district, customer, lines, unique, first_number: 0 })
    }

    fn payment(&self, rng: &mut StdRng, unique: u64) -> Transaction {
        let at = self.district(rng);
        let crosses = match self.cross_warehouse {
            Some(share) => rng.random::<f64>() < share,
            None => rng.random_range(0..100) < 15,
        };
        let home = if crosses {
            let warehouse = self.other_warehouse(rng, at.warehouse);
            DistrictId { warehouse, district: rng.random_range(1..=DISTRICTS) }
        } else {
            at
        };
        let (who, cents) = (self.who(rng), rng.random_range(100..=500_000));
        Transaction::Payment(Payment { at, home, who, cents, unique })
    }

    fn order_status(&self, rng: &mut StdRng) -> Transaction {
        Transaction::OrderStatus(OrderStatus {
            district: self.district(rng),
            who: self.who(rng),
            number: 0,
        })
    }

    fn delivery(&self, rng: &mut StdRng) -> Transaction {
        let (warehouse, carrier) =
            (rng.random_range(1..=self.warehouses), rng.random_range(1..=10));
        Transaction::Delivery(Delivery { warehouse, carrier, orders: Vec::new() })
    }

    fn stock_level(&self, rng: &mut StdRng) -> Transaction {
        let (district, threshold) = (self.district(rng), rng.random_range(10..=20));
        Transaction::StockLevel(StockLevel { district, threshold, orders: (0, 0) })
    }
}
