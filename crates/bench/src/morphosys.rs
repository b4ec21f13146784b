//! The evaluation of MorphoSys (§7): its design strategy beside those of five other systems, in one engine.
//!
//! All designs run on the adaptive store, with its log, isolation, procedures and a simulated round trip between sites.
//! They differ in where partitions are mastered and replicated, whether that changes, and what happens to a transaction
//! that no site can run alone: the design is changed for it, or it is executed by two-phase commit
//! ([`designs`]). The other designs begin with a placement that was made for the workload ([`schism`]); MorphoSys begins
//! with random masters and has to learn.

mod clients;
mod designs;
mod drawing;
mod figures;
mod learned;
mod predictions;
mod report;
mod scene;
mod schism;

pub use clients::OfKind;
pub use designs::Design;
pub use figures::{Of, figure};
pub use learned::{Class, Figure4, Predicted, figure4};
pub use predictions::predictions;
pub use report::{Compared, Designs, OfDesign, OpenLoop, Part, Row, Size};
pub use scene::{Outcome, PartitionAtEnd, Scene, run};
