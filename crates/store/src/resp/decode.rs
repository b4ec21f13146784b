//! Decodes procedures that arrive from another process.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::operation::Operation;
use super::procedure::{Batch, Single, Step, Watch};
use super::{Settings, scan};
use crate::transaction::Procedure;

/// Decodes a procedure that [`Procedure::encode`] encoded, to be run with the settings of this process. Returns
/// `None` if the bytes are not a procedure.
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

/// Deserializes a value from all of the bytes; `None` if that is impossible or bytes are left.
fn whole<T: DeserializeOwned>(bytes: &[u8]) -> Option<T> {
    let (value, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(value)
}
