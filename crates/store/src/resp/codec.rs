//! Procedures on their way to another process: a byte that says which, and what it is made of.

use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Settings;
use super::operation::Operation;
use super::procedure::{Batch, Single, Step, Watch};
use super::scan;
use crate::transaction::Procedure;

/// Which procedure.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Single = 1,
    Batch = 2,
    Watch = 3,
    Step = 4,
}

pub(super) fn encode(kind: Kind, procedure: &impl Serialize) -> Option<Vec<u8>> {
    postcard::to_extend(procedure, vec![kind as u8]).ok()
}

/// The procedure that [`Procedure::sent`] encoded, to be run under these settings; absent if it is
/// none.
#[must_use]
pub fn decode(bytes: &[u8], settings: &Arc<Settings>) -> Option<Box<dyn Procedure>> {
    let (kind, bytes) = bytes.split_first()?;
    let run_here = |operation: &mut Operation| match operation {
        Operation::Script(script) => script.settings = Arc::clone(settings),
        Operation::Call(call) => call.procedures = Arc::clone(&settings.procedures),
        _ => {}
    };
    Some(match *kind {
        1 => {
            let mut single: Single = whole(bytes)?;
            run_here(&mut single.operation);
            Box::new(single)
        }
        2 => {
            let mut batch: Batch = whole(bytes)?;
            for (step, _) in &mut batch.steps {
                if let Step::Do(operation) = step {
                    run_here(operation);
                }
            }
            Box::new(batch)
        }
        3 => Box::new(whole::<Watch>(bytes)?),
        4 => Box::new(whole::<scan::Step>(bytes)?),
        _ => return None,
    })
}

fn whole<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}
