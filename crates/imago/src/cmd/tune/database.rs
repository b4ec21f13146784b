//! The kind of database that a command without a server is about.

/// Named by `--database`; where there is a cluster file, that names it.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(super) enum Database {
    Cassandra,
    Redis,
}
