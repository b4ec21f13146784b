//! `imago tune knobs`: the settings that a roll can change.

use imago_tune::cassandra::knobs::{KNOBS, Knob};
use serde::Serialize;

use crate::context::Context;
use crate::exit::Failure;
use crate::table::table;

/// A setting, for programs.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    default: Option<&'static str>,
    values: String,
    class: &'static str,
    about: &'static str,
}

/// Runs the command.
pub(super) fn run(context: &Context) -> Result<(), Failure> {
    let listed = |knob: &Knob| Listed {
        name: knob.name,
        default: knob.default,
        values: knob.values.to_string(),
        class: knob.class.name(),
        about: knob.about,
    };
    let all: Vec<Listed> = KNOBS.iter().map(listed).collect();
    context.output.result(&all, |all| {
        let row = |one: &Listed| {
            let default = one.default.unwrap_or("by the machine");
            [
                one.name.into(),
                one.class.into(),
                default.into(),
                one.values.clone(),
                one.about.into(),
            ]
        };
        table(&["SETTING", "CLASS", "DEFAULT", "VALUES", "WHAT IT IS"], all.iter().map(row), &[])
    })
}
