//! The folder for the figures that a benchmark draws.

use std::path::PathBuf;

/// Folder for the drawn figures.
#[derive(Debug, clap::Args)]
pub struct Drawn {
    /// Draw the figures into this folder, as SVG files named after them; the report names the files.
    #[arg(long, value_name = "DIR")]
    pub pictures: Option<PathBuf>,
}
