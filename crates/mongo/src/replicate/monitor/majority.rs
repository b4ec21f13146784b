//! Names the members for which a replica set's majority waits.
//!
//! A change stream returns a change once a majority of the voting members has it, and a majority write waits for the
//! same. A voting member that is delayed, down, or lags far behind delays both, while the primary looks healthy.

use std::time::Duration;

use bson::{Bson, Document, doc};
use imago_job::control::Control;

use super::{Set, reach, seconds};
use crate::error::Result;
use crate::server::endpoint::Endpoint;

/// Interval between checks of the positions of the replica sets' members.
const LOOK_EVERY: Duration = Duration::from_secs(3);
/// Lag of a replica set's majority behind its primary, in ms, from which the lag is reported. Heartbeats report the
/// members' positions every two seconds.
const NAMED_FROM_MS: u64 = 4_000;

/// Reports the members for which the majorities of the cluster `of` wait as a cause of the job's slowness, under the
/// name `whose`, until the future is dropped.
pub(super) async fn watch(of: Endpoint, whose: &'static str, control: Control) {
    let mut sets = Vec::new();
    loop {
        match waits(&of, &mut sets).await {
            Ok(waits) => {
                let named = |waits: String| format!("the {whose}: {waits}", whose = of.role());
                control.set_slowdown(whose, waits.map(named));
            }
            // The user may lack clusterMonitor, or a shard may be unavailable, which another monitor reports.
            Err(error) => {
                tracing::debug!(%error, "the members' positions are not known");
                control.set_slowdown(whose, None);
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn waits(of: &Endpoint, sets: &mut Vec<Set>) -> Result<Option<String>> {
    reach(of, sets).await?;
    let mut named = Vec::new();
    for (name, set) in sets.iter() {
        let status = set.run("admin", doc! {"replSetGetStatus": 1}).await?;
        if majority_lag_ms(&status).is_some_and(|lag_ms| lag_ms >= NAMED_FROM_MS) {
            let config = set.run("admin", doc! {"replSetGetConfig": 1}).await?;
            named.extend(lagging_members(name, &status, &config));
        }
    }
    Ok((!named.is_empty()).then(|| named.join("; ")))
}

fn members<'a>(of: &'a Document) -> impl Iterator<Item = &'a Document> + 'a {
    of.get_array("members").into_iter().flatten().filter_map(Bson::as_document)
}

fn state(member: &Document) -> i32 {
    member.get_i32("state").unwrap_or(0)
}

fn at_ms(member: &Document) -> Option<i64> {
    member.get_datetime("optimeDate").ok().map(|at| at.timestamp_millis())
}

/// Returns the lag of the majority's position behind the primary's, in ms, according to `status`
/// (`replSetGetStatus`); `None` without a primary, or without a reported position.
fn majority_lag_ms(status: &Document) -> Option<u64> {
    let primary = members(status).find(|member| state(member) == 1).and_then(at_ms)?;
    let optimes = status.get_document("optimes").ok()?;
    let committed = optimes.get_datetime("lastCommittedWallTime").ok()?;
    u64::try_from(primary - committed.timestamp_millis()).ok()
}

/// Describes the voting members of the replica set `set` that lack the changes which the majority lacks, with the
/// reason of each. Returns `None` if the majority's lag is small.
fn lagging_members(set: &str, status: &Document, config: &Document) -> Option<String> {
    let lag_ms = majority_lag_ms(status).filter(|lag_ms| *lag_ms >= NAMED_FROM_MS)?;
    let primary = members(status).find(|member| state(member) == 1).and_then(at_ms)?;
    let config = config.get_document("config").ok()?;
    let number = |member: &Document, field: &str| {
        let value = member.get(field);
        value.and_then(|value| value.as_i64().or_else(|| value.as_i32().map(i64::from)))
    };
    let why = |of: &Document| {
        let host = of.get_str("host").ok()?;
        if number(of, "votes") == Some(0) {
            return None;
        }
        let is_it = |member: &&Document| member.get_str("name").is_ok_and(|name| name == host);
        let member = members(status).find(is_it)?;
        let behind_ms = at_ms(member).and_then(|at| u64::try_from(primary - at).ok());
        let delay_s = number(of, "secondaryDelaySecs").or_else(|| number(of, "slaveDelay"));
        let why = match (state(member), delay_s) {
            (8, _) => "down".to_owned(),
            (_, Some(delay_s)) if delay_s > 0 => format!("delayed by {delay_s} s"),
            (1, _) => return None,
            (2, _) => match behind_ms.filter(|behind_ms| *behind_ms >= NAMED_FROM_MS) {
                Some(behind_ms) => format!("{:.0} s behind", seconds(behind_ms)),
                None => return None,
            },
            (_, _) => member.get_str("stateStr").unwrap_or("in no state").to_owned(),
        };
        Some(format!("{host} ({why})"))
    };
    let named: Vec<String> = members(config).filter_map(why).collect();
    let named = if named.is_empty() { "its members".to_owned() } else { named.join(", ") };
    Some(format!(
        "the majority of {set} is {:.0} s behind its primary: it waits for {named}; bring that \
         member up to date, or take its vote (rs.reconfig: votes 0, priority 0)",
        seconds(lag_ms)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::DateTime;

    /// A set of three at 100 s whose majority is at `committed_s`: the primary, one with this delay and
    /// position, and one in this state.
    fn named(committed_s: i64, delay_s: i64, delayed_at_s: i64, third: i32) -> Option<String> {
        let at = |s: i64| DateTime::from_millis(s * 1_000);
        let member = |name: &str, state: i32, s: i64| {
            doc! {"name": name, "state": state, "stateStr": "RECOVERING", "optimeDate": at(s)}
        };
        let status = doc! {
            "members": [member("db1:27017", 1, 100), member("db2:27017", 2, delayed_at_s), member("db3:27017", third, 0)],
            "optimes": {"lastCommittedWallTime": at(committed_s)},
        };
        let config = doc! {"config": {"members": [
            {"host": "db1:27017", "votes": 1, "secondaryDelaySecs": 0_i64},
            {"host": "db2:27017", "votes": 1, "secondaryDelaySecs": delay_s},
            {"host": "db3:27017", "votes": 1},
        ]}};
        lagging_members("rs0", &status, &config)
    }

    #[test]
    fn the_members_that_hold_a_majority_back_are_named_with_their_reason() {
        let told = named(40, 60, 40, 8).unwrap();
        assert!(told.contains("the majority of rs0 is 60 s behind its primary"), "{told}");
        assert!(told.contains("db2:27017 (delayed by 60 s), db3:27017 (down)"), "{told}");
        let told = named(90, 0, 90, 3).unwrap();
        assert!(told.contains("db2:27017 (10 s behind), db3:27017 (RECOVERING)"), "{told}");
    }

    #[test]
    fn a_majority_that_keeps_up_names_no_member() {
        assert_eq!(named(99, 60, 40, 8), None, "the others are a majority");
    }
}
