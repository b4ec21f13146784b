//! A Cassandra table as the target of a load, and its content as the subject of a check.
//!
//! The rows are the reviews of the workload with `id` (the primary key) and `seq` (the number of the write that left
//! the row). An update writes the whole row, as an insert does: Cassandra does not distinguish the two, and of two
//! writes of one row the one with the later timestamp wins. So each row is a pure function of its key and `seq`, and
//! a read shows which write it saw.

use crate::Schema;

mod content;
mod outcome;
mod preload;

use std::time::Duration;

use imago_tune::cassandra::error::failed;
use imago_tune::cassandra::{Error, Result, Uri, connection};
use imago_workload::review::Review;
use imago_workload::target::{Insert, Outcome, Target, Update};
use scylla::client::session::Session;
use scylla::serialize::row::SerializeRow;
use scylla::statement::Consistency;
use scylla::statement::prepared::PreparedStatement;

pub use content::show_content;
pub use preload::{count_rows, preload, require_rows, rewrite};

/// The columns of the table, separated by commas, in the order of [`Row`].
const COLUMNS: &str = "id, product_id, title, price, user_id, profile_name, helpfulness, score, time, summary, \
                       text, seq";
/// Timeout of a statement at the driver, unless the load abandons the operation earlier.
const STATEMENT_WAIT: Duration = Duration::from_secs(20);
/// Maximum number of replicas of each row in a keyspace that the load creates; at most one for each node.
const REPLICAS_MAX: usize = 3;

/// The values of a row to write, in the order of [`COLUMNS`].
type Row = (String, String, String, f64, String, String, String, f64, i64, String, String, i64);

impl Schema {
    fn row(&self, key: u64, seq: u64) -> Row {
        self.row_with(key, seq, self.reviews.review(key, seq))
    }

    fn row_with(&self, key: u64, seq: u64, review: Review) -> Row {
        let Review { product_id, title, price, user_id, profile_name, .. } = review;
        let Review { helpfulness, score, time, summary, text, .. } = review;
        let id = self.id_form.name(key);
        let seq = i64::try_from(seq).unwrap_or(i64::MAX);
        (
            id,
            product_id,
            title,
            price,
            user_id,
            profile_name,
            helpfulness,
            score,
            time,
            summary,
            text,
            seq,
        )
    }
}

/// A Cassandra table to which a load is sent, with an open session and prepared statements.
#[derive(Debug)]
pub struct CassandraTarget {
    session: Session,
    schema: Schema,
    table: String,
    read: PreparedStatement,
    scan: PreparedStatement,
    write: PreparedStatement,
    delete: PreparedStatement,
    label: String,
}

