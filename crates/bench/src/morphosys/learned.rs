//! Fig. 4 of MorphoSys: what the store's design looks like after it has adapted, how it follows a shift of the workload,
//! more sites, and how well costs are predicted.
//!
//! Parts a and b are of loads as in Fig. 3; the classes of rows are the paper's: the tenth of the rows that is accessed
//! most is hot, the next two tenths are medium, the others cold. Parts c and d are the shifts and the simulated sites of
//! the benchmark of adaptation ([`crate::adapt`]).

use imago_load::store::transactions::Benchmark;
use imago_workload::procedures::ycsb;
use serde::Serialize;

use super::designs::Design;
use super::figures::EXPONENT;
use super::report::Size;
use super::scene::{self, PartitionAtEnd};
use crate::Header;
use crate::adapt::{self, Quality};
use crate::error::Result;

/// Ends of the classes of rows, as shares of all rows by the frequency of accesses, with the names of the classes.
const CLASSES: [(&str, f64); 3] = [("hot", 0.1), ("medium", 0.3), ("cold", 1.0)];

/// Fig. 4 of the paper.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure4 {
    /// The benchmark and its size.
    #[serde(flatten)]
    pub header: Header<Size>,
    /// Parts a and b: partitions and replicas of hot, medium and cold rows.
    pub classes: Vec<Class>,
    /// Part e: the accuracy of the cost model in each mix of transactions.
    pub predicted: Vec<Predicted>,
    /// Parts c and d; `None` if they were not measured.
    pub adapted: Option<adapt::Report>,
}

/// The partitions of a class of rows, after the store has adapted to a skewed workload.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Class {
    /// Share of the transactions that are scans.
    pub scans: f64,
    /// Name of the class: hot, medium or cold.
    pub class: &'static str,
    /// Mean number of rows of a partition that begins in the class.
    pub rows: f64,
    /// Mean number of copies of a row, its master's included.
    pub copies: f64,
    /// Number of partitions that begin in the class.
    pub partitions: usize,
}

/// The accuracy of the learned costs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Predicted {
    /// Share of the transactions that are scans.
    pub scans: f64,
    /// The decisions, and the accuracy of the predictions.
    #[serde(flatten)]
    pub quality: Quality,
}

/// Measures Fig. 4. `adapted` has the size of parts c and d; they are left out if it is `None`. Calls `say` with each
/// step.
///
/// # Errors
/// Fails if a store refuses an operation.
pub fn figure4(size: &Size, adapted: Option<adapt::Size>, say: &dyn Fn(&str)) -> Result<Figure4> {
    let (mut classes, mut predicted) = (Vec::new(), Vec::new());
    for scans in [0.5, 0.1] {
        say(&format!("a, b, e: {:.0} % scans", scans * 100.0));
        let users = size.users;
        let parameters =
            ycsb::Parameters { users, rows: 1, partners: 2, scans, exponent: EXPONENT };
        let scene = size.scene(Benchmark::Ycsb(parameters), 0);
        let outcome = scene::run(Design::Morphosys, &scene)?;
        classes.extend(classify(&outcome.at_end, u64::from(users), scans));
        predicted.extend(outcome.quality.map(|quality| Predicted { scans, quality }));
    }
    let adapted = adapted.map(|size| adapt::run(size, say)).transpose()?;
    let header = Header::of("morphosys-fig4", size.clone());
    Ok(Figure4 { header, classes, predicted, adapted })
}

/// Returns the classes of the rows of a design. The rows are in the order of their frequency of accesses, as skewed
/// YCSB's are.
fn classify(partitions: &[PartitionAtEnd], rows: u64, scans: f64) -> Vec<Class> {
    let mut from = 0.0;
    let mut classes = Vec::new();
    for (class, to) in CLASSES {
        let (first, end) = ((from * rows as f64) as u64, (to * rows as f64) as u64);
        from = to;
        let mut before = 0;
        let (mut begun, mut of_begun, mut copies) = (0, 0, 0);
        for partition in partitions {
            let (start, behind) = (before, before + partition.rows);
            before = behind;
            let within = behind.min(end).saturating_sub(start.max(first));
            copies += within * partition.copies as u64;
            if (first..end).contains(&start) {
                begun += 1;
                of_begun += partition.rows;
            }
        }
        classes.push(Class {
            scans,
            class,
            rows: of_begun as f64 / f64::from(begun.max(1)),
            copies: copies as f64 / (end - first).max(1) as f64,
            partitions: begun as usize,
        });
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_classified_by_their_rank() {
        let partition = |rows, copies| PartitionAtEnd { rows, copies };
        let partitions = [partition(40, 4), partition(60, 3), partition(300, 2), partition(600, 1)];
        let classes = classify(&partitions, 1_000, 0.5);
        let of = |one: &Class| (one.rows, one.copies, one.partitions);
        assert_eq!(of(&classes[0]), (50.0, 3.4, 2));
        // The third partition begins with the medium rows, and reaches into the cold ones.
        assert_eq!(of(&classes[1]), (300.0, 2.0, 1));
        assert_eq!(of(&classes[2]), (600.0, (100.0 * 2.0 + 600.0) / 700.0, 1));
    }
}
