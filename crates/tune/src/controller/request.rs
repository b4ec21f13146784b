//! Options of a controller.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use imago_plan::tune::judge::Bounds;
use imago_plan::tune::planner::Weight;
use imago_plan::tune::roll::{CostClass, Costs};

use crate::decision_inputs::DAY_S;
use crate::measurements::Measurements;

/// Options and limits of a controller.
#[derive(Clone, Debug)]
pub struct Request {
    /// Throughputs of the configurations.
    pub measurements: Measurements,
    /// File to which each observed interval is appended.
    pub trace: PathBuf,
    /// Length of an interval.
    pub interval: Duration,
    /// Period after which the workload repeats, no shorter than an interval.
    pub season: Duration,
    /// Cost classes of changes that are allowed.
    pub approved: BTreeSet<CostClass>,
    /// True: the controller decides, but changes nothing.
    pub is_advising: bool,
    /// Maximum number of changes within 24 hours, without reversions.
    pub changes_max: usize,
    /// Minimum relative gain at which a plan is followed.
    pub gain_min: f64,
    /// Minimum load at which a change is worthwhile: the rate now, or expected until the plan's next change, as a share
    /// of the present configuration's throughput.
    pub busy_min: f64,
    /// Weight of an interval in a plan: by capacity or by demand.
    pub weight: Weight,
    /// Forecast to use; None selects the one that serves most.
    pub forecast: Option<String>,
    /// Look-ahead to use, in intervals; None selects the one that serves most.
    pub look_ahead: Option<usize>,
    /// Number of samples after a change by which it is judged.
    pub judged_by: usize,
    /// Bounds of loss, latency and memory beyond which a change is reverted.
    pub bounds: Bounds,
    /// Assumed costs of changes, until past rolls have shown them.
    pub costs: Costs,
    /// Duration of the run; None: until it is cancelled.
    pub duration: Option<Duration>,
}

impl Request {
    /// Returns default options, without an end.
    #[must_use]
    pub fn new(
        measurements: Measurements,
        trace: PathBuf,
        interval: Duration,
        costs: Costs,
    ) -> Self {
        Self {
            measurements,
            trace,
            interval,
            season: Duration::from_secs(DAY_S),
            approved: [CostClass::Live, CostClass::Alter].into(),
            is_advising: false,
            changes_max: 12,
            gain_min: 0.02,
            busy_min: 0.3,
            weight: Weight::Demand,
            forecast: None,
            look_ahead: None,
            judged_by: 12,
            bounds: Bounds::default(),
            costs,
            duration: None,
        }
    }
}
