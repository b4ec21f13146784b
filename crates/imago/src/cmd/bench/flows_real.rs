//! `imago bench run flows-real`: its options, and its hosts, which are processes of this
//! executable.

use std::io::BufReader;

use imago_bench::flows::real;

use crate::cmd::process::program;
use crate::exit::{Exit, Failure};

/// The command's arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Runs, each with its own draw of members and data; figures are medians.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Data of the collection on each server that exchanges.
    #[arg(long, value_name = "MB", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    data_mb: u32,
    /// The largest windows of a connection.
    #[arg(long, value_name = "KIB", value_delimiter = ',', default_values_t = [16, 64], value_parser = clap::value_parser!(u32).range(1..=i64::from(real::WINDOW_KIB_MAX)))]
    window_kib: Vec<u32>,
    /// Only show that the benchmark works: 3 MB a server, two runs.
    #[arg(long, conflicts_with_all = ["runs", "data_mb"])]
    quick: bool,
}

/// Runs the benchmark of real network flows, with this executable as its hosts, and returns the report.
pub async fn measure(args: &Args) -> Result<real::Report, Failure> {
    let &Args { runs, data_mb: data_mb_per_server, ref window_kib, quick } = args;
    let quick_size = real::Size { runs: 2, data_mb_per_server: 3 };
    let size = if quick { quick_size } else { real::Size { runs, data_mb_per_server } };
    let host = [program()?.into_os_string(), "bench".into(), "host".into()];
    Ok(real::run(size, window_kib, &host).await?)
}

/// Serves as one host of the benchmark `flows-real`: takes orders from stdin and replies on stdout, until stdin ends.
pub async fn host() -> Result<(), Failure> {
    let serve = || real::host::serve(BufReader::new(std::io::stdin()), std::io::stdout());
    let failed = |cause: &(dyn std::error::Error + 'static)| {
        Failure::new(Exit::Failed, "host", "this host of the benchmark failed").because(cause)
    };
    match tokio::task::spawn_blocking(serve).await {
        Ok(served) => served.map_err(|cause| failed(&cause)),
        Err(panicked) => Err(failed(&panicked)),
    }
}
