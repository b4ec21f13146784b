//! The global options, which every verb accepts.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::values::duration;

/// Options that every verb has.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Options of every verb")]
pub struct Global {
    /// Print results as JSON on stdout, and an error as one JSON object on stderr.
    #[arg(long, global = true)]
    pub json: bool,
    /// Display of progress on stderr; auto: a bar on a terminal, plain lines elsewhere.
    #[arg(long, global = true, value_enum, default_value = "auto", value_name = "HOW")]
    pub progress: ProgressMode,
    /// Serve Prometheus metrics at this address, for example 127.0.0.1:9090.
    #[arg(long, global = true, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// Filter of the log lines on stderr, for example info or imago_mongo=debug; by default only
    /// warnings of the libraries.
    #[arg(long, global = true, value_name = "FILTER")]
    pub log_filter: Option<String>,
    /// Timeout for the first reply of a cluster; for example 500ms, 5s, 1m.
    #[arg(long, global = true, value_name = "TIME", default_value = "5s", value_parser = duration)]
    pub connect_timeout: Duration,
    /// Read settings from this file instead of ./imago.toml.
    #[arg(long, global = true, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// Display of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProgressMode {
    /// A bar when stderr is a terminal, plain lines when it is not.
    Auto,
    /// As auto, with a bar also on a terminal that calls itself dumb.
    Bar,
    /// Every event as one line of JSON.
    Json,
    /// Nothing.
    None,
}

/// Returns true if output is to be in colour; `terminal` is true if the output goes to a terminal.
pub fn colour_wanted(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
