//! Plans that remove many replicas at once: many that are hardly read cost as much as a few that are read often.

use super::considered::{Considered, Rejected};
use super::layout::{Key, Layout, Operator};
use super::parameters::Parameters;

/// Maximum number of replicas that one plan removes.
const REMOVED_AT_ONCE: usize = 32;

/// Returns true if a plan is no redesign, and does nothing but remove several replicas.
pub(super) fn is_many_removals<K: Key>(plan: &Considered<K>) -> bool {
    let removes = |one: &Operator<K>| matches!(one, Operator::RemoveReplica(..));
    plan.redesign.is_none() && plan.operators.len() > 1 && plan.operators.iter().all(removes)
}

/// Returns the plan that removes all replicas whose removal alone saves something, those that save most first; nothing if
/// there are fewer than two. Each may save less than the least gain: many replicas that are hardly read cost as much as a
/// few that are read often.
pub(super) fn together<K: Key>(
    layout: &Layout<K>,
    single: &[Considered<K>],
    parameters: &Parameters,
) -> Vec<Operator<K>> {
    let net = |plan: &Considered<K>| plan.net_us(parameters.lambda);
    let saves = |plan: &&Considered<K>| {
        matches!(plan.rejected, None | Some(Rejected::TooLittle)) && net(plan) > 0.0
    };
    let mut saving: Vec<&Considered<K>> = single.iter().filter(saves).collect();
    saving.sort_by(|one, two| net(two).total_cmp(&net(one)));
    saving.truncate(REMOVED_AT_ONCE);
    if saving.len() < 2 {
        return Vec::new();
    }
    let mut together = Vec::new();
    for plan in saving {
        together.extend(plan.operators.iter().cloned());
        // Two replicas of a partition may each be removed alone, and not both.
        if !parameters.thresholds.permits(layout, &together) {
            together.truncate(together.len() - plan.operators.len());
        }
    }
    together
}
