//! The cache at the router, as the paper concludes: a proxy that a job reads through as if it were the router.
//!
//! The proxy answers `find {_id: {$in: […]}}` on one collection from the cache, requests the missing documents from the
//! router, and stores them in the cache. It forwards everything else unchanged: other conditions, projections, orders,
//! sessions' transactions, reads with a read concern other than `local`, other collections, all writes.
//!
//! Invariants: a connection receives cached documents only after the router itself has answered such a find on it
//! without an error, since the router checks the user and its rights, and no longer after another log-in or a log-out;
//! a reply has each document once.
//!
//! Writes do not invalidate cached documents: the documents have to stay unchanged while the cache has them, or a time
//! to live bounds the age of a cached document.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bson::raw::RawArrayBuf;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use mongodb::options::Tls;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::cache::{self, Cache, Found};
use super::error::{Error, Result};
use super::key::{identity, identity_of_document};
use super::source::{self, Namespace};
use crate::wire::{self, Command, Handler, Message, Upstream};

/// Maximum total size of the cached documents in one reply, in bytes; the documents above it are requested from the
/// router. The reply, with the router's part of at most 16 MB, has to fit into a message.
const CACHED_BYTES_MAX: usize = 16 << 20;

/// Fields of a find command, besides its filter, with which the proxy may answer it from the cache.
const HARMLESS: [&str; 7] =
    ["$db", "lsid", "$clusterTime", "$readPreference", "maxTimeMS", "comment", "batchSize"];

/// Settings of a proxy that places the cache at the router.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connection string of the router. Credentials in it are not used; clients authenticate themselves.
    pub uri: String,
    /// The collection whose documents are cached.
    pub namespace: Namespace,
    /// Options of the connection to the cache.
    pub cache: cache::Options,
    /// The address at which the proxy listens for clients.
    pub listen: SocketAddr,
}

/// Counts of the requests of all clients of a proxy, since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Number of finds that the proxy answered, from the cache alone or with documents of the router.
    pub finds: u64,
    /// Number of keys of these finds whose document came from the cache.
    pub hits: u64,
    /// Number of keys of these finds that were requested from the router.
    pub misses: u64,
    /// Number of finds that the proxy sent to the router for missing keys.
    pub requests: u64,
    /// Number of cached values that were not used, because they were truncated or another document's.
    pub refused: u64,
    /// Number of requests that were forwarded unchanged, handshakes included.
    pub passed: u64,
}

/// The counters behind [`Totals`], which all client connections of a proxy update.
#[derive(Debug, Default)]
struct Counters {
    finds: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
    requests: AtomicU64,
    refused: AtomicU64,
    passed: AtomicU64,
}

/// Adds `count` to a counter.
fn add(counter: &AtomicU64, count: usize) {
    counter.fetch_add(count as u64, Ordering::Relaxed);
}

/// A proxy at the router that listens for clients, but does not serve them yet.
#[derive(Debug)]
pub struct Proxy {
    /// The listening socket, on which clients' connections are accepted.
    listener: TcpListener,
    /// The address at which the proxy listens.
    address: SocketAddr,
    /// Addresses of the router to connect to, as `host:port`; the first that accepts a connection is used.
    upstream: Vec<String>,
    shared: Arc<Shared>,
}

/// State of the proxy that all client connections share.
#[derive(Debug)]
struct Shared {
    namespace: Namespace,
    cache: Cache,
    counters: Counters,
}

impl Proxy {
    /// Checks that the upstream server is a router, connects to the cache, and opens the listening socket.
    ///
    /// # Errors
    /// The connection string is invalid or requires TLS, no router replies, or the address is in use.
    #[crate::boxed]
    pub async fn bind(options: &Options) -> Result<Self> {
        let parsed = source::options(&options.uri).await?;
        if matches!(parsed.tls, Some(Tls::Enabled(_))) {
            let what = "the connection string asks for TLS, which the proxy does not speak: give it the address of a \
                        router on this machine or in this network";
            return Err(Error::Usage(what.into()));
        }
        let upstream: Vec<String> = parsed.hosts.iter().map(ToString::to_string).collect();
        require_router(&upstream).await?;
        let cache = Cache::connect(&options.cache, &options.namespace).await?;
        let failed = |cause| Error::Listen { address: options.listen.to_string(), cause };
        let listener = TcpListener::bind(options.listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let namespace = options.namespace.clone();
        let shared = Arc::new(Shared { namespace, cache, counters: Counters::default() });
        Ok(Self { listener, address, upstream, shared })
    }

    /// Returns the address at which the proxy listens, with the actual port if port 0 was requested.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a function that reads the current counts, also while the proxy serves.
    pub fn totals(&self) -> impl Fn() -> Totals + Send + Sync + 'static {
        let shared = Arc::clone(&self.shared);
        move || {
            let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let counters = &shared.counters;
            Totals {
                finds: of(&counters.finds),
                hits: of(&counters.hits),
                misses: of(&counters.misses),
                requests: of(&counters.requests),
                refused: of(&counters.refused),
                passed: of(&counters.passed),
            }
        }
    }

