//! The program `imago`: its command line, with flags, tables, progress and exit codes.
//!
//! This crate must not know any algorithm, or any wire protocol.
//!
//! Results go to stdout, everything else to stderr. The command line is parsed in [`cli`], which
//! falls back to the environment and `imago.toml` ([`layers`]). Each verb is one module of [`cmd`]
//! and receives a [`context::Context`]; its result becomes an exit code in [`exit`].

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "help texts show connection strings, whose brackets look like links"
)]

mod cli;
mod cmd;
mod context;
mod exit;
mod layers;
mod logging;
mod memory;
mod options;
mod output;
mod render;
mod signals;
mod table;
mod values;

use exit::{Exit, Failure};

fn main() -> std::process::ExitCode {
    memory::retain_freed();
    let typed: Vec<std::ffi::OsString> = std::env::args_os().collect();
    let (cli, rendering) = match cli::parse(&typed) {
        Ok(parsed) => parsed,
        Err(cli::Unparsed { shown, exit }) => {
            shown.print();
            return exit.into();
        }
    };
    let ended = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        // Never dropped: a runtime that is shut down stops its tasks one after the other, and the
        // driver's monitors panic if the pool that they query is gone before they are. Everything
        // that must end in order has ended when `run` returns; the exit of the process ends the
        // rest.
        Ok(runtime) => Box::leak(Box::new(runtime)).block_on(Box::pin(run(cli))),
        Err(cause) => Err(Failure::new(
            Exit::Failed,
            "runtime",
            "cannot start the threads that Imago runs on",
        )
        .because(&cause)),
    };
    match ended {
        Ok(()) => Exit::Done.into(),
        Err(failure) => {
            failure.print(rendering);
            failure.exit().into()
        }
    }
}

async fn run(cli: cli::Cli) -> Result<(), Failure> {
    let context = context::Context::new(&cli.global)?;
    imago_mongo::server::endpoint::reach_within(cli.global.connect_timeout);
    signals::watch(context.cancel.clone());
    let ended = Box::pin(cli.verb.run(&context)).await;
    context.finish().await;
    ended
}
