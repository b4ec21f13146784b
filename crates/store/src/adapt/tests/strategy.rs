//! A strategy of its own decides: its plans are carried out, held back, measured and told as those of any other.

use imago_plan::store::considered::{Considered, Estimate, Hold, Rejected};
use imago_plan::store::decide::{Decided, HoldCheck};
use imago_plan::store::layout::{self, Layout, Operator};
use imago_plan::store::parameters::Parameters;
use imago_plan::store::price::{Situation, price};
use imago_plan::store::strategy::Strategy;
use rand::Rng;

use super::Busy;
use crate::adapt::{Mode, Verdict};
use crate::key::Key;
use crate::record::Site;

/// All partitions belong to one site, at any cost.
struct AllAt(layout::Site);

impl Strategy<Key> for AllAt {
    fn name(&self) -> &'static str {
        "all at one site"
    }

    fn distrust(&self, _: &Situation<'_, Key>) -> Option<String> {
        None
    }

    fn decide(
        &mut self,
        layout: &Layout<Key>,
        situation: &Situation<'_, Key>,
        _: &Parameters,
        held: &HoldCheck<'_, Key>,
        _: &mut dyn Rng,
    ) -> Decided<Key> {
        let is = price(layout, situation);
        let elsewhere = layout.partitions().filter(|(_, one)| one.master != self.0);
        let plan = |(start, one): (&Key, &layout::Partition)| {
            let copy = (!one.is_at(self.0)).then(|| Operator::AddReplica(start.clone(), self.0));
            let operators: Vec<Operator<Key>> =
                copy.into_iter().chain([Operator::Remaster(start.clone(), self.0)]).collect();
            let why = operators.iter().find_map(|operator| match held(layout, operator) {
                Some(Hold::Forbidden(why)) => Some(why),
                Some(Hold::Reversal(..)) | None => None,
            });
            Considered {
                trigger: None,
                redesign: None,
                site: self.0,
                operators,
                latency_us: (is.latency_us, is.latency_us),
                work_us: (is.work_us, is.work_us),
                takes_back: None,
                realized: 1.0,
                latency_ratio: Estimate::exact(1.0),
                operators_us: 0.0,
                operators_expected_us: Estimate::exact(0.0),
                operators_took_us: None,
                benefit_us: 1.0,
                cost_us: 0.0,
                rejected: why.map(Rejected::OnHold),
            }
        };
        let considered = elsewhere.map(plan).collect();
        Decided { considered, before: is.clone(), after: is }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_another_strategy_decides_is_carried_out() {
    let busy = Busy::start(Mode::On);
    busy.adaptation.set_strategy(Box::new(AllAt(1)));
    let report = busy
        .until("the other site masters all", |busy, report| {
            busy.masters() == [Site(1)].into() && report.changes >= 2
        })
        .await;
    assert_eq!(report.strategy, "all at one site");
    let done = |report: &crate::adapt::AdaptReport| {
        let is_its = |one: &&crate::adapt::DecisionReport| {
            one.verdict == Verdict::Done
                && one.operators.concat().contains("remaster (first) --site 1")
        };
        report.decisions.iter().any(|one| is_its(&one))
    };
    busy.until("it is told", |_, report| done(report)).await;
    busy.end().await;
}