    /// Serves clients until `cancel` is cancelled; then closes their connections.
    #[crate::boxed]
    pub async fn serve(self, cancel: CancellationToken) {
        let shared = self.shared;
        let handler = || Cached { shared: Arc::clone(&shared), is_admitted: false };
        wire::serve(self.listener, self.upstream, handler, cancel).await;
    }
}

/// Checks that the first reachable address in `upstream` is a router (mongos). A member of a replica set would report
/// the addresses of its set to clients, which would then bypass the proxy.
async fn require_router(upstream: &[String]) -> Result<()> {
    let failed = |cause: io::Error| Error::NoRouter { cluster: upstream.join(","), cause };
    let mut connection = Upstream::connect(upstream).await.map_err(failed)?;
    let hello = rawdoc! {"hello": 1, "$db": "admin"};
    let hello = Message::of_body(1, 0, &hello).map_err(failed)?;
    let asked = tokio::time::timeout(source::SELECTION_MAX, connection.ask(&hello)).await;
    let reply = asked.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(failed)?;
    let is_router = reply
        .command()
        .map_err(failed)?
        .is_some_and(|reply| reply.body.get_str("msg").is_ok_and(|msg| msg == "isdbgrid"));
    if is_router {
        return Ok(());
    }
    Err(failed(io::Error::other("it is no router (mongos)")))
}

/// The handler of one client connection, which answers finds from the cache.
struct Cached {
    shared: Arc<Shared>,
    /// True after the router has answered a find of the cached collection for the user of this connection without an
    /// error, so that cached documents may be returned; false again after a log-in or a log-out.
    is_admitted: bool,
}

/// A command `find {_id: {$in: […]}}` on the cached collection.
struct Find<'a> {
    /// The find command as the client sent it.
    body: &'a RawDocument,
    /// The requested `_id`s, each once, by their identity ([`identity`]).
    ids: HashMap<Vec<u8>, RawBsonRef<'a>>,
}

impl<'a> Find<'a> {
    /// Parses a command; returns `None` if it is not a find on the collection `namespace` that the cache may answer.
    fn of(command: &Command<'a>, namespace: &Namespace) -> Option<Self> {
        let body = command.body;
        let is_here = command.name() == "find"
            && command.sequences.is_empty()
            && command.legacy_database.is_none()
            && body.get_str("find").is_ok_and(|coll| coll == namespace.coll)
            && command.database() == namespace.db;
        if !is_here {
            return None;
        }
        for field in body.iter().skip(1) {
            let (name, value) = field.ok()?;
            match name.as_str() {
                "filter" => {}
                "readConcern" if is_local(value) => {}
                name if HARMLESS.contains(&name) => {}
                _ => return None,
            }
        }
        let ids = ids(body.get_document("filter").ok()?)?;
        let size = body.get("batchSize").ok()?;
        let size = size.map(|size| size.as_i64().or(size.as_i32().map(i64::from)));
        let fits = |size: Option<i64>| size.is_some_and(|size| ids.len() as i64 <= size);
        size.is_none_or(fits).then_some(Self { body, ids })
    }

    /// Returns the same find command for these keys alone; `ids` are identities of keys of this find.
    fn of_keys(&self, ids: &[&Vec<u8>]) -> RawDocumentBuf {
        let mut list = RawArrayBuf::new();
        ids.iter().for_each(|identity| list.push(self.ids[*identity]));
        let filter = rawdoc! {"_id": {"$in": list}};
        with(self.body, "filter", filter)
    }
}

/// Returns true if a read concern has no other level than `local`, the default.
fn is_local(concern: RawBsonRef<'_>) -> bool {
    let Some(concern) = concern.as_document() else { return false };
    let is_level = |(name, value): (&bson::raw::CStr, RawBsonRef<'_>)| {
        name.as_str() == "level" && value.as_str() == Some("local")
    };
    concern.iter().all(|field| field.is_ok_and(is_level))
}

