//! The collection, read by batches of keys as raw documents.
//!
//! A batch is one `find {_id: {$in: […]}}`. An error that may pass (a network's, an election's) is answered by another
//! attempt, [`ATTEMPTS`] in all, unless servers have waited for each other for [`AGAIN_WITHIN`] already, as a router does
//! that finds no primary of a shard.

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

/// The comment of a read that says its phase, without the phase's number.
pub const PHASE_COMMENT: &str = "imago phase ";
/// Attempts to read one batch.
pub const ATTEMPTS: u32 = 3;
/// Time after which no further attempt begins.
pub const AGAIN_WITHIN: Duration = Duration::from_secs(10);
/// Time to find a server, unless the connection string says otherwise.
pub const SELECTION_MAX: Duration = Duration::from_secs(5);
/// Time that the servers have for one batch.
const BATCH_MAX: Duration = Duration::from_secs(30);
/// Pause before the second attempt; then it doubles.
const PAUSE: Duration = Duration::from_millis(200);

/// Which members of a shard are read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reads {
    /// The primary alone.
    #[default]
    Primary,
    /// Any member that is near, so that replicas share the reads.
    Nearest,
}

impl FromStr for Reads {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text {
            "primary" => Ok(Self::Primary),
            "nearest" => Ok(Self::Nearest),
            other => Err(format!("`{other}` is none; reads are of primary or nearest")),
        }
    }
}

/// A collection's name with that of its database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// The database.
    pub db: String,
    /// The collection.
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

/// A collection to read from.
#[derive(Clone, Debug)]
pub struct Source {
    collection: Collection<RawDocumentBuf>,
    namespace: Namespace,
    reads: Reads,
    /// The comment of each read: a recording tells the job's phases by it.
    comment: Option<Bson>,
}

/// Reads the connection string, and sets what it leaves open.
///
/// # Errors
/// It cannot be read.
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
    /// Connects, and waits for the first answer.
    ///
    /// # Errors
    /// The connection string cannot be read, or no server answers.
    pub async fn connect(uri: &str, namespace: Namespace, reads: Reads) -> Result<Self> {
        Self::connect_with(options(uri).await?, namespace, reads).await
    }

    /// The same with options of one's own, such as a listener for the driver's commands.
    ///
    /// # Errors
    /// No server answers.
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

    /// The collection's name.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The same collection, whose reads say that they are of this phase (from 0 on).
    #[must_use]
    pub fn in_phase(&self, phase: u32) -> Self {
        let comment = format!("{PHASE_COMMENT}{phase}");
        Self { comment: Some(Bson::String(comment)), ..self.clone() }
    }

    /// The documents that there are of these keys, in no order.
    ///
    /// # Errors
    /// The last attempt's.
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

/// True if the same batch may succeed a moment later.
fn may_pass(error: &DriverError) -> bool {
    /// Network errors between servers, a primary that is none any more, shards that moved their chunks.
    const CODES: [i32; 13] = [6, 7, 13_388, 63, 89, 91, 133, 150, 189, 234, 9_001, 10_107, 11_600];
    match &*error.kind {
        ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } => true,
        ErrorKind::ServerSelection { .. } => true,
        ErrorKind::Command(error) => CODES.contains(&error.code),
        _ => false,
    }
}
