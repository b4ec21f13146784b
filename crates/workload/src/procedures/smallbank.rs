//! SmallBank (Alomari et al., *The Cost of Serializability on Platforms That Use Snapshot Isolation*, ICDE 2008), with
//! the mix of H-Store's benchmark: 15 % Balance, 15 % DepositChecking, 15 % TransactSavings, 15 % WriteCheck, 25 %
//! SendPayment, 15 % Amalgamate. That is the mix of MorphoSys §7.2: 40 % update several rows, 15 % read several, 45 %
//! update one. Customers are drawn uniformly.
//!
//! Rows: `c` and a customer's number in nine digits is the checking account, `s` and the number the savings account,
//! both in cents.
//!
//! Money: the sum of all balances changes by what [`Answer::Done`](super::Answer::Done) reports, and by nothing else.

use rand::RngExt as _;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};

use super::{Access, Answer, Declared, Ended, Kind, Next, Part, Rows, encode};

/// Balance of each account at the start, in cents: the middle of the range from which H-Store draws.
pub const OPENING_CENTS: i64 = 3_000_000;
/// Fee for a check that overdraws the accounts, in cents.
const PENALTY_CENTS: i64 = 100;

/// Parameters of the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Number of customers, each with a checking and a savings account; at least 2.
    pub customers: u32,
}

impl Default for Parameters {
    /// Returns the size of MorphoSys §7.2: a million accounts.
    fn default() -> Self {
        Self { customers: 500_000 }
    }
}

/// A transaction: customers by number, amounts in cents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the benchmark's own names")]
pub enum Transaction {
    Balance { customer: u32 },
    DepositChecking { customer: u32, cents: i64 },
    TransactSavings { customer: u32, cents: i64 },
    WriteCheck { customer: u32, cents: i64 },
    SendPayment { from: u32, to: u32, cents: i64 },
    Amalgamate { from: u32, to: u32 },
}

fn checking(customer: u32) -> String {
    format!("c{customer:09}")
}

fn savings(customer: u32) -> String {
    format!("s{customer:09}")
}

impl Parameters {
    /// Returns the sum of all balances at the start, in cents.
    #[must_use]
    pub fn opening_cents(&self) -> i64 {
        2 * i64::from(self.customers) * OPENING_CENTS
    }

    /// Returns all rows at the start: keys with their encoded values.
    pub fn fill(self) -> impl Iterator<Item = (String, Vec<u8>)> {
        let opening = encode(&OPENING_CENTS);
        let accounts = [checking as fn(u32) -> String, savings];
        accounts.into_iter().flat_map(move |key| {
            let opening = opening.clone();
            (0..self.customers).map(move |customer| (key(customer), opening.clone()))
        })
    }

    /// Draws a transaction.
    pub fn draw(&self, rng: &mut StdRng) -> Transaction {
        let customer = rng.random_range(0..self.customers);
        // Another customer, each with the same probability.
        let other = (customer + rng.random_range(1..self.customers)) % self.customers;
        match rng.random_range(0..100) {
            0..15 => Transaction::Balance { customer },
            15..30 => Transaction::DepositChecking { customer, cents: 130 },
            30..45 => Transaction::TransactSavings { customer, cents: 2_020 },
            45..60 => Transaction::WriteCheck { customer, cents: 500 },
            60..85 => Transaction::SendPayment { from: customer, to: other, cents: 500 },
            _ => Transaction::Amalgamate { from: customer, to: other },
        }
    }
}

impl Transaction {
    pub(super) fn kind(&self) -> Kind {
        match self {
            Self::Balance { .. } => Kind::Balance,
            Self::DepositChecking { .. } => Kind::DepositChecking,
            Self::TransactSavings { .. } => Kind::TransactSavings,
            Self::WriteCheck { .. } => Kind::WriteCheck,
            Self::SendPayment { .. } => Kind::SendPayment,
            Self::Amalgamate { .. } => Kind::Amalgamate,
        }
    }

    pub(super) fn next(&self) -> Next {
        let mut declared = Declared::default();
        match *self {
            Self::Balance { customer } => {
                declared.read(checking(customer));
                declared.read(savings(customer));
            }
            Self::DepositChecking { customer, .. } => declared.writes.push(checking(customer)),
            Self::TransactSavings { customer, .. } => declared.writes.push(savings(customer)),
            Self::WriteCheck { customer, .. } => {
                declared.read(savings(customer));
                declared.writes.push(checking(customer));
            }
            Self::SendPayment { from, to, .. } => {
                declared.writes.extend([checking(from), checking(to)]);
            }
            Self::Amalgamate { from, to } => {
                declared.writes.extend([checking(from), savings(from), checking(to)]);
            }
        }
        Next::Run(declared)
    }

