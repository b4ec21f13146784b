//! The rows of TPC-C at the start (clause 4.3.3).

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::draw::{last_name, name_at_start};
use super::rows::{self, Customer, District, History, Item, Order, OrderLine, Stock, Warehouse};
use super::{DISTRICTS, DistrictId, Parameters};
use crate::procedures::encode;

/// Payment of each customer before the start, in cents.
const OPENING_CENTS: i64 = 1_000;

/// A key with its encoded row.
type Filled = (String, Vec<u8>);

/// Draws a text of this many letters.
fn letters(rng: &mut StdRng, many: usize) -> String {
    (0..many).map(|_| char::from(rng.random_range(b'a'..=b'z'))).collect()
}

/// Draws `I_DATA` or `S_DATA`: 26 to 50 letters, a tenth of which contain `ORIGINAL`.
fn data(rng: &mut StdRng) -> String {
    let many = rng.random_range(26..=50);
    let text = letters(rng, many);
    if rng.random_range(0..10) > 0 {
        return text;
    }
    let at = rng.random_range(0..=many - 8);
    format!("{}ORIGINAL{}", &text[..at], &text[at + 8..])
}

impl Parameters {
    /// Returns all rows at the start, a part at a time, drawn from `seed`.
    pub fn fill(self, seed: u64) -> impl Iterator<Item = Filled> {
        let items = (1..=self.items).map(move |item| {
            let rng = &mut StdRng::seed_from_u64(seed ^ u64::from(item));
            let many = rng.random_range(14..=24);
            let (name, price_cents) = (letters(rng, many), rng.random_range(100..=10_000));
            (rows::item(item), encode(&Item { name, price_cents, data: data(rng) }))
        });
        let districts = (1..=self.warehouses).flat_map(|warehouse| {
            (1..=DISTRICTS).map(move |district| DistrictId { warehouse, district })
        });
        let warehouses = (1..=self.warehouses).flat_map(move |number| self.warehouse(number, seed));
        let districts = districts.flat_map(move |district| self.district_rows(district, seed));
        items.chain(warehouses).chain(districts)
    }

    /// Returns the row of a warehouse, and its stocks.
    fn warehouse(self, number: u16, seed: u64) -> impl Iterator<Item = Filled> {
        let mut rng = StdRng::seed_from_u64(seed ^ (u64::from(number) << 32));
        let row = Warehouse {
            address: letters(&mut rng, 80),
            tax: rng.random_range(0..=2_000),
            ytd_cents: i64::from(DISTRICTS) * i64::from(self.customers) * OPENING_CENTS,
        };
        let stocks = (1..=self.items).map(move |item| {
            let stock = Stock {
                quantity: rng.random_range(10..=100),
                district_infos: letters(&mut rng, 24 * usize::from(DISTRICTS)),
                ytd: 0,
                orders: 0,
                remote_orders: 0,
                data: data(&mut rng),
            };
            (rows::stock(number, item), encode(&stock))
        });
        std::iter::once((rows::warehouse(number), encode(&row))).chain(stocks)
    }

    /// Returns the rows of a district: itself, its customers, their payments, and their orders.
    fn district_rows(self, id: DistrictId, seed: u64) -> Vec<Filled> {
        let place = u64::from(id.warehouse) << 8 | u64::from(id.district);
        let rng = &mut StdRng::seed_from_u64(seed ^ (place << 40));
        let district = District {
            address: letters(rng, 80),
            tax: rng.random_range(0..=2_000),
            ytd_cents: i64::from(self.customers) * OPENING_CENTS,
            next_order: self.customers + 1,
        };
        // 900 of 3,000 orders are not delivered (clause 4.3.3.1).
        let delivered = self.customers * 7 / 10;
        let mut filled =
            vec![(id.row(), encode(&district)), (id.next_delivery(), encode(&(delivered + 1)))];
        self.customers(id, rng, &mut filled);
        let mut buyers: Vec<u32> = (1..=self.customers).collect();
        buyers.shuffle(rng);
        for (number, customer) in (1..).zip(buyers) {
            self.order(id, (number, customer), number <= delivered, rng, &mut filled);
        }
        filled
    }

    fn customers(self, id: DistrictId, rng: &mut StdRng, filled: &mut Vec<Filled>) {
        let mut by_name: BTreeMap<String, Vec<(String, u32)>> = BTreeMap::new();
        for number in 1..=self.customers {
            let last = last_name(if number <= 1_000 { number - 1 } else { name_at_start(rng) });
            let (first_letters, data_letters) =
                (rng.random_range(8..=16), rng.random_range(300..=500));
            let customer = Customer {
                first: letters(rng, first_letters),
                last: last.clone(),
                address: letters(rng, 95),
                has_bad_credit: rng.random_range(0..10) == 0,
                limit_cents: 5_000_000,
                discount: rng.random_range(0..=5_000),
                balance_cents: -OPENING_CENTS,
                ytd_payment_cents: OPENING_CENTS,
                payments: 1,
                deliveries: 0,
                data: letters(rng, data_letters),
            };
            by_name.entry(last).or_default().push((customer.first.clone(), number));
            filled.push((id.customer(number), encode(&customer)));
            let many = rng.random_range(12..=24);
            let history = History {
                home: id,
                customer: number,
                cents: OPENING_CENTS,
                data: letters(rng, many),
            };
            // Numbers of payments of the load are drawn far above these.
            filled.push((id.history(u64::from(number)), encode(&history)));
        }
        for (name, mut of_name) in by_name {
            of_name.sort_unstable();
            let numbers: Vec<u32> = of_name.into_iter().map(|(_, number)| number).collect();
            filled.push((id.last_name(&name), encode(&numbers)));
        }
    }

    fn order(
        self,
        id: DistrictId,
        (number, customer): (u32, u32),
        is_delivered: bool,
        rng: &mut StdRng,
        filled: &mut Vec<Filled>,
    ) {
        let lines = rng.random_range(5..=15);
        let carrier = is_delivered.then(|| rng.random_range(1..=10));
        let order = Order { customer, entry: 0, carrier, lines, is_all_local: true };
        filled.push((id.order(number), encode(&order)));
        filled.push((id.last_order(customer), encode(&number)));
        if !is_delivered {
            filled.push((id.undelivered(number), encode(&())));
        }
        for line in 1..=lines {
            let row = OrderLine {
                item: rng.random_range(1..=self.items),
                supply_warehouse: id.warehouse,
                is_delivered,
                quantity: 5,
                cents: if is_delivered { 0 } else { rng.random_range(1..=999_999) },
                district_info: letters(rng, 24),
            };
            filled.push((id.line(number, line), encode(&row)));
        }
    }
}
