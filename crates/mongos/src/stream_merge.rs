//! Merging the change streams of the shards.
//!
//! Resume tokens begin with the cluster time and compare as text, and each shard sends its events in order.
//! Invariant: an event is returned only when every shard has promised, by an event or by its
//! `postBatchResumeToken`, to send nothing that sorts before it.

use std::collections::VecDeque;
use std::sync::Arc;

use bson::raw::RawDocument;
use bson::{Document, RawDocumentBuf, Timestamp};

use super::answer::{Answer, Failure, number};
use super::topology::ReplicaSet;

const BATCH_BYTES_MAX: usize = 16 * 1024 * 1024 - 64 * 1024;
/// First byte of a resume token, in hexadecimal: the type code of the cluster time that follows it.
const TOKEN_OF_TIME: &str = "82";

/// Change stream of one shard, with its buffered events.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) shard: Arc<ReplicaSet>,
    pub(super) address: String,
    pub(super) cursor: i64,
    pub(super) buffer: VecDeque<Event>,
    /// Resume token before which the shard sends no further event (its last `postBatchResumeToken`).
    pub(super) promised: String,
}

#[derive(Debug)]
pub(super) struct Event {
    pub(super) token: String,
    pub(super) document: RawDocumentBuf,
}

/// A client's change stream, merged from the streams of all shards.
#[derive(Debug)]
pub(super) struct Stream {
    /// The `aggregate` command with which the stream of each shard was opened, as the client sent it.
    pub(super) command: Document,
    pub(super) parts: Vec<Part>,
    /// Resume token up to which events are discarded, because they were returned before; `None` if there is none.
    pub(super) after: Option<String>,
    /// Resume token in the last reply to the client.
    pub(super) last_token: String,
    pub(super) ended: bool,
    /// True while requests to shards are in progress. If the client disconnects then, events are lost, and the stream
    /// must not continue.
    pub(super) asking: bool,
}

impl Part {
    /// Appends the events of `answer`, a reply of this shard, to the buffer, and stores its cursor id and resume
    /// token.
    pub(super) fn take(&mut self, answer: &Answer) -> Result<(), Failure> {
        let cursor = answer.raw().get_document("cursor").map_err(Failure::malformed)?;
        self.cursor = number(cursor, "id").unwrap_or(0);
        for name in ["firstBatch", "nextBatch"] {
            let Ok(batch) = cursor.get_array(name) else { continue };
            for document in batch.into_iter() {
                let document = document.map_err(Failure::malformed)?;
                let document = document.as_document();
                let document = document.ok_or_else(|| Failure::malformed("event that is none"))?;
                let token = token_of(document)?;
                self.buffer.push_back(Event { token, document: document.to_owned() });
            }
        }
        let promised = cursor.get_document("postBatchResumeToken").ok();
        let promised = promised.and_then(|token| token.get_str("_data").ok());
        if let Some(promised) = promised {
            promised.clone_into(&mut self.promised);
        }
        Ok(())
    }

    /// Returns a token that no further event of this shard precedes: that of the first buffered event, else the
    /// promised one.
    fn bound(&self) -> &str {
        self.buffer.front().map_or(&self.promised, |event| &event.token)
    }
}

impl Stream {
    /// Returns the resume token of the earliest buffered event of all shards; `None` if none is buffered.
    pub(super) fn earliest(&self) -> Option<&str> {
        self.parts.iter().filter_map(|part| part.buffer.front()).map(|event| &*event.token).min()
    }

    /// Returns the indexes of the shards in `parts` without buffered events that may still send an event before
    /// `token`.
    pub(super) fn silent_before(&self, token: &str) -> Vec<usize> {
        let silent = |part: &Part| part.buffer.is_empty() && &*part.promised < token;
        (0..self.parts.len()).filter(|index| silent(&self.parts[*index])).collect()
    }

