//! The choices of tests, drawn from a seed that is printed.

#![allow(clippy::print_stdout, reason = "a run that fails shows what it drew")]

use std::hash::{BuildHasher as _, Hasher as _, RandomState};

use bson::doc;
use imago_mongo::reshard::plan::Plan;

use crate::reshard::scene::{Scene, text_of};

/// SplitMix64: the next number of a seed's sequence.
pub struct Dice(u64);

impl Dice {
    /// Of the seed `IMAGO_SEED`, or of one by chance.
    pub fn of_the_seed() -> Self {
        let chance = || RandomState::new().build_hasher().finish();
        let seed = set("IMAGO_SEED").map_or_else(chance, |seed| seed.parse().unwrap());
        println!("the same again: IMAGO_SEED={seed}");
        Self(seed)
    }

    /// A number below `sides`.
    pub fn throw(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % sides
    }
}

/// True if many are requested instead of a handful (`IMAGO_LONG`).
pub fn is_long() -> bool {
    set("IMAGO_LONG").is_some()
}

fn set(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Scene {
    /// The next shape: the other key, with its chunks dealt out anew.
    pub async fn next_plan(&self, dice: &mut Dice) -> Plan {
        let kept = self.collection().await;
        let now = kept.get_document("key").unwrap();
        let other = if now.contains_key("userID") { "productID" } else { "userID" };
        let mut plan = self.plan(doc! {other: 1}, 4).await;
        plan.old_key = text_of(&now.keys().map(|field| (field.clone(), 1.into())).collect());
        let first = dice.throw(2) as usize;
        for (n, chunk) in plan.chunks.iter_mut().enumerate() {
            chunk.shard = (n + first) % plan.shards.len();
        }
        plan
    }
}
