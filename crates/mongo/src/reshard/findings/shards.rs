//! Findings about the shards: disk space, oplogs, index builds, chunk migrations.

use super::{Finding, obstacle, warning};
use crate::namespace::Namespace;
use crate::reshard::plan::readers::Readers;
use crate::reshard::plan::shard_probe::ShardReport;
use crate::reshard::plan::survey::Shard;

/// Ratio of the time that an oplog spans to the duration of the change, below which a warning is given.
const OPLOG_TIMES: f64 = 3.0;

/// Predicted duration of a change of shape, in seconds.
#[derive(Clone, Copy, Debug)]
pub(in crate::reshard) struct PredictedDuration {
    /// Duration in seconds without load from clients.
    pub predicted_s: f64,
    /// Duration in seconds at the least pace that spares clients; `None` if the job has no pace.
    pub paced_s: Option<f64>,
}

/// Returns the findings about each shard's report, compared with the predicted duration `lasts` and the disk space
/// that the change needs on each shard.
pub(in crate::reshard) fn shard_findings(
    ns: &Namespace,
    shards: &[Shard],
    reached: &[Result<ShardReport, String>],
    lasts: PredictedDuration,
    space_bytes: &[u64],
) -> Vec<Finding> {
    let mut found = Vec::new();
    for ((shard, reached), needed) in shards.iter().zip(reached).zip(space_bytes) {
        match reached {
            Err(cause) => found.push(unreached(shard, cause)),
            Ok(reached) => {
                found.extend(oplog(shard, reached, lasts));
                found.extend(disk(shard, reached, *needed));
                found.extend(building(ns, shard, reached));
                found.extend(migration(ns, shard, reached));
            }
        }
    }
    found
}

/// Returns a warning about flows that cross between data centres for every choice of members; `None` without such
/// flows.
pub(in crate::reshard) fn crossing_finding(shards: &[Shard], readers: &Readers) -> Option<Finding> {
    let name = |shard: usize| shards.get(shard).map_or("?", |shard| shard.name.as_str());
    let flow = |(from, to, bytes): &(usize, usize, u64)| {
        format!("{bytes} from {} to {}", name(*from), name(*to))
    };
    let flows: Vec<String> = readers.crossing.iter().map(flow).collect();
    (!flows.is_empty()).then(|| {
        let bytes: u64 = readers.crossing.iter().map(|(_, _, bytes)| bytes).sum();
        warning(
            "data_centres",
            format!("{bytes} bytes cross between data centres: {}", flows.join(", ")),
            "add a secondary of the sending shard in the receiving one's data centre, or accept it",
        )
    })
}

fn unreached(shard: &Shard, cause: &str) -> Finding {
    let Shard { name, host, .. } = shard;
    warning(
        "unreached",
        format!(
            "shard {name} ({host}) cannot be queried directly, so its latency, oplog and disk are \
             not known: {cause}"
        ),
        "check the network, or that the shard knows the user; or look at its oplog's window and \
         its disk yourself",
    )
}

#[expect(clippy::cast_precision_loss, reason = "seconds")]
fn oplog(shard: &Shard, reached: &ShardReport, lasts: PredictedDuration) -> Option<Finding> {
    let name = &shard.name;
    let Some(window_s) = reached.oplog_s else {
        return Some(warning(
            "oplog_unknown",
            format!("cannot read the oplog window of shard {name}"),
            "give the user read on the database local, or look yourself \
             (rs.printReplicationInfo())",
        ));
    };
    let PredictedDuration { predicted_s, paced_s } = lasts;
    let beside = paced_s.map(|paced_s| format!(", with active clients up to {paced_s:.0} s"));
    let what = format!(
        "the oplog of shard {name} reaches back {window_s} s, and the change takes about \
         {predicted_s:.0} s{}",
        beside.unwrap_or_default()
    );
    let help = "make the oplog larger on every member (replSetResizeOplog), or wait for a quieter \
                time";
    if (window_s as f64) < predicted_s {
        return Some(obstacle("oplog", what, help));
    }
    let safe_s = paced_s.unwrap_or(0.0).max(predicted_s * OPLOG_TIMES);
    ((window_s as f64) < safe_s).then(|| warning("oplog", what, help))
}

fn disk(shard: &Shard, reached: &ShardReport, needed: u64) -> Option<Finding> {
    let Some(free) = reached.free_bytes else {
        return Some(warning(
            "disk_unknown",
            format!("cannot determine the free disk space of shard {}", shard.name),
            format!("make sure that {needed} bytes are free there"),
        ));
    };
    (u128::from(free) * 10 < u128::from(needed) * 12).then(|| {
        warning(
            "disk",
            format!(
                "shard {} has {free} bytes free, and the new collection takes up to {needed} there \
                 before the old one is dropped",
                shard.name
            ),
            "make room first, or give the shard less (--drain-shard gives it nothing)",
        )
    })
}

