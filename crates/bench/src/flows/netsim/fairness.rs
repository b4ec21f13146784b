//! Weighted max-min fair rates of connections that share links.
//!
//! Water-filling (Bertsekas and Gallager, *Data Networks*, §6.5.2): all rates rise together, each
//! in proportion to its weight, until a connection reaches its cap or a link is full. The rates of
//! the connections concerned stop there, and the others continue to rise.
//!
//! Invariant, and definition: no link carries more than its capacity, and every connection below
//! its cap uses a full link on which no other has a larger rate per weight.

/// A connection as seen by the fair sharing of links.
#[derive(Clone, Debug, PartialEq)]
pub struct User {
    /// Indices of the links that the connection uses, each once.
    pub links: Vec<usize>,
    /// Weight of the connection: its part of a shared capacity, relative to that of others.
    pub weight: f64,
    /// Largest rate of the connection, in the unit of the links' capacities.
    pub cap: f64,
}

/// Returns the rate of each user, in the unit of the links' `capacities`, which are positive.
#[must_use]
pub fn fair_rates(capacities: &[f64], users: &[&User]) -> Vec<f64> {
    let mut links: Vec<Link> = capacities.iter().map(|free| Link::idle(*free)).collect();
    for (at, user) in users.iter().enumerate() {
        for link in &user.links {
            links[*link].weight += user.weight;
            links[*link].users.push(at);
            links[*link].rising += 1;
        }
    }
    // A level is a rate per unit of weight.
    let cap_level = |at: usize| users[at].cap / users[at].weight;
    let mut by_cap: Vec<usize> = (0..users.len()).collect();
    by_cap.sort_by(|a, b| cap_level(*a).total_cmp(&cap_level(*b)));
    let mut by_cap = by_cap.into_iter().peekable();
    let mut rates = vec![None; users.len()];
    let mut stop = |at: usize, level: f64, links: &mut [Link]| {
        if rates[at].is_none() {
            let rate = (level * users[at].weight).min(users[at].cap);
            rates[at] = Some(rate);
            users[at].links.iter().for_each(|link| links[*link].stop(rate, users[at].weight));
        }
    };
    loop {
        let used = (0..links.len()).filter(|link| links[*link].rising > 0);
        let full = used.min_by(|a, b| links[*a].level().total_cmp(&links[*b].level()));
        let level = full.map_or(f64::INFINITY, |link| links[link].level());
        // A user that stops below the level leaves each of its links more than it would have had at
        // the level, so no link is full at a lower level than before.
        let mut capped = false;
        while let Some(at) = by_cap.next_if(|at| cap_level(*at) <= level) {
            stop(at, cap_level(at), &mut links);
            capped = true;
        }
        match full {
            _ if capped => {}
            Some(link) => {
                let stopping = std::mem::take(&mut links[link].users);
                stopping.into_iter().for_each(|at| stop(at, level, &mut links));
            }
            None => break,
        }
    }
    rates.into_iter().flatten().collect()
}

struct Link {
    /// Capacity that the stopped connections leave free.
    free: f64,
    /// Indices of all users of the link, until it is full.
    users: Vec<usize>,
    /// Number of users whose rates still rise.
    rising: usize,
    /// Total weight of the users whose rates still rise.
    weight: f64,
}

impl Link {
    fn idle(free: f64) -> Self {
        Self { free, users: Vec::new(), rising: 0, weight: 0.0 }
    }

    /// Returns the level at which the link is full.
    fn level(&self) -> f64 {
        self.free.max(0.0) / self.weight.max(f64::MIN_POSITIVE)
    }

    fn stop(&mut self, rate: f64, weight: f64) {
        self.free -= rate;
        self.weight -= weight;
        self.rising -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn user(links: &[usize], weight: f64, cap: f64) -> User {
        User { links: links.to_vec(), weight, cap }
    }

    fn rates(capacities: &[f64], users: &[User]) -> Vec<f64> {
        fair_rates(capacities, &users.iter().collect::<Vec<_>>())
    }

    fn close(rates: &[f64], expected: &[f64]) {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9 * b.max(1.0);
        assert!(rates.iter().zip(expected).all(near), "{rates:?}, not {expected:?}");
    }

    #[test]
    fn the_textbooks_line_of_links_is_shared_as_the_textbook_says() {
        // One long connection over three links, others on one or two of them.
        let free = f64::INFINITY;
        let users = [
            user(&[0, 1, 2], 1.0, free),
            user(&[0], 1.0, free),
            user(&[0], 1.0, free),
            user(&[1, 2], 1.0, free),
        ];
        let third = 1.0 / 3.0;
        close(&rates(&[1.0, 1.0, 2.0], &users), &[third, third, third, 2.0 * third]);
    }

    #[test]
    fn what_a_capped_one_leaves_goes_to_the_others_by_weight() {
        let users =
            [user(&[0], 1.0, 1.0), user(&[0], 1.0, f64::INFINITY), user(&[0], 2.0, f64::INFINITY)];
        close(&rates(&[10.0], &users), &[1.0, 3.0, 6.0]);
    }

    fn cases() -> impl Strategy<Value = (Vec<f64>, Vec<User>)> {
        let capacities = prop::collection::vec(1_u32..100, 4);
        let one = (prop::collection::btree_set(0_usize..4, 1..4), 1_u32..9, 1_u32..60);
        (capacities, prop::collection::vec(one, 1..12)).prop_map(|(capacities, users)| {
            let make = |(links, weight, cap): (std::collections::BTreeSet<usize>, u32, u32)| User {
                links: links.into_iter().collect(),
                weight: f64::from(weight),
                cap: f64::from(cap),
            };
            let users = users.into_iter().map(make).collect();
            (capacities.into_iter().map(f64::from).collect(), users)
        })
    }

    proptest! {
        #[test]
        fn everyone_is_capped_or_first_on_a_full_link((capacities, users) in cases()) {
            let rates = rates(&capacities, &users);
            prop_assert_eq!(rates.len(), users.len());
            let on = |link: usize| {
                let users = users.iter().zip(&rates);
                users.filter(move |(user, _)| user.links.contains(&link))
            };
            let full = |link: usize| {
                on(link).map(|(_, rate)| rate).sum::<f64>() > capacities[link] - 1e-6
            };
            for (link, capacity) in capacities.iter().enumerate() {
                prop_assert!(on(link).map(|(_, rate)| rate).sum::<f64>() < capacity + 1e-6);
            }
            for (user, rate) in users.iter().zip(&rates) {
                let first = |link: &usize| {
                    on(*link).all(|(other, theirs)| theirs / other.weight < rate / user.weight + 1e-6)
                };
                let bottleneck = user.links.iter().any(|link| full(*link) && first(link));
                prop_assert!(*rate > 0.0 && (*rate > user.cap - 1e-6 || bottleneck));
            }
        }
    }
}
