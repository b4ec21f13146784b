//! Changes of a store's design, drawn at random: most can be done, some cannot.

use imago_workload::lists::{LISTS, List};
use rand::RngExt;
use rand::rngs::StdRng;

/// The one site to which partitions are pinned.
const PINNED_TO: u16 = 1;

/// One of them.
#[derive(Debug, Clone)]
pub struct Change {
    /// As the command line and the admin address call it.
    pub verb: &'static str,
    /// A list's key, as the command line writes it.
    pub key: String,
    pub site: u16,
}

pub fn draw(random: &mut StdRng, sites: u16) -> Change {
    const VERBS: [&str; 10] = [
        "split",
        "split",
        "merge",
        "merge",
        "add-replica",
        "add-replica",
        "remove-replica",
        "remaster",
        "pin",
        "unpin",
    ];
    let verb = VERBS[random.random_range(0..VERBS.len())];
    let list = List(random.random_range(0..LISTS));
    Change {
        verb,
        key: format!("0:{}", list.name()),
        // Partitions that were pinned to two sites could not be written together.
        site: if verb == "pin" { PINNED_TO } else { random.random_range(0..sites) },
    }
}
