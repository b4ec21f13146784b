//! Cost classes of the changes from one configuration to another, and which of them are allowed.

use std::collections::BTreeSet;

use imago_plan::tune::roll::CostClass;

use crate::cluster::{Result, Settings};
use crate::configurations::{Configuration, differences};
use crate::decision_inputs::Transition;

/// Returns the transition between each pair of configurations, by the indices of the old and the new one. It has the
/// class of the most expensive difference if that class is in `approved`, and is barred otherwise.
///
/// # Errors
/// Fails if a setting is unknown.
pub fn transitions<D: Settings>(
    all: &[Configuration],
    approved: &BTreeSet<CostClass>,
) -> Result<Vec<Vec<Transition>>> {
    let transition = |from: &Configuration, to: &Configuration| {
        let class = class::<D>(from, to)?;
        let parts = match class {
            CostClass::RestartAndRewrite => vec![CostClass::Restart, CostClass::Rewrite],
            one => vec![one],
        };
        Ok(match parts.into_iter().find(|part| !approved.contains(part)) {
            None => Transition::By(class),
            Some(part) => {
                let name = name(part);
                Transition::Barred(format!(
                    "it takes a change of the class {name}, which is not approved"
                ))
            }
        })
    };
    let row =
        |from: &Configuration| all.iter().map(|to| transition(from, to)).collect::<Result<_>>();
    all.iter().map(row).collect()
}

/// Returns true if all differences between two configurations are live settings.
///
/// # Errors
/// Fails if a setting is unknown.
pub fn is_live<D: Settings>(from: &Configuration, to: &Configuration) -> Result<bool> {
    class::<D>(from, to).map(|class| class == CostClass::Live)
}

/// Returns the most expensive cost class among the differences between two configurations.
fn class<D: Settings>(from: &Configuration, to: &Configuration) -> Result<CostClass> {
    let table = match (&from.compaction, &to.compaction) {
        (from, to) if from == to => CostClass::Live,
        // The data files of one strategy are unsuitable for another.
        (Some(from), Some(to)) if from.class() != to.class() => CostClass::Rewrite,
        _ => CostClass::Alter,
    };
    let mut knobs = CostClass::Live;
    for name in differences::<D>(from, to)? {
        knobs = knobs.max(D::find(&name)?.class);
    }
    Ok(match (table, knobs) {
        (CostClass::Rewrite, CostClass::Restart) => CostClass::RestartAndRewrite,
        (table, knobs) => table.max(knobs),
    })
}

/// Returns the name of a cost class, as users approve it.
#[must_use]
pub fn name(class: CostClass) -> &'static str {
    match class {
        CostClass::Live => "live",
        CostClass::Alter => "alter",
        CostClass::Restart => "restart",
        CostClass::Rewrite => "rewrite",
        CostClass::RestartAndRewrite => "restart and rewrite",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cassandra::Cassandra;
    use crate::cassandra::compaction::Compaction;

    fn configuration(settings: &[(&str, &str)], scaling: &str) -> Configuration {
        let json = format!(
            r#"{{"class": "UnifiedCompactionStrategy", "scaling_parameters": "{scaling}"}}"#
        );
        Configuration {
            name: scaling.into(),
            settings: settings
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            compaction: Some(Compaction::parse(&json).unwrap()),
        }
    }

    #[test]
    fn the_dearest_difference_decides_and_needs_its_approval() {
        let all = [
            configuration(&[("compaction_throughput", "64MiB/s")], "T8"),
            configuration(&[("compaction_throughput", "16MiB/s")], "T8"),
            configuration(&[("compaction_throughput", "64MiB/s")], "L10"),
            configuration(&[("memtable_heap_space", "64MiB")], "L10"),
        ];
        assert_eq!(class::<Cassandra>(&all[0], &all[0]).unwrap(), CostClass::Live);
        let cheap = BTreeSet::from([CostClass::Live, CostClass::Alter]);
        let transitions = transitions::<Cassandra>(&all, &cheap).unwrap();
        assert_eq!(transitions[0][1], Transition::By(CostClass::Live));
        assert_eq!(transitions[1][2], Transition::By(CostClass::Alter));
        let Transition::Barred(why) = &transitions[0][3] else { panic!("{transitions:?}") };
        assert!(why.contains("class restart"), "{why}");
    }

    #[test]
    fn another_strategy_rewrites_all_data() {
        let of = |class: &str, memtables: &str| {
            let compaction = Compaction::parse(&format!(r#"{{"class": "{class}"}}"#)).unwrap();
            let settings = [("memtable_heap_space".into(), memtables.into())].into();
            Configuration { name: class.into(), settings, compaction: Some(compaction) }
        };
        let all = [
            of("SizeTieredCompactionStrategy", "64MiB"),
            of("LeveledCompactionStrategy", "64MiB"),
            of("LeveledCompactionStrategy", "32MiB"),
        ];
        let cheap = BTreeSet::from([CostClass::Live, CostClass::Alter, CostClass::Restart]);
        let barred = transitions::<Cassandra>(&all, &cheap).unwrap();
        for (from, to) in [(0, 1), (0, 2)] {
            let Transition::Barred(why) = &barred[from][to] else { panic!("{barred:?}") };
            assert!(why.contains("class rewrite"), "{why}");
        }
        assert_eq!(barred[1][2], Transition::By(CostClass::Restart));
        let every: BTreeSet<CostClass> = cheap.into_iter().chain([CostClass::Rewrite]).collect();
        let transitions = transitions::<Cassandra>(&all, &every).unwrap();
        assert_eq!(transitions[0][1], Transition::By(CostClass::Rewrite));
        assert_eq!(transitions[0][2], Transition::By(CostClass::RestartAndRewrite));
    }
}
