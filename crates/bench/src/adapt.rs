//! Benchmark of adaptation against fixed designs: YCSB as in MorphoSys §7.2, on a store of four sites. Each site has
//! a share of a core, so that the sites behave like four small machines.

mod clients;
mod designs;
mod larger;
mod loads;
mod periods;
mod quality;
mod report;
mod scene;
mod simulated;
mod workload;

pub use clients::Checked;
pub use designs::{Part, balanced, random};
pub use loads::{Parts, Size};
pub use periods::Period;
pub use quality::Quality;
pub use report::{Beside, Learned, Report, Shifted, run};
pub use scene::{LoadSpec, Outcome, Second, run as load, watch};
pub use workload::{Popularity, Workload};
