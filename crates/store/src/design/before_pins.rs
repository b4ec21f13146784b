//! The design in the format of checkpoints from before partitions could be pinned; such checkpoints can still
//! be read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::{Design, EpochState};
use crate::key::{Key, KeyRange};
use crate::record::Site;

/// The store's design as older checkpoints contain it, without pins; it converts into a [`Design`].
#[derive(Serialize, Deserialize)]
pub(crate) struct BeforePins {
    partitions: BTreeMap<Key, Partition>,
    epochs: HashMap<Site, EpochState>,
}

/// A partition as older checkpoints contain it: the fields of [`super::Partition`] except the pin.
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
