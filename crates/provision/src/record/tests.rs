//! The recorder over the messages of a job, without a server.

use std::sync::Arc;
use std::time::Duration;

use bson::raw::RawDocumentBuf;
use bson::{Bson, Document, doc};

use super::recorder::{Recorder, Totals};
use super::tap::Tap;
use crate::trace::{Ending, Header, Key, PhasesBy, Read, Trace};
use crate::wire::{Handler as _, Message};

/// A recording whose messages are given.
struct Played {
    folder: tempfile::TempDir,
    recorder: Arc<Recorder>,
}

impl Played {
    fn new(namespace: &str, gap: Duration) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let header = Header {
            source: "a test".into(),
            namespace: namespace.into(),
            when: String::new(),
            phases_by: PhasesBy::CommentOrGap { gap_ms: 200 },
        };
        let recorder = Arc::new(Recorder::new(&folder.path().join("trace.imt"), header, gap));
        Self { folder, recorder }
    }

    fn connection(&self) -> Connection {
        Connection(Tap::new(Arc::clone(&self.recorder)))
    }

    fn end(self) -> (Totals, Trace) {
        let (_, totals) = self.recorder.finish(&Ending::Complete).unwrap();
        (totals, Trace::read(&self.folder.path().join("trace.imt")).unwrap())
    }
}

struct Connection(Tap);

fn message(document: Document) -> Message {
    Message::of_body(1, 0, &RawDocumentBuf::try_from(&document).unwrap()).unwrap()
}

impl Connection {
    /// A request of the job, and the replies of the server.
    async fn ask(&mut self, request: Document, replies: &[Document]) {
        let request = message(request);
        self.send(&request);
        for reply in replies {
            self.0.reply(&request, &message(reply.clone())).await.unwrap();
        }
    }

    fn send(&mut self, request: &Message) {
        self.0.inspect_request(request);
    }
}

fn find(keys: &[i64]) -> Document {
    doc! { "find": "messages", "filter": { "_id": { "$in": keys } }, "$db": "shop" }
}

/// The documents of these keys, as a batch; `cursor` is 0 if it is the last.
fn found(batch: &str, keys: &[i64], cursor: i64) -> Document {
    let documents: Vec<Bson> =
        keys.iter().map(|key| Bson::Document(doc! { "_id": *key, "text": "hello" })).collect();
    doc! { "cursor": { batch: documents, "id": cursor, "ns": "shop.messages" }, "ok": 1.0 }
}

fn read(key: i64, is_there: bool) -> Read {
    let bytes = doc! { "_id": key, "text": "hello" }.to_vec().unwrap().len() as u32;
    Read { key: Key::from(key), document_bytes: is_there.then_some(bytes) }
}

const LONG: Duration = Duration::from_secs(600);

#[tokio::test]
async fn keys_are_in_the_order_of_the_request_with_their_documents_bytes() {
    let played = Played::new("", LONG);
    let mut one = played.connection();
    one.ask(find(&[3, 1, 2, 1]), &[found("firstBatch", &[1, 3], 0)]).await;
    let (totals, trace) = played.end();
    assert_eq!(trace.phases, [vec![read(3, true), read(1, true), read(2, false), read(1, true)]]);
    assert_eq!((totals.reads, totals.documents, totals.phases), (4, 3, 1));
    assert_eq!(trace.header.namespace, "shop.messages");
}

#[tokio::test]
async fn the_batches_of_a_cursor_are_one_read_also_on_other_connections() {
    let played = Played::new("", LONG);
    let (mut one, mut two) = (played.connection(), played.connection());
    one.ask(find(&[1, 2, 3]), &[found("firstBatch", &[1], 77)]).await;
    let more = doc! { "getMore": 77_i64, "collection": "messages", "$db": "shop" };
    two.ask(more, &[found("nextBatch", &[3], 0)]).await;
    let (_, trace) = played.end();
    assert_eq!(trace.phases, [vec![read(1, true), read(2, false), read(3, true)]]);
}

#[tokio::test]
async fn requests_are_counted_with_the_time_that_they_take_and_how_many_are_at_once() {
    let played = Played::new("", LONG);
    let (mut one, mut two) = (played.connection(), played.connection());
    let (first, second) = (message(find(&[1, 2])), message(find(&[3])));
    one.send(&first);
    two.send(&second);
    std::thread::sleep(Duration::from_millis(30));
    two.0.reply(&second, &message(found("firstBatch", &[3], 0))).await.unwrap();
    one.0.reply(&first, &message(found("firstBatch", &[1], 77))).await.unwrap();
    // The job's own work between its requests is no wait.
    std::thread::sleep(Duration::from_millis(200));
    let more = doc! { "getMore": 77_i64, "collection": "messages", "$db": "shop" };
    one.ask(more, &[found("nextBatch", &[2], 0)]).await;
    let (_, trace) = played.end();
    let requests = trace.spans[0].requests.unwrap();
    assert_eq!((requests.count, requests.at_once), (3, 2));
    assert!((60_000..200_000).contains(&requests.waited_us), "{requests:?}");
}

