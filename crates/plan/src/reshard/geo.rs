//! Chooses the member of each replica set that takes part in the bulk transfer, so that the
//! transfer stays within data centres (Morphus, §4.2).
//!
//! Members are tagged with their data centre. In Imago the chosen member is only read from, and its
//! documents are written to primaries: the choice for a set then affects the flows of that set
//! alone, and the result is optimal. In Morphus the chosen members exchange data with one another,
//! so the choices depend on each other. If all sets have a member in one data centre, nothing
//! crosses. Otherwise a local search starts from several initial choices and changes one set's
//! member at a time until no single change improves the result. This is a local optimum: the
//! general problem is a multiway cut, which is NP-hard for three or more data centres.
//!
//! Among choices with equal crossing traffic, a secondary is preferred to a primary, because the
//! primary serves clients, and a member in the data centre of its primary is preferred to one
//! elsewhere: after Morphus' election the voting majority is where it was.
//!
//! Invariant: the reported crossing traffic is that of the chosen members, and never more than if
//! each set took its first usable secondary.

use crate::reshard::placement::Flows;

/// A member of a replica set, as a candidate for the bulk transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Data centre that the member's tag names. All members without a tag (`None`) count as one further data centre.
    pub data_centre: Option<String>,
    /// True if the member is the primary of its replica set.
    pub primary: bool,
    /// True if the member can be read from: it is up, its replication lag is small, and it holds
    /// data.
    pub usable: bool,
}

/// The members to which the bulk transfer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receivers {
    /// The primary of the new chunk's replica set (Imago).
    Primaries,
    /// The chosen member of the new chunk's replica set (Morphus).
    Chosen,
}

/// The chosen members, and the traffic that they send between data centres.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Index of the chosen member within its replica set, for each replica set.
    pub members: Vec<usize>,
    /// Flows that cross between data centres, as (from set, to set, amount), in the unit of the
    /// given flows.
    pub crossing: Vec<(usize, usize, u64)>,
}

impl Choice {
    /// Returns the total amount that crosses between data centres, in the unit of the flows. Callers warn if it is not
    /// zero.
    #[must_use]
    pub fn across(&self) -> u64 {
        self.crossing.iter().map(|(_, _, amount)| amount).sum()
    }
}

/// The reason why the members of a bulk transfer cannot be chosen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeoError {
    /// A replica set has no usable member.
    #[error("replica set {set} has no usable member: bring one up, or let a lagging one catch up")]
    NoMember {
        /// Index of the replica set without a usable member.
        set: usize,
    },
    /// A replica set that receives data has no primary.
    #[error("replica set {set} has no primary: wait for its election")]
    NoPrimary {
        /// Index of the replica set without a primary.
        set: usize,
    },
    /// The flows and the replica sets differ in number.
    #[error("flows between {flows} servers, but there are {sets} replica sets")]
    Mismatch {
        /// Number of servers between which the flows are.
        flows: usize,
        /// Number of replica sets.
        sets: usize,
    },
}

/// Chooses a member of each replica set for the bulk transfer of the given flows between the sets.
///
/// # Errors
/// If a set has no usable member, if a set that receives data has no primary, or if the number of
/// servers in `flows` is not the number of sets.
pub fn choose(
    sets: &[Vec<Member>],
    flows: &Flows,
    receivers: Receivers,
) -> Result<Choice, GeoError> {
    if flows.servers() != sets.len() {
        return Err(GeoError::Mismatch { flows: flows.servers(), sets: sets.len() });
    }
    let first = first_choice(sets)?;
    let problem = Problem { sets, flows, receivers };
    if receivers == Receivers::Primaries {
        problem.all_have_primaries()?;
    }
    let mut starts: Vec<Vec<usize>> =
        centres(sets).into_iter().map(|centre| problem.gathered(&first, centre)).collect();
    starts.push(first);
    let improved = starts.into_iter().map(|members| problem.improve(members));
    let members = improved.min_by_key(|members| problem.cost(members)).unwrap_or_default();
    let crossing = problem.crossing(&members).collect();
    Ok(Choice { members, crossing })
}

/// Returns the first usable secondary of each set, or its primary if no secondary is usable.
fn first_choice(sets: &[Vec<Member>]) -> Result<Vec<usize>, GeoError> {
    let of_set = |(set, members): (usize, &Vec<Member>)| {
        let usable = (0..members.len()).filter(|member| members[*member].usable);
        usable.min_by_key(|member| members[*member].primary).ok_or(GeoError::NoMember { set })
    };
    sets.iter().enumerate().map(of_set).collect()
}

