//! A store's process is killed again and again, while its design changes and clients use it. `IMAGO_LONG`
//! asks for many deaths instead of a handful.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use imago_load::store::{Load, Options};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::store::change;
use crate::store::proof::{is_long, prove, seed};
use crate::store::served::{Served, anywhere};

const SITES: u16 = 4;
const HANDFUL: u32 = 4;
const MANY: u32 = 60;
/// The changes that are drawn: each is to be made at least once.
const VERBS: usize = 7;
/// Longest time for which the last process goes on until each was made.
const ALL_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn what_was_acknowledged_outlives_deaths_of_the_process_and_changes_of_its_design() {
    let seed = seed();
    let mut random = StdRng::seed_from_u64(seed);
    let folder = tempfile::tempdir().unwrap();
    let mut served = Served::start(folder.path(), SITES, anywhere(), anywhere());
    let options = Options { sessions: 6, seed, pause: Duration::from_millis(1) };
    let load = Load::start(served.listen, options).unwrap();
    let mut changed: BTreeMap<&str, u32> = BTreeMap::new();
    let epochs = if is_long() { MANY } else { HANDFUL };
    for epoch in 0..=epochs {
        if epoch > 0 {
            served.kill();
            served = Served::start(folder.path(), SITES, served.listen, served.admin);
        }
        let before = load.acknowledged();
        let began = Instant::now();
        let time = Duration::from_millis(random.random_range(700..2_000));
        // On a busy machine few changes come to pass, and some of them may be of no use then.
        let is_missing = |changed: &BTreeMap<&str, u32>| {
            epoch == epochs && changed.len() < VERBS && began.elapsed() < ALL_WITHIN
        };
        while began.elapsed() < time || is_missing(&changed) {
            let change = change::draw(&mut random, SITES);
            let body = json!({ "key": change.key, "site": change.site });
            match served.post(change.verb, &body) {
                Some((200, _)) => *changed.entry(change.verb).or_default() += 1,
                Some((409 | 503, _)) => {}
                other => panic!("{change:?}: {other:?}"),
            }
        }
        let done = load.acknowledged() - before;
        assert!(done > 0, "nothing was acknowledged in epoch {epoch}");
    }
    println!("changed: {changed:?}");
    let verdict = prove(load, served.listen);
    assert!(verdict.done > 200 && verdict.unknown > 0, "{verdict:?}");
    assert_eq!(changed.len(), VERBS, "each change was made: {changed:?}");
}