    /// Returns the change of the sum of all balances, in cents; for Balance, the customer's balance.
    pub(super) fn run<R: Rows>(&self, rows: &mut Access<'_, R>) -> Part<i64, R> {
        match *self {
            Self::Balance { customer } => {
                Ok(rows.get::<i64>(&checking(customer))? + rows.get::<i64>(&savings(customer))?)
            }
            Self::DepositChecking { customer, cents } => add(rows, &checking(customer), cents),
            Self::TransactSavings { customer, cents } => add(rows, &savings(customer), cents),
            Self::WriteCheck { customer, cents } => {
                let all =
                    rows.get::<i64>(&checking(customer))? + rows.get::<i64>(&savings(customer))?;
                let cents = if all < cents { cents + PENALTY_CENTS } else { cents };
                add(rows, &checking(customer), -cents)
            }
            Self::SendPayment { from, to, cents } => {
                let (payer, payee): (i64, i64) =
                    (rows.get(&checking(from))?, rows.get(&checking(to))?);
                if payer < cents {
                    return Err(Ended::With(Answer::RolledBack));
                }
                rows.put(&checking(from), &(payer - cents))?;
                rows.put(&checking(to), &(payee + cents))?;
                Ok(0)
            }
            Self::Amalgamate { from, to } => {
                let all = rows.get::<i64>(&checking(from))? + rows.get::<i64>(&savings(from))?;
                add(rows, &checking(to), all)?;
                rows.put(&checking(from), &0_i64)?;
                rows.put(&savings(from), &0_i64)?;
                Ok(0)
            }
        }
    }
}

/// Adds an amount to a balance, and returns the amount.
fn add<R: Rows>(rows: &mut Access<'_, R>, key: &str, cents: i64) -> Part<i64, R> {
    let before: i64 = rows.get(key)?;
    rows.put(key, &(before + cents))?;
    Ok(cents)
}

/// The check of the money after a load.
#[derive(Clone, Debug, Default)]
pub struct Check {
    accounts: u64,
    cents: i64,
    /// Sum of all balances before the load, in cents; `None` for that of the start.
    opening_cents: Option<i64>,
    /// Sum of the changes that clients saw acknowledged, in cents.
    acknowledged_cents: i64,
    /// Sums of the negative and of the positive changes whose outcome is unknown, in cents.
    unknown_cents: (i64, i64),
}

impl Check {
    /// Sets the sum of all balances before the load to that of the rows that `opening` has taken.
    pub fn begin_after(&mut self, opening: &Self) {
        self.opening_cents = Some(opening.cents);
    }

    /// Records an acknowledged transaction.
    pub fn acknowledged(&mut self, transaction: &Transaction, done: i64) {
        if !matches!(transaction, Transaction::Balance { .. }) {
            self.acknowledged_cents += done;
        }
    }

    /// Records a transaction whose outcome is unknown.
    pub fn unknown(&mut self, transaction: &Transaction) {
        match *transaction {
            Transaction::DepositChecking { cents, .. }
            | Transaction::TransactSavings { cents, .. } => {
                self.unknown_cents.1 += cents;
            }
            Transaction::WriteCheck { cents, .. } => self.unknown_cents.0 -= cents + PENALTY_CENTS,
            _ => {}
        }
    }

    /// Takes a row of the store into the check. Returns the contradiction if it is none of the benchmark's rows.
    ///
    /// # Errors
    /// Returns the key of a row that is no account.
    pub fn row(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        let is_account = key.starts_with('c') || key.starts_with('s');
        let Some(cents) = super::decode::<i64>(value).filter(|_| is_account) else {
            return Err(format!("{key} is no account"));
        };
        self.accounts += 1;
        self.cents += cents;
        Ok(())
    }

    /// Returns the contradictions between the rows and the acknowledged transactions.
    #[must_use]
    pub fn contradictions(&self, parameters: &Parameters) -> Vec<String> {
        let mut found = Vec::new();
        if self.accounts != 2 * u64::from(parameters.customers) {
            found.push(format!("{} accounts, not {}", self.accounts, 2 * parameters.customers));
        }
        let opening = self.opening_cents.unwrap_or_else(|| parameters.opening_cents());
        let expected = opening + self.acknowledged_cents;
        let (less, more) = self.unknown_cents;
        if !(expected + less..=expected + more).contains(&self.cents) {
            found.push(format!(
                "all accounts have {} cents; the acknowledged transactions leave {expected} \
                 (those of unknown outcome change it by {less} to {more})",
                self.cents
            ));
        }
        found
    }
}
