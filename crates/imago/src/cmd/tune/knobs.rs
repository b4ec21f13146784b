//! `imago tune knobs`: lists the settings that a roll can change.

use imago_tune::{cassandra, redis};
use serde::Serialize;

use super::database::Database;
use crate::context::Context;
use crate::exit::Failure;
use crate::table::table;

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example: imago tune knobs --database redis")]
pub(super) struct Args {
    /// The database: Cassandra 5.0 or Redis 7.
    #[arg(long, value_enum, default_value = "cassandra")]
    database: Database,
}

/// A setting of a database that a roll can change, for programs.
#[derive(Serialize)]
struct Listed {
    /// Name of the setting, as in the database's configuration file.
    name: &'static str,
    /// Default value of the setting; `None` if it depends on the machine.
    default: Option<&'static str>,
    /// The values that a roll permits for the setting, in words.
    values: String,
    /// Cost class of a change of the setting: what has to be done for it, such as a restart.
    class: &'static str,
    /// Description of the setting, in words.
    about: &'static str,
}

/// Converts a setting of Cassandra into its entry in the list.
fn of_cassandra(knob: &cassandra::knobs::Knob) -> Listed {
    Listed {
        name: knob.name,
        default: knob.default,
        values: knob.values.to_string(),
        class: knob.class.name(),
        about: knob.about,
    }
}

/// Converts a setting of Redis into its entry in the list.
fn of_redis(knob: &redis::knobs::Knob) -> Listed {
    Listed {
        name: knob.name,
        default: Some(knob.default),
        values: knob.values.to_string(),
        class: knob.class.name(),
        about: knob.about,
    }
}

/// Runs `imago tune knobs`: prints the settings of a database that a roll can change.
pub(super) fn run(args: &Args, context: &Context) -> Result<(), Failure> {
    let all: Vec<Listed> = match args.database {
        Database::Cassandra => cassandra::knobs::KNOBS.iter().map(of_cassandra).collect(),
        Database::Redis => redis::knobs::KNOBS.iter().map(of_redis).collect(),
    };
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