/// Returns the `_id`s in a filter `{_id: {$in: […]}}` with no other condition, by their identity. Returns `None` for
/// another filter, and if the list has a value that may match other `_id`s.
fn ids(filter: &RawDocument) -> Option<HashMap<Vec<u8>, RawBsonRef<'_>>> {
    let alone = |document: &'_ RawDocument, field: &str| {
        document.iter().count() == 1 && document.get(field).is_ok_and(|value| value.is_some())
    };
    if !alone(filter, "_id") {
        return None;
    }
    let condition = filter.get_document("_id").ok()?;
    if !alone(condition, "$in") {
        return None;
    }
    let mut ids = HashMap::new();
    for id in condition.get_array("$in").ok()? {
        let id = id.ok()?;
        match id {
            RawBsonRef::RegularExpression(_)
            | RawBsonRef::Array(_)
            | RawBsonRef::Null
            | RawBsonRef::Undefined => return None,
            id => drop(ids.insert(identity(id)?, id)),
        }
    }
    (!ids.is_empty()).then_some(ids)
}

/// Returns a copy of a document in which the field `field` has the value `value`.
fn with(document: &RawDocument, field: &str, value: RawDocumentBuf) -> RawDocumentBuf {
    let mut copy = RawDocumentBuf::new();
    let mut value = Some(value);
    for (name, old) in document.iter().flatten() {
        match value.take_if(|_| name.as_str() == field) {
            Some(new) => copy.append(name, new),
            None => copy.append(name, old),
        }
    }
    copy
}

impl Cached {
    /// Answers the find of `request` with documents of the cache and of the router, and stores those of the router in
    /// the cache.
    async fn answer(
        &mut self,
        request: &Message,
        find: &Find<'_>,
        upstream: &mut Upstream,
    ) -> io::Result<Message> {
        let (cache, counters) = (&self.shared.cache, &self.shared.counters);
        let asked: Vec<&[u8]> = find.ids.keys().map(Vec::as_slice).collect();
        let found = if self.is_admitted {
            cache.get(&asked).await.map_err(io::Error::other)?
        } else {
            Vec::new()
        };
        let refused = found.iter().filter(|one| **one == Found::Refused).count();
        let mut cached: HashMap<&[u8], Vec<u8>> = HashMap::new();
        let mut bytes = 0;
        for (identity, found) in asked.iter().zip(found) {
            if let Found::Document(document) = found
                && bytes + document.len() <= CACHED_BYTES_MAX
            {
                bytes += document.len();
                cached.insert(identity, document);
            }
        }
        let is_cached = |identity: &&Vec<u8>| cached.contains_key(identity.as_slice());
        let misses: Vec<&Vec<u8>> = find.ids.keys().filter(|id| !is_cached(id)).collect();
        add(&counters.finds, 1);
        add(&counters.hits, cached.len());
        add(&counters.misses, misses.len());
        add(&counters.refused, refused);
        if misses.is_empty() {
            let namespace = self.shared.namespace.to_string();
            let documents = batch(cached.values(), None)?;
            let reply = rawdoc! {"cursor": {"firstBatch": documents, "id": 0_i64, "ns": namespace}, "ok": 1.0};
            return Message::of_body(request.id(), request.id(), &reply);
        }
        add(&counters.requests, 1);
        let rest = Message::of_body(request.id(), 0, &find.of_keys(&misses))?;
        let reply = upstream.ask(&rest).await?;
        let Some(told) = reply.command()? else { return Ok(reply) };
        let is_done = told.body.get("ok").ok().flatten().is_some_and(|ok| number(ok) == Some(1.0));
        let Some(cursor) = told.body.get_document("cursor").ok().filter(|_| is_done) else {
            return Ok(reply);
        };
        self.is_admitted = true;
        let first = cursor.get_array("firstBatch").map_err(io::Error::other)?;
        let mut fresh: Vec<(Vec<u8>, &[u8])> = Vec::new();
        for document in first {
            let document = document.map_err(io::Error::other)?.as_document();
            let document = document.ok_or_else(|| io::Error::other("a batch with no document"))?;
            if let Some(identity) =
                identity_of_document(document).filter(|id| find.ids.contains_key(id))
            {
                fresh.push((identity, document.as_bytes()));
            }
        }
        let entries: Vec<(&[u8], &[u8])> =
            fresh.iter().map(|(id, bytes)| (&**id, *bytes)).collect();
        cache.set(&entries).await.map_err(io::Error::other)?;
        if cached.is_empty() {
            return Ok(reply);
        }
        let documents = batch(cached.values(), Some(first))?;
        let mut whole = RawDocumentBuf::new();
        for (name, value) in cursor.iter().flatten() {
            match name.as_str() {
                "firstBatch" => whole.append(name, documents.clone()),
                _ => whole.append(name, value),
            }
        }
        Message::of_body(reply.id(), request.id(), &with(told.body, "cursor", whole))
    }
}

