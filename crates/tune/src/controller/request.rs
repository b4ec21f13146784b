//! Options and limits of a controller.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use imago_plan::tune::judge::Bounds;
use imago_plan::tune::planner::Weight;
use imago_plan::tune::roll::{CostClass, Costs};

use crate::decision_inputs::DAY_S;
use crate::measurements::Measurements;

/// Options and limits of a controller, whichever database it tunes.
#[derive(Clone, Debug)]
pub struct Request {
    /// Measured throughputs of the candidate configurations.
    pub measurements: Measurements,
    /// Path of the CSV file to which each observed interval is appended, and from which a new controller learns.
    pub trace: PathBuf,
    /// Length of an interval: the controller decides at the end of each.
    pub interval: Duration,
    /// Period after which the workload repeats, no shorter than an interval.
    pub season: Duration,
    /// Cost classes of the changes that the controller may make.
    pub approved: BTreeSet<CostClass>,
    /// True if the controller only decides and reports, and changes nothing.
    pub is_advising: bool,
    /// Maximum number of changes that start within 24 hours, reversions excluded.
    pub changes_max: usize,
    /// Minimum gain at which a plan is followed, as a share of the operations without a change.
    pub gain_min: f64,
    /// Minimum load at which a change is worthwhile: the rate now, or expected until the plan's next change, as a share
    /// of the present configuration's throughput.
    pub busy_min: f64,
    /// Weight of an interval in a plan: all the same (capacity), or by the operations that clients request (demand).
    pub weight: Weight,
    /// Name of the forecast of mixes to use; None selects the one that serves most in a replay of the past.
    pub forecast: Option<String>,
    /// Length of a plan, in intervals; None selects the one that serves most in a replay of the past.
    pub look_ahead: Option<usize>,
    /// Number of samples after a change that are required to judge it.
    pub judged_by: usize,
    /// True if both configurations of a live change take turns while it is judged.
    pub takes_turns: bool,
    /// Maximum loss of throughput, rise of latency, and use of memory, beyond which a change is reverted.
    pub bounds: Bounds,
    /// Assumed durations and lost capacity of changes, until past rolls have shown their durations.
    pub costs: Costs,
    /// Time after which the controller ends; None: it runs until it is cancelled.
    pub duration: Option<Duration>,
}

impl Request {
    /// Returns the default options for these measurements, trace, interval and costs; the controller runs until it is
    /// cancelled.
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
            takes_turns: true,
            bounds: Bounds::default(),
            costs,
            duration: None,
        }
    }
}
