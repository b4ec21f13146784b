//! The compaction strategy of a table: a property that `ALTER TABLE` changes in the whole cluster at once, without a
//! restart.

use std::collections::BTreeMap;

use scylla::client::session::Session;
use scylla::statement::Statement;

use super::connection::rows;
use super::error::{Error, Result, failed};
use super::nodetool::nodetool;
use crate::cluster::NodeAccess;
pub use crate::cluster::compaction::Compaction;
use crate::cluster::node::{LOOK_BOUND, quoted};

/// Splits a table's name `keyspace.table` into keyspace and table; fails if it has another form.
pub(super) fn split(table: &str) -> Result<(&str, &str)> {
    let is_plain = |name: &str| {
        !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let parts =
        table.split_once('.').filter(|(keyspace, name)| is_plain(keyspace) && is_plain(name));
    parts.ok_or_else(|| {
        Error::Usage(format!("\"{table}\" does not name a table: write keyspace.table"))
    })
}

/// Reads the compaction that a table (`keyspace.table`) has now.
pub(super) async fn present(session: &Session, table: &str) -> Result<Compaction> {
    let (keyspace, name) = split(table)?;
    let statement =
        "SELECT compaction FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?";
    let doing = format!("reading the compaction of {table}");
    let found =
        rows::<(BTreeMap<String, String>,)>(session, &doing, statement, (keyspace, name)).await?;
    let Some((options,)) = found.into_iter().next() else {
        return Err(Error::precondition(
            format!("there is no table {table}"),
            "names are in lower case unless they were quoted",
        ));
    };
    let options: BTreeMap<String, serde_json::Value> =
        options.into_iter().map(|(name, value)| (name, value.into())).collect();
    options.try_into()
}

/// Alters a table (`keyspace.table`) to the compaction `to`, unless the table has it already. All nodes have the new
/// schema on return. Returns true if the table was altered.
pub(super) async fn alter(session: &Session, table: &str, to: &Compaction) -> Result<bool> {
    if to.is_in(&present(session, table).await?) {
        return Ok(false);
    }
    let (keyspace, name) = split(table)?;
    let statement =
        format!("ALTER TABLE \"{keyspace}\".\"{name}\" WITH compaction = {}", to.literal());
    let doing = format!("changing the compaction of {table}");
    session.query_unpaged(Statement::new(statement), ()).await.map_err(failed(&*doing))?;
    Ok(true)
}

/// Sets the compaction of a table (`keyspace.table`) on one node only, by the node's JMX interface. Other nodes are
/// not affected, and the compaction lasts until the node restarts or the table is altered.
pub(super) async fn set_in_node(node: &NodeAccess, table: &str, to: &Compaction) -> Result<()> {
    nodetool(node, &command_for_node(table, to)?, LOOK_BOUND).await.map(drop)
}

/// Flushes the memtables of a table (`keyspace.table`) on one node.
///
/// # Errors
/// Fails if the node cannot be reached or refuses the command.
#[crate::boxed]
pub async fn flush(node: &NodeAccess, table: &str) -> Result<()> {
    let (keyspace, name) = split(table)?;
    nodetool(node, &format!("flush {keyspace} {name}"), LOOK_BOUND).await.map(drop)
}

/// Returns the `nodetool` command that sets a table's compaction on one node.
fn command_for_node(table: &str, to: &Compaction) -> Result<String> {
    let (keyspace, name) = split(table)?;
    let json = serde_json::to_string(to).expect("texts");
    let bean = format!("org.apache.cassandra.db:type=Tables,keyspace={keyspace},table={name}");
    Ok(format!("sjk mx -ms -b {bean} -f CompactionParametersJson -v {}", quoted(&json)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_is_told_by_a_word_that_the_shell_takes_as_it_is() {
        let to = Compaction::parse(r#"{"class": "UnifiedCompactionStrategy", "x": "it's"}"#);
        assert_eq!(
            command_for_node("shop.reviews", &to.unwrap()).unwrap(),
            "sjk mx -ms -b org.apache.cassandra.db:type=Tables,keyspace=shop,table=reviews -f \
             CompactionParametersJson -v '{\"class\":\"UnifiedCompactionStrategy\",\"x\":\"it'\\''s\"}'"
        );
    }

    #[test]
    fn a_table_is_named_with_its_keyspace() {
        for table in ["reviews", "shop.", "shop.reviews; DROP", "a.b.c"] {
            assert!(split(table).is_err(), "{table}");
        }
        assert_eq!(split("shop.reviews").unwrap(), ("shop", "reviews"));
    }
}
