//! The distribution of chunks over servers, as a share for each server.
//!
//! Equal shares are the paper's case, at most ⌈m/N⌉ chunks on each of N servers (§3.2). A server
//! with twice the disk has twice the share; a server to be drained has no share; one that was just
//! added has a share and no weights.

use super::PlacementError;

/// A share of the chunks for each server, in any unit. At least one share is positive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shares {
    shares: Vec<u64>,
    total: u128,
}

impl Shares {
    /// Creates the shares of servers `0..shares.len()`, in any unit.
    ///
    /// # Errors
    /// If no server has a share.
    pub fn new(shares: Vec<u64>) -> Result<Self, PlacementError> {
        let total = shares.iter().map(|share| u128::from(*share)).sum();
        if total == 0 {
            return Err(PlacementError::NoShares);
        }
        Ok(Self { shares, total })
    }

    /// Creates the same share for each of `servers` servers.
    ///
    /// # Errors
    /// If there is no server.
    pub fn equal(servers: usize) -> Result<Self, PlacementError> {
        Self::new(vec![1; servers])
    }

    /// Returns the number of servers, with or without a share.
    #[must_use]
    pub fn servers(&self) -> usize {
        self.shares.len()
    }

    /// Returns true if the server with this index has a share, so that chunks may be placed on it.
    ///
    /// # Panics
    /// If there is no such server.
    #[must_use]
    pub fn is_open(&self, server: usize) -> bool {
        self.shares[server] > 0
    }

    /// Returns the largest number of `amount` indivisible items that each server may hold: its
    /// share of them, rounded up.
    #[must_use]
    pub fn caps(&self, amount: u64) -> Vec<u64> {
        let cap = |share: &u64| (u128::from(*share) * u128::from(amount)).div_ceil(self.total);
        // A share is at most the total, so the cap is at most the amount.
        self.shares.iter().map(|share| cap(share) as u64).collect()
    }

    /// Returns the largest ratio of a server's load to its share of the total load: 1 is perfect
    /// balance, infinite means that a server without a share holds something.
    ///
    /// # Panics
    /// If the length of `held` is not the number of servers.
    #[must_use]
    pub fn imbalance(&self, held: &[u64]) -> f64 {
        assert_eq!(held.len(), self.shares.len(), "amounts and shares of different servers");
        let total = held.iter().map(|amount| *amount as f64).sum::<f64>();
        let ratio = |(amount, share): (&u64, &u64)| match *amount {
            0 => 0.0,
            amount => amount as f64 / (*share as f64 / self.total as f64 * total),
        };
        if total == 0.0 {
            1.0
        } else {
            held.iter().zip(&self.shares).map(ratio).fold(0.0, f64::max)
        }
    }

    /// Returns the server selected by `random`, which is uniform over all values, with probability
    /// proportional to the shares.
    pub(super) fn pick(&self, random: u64) -> usize {
        // The high half of the product maps `random` to 0..total. A total of more than 64 bits
        // loses its lowest bits, which is negligible.
        let excess_bits = (128 - self.total.leading_zeros()).saturating_sub(64);
        let scaled = self.total >> excess_bits;
        let mut left = ((u128::from(random) * scaled) >> 64) << excess_bits;
        for (server, share) in self.shares.iter().enumerate() {
            match left.checked_sub(u128::from(*share)) {
                Some(rest) => left = rest,
                None => return server,
            }
        }
        unreachable!("a number below the sum of the shares lies in one of them")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn equal_shares_are_the_papers_caps() {
        assert_eq!(Shares::equal(3).unwrap().caps(10), [4, 4, 4]);
        assert_eq!(Shares::equal(3).unwrap().caps(9), [3, 3, 3]);
    }

    #[test]
    fn no_share_at_all_is_refused() {
        assert_eq!(Shares::new(vec![0, 0]), Err(PlacementError::NoShares));
        assert_eq!(Shares::equal(0), Err(PlacementError::NoShares));
    }

    #[test]
    fn imbalance_is_the_fullest_over_its_share() {
        let shares = Shares::new(vec![1, 3, 0]).unwrap();
        assert!((shares.imbalance(&[25, 75, 0]) - 1.0).abs() < 1e-12);
        assert!((shares.imbalance(&[50, 50, 0]) - 2.0).abs() < 1e-12);
        assert!(shares.imbalance(&[0, 0, 1]).is_infinite());
        assert!((shares.imbalance(&[0, 0, 0]) - 1.0).abs() < 1e-12);
    }

    proptest! {
        #[test]
        fn caps_have_room_for_everything_and_nothing_without_a_share(
            shares in prop::collection::vec(prop_oneof![Just(0), 1..5_u64, any::<u64>()], 1..10),
            amount: u64,
        ) {
            if let Ok(shares) = Shares::new(shares.clone()) {
                let caps = shares.caps(amount);
                let room = caps.iter().map(|cap| u128::from(*cap)).sum::<u128>();
                prop_assert!(room >= u128::from(amount));
                prop_assert!(room < u128::from(amount) + caps.len() as u128);
                for (server, cap) in caps.iter().enumerate() {
                    prop_assert!(shares.is_open(server) || *cap == 0);
                }
            }
        }

        #[test]
        fn a_pick_has_a_share(
            shares in prop::collection::vec(prop_oneof![Just(0), 1..5_u64, any::<u64>()], 1..10),
            random: u64,
        ) {
            if let Ok(shares) = Shares::new(shares) {
                for random in [0, random, u64::MAX] {
                    prop_assert!(shares.is_open(shares.pick(random)));
                }
            }
        }
    }
}