#[tokio::test]
async fn replies_that_follow_without_a_request_belong_to_the_cursor() {
    let played = Played::new("", LONG);
    let mut one = played.connection();
    let replies =
        [found("firstBatch", &[1], 77), found("nextBatch", &[2], 77), found("nextBatch", &[3], 0)];
    one.ask(find(&[1, 2, 3]), &replies).await;
    let (totals, trace) = played.end();
    assert_eq!(trace.phases, [vec![read(1, true), read(2, true), read(3, true)]]);
    assert_eq!(totals.reads, 3);
}

#[tokio::test]
async fn a_cursor_that_is_closed_early_has_the_documents_that_came() {
    let played = Played::new("", LONG);
    let mut one = played.connection();
    one.ask(find(&[1, 2]), &[found("firstBatch", &[1], 77)]).await;
    let kill = doc! { "killCursors": "messages", "cursors": [77_i64], "$db": "shop" };
    one.ask(kill, &[doc! { "ok": 1.0 }]).await;
    let (totals, trace) = played.end();
    assert_eq!(trace.phases, [vec![read(1, true)]]);
    assert_eq!(totals.other_reads, 1);
}

#[tokio::test]
async fn a_comment_names_the_phase() {
    let played = Played::new("", LONG);
    let mut one = played.connection();
    for phase in [0, 0, 1] {
        let mut find = find(&[phase]);
        find.insert("comment", format!("imago phase {phase}"));
        one.ask(find, &[found("firstBatch", &[phase], 0)]).await;
    }
    let (totals, trace) = played.end();
    assert_eq!(trace.phases, [vec![read(0, true), read(0, true)], vec![read(1, true)]]);
    assert_eq!(totals.phases, 2);
}

#[tokio::test]
async fn without_comments_a_pause_ends_a_phase_unless_a_read_is_under_way() {
    let played = Played::new("", Duration::ZERO);
    let (mut one, mut two) = (played.connection(), played.connection());
    let slow = message(find(&[1]));
    one.send(&slow);
    two.ask(find(&[2]), &[found("firstBatch", &[2], 0)]).await;
    two.ask(find(&[3]), &[found("firstBatch", &[3], 0)]).await;
    one.0.reply(&slow, &message(found("firstBatch", &[1], 0))).await.unwrap();
    two.ask(find(&[4]), &[found("firstBatch", &[4], 0)]).await;
    let (_, trace) = played.end();
    assert_eq!(
        trace.phases,
        [vec![read(2, true), read(3, true), read(1, true)], vec![read(4, true)]]
    );
}

#[tokio::test]
async fn other_reads_are_counted_by_their_documents() {
    let played = Played::new("shop.messages", LONG);
    let mut one = played.connection();
    let scan = doc! { "find": "messages", "filter": { "author": "Ada" }, "$db": "shop" };
    one.ask(scan, &[found("firstBatch", &[1, 2, 3], 9)]).await;
    let more = doc! { "getMore": 9_i64, "collection": "messages", "$db": "shop" };
    one.ask(more, &[found("nextBatch", &[4], 0)]).await;
    let count = doc! { "count": "messages", "$db": "shop" };
    one.ask(count, &[doc! { "n": 4, "ok": 1.0 }]).await;
    one.ask(
        doc! { "find": "authors", "filter": { "_id": 1 }, "$db": "shop" },
        &[found("firstBatch", &[1], 0)],
    )
    .await;
    one.ask(doc! { "insert": "messages", "$db": "shop" }, &[doc! { "n": 1, "ok": 1.0 }]).await;
    let (totals, trace) = played.end();
    assert_eq!((totals.other_reads, totals.elsewhere_reads), (5, 1));
    assert_eq!((trace.phases.len(), trace.other_reads), (0, 5));
}

#[tokio::test]
async fn reads_that_fail_or_lose_their_connection_are_not_in_the_trace() {
    let played = Played::new("", LONG);
    let mut one = played.connection();
    one.ask(find(&[1]), &[doc! { "ok": 0.0, "code": 11_600, "errmsg": "shutting down" }]).await;
    one.send(&message(find(&[2, 3])));
    drop(one);
    let (totals, trace) = played.end();
    assert_eq!((totals.failed_reads, trace.reads()), (3, 0));
}
