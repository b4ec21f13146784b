//! The file that describes to `imago tune` how to reach the nodes of a testbed.

use std::fmt::Write as _;
use std::path::PathBuf;

use imago_testbed::supervisor::registry::RegistryEntry;
use imago_testbed::{
    CassandraCluster, ContentSpec, Engine, Error, SingleSpec, redis_configuration_of,
};

/// Writes the cluster file next to the data of a Cassandra or Redis testbed, and returns its path. Returns `None` for
/// another database, or if the testbed has no folder.
pub(in crate::cmd) fn write_cluster_file(
    standing: &RegistryEntry,
) -> Result<Option<PathBuf>, Error> {
    let Some(folder) = &standing.folder else { return Ok(None) };
    let of_database = match &standing.spec {
        ContentSpec::Cassandra(_) => {
            let configuration = CassandraCluster::configuration_of(folder, "{name}");
            format!(
                "configuration = \"{}\"\nnodetool = \"{}\"\njvm_options = \"{}\"\n",
                configuration.join("cassandra.yaml").display(),
                configuration.join("nodetool").display(),
                configuration.join("jvm-server.options").display()
            )
        }
        ContentSpec::Redis(_) | ContentSpec::Single(SingleSpec { engine: Engine::Redis, .. }) => {
            let configuration = redis_configuration_of(folder, "{name}");
            format!("configuration = \"{}\"\n", configuration.display())
        }
        ContentSpec::Cluster(_) | ContentSpec::Single(_) => return Ok(None),
    };
    let file = folder.join("cluster.toml");
    let failed = |source| Error::Io { doing: format!("write {}", file.display()), source };
    let program = std::env::current_exe().map_err(failed)?;
    let (program, name, database) =
        (program.display(), standing.spec.name(), standing.spec.database());
    let mut text = format!(
        "# How imago reaches the nodes of the testbed {name}.\n\
         database = \"{database}\"\n\
         uri = \"{}\"\n\
         {of_database}\
         stop = \"'{program}' testbed inject {name} terminate --node {{name}}\"\n\
         start = \"'{program}' testbed inject {name} restart --node {{name}}\"\n",
        standing.uri,
    );
    for node in &standing.nodes {
        let (name, host, port) = (&node.name, node.host, node.port);
        _ = write!(text, "\n[[node]]\nname = \"{name}\"\naddress = \"{host}:{port}\"\n");
    }
    std::fs::write(&file, text).map_err(failed)?;
    Ok(Some(file))
}
