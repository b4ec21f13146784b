//! The collection that a chain reads, by batches of keys as raw documents.
//!
//! A batch is one `find {_id: {$in: […]}}`. A transient error (of the network, or of an election) is retried, up to
//! [`ATTEMPTS`] attempts in all, unless the batch has already taken [`AGAIN_WITHIN`], as on a router that finds no
//! primary of a shard.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use bson::{Bson, RawDocumentBuf, doc};
use mongodb::action::Action as _;
use mongodb::error::{Error as DriverError, ErrorKind};
use mongodb::options::{ClientOptions, ReadPreference, SelectionCriteria};
use mongodb::{Client, Collection};
use serde::Serialize;

use super::error::{Error, Result};
use super::key::Key;

/// Prefix of the comment on a find that names the job's phase; the number of the phase, from 0 on, follows.
pub const PHASE_COMMENT: &str = "imago phase ";
/// Maximum number of attempts to read one batch, the first one included.
pub const ATTEMPTS: u32 = 3;
/// Time since the first attempt to read a batch, after which no further attempt begins.
pub const AGAIN_WITHIN: Duration = Duration::from_secs(10);
/// Maximum time for the driver to find a server and to connect to it, unless the connection string sets another one.
pub const SELECTION_MAX: Duration = Duration::from_secs(5);
/// Time limit on the server for the find of one batch (`maxTimeMS`).
const BATCH_MAX: Duration = Duration::from_secs(30);
/// Pause before the second attempt to read a batch; it doubles before each further attempt.
const PAUSE: Duration = Duration::from_millis(200);

/// Read preference: the members of a shard's replica set that serve the reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// Only the primary of each shard is read.
    #[default]
    Primary,
    /// Any member with a low round-trip time is read, so that replicas share the reads.
    Nearest,
}

impl FromStr for Reads {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "primary" => Ok(Self::Primary),
            "nearest" => Ok(Self::Nearest),
            other => Err(format!("`{other}` is not a read mode: write primary or nearest")),
        }
    }
}

/// The name of a collection, with that of its database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Name of the database.
    pub db: String,
    /// Name of the collection.
    pub coll: String,
}

impl FromStr for Namespace {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let parts = text.split_once('.').filter(|(db, coll)| !db.is_empty() && !coll.is_empty());
        match parts {
            Some((db, coll)) if !text.contains('\0') => {
                Ok(Self { db: db.to_owned(), coll: coll.to_owned() })
            }
            _ => Err(format!("`{text}` is no namespace; write DATABASE.COLLECTION")),
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.db, self.coll)
    }
}

/// A collection to read from, with an open connection to its cluster.
#[derive(Clone, Debug)]
pub struct Source {
    /// The driver's handle of the collection, which returns raw documents.
    collection: Collection<RawDocumentBuf>,
    /// Names of the database and the collection.
    namespace: Namespace,
    /// Read preference of all reads.
    reads: Reads,
    /// Comment of each find, by which a recording separates the job's phases; `None`: no comment.
    comment: Option<Bson>,
}

/// Parses a connection string into options of the driver, and sets the defaults of this module for options that it
/// lacks.
///
/// # Errors
/// The connection string is invalid.
#[crate::boxed]
pub async fn options(uri: &str) -> Result<ClientOptions> {
    let mut options = ClientOptions::parse(uri)
        .await
        .map_err(|error| Error::Usage(format!("the connection string cannot be read: {error}")))?;
    options.app_name.get_or_insert_with(|| "imago chain".into());
    options.server_selection_timeout.get_or_insert(SELECTION_MAX);
    options.connect_timeout.get_or_insert(SELECTION_MAX);
    Ok(options)
}

impl Source {
    /// Connects to the cluster at the connection string `uri`, and waits for the reply to a first ping.
    ///
    /// # Errors
    /// The connection string is invalid, or no server replies.
    #[crate::boxed]
    pub async fn connect(uri: &str, namespace: Namespace, reads: Reads) -> Result<Self> {
        Self::connect_with(options(uri).await?, namespace, reads).await
    }

