//! What a controller is asked for.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use imago_plan::tune::judge::Bounds;
use imago_plan::tune::planner::Weight;
use imago_plan::tune::roll::{CostClass, Costs};

use crate::basis::DAY_S;
use crate::measurements::Measurements;

/// What is to be tuned, and within which limits.
#[derive(Clone, Debug)]
pub struct Request {
    /// What the configurations serve.
    pub measurements: Measurements,
    /// The file that gets each interval that was seen.
    pub trace: PathBuf,
    /// The length of an interval.
    pub interval: Duration,
    /// The length of what clients' requests repeat by, no shorter than an interval.
    pub season: Duration,
    /// The classes of changes that may be made.
    pub approved: BTreeSet<CostClass>,
    /// True: it decides, and changes nothing.
    pub is_advising: bool,
    /// Changes within 24 hours, at most; those that undo one are not counted.
    pub changes_max: usize,
    /// The least gain that a plan is followed for, as a share.
    pub gain_min: f64,
    /// The least share of what the configuration serves that clients have to ask for, now or until the plan's next change.
    pub busy_min: f64,
    /// What an interval weighs.
    pub weight: Weight,
    /// The forecast to use; without it the one that serves most.
    pub forecast: Option<String>,
    /// The look-ahead to use, in intervals; without it the one that serves most.
    pub look_ahead: Option<usize>,
    /// Looks that a change is judged by.
    pub judged_by: usize,
    /// Bounds beyond which it is undone.
    pub bounds: Bounds,
    /// What changes take, until a roll has shown it.
    pub costs: Costs,
    /// When it ends; without it, when it is interrupted.
    pub duration: Option<Duration>,
}

impl Request {
    /// What is tuned with usual limits, until it is interrupted.
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