impl CassandraTarget {
    /// Connects to the cluster at `uri`, and creates the keyspace and the table of these names if they do not exist.
    /// `consistency` is the consistency level of all operations.
    ///
    /// # Errors
    /// Fails if a name is not allowed, if no node answers or accepts the user, or if the table exists with other
    /// columns.
    #[crate::boxed]
    pub async fn connect(
        uri: &Uri,
        (keyspace, table): (&str, &str),
        consistency: Consistency,
        schema: Schema,
    ) -> Result<Self> {
        for name in [keyspace, table] {
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if name.is_empty() || name.len() > 48 || !name.chars().all(is_plain) {
                let rule = "use lower-case letters, digits and _, 48 at most";
                return Err(Error::Usage(format!("\"{name}\" cannot name a table: {rule}")));
            }
        }
        let session = connection::connect(uri, consistency).await?;
        let table = format!("{keyspace}.{table}");
        make(&session, uri, keyspace, &table).await?;
        let (read, scan, write, delete) = tokio::try_join!(
            prepare(&session, format!("SELECT {COLUMNS} FROM {table} WHERE id = ?")),
            prepare(
                &session,
                format!("SELECT {COLUMNS} FROM {table} WHERE token(id) >= token(?) LIMIT ?")
            ),
            prepare(
                &session,
                format!(
                    "INSERT INTO {table} ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                )
            ),
            prepare(&session, format!("DELETE FROM {table} WHERE id = ?")),
        )?;
        let label = format!("{uri} {table}, {consistency}");
        Ok(Self { session, schema, table, read, scan, write, delete, label })
    }

    /// Deletes all rows of the table. When this returns, no node serves a row of the table.
    ///
    /// # Errors
    /// Fails if a node is down or does not answer.
    #[crate::boxed]
    pub async fn truncate(&self) -> Result<()> {
        let (statement, doing) =
            (format!("TRUNCATE {}", self.table), format!("emptying {}", self.table));
        self.session.query_unpaged(statement, ()).await.map(drop).map_err(failed(doing))
    }

    async fn write(&self, row: Row) -> Outcome {
        self.change(&self.write, row).await
    }

    async fn change(&self, statement: &PreparedStatement, values: impl SerializeRow) -> Outcome {
        match self.session.execute_unpaged(statement, values).await {
            Ok(_) => Outcome::Acked,
            Err(error) => outcome::of_failed_write(&error),
        }
    }
}

/// Creates the keyspace and the table if they do not exist; `table` is `keyspace.table`. All nodes know them when
/// this returns.
async fn make(session: &Session, uri: &Uri, keyspace: &str, table: &str) -> Result<()> {
    if session.get_cluster_state().get_keyspace(keyspace).is_none() {
        let replication = connection::replication(session, uri, REPLICAS_MAX).await;
        let made =
            format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {replication}");
        let doing = format!("making the keyspace {keyspace}");
        session.query_unpaged(made, ()).await.map_err(failed(doing))?;
    }
    let made = format!(
        "CREATE TABLE IF NOT EXISTS {table} (id text PRIMARY KEY, product_id text, title text, price double, \
         user_id text, profile_name text, helpfulness text, score double, time bigint, summary text, text text, \
         seq bigint)"
    );
    let doing = format!("making the table {table}");
    session.query_unpaged(made, ()).await.map_err(failed(doing))?;
    Ok(())
}

/// Prepares a CQL statement. Every statement is marked as idempotent, because a write carries its timestamp.
async fn prepare(session: &Session, statement: String) -> Result<PreparedStatement> {
    let doing = format!("preparing {statement}");
    let mut prepared = session.prepare(statement).await.map_err(failed(doing))?;
    prepared.set_is_idempotent(true);
    prepared.set_request_timeout(Some(STATEMENT_WAIT));
    Ok(prepared)
}

impl Target for CassandraTarget {
    async fn read(&self, key: u64) -> Outcome {
        let id = self.schema.id_form.name(key);
        let answer = match self.session.execute_unpaged(&self.read, (id,)).await {
            Ok(answer) => answer,
            Err(error) => return outcome::of_failed_read(&error),
        };
        match content::seen(answer, self.schema, key) {
            Ok(Some(seq)) => Outcome::Found(seq),
            Ok(None) => Outcome::NotFound,
            Err(why) => Outcome::Refused(why),
        }
    }

    async fn insert(&self, insert: Insert) -> Outcome {
        let Insert { key, seq, review } = insert;
        self.write(self.schema.row_with(key, seq, review)).await
    }

    async fn update(&self, update: Update) -> Outcome {
        self.write(self.schema.row(update.key, update.seq)).await
    }

    async fn delete(&self, key: u64) -> Outcome {
        self.change(&self.delete, (self.schema.id_form.name(key),)).await
    }

    async fn scan(&self, key: u64, documents_max: u32) -> Outcome {
        let id = self.schema.id_form.name(key);
        let rows_max = i32::try_from(documents_max).unwrap_or(i32::MAX);
        match self.session.execute_unpaged(&self.scan, (id, rows_max)).await {
            Ok(_) => Outcome::Acked,
            Err(error) => outcome::of_failed_read(&error),
        }
    }

    fn label(&self) -> String {
        self.label.clone()
    }
}