    /// Connects with the given driver options, such as a listener for commands, and waits for the reply to a first
    /// ping.
    ///
    /// # Errors
    /// No server replies.
    pub async fn connect_with(
        options: ClientOptions,
        namespace: Namespace,
        reads: Reads,
    ) -> Result<Self> {
        let hosts: Vec<String> = options.hosts.iter().map(ToString::to_string).collect();
        let unreachable =
            |cause| Error::Unreachable { cluster: hosts.join(","), cause: Box::new(cause) };
        let client = Client::with_options(options).map_err(unreachable)?;
        let near = SelectionCriteria::ReadPreference(ReadPreference::Nearest { options: None });
        let admin = client.database("admin");
        let ping = admin.run_command(doc! {"ping": 1});
        ping.selection_criteria(near).await.map_err(unreachable)?;
        let collection = client.database(&namespace.db).collection(&namespace.coll);
        Ok(Self { collection, namespace, reads, comment: None })
    }

    /// Returns the names of the database and the collection.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Returns a copy of this source whose finds carry a comment that names the phase `phase` (from 0 on).
    #[must_use]
    pub fn in_phase(&self, phase: u32) -> Self {
        let comment = format!("{PHASE_COMMENT}{phase}");
        Self { comment: Some(Bson::String(comment)), ..self.clone() }
    }

    /// Reads the documents of these keys by one find, and retries transient errors. Returns the documents that exist,
    /// in no particular order.
    ///
    /// # Errors
    /// [`Error::Source`], with the error of the last attempt.
    #[crate::boxed]
    pub async fn fetch(&self, keys: &[&Key]) -> Result<Vec<RawDocumentBuf>> {
        let (mut attempts, mut pause, began) = (1, PAUSE, Instant::now());
        loop {
            match self.attempt(keys).await {
                Ok(documents) => return Ok(documents),
                Err(cause)
                    if attempts < ATTEMPTS
                        && began.elapsed() < AGAIN_WITHIN
                        && may_pass(&cause) =>
                {
                    tracing::info!(%cause, attempts, "a batch is read again");
                    tokio::time::sleep(pause).await;
                    attempts += 1;
                    pause *= 2;
                }
                Err(cause) => {
                    let namespace = self.namespace.to_string();
                    return Err(Error::Source { namespace, attempts, cause: Box::new(cause) });
                }
            }
        }
    }

    /// Reads the documents of these keys by one find, without a retry.
    async fn attempt(&self, keys: &[&Key]) -> mongodb::error::Result<Vec<RawDocumentBuf>> {
        let ids: Vec<Bson> = keys.iter().map(|key| key.value().clone()).collect();
        let size = u32::try_from(keys.len()).unwrap_or(u32::MAX);
        let reads = match self.reads {
            Reads::Primary => ReadPreference::Primary,
            Reads::Nearest => ReadPreference::Nearest { options: None },
        };
        let find = self.collection.find(doc! {"_id": {"$in": ids}}).batch_size(size);
        let find = find.optional(self.comment.clone(), |find, comment| find.comment(comment));
        let find =
            find.max_time(BATCH_MAX).selection_criteria(SelectionCriteria::ReadPreference(reads));
        let mut cursor = find.await?;
        let mut documents = Vec::with_capacity(keys.len());
        while cursor.advance().await? {
            documents.push(cursor.current().to_owned());
        }
        Ok(documents)
    }
}

/// Returns true if a driver's error is transient: the same batch may succeed a moment later.
fn may_pass(error: &DriverError) -> bool {
    /// Server error codes of network errors between servers, of primaries that stepped down, and of shards that moved
    /// their chunks.
    const CODES: [i32; 13] = [6, 7, 13_388, 63, 89, 91, 133, 150, 189, 234, 9_001, 10_107, 11_600];
    match &*error.kind {
        ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } => true,
        ErrorKind::ServerSelection { .. } => true,
        ErrorKind::Command(error) => CODES.contains(&error.code),
        _ => false,
    }
}
