//! The command lines of the programs that benchmarks measure.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use imago_bench::subject::{Commands, Ends, Subject};
use serde_json::json;

use crate::cmd::process::program;
use crate::exit::Failure;

/// Returns the function that makes the command of each measured program: this executable, as a separate process.
pub fn commands() -> Result<Commands, Failure> {
    let program = program()?;
    Ok(Arc::new(move |subject, ends| command(&program, subject, ends)))
}

fn command(program: &PathBuf, subject: &Subject, ends: &Ends) -> Command {
    let mut command = Command::new(program);
    match subject {
        Subject::Copy => command.args(["copy", "--ns", &ends.ns, "--until", "caught-up"]),
        Subject::Cancel { job } => command.args(["job", "cancel", job]),
        Subject::CatchUp { job } => command.args(["job", "resume", job, "--until", "caught-up"]),
        Subject::Follow { job } => command.args(["job", "resume", job, "--until", "handed-over"]),
        Subject::Verify => command.args(["verify", "--ns", &ends.ns]),
        Subject::PlanReshard { key, placing, chunk_mb } => {
            let placing = json!(placing);
            let placing = placing.as_str().expect("a placement is written as its name");
            reshape(&mut command, "plan", ends, key).args([
                "--placement",
                placing,
                "--pace",
                "full",
            ]);
            let size = chunk_mb.map(|mb| ["--chunk-size-mb".to_owned(), mb.to_string()]);
            command.args(size.into_iter().flatten())
        }
        Subject::RecordOperations { out, listen } => command
            .args(["reshard", "record", "--uri", &ends.to, "--ns", &ends.ns, "--listen", listen])
            .arg("--out")
            .arg(out),
        Subject::AdviseKeys { recording, keys, costs_ns } => {
            command.args(["reshard", "advise", "--uri", &ends.to, "--ns", &ends.ns]);
            command.args(keys.iter().flat_map(|key| ["--key", key]));
            let options = ["--request-us", "--document-us", "--write-us"];
            for (option, ns) in options.into_iter().zip(costs_ns.iter().flatten()) {
                command.args([option, &(*ns as f64 / 1_000.0).to_string()]);
            }
            command.args(["--pace", "full", "--recording"]).arg(recording)
        }
        Subject::ProfileOperations => command
            .args(["reshard", "advise", "--uri", &ends.to, "--ns", &ends.ns, "--pace", "full"])
            .args(["--profile", "60s"]),
        Subject::ReshardTo { key } => command
            .args(["reshard", "run", "--uri", &ends.to, "--ns", &ends.ns, "--pace", "full"])
            .args(["--verify", "none", "--key", key]),
        Subject::ReshardBy { key } => reshape(&mut command, "run", ends, key),
        Subject::Reshard { plan } => command
            .args(["reshard", "run", "--uri", &ends.to, "--pace", "full", "--plan"])
            .arg(plan),
    };
    let is_between_two = matches!(
        subject,
        Subject::Copy
            | Subject::Cancel { .. }
            | Subject::CatchUp { .. }
            | Subject::Follow { .. }
            | Subject::Verify
    );
    if is_between_two {
        command.args(["--from", &ends.from, "--to", &ends.to]);
    }
    command.args(["--json", "--progress", "json"]);
    command
}

fn reshape<'a>(command: &'a mut Command, verb: &str, ends: &Ends, field: &str) -> &'a mut Command {
    let key = json!({ field: 1 }).to_string();
    command.args(["reshard", verb, "--uri", &ends.to, "--ns", &ends.ns, "--key", &key])
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use imago_mongo::reshard::plan::Placing;

    use super::*;

    #[test]
    fn what_is_measured_is_what_the_command_line_takes() {
        let ends = Ends { from: "mongodb://a".into(), to: "mongodb://b".into(), ns: "c.d".into() };
        let job = imago_job::id::JobId::from_parts(1, 1).to_string();
        for subject in [
            Subject::Copy,
            Subject::Cancel { job: job.clone() },
            Subject::CatchUp { job: job.clone() },
            Subject::Follow { job },
            Subject::Verify,
            Subject::PlanReshard { key: "k".into(), placing: Placing::Balanced, chunk_mb: None },
            Subject::PlanReshard { key: "k".into(), placing: Placing::Greedy, chunk_mb: Some(8) },
            Subject::PlanReshard { key: "k".into(), placing: Placing::Random, chunk_mb: Some(1) },
            Subject::Reshard { plan: "p".into() },
            Subject::ReshardBy { key: "k".into() },
            Subject::RecordOperations { out: "o".into(), listen: "127.0.0.1:1".into() },
            Subject::AdviseKeys {
                recording: "o".into(),
                keys: vec!["{k: 1}".into()],
                costs_ns: Some([87_500, 2_250, 110_000]),
            },
            Subject::ProfileOperations,
            Subject::ReshardTo { key: "{k: 1}".into() },
        ] {
            let command = command(&PathBuf::from("imago"), &subject, &ends);
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            crate::cli::Cli::try_parse_from(words).unwrap();
        }
    }
}