/// Returns the value of a BSON double or integer as a double; `None` for another type.
fn number(value: RawBsonRef<'_>) -> Option<f64> {
    value.as_f64().or(value.as_i32().map(f64::from)).or(value.as_i64().map(|number| number as f64))
}

/// Returns the array of documents for a reply: the cached ones, followed by those in `came`, which the router
/// returned.
fn batch<'a>(
    cached: impl Iterator<Item = &'a Vec<u8>>,
    came: Option<&bson::RawArray>,
) -> io::Result<RawArrayBuf> {
    let mut documents = RawArrayBuf::new();
    for bytes in cached {
        documents.push(RawDocument::from_bytes(bytes).map_err(io::Error::other)?);
    }
    for document in came.into_iter().flatten() {
        documents.push(document.map_err(io::Error::other)?);
    }
    Ok(documents)
}

impl Handler for Cached {
    async fn request(
        &mut self,
        request: &Message,
        upstream: &mut Upstream,
    ) -> io::Result<Option<Message>> {
        let is_plain = !request.is_more_to_come() && !request.is_exhaust_allowed();
        if let Some(command) = request.command()? {
            if matches!(command.name(), "saslStart" | "saslContinue" | "authenticate" | "logout") {
                self.is_admitted = false;
            }
            if let Some(find) = Find::of(&command, &self.shared.namespace).filter(|_| is_plain) {
                return self.answer(request, &find, upstream).await.map(Some);
            }
        }
        add(&self.shared.counters.passed, 1);
        Ok(None)
    }

    async fn reply(&mut self, _: &Message, _: &Message) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;

    fn may_answer(body: &RawDocument) -> bool {
        let namespace: Namespace = "shop.reviews".parse().unwrap();
        let message = Message::of_body(1, 0, body).unwrap();
        let command = message.command().unwrap().unwrap();
        Find::of(&command, &namespace).is_some()
    }

    #[test]
    fn only_a_find_of_keys_alone_is_answered_here() {
        let keys = rawdoc! {"_id": {"$in": [1, 2]}};
        let find = |more: RawDocumentBuf| {
            let mut body = rawdoc! {"find": "reviews", "filter": keys.clone(), "$db": "shop"};
            more.iter().flatten().for_each(|(name, value)| body.append(name, value));
            body
        };
        for right in [
            rawdoc! {},
            rawdoc! {"batchSize": 2, "lsid": {"id": 1}, "$readPreference": {"mode": "nearest"}},
            rawdoc! {"readConcern": {"level": "local"}},
        ] {
            assert!(may_answer(&find(right.clone())), "{right:?}");
        }
        for wrong in [
            rawdoc! {"projection": {"text": 1}},
            rawdoc! {"sort": {"_id": 1}},
            rawdoc! {"limit": 1},
            rawdoc! {"batchSize": 1},
            rawdoc! {"txnNumber": 1_i64, "autocommit": false},
            rawdoc! {"readConcern": {"level": "majority"}},
            rawdoc! {"readConcern": {"afterClusterTime": 1}},
            rawdoc! {"collation": {"locale": "en"}},
            rawdoc! {"tailable": true},
        ] {
            assert!(!may_answer(&find(wrong.clone())), "{wrong:?}");
        }
        for filter in [
            rawdoc! {},
            rawdoc! {"_id": 1},
            rawdoc! {"_id": {"$in": []}},
            rawdoc! {"_id": {"$in": [1], "$gt": 0}},
            rawdoc! {"_id": {"$in": [1]}, "text": "x"},
            rawdoc! {"_id": {"$in": [bson::RawBson::Null]}},
            rawdoc! {"user": {"$in": [1]}},
        ] {
            let body = rawdoc! {"find": "reviews", "filter": filter.clone(), "$db": "shop"};
            assert!(!may_answer(&body), "{filter:?}");
        }
        let other = rawdoc! {"find": "users", "filter": keys.clone(), "$db": "shop"};
        let elsewhere = rawdoc! {"find": "reviews", "filter": keys.clone(), "$db": "test"};
        let count = rawdoc! {"count": "reviews", "query": keys.clone(), "$db": "shop"};
        assert!(![other, elsewhere, count].iter().any(|body| may_answer(body)));
    }
}