    /// Takes buffered events that no further event can precede, in the order of their tokens: at most `count`, and at
    /// most one reply's size.
    pub(super) fn ready(&mut self, count: usize) -> Vec<RawDocumentBuf> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < count && !self.ended {
            let first = (0..self.parts.len()).min_by(|left, right| {
                // With equal tokens an event comes before a promise, which it does not break.
                let key = |index: usize| {
                    let part: &Part = &self.parts[index];
                    (part.bound().to_owned(), part.buffer.is_empty())
                };
                key(*left).cmp(&key(*right))
            });
            let Some(event) = first.and_then(|first| self.parts[first].buffer.front()) else {
                break;
            };
            bytes += event.document.as_bytes().len();
            if bytes > BATCH_BYTES_MAX && !batch.is_empty() {
                break;
            }
            let event = first.and_then(|first| self.parts[first].buffer.pop_front());
            let Some(event) = event else { break };
            if self.after.as_ref().is_none_or(|after| event.token > *after) {
                self.ended =
                    event.document.get_str("operationType").is_ok_and(|o| o == "invalidate");
                self.last_token.clone_from(&event.token);
                batch.push(event.document);
            }
        }
        if !self.ended && self.parts.iter().all(|part| part.buffer.is_empty()) {
            let promised = self.parts.iter().map(|part| &part.promised).min();
            if let Some(promised) = promised.filter(|promised| **promised > self.last_token) {
                self.last_token.clone_from(promised);
            }
        }
        batch
    }
}

/// Returns the resume token (`_id._data`) of an event.
fn token_of(event: &RawDocument) -> Result<String, Failure> {
    let token = event.get_document("_id").and_then(|token| token.get_str("_data"));
    token.map(str::to_owned).map_err(|_| {
        let message = "Encountered an event whose _id field, which contains the resume token, was \
                       modified by the pipeline. Modifying the _id field of an event makes it \
                       impossible to resume the stream from that point.";
        Failure::new(280, message)
    })
}

/// Returns the cluster time with which a resume token begins.
pub(super) fn time_of(token: &str) -> Result<Timestamp, Failure> {
    let part = |range| token.get(range).and_then(|text| u32::from_str_radix(text, 16).ok());
    match (token.starts_with(TOKEN_OF_TIME), part(2..10), part(10..18)) {
        (true, Some(time), Some(increment)) => Ok(Timestamp { time, increment }),
        _ => Err(Failure::new(260, format!("Invalid resume token: {token:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    fn part(events: &[&str], promised: &str) -> Part {
        let event = |token: &&str| Event {
            token: (*token).to_owned(),
            document: rawdoc! { "_id": { "_data": *token } },
        };
        Part {
            shard: Arc::new(ReplicaSet::new("s", "s/h:1")),
            address: String::new(),
            cursor: 1,
            buffer: events.iter().map(event).collect(),
            promised: promised.to_owned(),
        }
    }

    fn stream(parts: Vec<Part>, after: Option<&str>) -> Stream {
        let after = after.map(str::to_owned);
        Stream {
            command: Document::new(),
            parts,
            after,
            last_token: String::new(),
            ended: false,
            asking: false,
        }
    }

    fn tokens(batch: &[RawDocumentBuf]) -> Vec<String> {
        batch.iter().map(|event| token_of(event).unwrap()).collect()
    }

    #[test]
    fn events_of_two_shards_come_in_token_order_up_to_the_lower_promise() {
        let mut stream = stream(vec![part(&["a", "c", "e"], "f"), part(&["b"], "d")], None);
        assert_eq!(tokens(&stream.ready(10)), ["a", "b", "c"]);
        assert_eq!(stream.last_token, "c");
        assert_eq!(stream.silent_before("e"), [1]);
        assert_eq!(stream.earliest(), Some("e"));
    }

    #[test]
    fn the_client_is_told_the_lower_promise_when_nothing_is_buffered() {
        let mut stream = stream(vec![part(&["a"], "f"), part(&["b"], "d")], None);
        assert_eq!(tokens(&stream.ready(10)), ["a", "b"]);
        assert_eq!(stream.last_token, "d");
    }

    #[test]
    fn what_does_not_sort_after_the_resume_token_is_dropped() {
        let mut stream = stream(vec![part(&["a", "c"], "f"), part(&["b", "d"], "f")], Some("b"));
        assert_eq!(tokens(&stream.ready(10)), ["c", "d"]);
    }

    #[test]
    fn nothing_follows_an_invalidation() {
        let mut stream = stream(vec![part(&["a", "b"], "f")], None);
        stream.parts[0].buffer[0].document =
            rawdoc! { "_id": { "_data": "a" }, "operationType": "invalidate" };
        assert_eq!(tokens(&stream.ready(10)), ["a"]);
        assert!(stream.ended);
        assert!(stream.ready(10).is_empty());
    }

    #[test]
    fn a_token_begins_with_its_time() {
        let time = time_of("826B00EF32000000BA2B0229296E04").unwrap();
        assert_eq!(time, Timestamp { time: 0x6b00_ef32, increment: 0xba });
        assert!(time_of("xyz").is_err());
    }
}