fn centres(sets: &[Vec<Member>]) -> Vec<Option<&str>> {
    let mut centres: Vec<Option<&str>> = sets.iter().flatten().map(centre).collect();
    centres.sort_unstable();
    centres.dedup();
    centres
}

fn centre(member: &Member) -> Option<&str> {
    member.data_centre.as_deref()
}

struct Problem<'a> {
    sets: &'a [Vec<Member>],
    flows: &'a Flows,
    receivers: Receivers,
}

impl<'a> Problem<'a> {
    fn primary(&self, set: usize) -> Option<&'a Member> {
        self.sets[set].iter().find(|member| member.primary)
    }

    fn all_have_primaries(&self) -> Result<(), GeoError> {
        let mut targets = self.flows.iter().map(|(_, to, _)| to);
        match targets.find(|to| self.primary(*to).is_none()) {
            Some(set) => Err(GeoError::NoPrimary { set }),
            None => Ok(()),
        }
    }

    /// Returns the data centre of the member that receives the data of the set with this index, if `members` are
    /// chosen; `None` if that member has no tag.
    fn receiving(&self, set: usize, members: &[usize]) -> Option<&'a str> {
        match self.receivers {
            Receivers::Primaries => self.primary(set).and_then(centre),
            Receivers::Chosen => centre(&self.sets[set][members[set]]),
        }
    }

    fn crossing<'b>(
        &'b self,
        members: &'b [usize],
    ) -> impl Iterator<Item = (usize, usize, u64)> + use<'b, 'a> {
        self.flows.iter().filter(move |(from, to, _)| {
            centre(&self.sets[*from][members[*from]]) != self.receiving(*to, members)
        })
    }

    /// Returns the cost of a choice, compared in this order: amount that crosses data centres,
    /// number of chosen primaries, number of chosen members outside the data centre of their
    /// primary.
    fn cost(&self, members: &[usize]) -> (u64, usize, usize) {
        let across = self.crossing(members).map(|(_, _, amount)| amount).sum();
        let chosen = || self.sets.iter().zip(members).map(|(set, member)| &set[*member]);
        let primaries = chosen().filter(|member| member.primary).count();
        let away = chosen().enumerate().filter(|(set, member)| {
            self.primary(*set).is_some_and(|primary| centre(primary) != centre(member))
        });
        (across, primaries, away.count())
    }

    /// Returns for each set a usable member in the data centre `to`, or the member in `first` if
    /// the set has none there.
    fn gathered(&self, first: &[usize], to: Option<&str>) -> Vec<usize> {
        let of_set = |(set, first): (&Vec<Member>, &usize)| {
            let there = |member: &usize| set[*member].usable && centre(&set[*member]) == to;
            let there = (0..set.len()).filter(there);
            there.min_by_key(|member| set[*member].primary).unwrap_or(*first)
        };
        self.sets.iter().zip(first).map(of_set).collect()
    }

    /// Improves a choice by changing one set's member at a time for as long as the cost decreases.
    /// The search terminates because the cost is a tuple of non-negative integers that decreases
    /// with each change.
    fn improve(&self, mut members: Vec<usize>) -> Vec<usize> {
        let mut cost = self.cost(&members);
        loop {
            let before = cost;
            for set in 0..self.sets.len() {
                for member in 0..self.sets[set].len() {
                    let usable = self.sets[set][member].usable;
                    let old = std::mem::replace(&mut members[set], member);
                    let new_cost = self.cost(&members);
                    if usable && new_cost < cost {
                        cost = new_cost;
                    } else {
                        members[set] = old;
                    }
                }
            }
            if cost == before {
                return members;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reshard::placement::{Shares, Weights, balanced, capped};
    use proptest::prelude::*;

    fn member(data_centre: &str, primary: bool) -> Member {
        Member { data_centre: Some(data_centre.to_owned()), primary, usable: true }
    }

    /// Flows between three sets, each to each.
    fn flows(servers: usize) -> Flows {
        let rows: Vec<Vec<u64>> = (0..servers).map(|_| vec![10; servers]).collect();
        let weights = Weights::dense(servers, &rows).unwrap();
        balanced(&weights, &Shares::equal(servers).unwrap()).unwrap().flows
    }

    /// The setting of Table 2: two data centres with six and three servers.
    fn table_2() -> Vec<Vec<Member>> {
        vec![vec![member("b", false), member("a", true), member("a", false)]; 3]
    }

    #[test]
    fn the_papers_setting_stays_in_one_data_centre() {
        for receivers in [Receivers::Primaries, Receivers::Chosen] {
            let choice = choose(&table_2(), &flows(3), receivers).unwrap();
            assert_eq!((choice.members.as_slice(), choice.across()), ([2, 2, 2].as_slice(), 0));
        }
    }

    #[test]
    fn what_cannot_stay_is_said() {
        let mut sets = table_2();
        sets[1] = vec![member("c", true), member("c", false)];
        let choice = choose(&sets, &flows(3), Receivers::Chosen).unwrap();
        assert_eq!(choice.members[1], 1);
        // Each set sends 10 to each other: what the one elsewhere sends and gets has to cross.
        assert_eq!(choice.across(), 40);
    }

    #[test]
    fn a_set_without_a_usable_member_is_refused() {
        let mut sets = table_2();
        sets[1].iter_mut().for_each(|member| member.usable = false);
        let refused = choose(&sets, &flows(3), Receivers::Chosen);
        assert_eq!(refused, Err(GeoError::NoMember { set: 1 }));
        let refused = choose(&sets[..2], &flows(3), Receivers::Chosen);
        assert_eq!(refused, Err(GeoError::Mismatch { flows: 3, sets: 2 }));
    }

    #[test]
    fn a_set_without_a_primary_cannot_be_written_to() {
        let mut sets = table_2();
        sets[2][1].primary = false;
        let refused = choose(&sets, &flows(3), Receivers::Primaries);
        assert_eq!(refused, Err(GeoError::NoPrimary { set: 2 }));
        assert!(choose(&sets, &flows(3), Receivers::Chosen).is_ok());
    }

    fn some_sets() -> impl Strategy<Value = (Vec<Vec<Member>>, Flows)> {
        let set = (prop::collection::vec((0..3_u8, prop::bool::weighted(0.8)), 1..4), 0..3_usize);
        prop::collection::vec((set, prop::collection::vec(0..100_u64, 5)), 1..6).prop_map(|sets| {
            let (sets, rows): (Vec<_>, Vec<_>) = sets.into_iter().unzip();
            let make = |(members, primary): (Vec<(u8, bool)>, usize)| {
                let primary = primary % members.len();
                let member = |(at, (tag, usable)): (usize, (u8, bool))| Member {
                    data_centre: (tag > 0).then(|| tag.to_string()),
                    primary: at == primary,
                    usable: usable || at == primary,
                };
                members.into_iter().enumerate().map(member).collect()
            };
            let sets: Vec<Vec<Member>> = sets.into_iter().map(make).collect();
            let rows: Vec<Vec<u64>> =
                rows.into_iter().map(|row| row[..sets.len()].to_vec()).collect();
            let weights = Weights::dense(sets.len(), &rows).unwrap();
            let flows = capped(&weights, &vec![1; sets.len()]).unwrap().flows;
            (sets, flows)
        })
    }

    /// The least that crosses, by trying all members.
    fn least(problem: &Problem<'_>, members: &mut Vec<usize>) -> u64 {
        let set = members.len();
        if set == problem.sets.len() {
            return problem.cost(members).0;
        }
        let mut best = u64::MAX;
        for member in (0..problem.sets[set].len()).filter(|m| problem.sets[set][*m].usable) {
            members.push(member);
            best = best.min(least(problem, members));
            members.pop();
        }
        best
    }

    proptest! {
        #[test]
        fn what_primaries_get_crosses_as_little_as_possible((sets, flows) in some_sets()) {
            let choice = choose(&sets, &flows, Receivers::Primaries).unwrap();
            let problem = Problem { sets: &sets, flows: &flows, receivers: Receivers::Primaries };
            prop_assert_eq!(choice.across(), least(&problem, &mut Vec::new()));
        }

        #[test]
        fn nothing_crosses_if_nothing_need_cross((sets, flows) in some_sets()) {
            let choice = choose(&sets, &flows, Receivers::Chosen).unwrap();
            let usable = |set: &Vec<Member>, of: &Option<String>| {
                set.iter().any(|member| member.usable && member.data_centre == *of)
            };
            let centres: Vec<Option<String>> = sets[0].iter().map(|m| m.data_centre.clone()).collect();
            if centres.iter().any(|of| sets.iter().all(|set| usable(set, of))) {
                prop_assert_eq!(choice.across(), 0);
            }
        }

        #[test]
        fn a_chosen_member_is_usable_and_tags_never_make_it_worse((sets, flows) in some_sets()) {
            let problem = Problem { sets: &sets, flows: &flows, receivers: Receivers::Chosen };
            let choice = choose(&sets, &flows, Receivers::Chosen).unwrap();
            for (set, member) in sets.iter().zip(&choice.members) {
                prop_assert!(set[*member].usable);
            }
            prop_assert_eq!(choice.across(), problem.cost(&choice.members).0);
            prop_assert!(choice.across() <= problem.cost(&first_choice(&sets).unwrap()).0);
            prop_assert!(choice.across() >= least(&problem, &mut Vec::new()));
        }
    }
}
