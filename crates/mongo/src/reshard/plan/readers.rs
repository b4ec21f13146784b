//! Choice of the member of each shard from which the bulk is read, so that the movement stays within data centres
//! (Morphus, §4.2; [`imago_plan::reshard::geo`]).

use imago_plan::reshard::geo::{self, Receivers};
use imago_plan::reshard::placement::Flows;

use crate::reshard::plan::shard_probe::ShardReport;

/// The chosen member of each shard, and the flows that cross between data centres with that choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::reshard) struct Readers {
    /// Chosen member of each shard, as `host:port`; `None` if no choice was made.
    pub(in crate::reshard) hosts: Vec<Option<String>>,
    /// The flows that cross between data centres, as (index of the sending shard, index of the receiving one, bytes).
    pub(in crate::reshard) crossing: Vec<(usize, usize, u64)>,
}

/// Chooses the member of each shard from which to read, for these flows between the shards. If the members of one
/// shard are unknown, none is chosen: the best member of a shard depends on where the primaries of the others are.
pub(in crate::reshard) fn choose(
    reached: &[Result<ShardReport, String>],
    flows: &Flows,
) -> Readers {
    let none = || Readers { hosts: vec![None; reached.len()], crossing: Vec::new() };
    let known = |reached: &Result<ShardReport, String>| {
        let members = &reached.as_ref().ok()?.members;
        Some(members.iter().map(|member| member.what.clone()).collect())
    };
    let Some(sets) = reached.iter().map(known).collect::<Option<Vec<Vec<geo::Member>>>>() else {
        return none();
    };
    let Ok(choice) = geo::choose(&sets, flows, Receivers::Primaries) else { return none() };
    let host = |(reached, member): (&Result<ShardReport, String>, &usize)| {
        reached.as_ref().ok()?.members.get(*member).map(|member| member.host.clone())
    };
    Readers {
        hosts: reached.iter().zip(&choice.members).map(host).collect(),
        crossing: choice.crossing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reshard::plan::members::{Member, members};
    use bson::{DateTime, doc};
    use imago_plan::reshard::placement::{Shares, Weights, balanced};

    #[test]
    fn a_member_is_usable_that_is_up_and_not_far_behind() {
        let at = |ms| DateTime::from_millis(ms);
        let config = doc! {"members": [
            {"host": "a:1", "tags": {"dc": "east", "region": "x"}},
            {"host": "b:1", "tags": {"region": "west"}}, {"host": "c:1"}, {"host": "d:1"},
        ]};
        let status = doc! {"members": [
            {"name": "a:1", "state": 1, "optimeDate": at(100_000)},
            {"name": "b:1", "state": 2, "optimeDate": at(95_000)},
            {"name": "c:1", "state": 2, "optimeDate": at(50_000)},
            {"name": "d:1", "state": 7},
        ]};
        let found = members(&config, &status);
        let told = |member: &Member| (member.what.data_centre.clone(), member.what.usable);
        let expected = [
            (Some("east".into()), true),
            (Some("west".into()), true),
            (None, false),
            (None, false),
        ];
        assert_eq!(found.iter().map(told).collect::<Vec<_>>(), expected);
        assert!(found[0].what.primary && !found[1].what.primary);
    }

    /// A shard whose primary is in the first data centre, and which has a secondary in each other.
    fn shard(name: &str, centres: &[&str]) -> Result<ShardReport, String> {
        let member = |(index, centre): (usize, &&str)| Member {
            host: format!("{name}{index}:1"),
            what: geo::Member {
                data_centre: Some((*centre).to_owned()),
                primary: index == 0,
                usable: true,
            },
        };
        let members = centres.iter().enumerate().map(member).collect();
        Ok(ShardReport { members, ..ShardReport::default() })
    }

    #[test]
    fn who_is_read_from_is_where_it_goes() {
        let weights = Weights::dense(2, &[[100_u64, 0], [90, 0]]).unwrap();
        let flows = balanced(&weights, &Shares::equal(2).unwrap()).unwrap().flows;
        let reached = [shard("a", &["east", "east", "west"]), shard("b", &["west", "west"])];
        let readers = choose(&reached, &flows);
        assert_eq!(readers.hosts[0].as_deref(), Some("a2:1"));
        assert_eq!(readers.crossing, []);
        let reached = [shard("a", &["east", "east"]), shard("b", &["west", "west"])];
        assert_eq!(choose(&reached, &flows).crossing, [(0, 1, 90)]);
        let reached = [shard("a", &["east"]), Err("down".into())];
        assert_eq!(choose(&reached, &flows).hosts, [None, None]);
    }
}
