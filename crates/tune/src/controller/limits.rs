//! Conditions under which a controller must not change the cluster.

use std::collections::BTreeMap;

use super::cluster::Cluster;
use super::{Controller, now_s};
use crate::cluster::Result;
use crate::cluster::error::chain;
use crate::decision_inputs::Transition;
use crate::decisions::{DecisionLog as _, LEASE};
use crate::transition_costs::transitions;

/// The changes that may not be made now because of earlier ones.
pub(super) struct ChangeLimits {
    /// Changes that are barred now, by the indices of both configurations, with the bar's end in seconds since 1970.
    pub barred: BTreeMap<(usize, usize), u64>,
    /// Start times of the changes of the last 24 hours, without reversions, in seconds since 1970.
    pub made: Vec<u64>,
}

impl<C: Cluster> Controller<'_, C> {
    /// Returns why no change at all is allowed now, not even a reversion; None if changes are allowed.
    pub(super) async fn blocked_by(&self) -> Option<String> {
        if self.request.is_advising {
            return Some("it only advises".into());
        }
        if self.leads_since.elapsed() > LEASE / 2 {
            return Some("the lease could not be renewed".into());
        }
        match self.log.suspended_by().await {
            Ok(None) => None,
            Ok(Some(process)) => {
                Some(format!("{process} has suspended changes (`imago tune go-on`)"))
            }
            Err(error) => Some(format!("the cluster does not answer: {}", chain(&error))),
        }
    }

    /// Returns why no new change may start now, be it because of the daily limit or because no change at all is
    /// allowed; None if a change may start.
    pub(super) async fn obstacle(&mut self) -> Option<String> {
        if let Some(why) = self.blocked_by().await {
            return Some(why);
        }
        let since_s = now_s().saturating_sub(86_400);
        self.limits.made.retain(|at_s| *at_s > since_s);
        let (made, most) = (self.limits.made.len(), self.request.changes_max);
        (made >= most)
            .then(|| format!("the limit of {made} changes within a day is reached (--changes-max)"))
    }

    /// Allows changes whose bar has expired, and updates the remaining time in the reasons of those that are still
    /// barred.
    pub(super) fn lift_expired_bars(&mut self) -> Result<()> {
        let now_s = now_s();
        let open =
            transitions::<C::Database>(self.cluster.configurations(), &self.request.approved)?;
        for ((from, to), until_s) in std::mem::take(&mut self.limits.barred) {
            if until_s <= now_s {
                self.tuner.set_transition(from, to, open[from][to].clone());
                continue;
            }
            let why = match until_s - now_s {
                minutes @ ..=3_600 => format!("{} min", minutes.div_ceil(60)),
                hours => format!("{} h", hours.div_ceil(3_600)),
            };
            let why =
                format!("it failed or was undone recently, and is not tried for another {why}");
            self.tuner.set_transition(from, to, Transition::Barred(why));
            self.limits.barred.insert((from, to), until_s);
        }
        Ok(())
    }
}
