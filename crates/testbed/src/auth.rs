//! Authorization as in a production cluster: a key file shared by the servers, an administrator, and an application
//! user that is *not* root.
//!
//! The difference between the two users matters: a write block (`setUserWriteBlockMode`) stops the application and
//! does not apply to root, so only an ordinary user shows whether a cut-over blocks writes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bson::{Bson, Document, doc};
use imago_mongos::User;
use mongodb::Client;
use mongodb::error::ErrorKind;
use mongodb::options::{ClientOptions, Credential, ServerAddress};

use crate::error::{Error, Result};
use crate::scratch;
use crate::server::Server;
use crate::wire;

/// Name of the role that lets a user run commands through the stand-in router ([`imago_mongos`]); without it,
/// servers accept that router's commands from internal users only.
const ROUTED_ROLE: &str = "imagoTestbedRouted";

/// The two users and the key file of a MongoDB cluster with authorization.
#[derive(Debug, Clone)]
pub struct Credentials {
    /// The administrator: has the role `root`, to which a write block does not apply.
    pub admin: User,
    /// The application's user: reads and writes all databases and administers them (`dbAdminAnyDatabase`), but is not
    /// root.
    pub app: User,
    /// Path of the key file by which the servers authenticate each other.
    pub key_file: PathBuf,
}

impl Credentials {
    /// Generates random passwords for both users, and writes a random key file to `folder`.
    pub(crate) fn generate(folder: &Path) -> Result<Self> {
        let key_file = folder.join("cluster.key");
        scratch::write_private(&key_file, scratch::random_hex(48)?.as_bytes())?;
        let user = |name: &str| -> Result<User> {
            Ok(User { name: name.to_owned(), password: scratch::random_hex(12)? })
        };
        Ok(Self { admin: user("imago-admin")?, app: user("imago-app")?, key_file })
    }
}

/// Runs administrative commands directly on single servers, logged in as the administrator if the cluster has users.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Admin<'a> {
    pub(crate) credentials: Option<&'a Credentials>,
}

impl Admin<'_> {
    /// Runs `command` in the database `admin` directly on `server`, in any member state, and returns the reply. Fails
    /// if there is none within `bound`.
    pub(crate) async fn run(
        &self,
        server: &Server,
        command: Document,
        bound: Duration,
    ) -> Result<Document> {
        self.run_in(server, "admin", command, bound).await
    }

    /// Returns all documents of the collection `coll`, at most 10,000, read directly from `server` within `bound`.
    pub(crate) async fn find(
        &self,
        server: &Server,
        database: &str,
        coll: &str,
        bound: Duration,
    ) -> Result<Vec<Document>> {
        const DOCUMENTS_MAX: i32 = 10_000;
        let find = doc! { "find": coll, "batchSize": DOCUMENTS_MAX, "singleBatch": true };
        let reply = self.run_in(server, database, find, bound).await?;
        let batch = reply.get_document("cursor").and_then(|cursor| cursor.get_array("firstBatch"));
        let found =
            batch.map(|batch| batch.iter().filter_map(Bson::as_document).cloned().collect());
        found.map_err(|error| Error::Unanswered {
            node: server.name().to_owned(),
            command: "find".into(),
            reason: error.to_string(),
        })
    }

    async fn run_in(
        &self,
        server: &Server,
        database: &str,
        command: Document,
        bound: Duration,
    ) -> Result<Document> {
        let Some(credentials) = self.credentials else {
            return wire::run(server.port(), database, command, bound).await;
        };
        let client = direct_client(server.port(), &credentials.admin)?;
        let name = command.keys().next().cloned().unwrap_or_default();
        let database = client.database(database);
        let answer = tokio::time::timeout(bound, database.run_command(command)).await;
        client.shutdown().immediate(true).await;
        let node = server.name().to_owned();
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(match *error.kind {
                ErrorKind::Command(error) => {
                    Error::Refused { node, command: name, message: error.message, code: error.code }
                }
                _ => Error::Unanswered { node, command: name, reason: error.to_string() },
            }),
            Err(_) => {
                let reason = format!("no answer within {} ms", bound.as_millis());
                Err(Error::Unanswered { node, command: name, reason })
            }
        }
    }
}

fn direct_client(port: u16, user: &User) -> Result<Client> {
    let credential = Credential::builder()
        .username(user.name.clone())
        .password(user.password.clone())
        .source("admin".to_owned())
        .build();
    let options = ClientOptions::builder()
        .hosts(vec![ServerAddress::Tcp { host: "127.0.0.1".into(), port: Some(port) }])
        .direct_connection(true)
        .credential(credential)
        .app_name("imago-testbed".to_owned())
        .server_selection_timeout(Duration::from_secs(10))
        .build();
    Client::with_options(options).map_err(|error| Error::Unanswered {
        node: format!("127.0.0.1:{port}"),
        command: "connect".into(),
        reason: error.to_string(),
    })
}

/// Creates the administrator and the application's user on a replica set whose primary is `primary` and which has no
/// users yet.
///
/// With `routed`, both users also get the action `internal`, which permits the stand-in router's commands.
pub(crate) async fn create_users(
    primary: &Server,
    credentials: &Credentials,
    routed: bool,
) -> Result<()> {
    const BOUND: Duration = Duration::from_secs(60);
    let majority = doc! { "w": "majority", "wtimeout": 50_000 };
    let create = |user: &User, roles: Vec<Bson>| {
        doc! {
            "createUser": &user.name, "pwd": &user.password, "roles": roles,
            "writeConcern": &majority,
        }
    };
    // The first user is created through the localhost exception, which that closes.
    let admin = create(&credentials.admin, vec!["root".into()]);
    wire::run(primary.port(), "admin", admin, BOUND).await?;

    let as_admin = Admin { credentials: Some(credentials) };
    let mut roles: Vec<Bson> =
        vec!["readWriteAnyDatabase".into(), "dbAdminAnyDatabase".into(), "clusterMonitor".into()];
    if routed {
        let privilege = doc! { "resource": { "cluster": true }, "actions": ["internal"] };
        let role = doc! {
            "createRole": ROUTED_ROLE, "privileges": [privilege], "roles": [],
            "writeConcern": &majority,
        };
        as_admin.run(primary, role, BOUND).await?;
        let grant = doc! {
            "grantRolesToUser": &credentials.admin.name, "roles": [ROUTED_ROLE],
            "writeConcern": &majority,
        };
        as_admin.run(primary, grant, BOUND).await?;
        roles.push(ROUTED_ROLE.into());
    }
    as_admin.run(primary, create(&credentials.app, roles), BOUND).await?;
    Ok(())
}