fn building(ns: &Namespace, shard: &Shard, reached: &ShardReport) -> Option<Finding> {
    (!reached.building.is_empty()).then(|| {
        obstacle(
            "index_build",
            format!(
                "shard {} is building {} on {ns}, and a collection that is being indexed cannot \
                 be replaced",
                shard.name,
                reached.building.join(", ")
            ),
            "wait for its end, or end it with dropIndexes",
        )
    })
}

fn migration(ns: &Namespace, shard: &Shard, reached: &ShardReport) -> Option<Finding> {
    (!reached.migration_recipients.is_empty()).then(|| {
        warning(
            "migration",
            format!(
                "shard {} is migrating a chunk of {ns} to {}: the placement is changing",
                shard.name,
                reached.migration_recipients.join(", ")
            ),
            format!("wait for its end, or say sh.disableBalancing(\"{ns}\"), and plan again"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reshard::plan::Weight;
    use crate::server::collection::Size;

    fn found(reached: Result<ShardReport, String>, predicted_s: f64) -> Vec<(Weight, String)> {
        found_if(reached, PredictedDuration { predicted_s, paced_s: None })
    }

    fn found_if(
        reached: Result<ShardReport, String>,
        lasts: PredictedDuration,
    ) -> Vec<(Weight, String)> {
        let ns = Namespace::new("a", "b");
        let found = shard_findings(&ns, &[named("s")], &[reached], lasts, &[1_000]);
        found.into_iter().map(|finding| (finding.weight, finding.code)).collect()
    }

    fn named(name: &str) -> Shard {
        Shard {
            name: name.into(),
            host: "s/h:1".into(),
            is_draining: false,
            stored: Size::default(),
            orphans: 0,
            index_bytes: 0,
        }
    }

    fn shard() -> ShardReport {
        ShardReport {
            latency_us: 100,
            oplog_s: Some(3_600),
            free_bytes: Some(1_200),
            building: Vec::new(),
            migration_recipients: Vec::new(),
            members: Vec::new(),
        }
    }

    #[test]
    fn what_suffices_is_no_finding() {
        assert_eq!(found(Ok(shard()), 1_200.0), []);
    }

    #[test]
    fn an_oplog_that_is_too_short_is_in_the_way() {
        assert_eq!(found(Ok(shard()), 3_601.0), [(Weight::Obstacle, "oplog".into())]);
        assert_eq!(found(Ok(shard()), 1_201.0), [(Weight::Warning, "oplog".into())]);
        let beside =
            |paced_s| found_if(Ok(shard()), PredictedDuration { predicted_s: 10.0, paced_s });
        assert_eq!(beside(Some(3_600.0)), []);
        assert_eq!(beside(Some(3_601.0)), [(Weight::Warning, "oplog".into())]);
    }

    #[test]
    fn a_disk_with_too_little_room_is_told() {
        let full = ShardReport { free_bytes: Some(1_199), ..shard() };
        assert_eq!(found(Ok(full), 1.0), [(Weight::Warning, "disk".into())]);
    }

    #[test]
    fn what_a_server_does_not_tell_is_told() {
        let secret = ShardReport { oplog_s: None, free_bytes: None, ..shard() };
        let told = [(Weight::Warning, "oplog_unknown"), (Weight::Warning, "disk_unknown")];
        assert_eq!(found(Ok(secret), 1.0), told.map(|(weight, code)| (weight, code.to_owned())));
    }

    #[test]
    fn what_crosses_between_data_centres_is_told_with_its_bytes() {
        let shards = [named("s1"), named("s2"), named("s3")];
        let stays = Readers { hosts: Vec::new(), crossing: Vec::new() };
        assert_eq!(crossing_finding(&shards, &stays), None);
        let crosses = Readers { crossing: vec![(0, 2, 7_000), (1, 2, 500)], ..stays };
        let found = crossing_finding(&shards, &crosses).unwrap();
        assert_eq!((found.weight, found.code.as_str()), (Weight::Warning, "data_centres"));
        let what = "7500 bytes cross between data centres: 7000 from s1 to s3, 500 from s2 to s3";
        assert_eq!(found.what, what);
    }

    #[test]
    fn a_shard_that_does_not_answer_is_told() {
        assert_eq!(found(Err("no".into()), 1.0), [(Weight::Warning, "unreached".into())]);
    }
}
