//! Connections to Redis: one to each node, which multiplexes concurrent requests.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, IntoConnectionInfo as _, Pipeline};
use redis::{RedisConnectionInfo, RedisError, RedisResult};

use super::Uri;
use crate::cluster::{Error, Result};

/// Minimum timeout of a connection attempt to a node.
const CONNECT_WAIT: Duration = Duration::from_secs(2);

/// Connects to a node at `host:port`, with a name and password if `user` has them; `answer_wait` is the timeout of
/// each reply.
///
/// # Errors
/// Fails if the connection or the authentication is refused.
#[crate::boxed]
pub async fn open(
    node: &str,
    user: Option<&(String, String)>,
    answer_wait: Duration,
) -> RedisResult<MultiplexedConnection> {
    let mut login = RedisConnectionInfo::default().set_lib_name("imago", env!("CARGO_PKG_VERSION"));
    if let Some((name, password)) = user {
        login = login.set_password(password);
        if !name.is_empty() {
            login = login.set_username(name);
        }
    }
    let info = format!("redis://{node}/").into_connection_info()?.set_redis_settings(login);
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_WAIT.max(answer_wait)))
        .set_response_timeout(Some(answer_wait));
    redis::Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await
}

/// A connection to one node of Redis.
#[derive(Clone)]
pub struct Node {
    /// Address of the node, `host:port`.
    pub address: String,
    connection: MultiplexedConnection,
}

impl Node {
    /// Connects to the node at `address` (`host:port`), with the credentials of `uri`; `answer_wait` is the timeout
    /// of each reply.
    ///
    /// # Errors
    /// Fails if the connection or the authentication is refused.
    #[crate::boxed]
    pub async fn connect(address: &str, uri: &Uri, answer_wait: Duration) -> Result<Self> {
        let connected = open(address, uri.user.as_ref(), answer_wait).await;
        let connection = connected.map_err(|source| Error::Connect {
            uri: uri.at(address.to_owned()).to_string(),
            source: Box::new(source),
            help: "is the address right, and are name and password?",
        })?;
        Ok(Self { address: address.to_owned(), connection })
    }

    /// Connects to the first node of the connection string that accepts; `answer_wait` is the timeout of each reply.
    ///
    /// # Errors
    /// Fails if no node accepts.
    #[crate::boxed]
    pub async fn connect_to_any(uri: &Uri, answer_wait: Duration) -> Result<Self> {
        let mut last = None;
        for address in &uri.nodes {
            match Self::connect(address, uri, answer_wait).await {
                Ok(node) => return Ok(node),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| Error::Usage("the connection string names no node".into())))
    }

    /// Executes the command of these words (its name and arguments), and returns its reply.
    ///
    /// # Errors
    /// Fails with the error of the server or of the connection; the message names node and command.
    pub async fn ask<T: FromRedisValue>(&self, words: &[&str]) -> Result<T> {
        self.try_ask(words).await.map_err(|error| self.failed(words, error))
    }

    /// Executes the command of these words (its name and arguments), and returns its reply, or the driver's error.
    ///
    /// # Errors
    /// Fails with the error of the server or of the connection.
    pub async fn try_ask<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]).query_async(&mut self.connection.clone()).await
    }

    /// Executes the commands of a pipeline and returns their replies.
    ///
    /// # Errors
    /// Fails if a command or the connection fails; the message includes `doing`, the purpose of the pipeline.
    pub async fn ask_all<T: FromRedisValue>(&self, doing: &str, commands: &Pipeline) -> Result<T> {
        let answers = commands.query_async(&mut self.connection()).await;
        answers.map_err(|error| Error::Statement {
            doing: format!("{doing} at {}", self.address),
            source: Box::new(error),
        })
    }

    /// Returns the driver's connection to this node, for requests of any form.
    #[must_use]
    pub fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    fn failed(&self, words: &[&str], error: RedisError) -> Error {
        // Later arguments may be secret.
        let command = words[..words.len().min(2)].join(" ");
        Error::Statement {
            doing: format!("{command} at {}", self.address),
            source: Box::new(error),
        }
    }
}

/// Returns the value of the line `key:value` in a text such as the replies to INFO and CLUSTER INFO; None if there is
/// no such line.
#[must_use]
pub fn line<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}
