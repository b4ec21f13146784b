//! The design in the format of checkpoints from before partitions could be pinned; such checkpoints can still
//! be read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::{Design, EpochState};
use crate::key::{Key, KeyRange};
use crate::record::Site;

/// See the module's documentation.
#[derive(Serialize, Deserialize)]
pub(crate) struct BeforePins {
    partitions: BTreeMap<Key, Partition>,
    epochs: HashMap<Site, EpochState>,
}

#[derive(Serialize, Deserialize)]
struct Partition {
    range: KeyRange,
    version: u64,
    master: Site,
    replicas: BTreeSet<Site>,
}

impl From<BeforePins> for Design {
    fn from(before: BeforePins) -> Self {
        let partition = |(start, partition)| {
            let Partition { range, version, master, replicas } = partition;
            (start, super::Partition { range, version, master, replicas, pin: None })
        };
        let partitions = before.partitions.into_iter().map(partition).collect();
        Self { partitions, epochs: before.epochs }
    }
}
