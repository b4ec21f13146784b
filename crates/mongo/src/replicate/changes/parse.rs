//! Parses the replies of a change stream.

use bson::raw::RawBsonRef;
use bson::{Bson, RawArray, RawDocument, RawDocumentBuf, Timestamp};
use imago_plan::copy::pending_changes::Change;
use mongodb::raw_batch_cursor::RawBatch;

use super::{Batch, Detail, Event, Wanted, Write};
use crate::bson::order::Id;
use crate::error::{Error, Result};
use crate::namespace::Namespace;

/// Parses one reply of the change stream into a batch with the events of the wanted collections.
pub(super) fn parse(reply: &RawBatch, wanted: &Wanted) -> Result<Batch> {
    const DOING: &str = "reading the change stream";
    let malformed = |cause: String| Error::malformed(DOING, cause);
    let cursor =
        reply.as_raw_document().get_document("cursor").map_err(|e| malformed(e.to_string()))?;
    let mut batch = Batch {
        events: Vec::new(),
        token: RawDocumentBuf::new(),
        time: Timestamp { time: 0, increment: 0 },
        first_wall_ms: None,
    };
    let mut last_token = None;
    for event in reply.doc_slices().map_err(|e| Error::server(DOING, e))? {
        let event = event.map_err(|e| malformed(e.to_string()))?;
        let event =
            event.as_document().ok_or_else(|| malformed("an event is not a document".into()))?;
        let mut parsed = parse_event(event, wanted).map_err(|e| malformed(e.to_string()))?;
        if wanted.is_detailed
            && let Some(Event::DirtyKey { detail, .. }) = parsed.events.first_mut()
        {
            *detail = Some(Box::new(detail_of(event).map_err(|e| malformed(e.to_string()))?));
        }
        batch.time = batch.time.max(parsed.time);
        batch.first_wall_ms = batch.first_wall_ms.or(parsed.wall_ms);
        last_token = parsed.token.or(last_token);
        batch.events.extend(parsed.events);
    }
    let token = cursor.get_document("postBatchResumeToken").ok().or(last_token);
    let token = token.ok_or_else(|| malformed("no resume token".into()))?;
    batch.token = token.to_owned();
    if let Some(time) = token_time(token) {
        batch.time = batch.time.max(time);
    }
    Ok(batch)
}

struct Parsed<'a> {
    events: Vec<Event>,
    time: Timestamp,
    wall_ms: Option<i64>,
    token: Option<&'a RawDocument>,
}

fn parse_event<'a>(event: &'a RawDocument, wanted: &Wanted) -> bson::error::Result<Parsed<'a>> {
    let namespaces = &wanted.namespaces;
    let (mut kind, mut key, mut db, mut coll, mut to) = ("", None, "", "", None);
    let mut changed = None;
    let mut parsed = Parsed {
        events: Vec::new(),
        time: Timestamp { time: 0, increment: 0 },
        wall_ms: None,
        token: None,
    };
    for field in event {
        let (name, value) = field?;
        match (name.as_str(), value) {
            ("_id", RawBsonRef::Document(token)) => parsed.token = Some(token),
            ("operationType", RawBsonRef::String(text)) => kind = text,
            ("clusterTime", RawBsonRef::Timestamp(time)) => parsed.time = time,
            ("wallTime", RawBsonRef::DateTime(wall)) => {
                parsed.wall_ms = Some(wall.timestamp_millis());
            }
            ("documentKey", RawBsonRef::Document(document)) => key = document.get("_id")?,
            ("changed", RawBsonRef::Array(names)) => changed = Some(names),
            ("ns", RawBsonRef::Document(ns)) => {
                db = ns.get_str("db").unwrap_or_default();
                coll = ns.get_str("coll").unwrap_or_default();
            }
            ("to", RawBsonRef::Document(ns)) => {
                let name = |field| ns.get_str(field).unwrap_or_default();
                to = Some(Namespace::new(name("db"), name("coll")));
            }
            _ => {}
        }
    }
    // If two namespaces have the same name, the later one is meant.
    let at =
        |db: &str, coll: &str| namespaces.iter().rposition(|ns| ns.coll == coll && ns.db == db);
    let time = parsed.time;
    match kind {
        "insert" | "update" | "replace" | "delete" => {
            if let (Some(ns), Some(id)) = (at(db, coll), key) {
                let id = Id::from_raw(id);
                let change = match kind {
                    "insert" => Change::Inserted,
                    "update" if keeps(changed, &wanted.placing[ns]) => Change::Kept,
                    _ => Change::Any,
                };
                parsed.events.push(Event::DirtyKey { ns, id, change, time, detail: None });
            }
        }
        "drop" | "reshardCollection" => {
            parsed.events.extend(at(db, coll).map(|ns| {
                let what = if kind == "drop" { "dropped" } else { "resharded" };
                Event::Disruption { ns, what: what.into(), time }
            }));
        }
        "rename" => {
            let to = to.unwrap_or_else(|| Namespace::new("", ""));
            parsed.events.extend(at(db, coll).map(|ns| Event::Disruption {
                ns,
                what: format!("renamed to {to}"),
                time,
            }));
            parsed.events.extend(at(&to.db, &to.coll).map(|ns| Event::Disruption {
                ns,
                what: format!("replaced by a rename of {db}.{coll}"),
                time,
            }));
        }
        "dropDatabase" => {
            let of_db = namespaces.iter().enumerate().filter(|(_, ns)| ns.db == db);
            parsed.events.extend(of_db.map(|(ns, _)| Event::Disruption {
                ns,
                what: "dropped with its database".into(),
                time,
            }));
        }
        other => {
            let what = other.to_owned();
            parsed.events.extend(at(db, coll).map(|ns| Event::Structure { ns, what }));
        }
    }
    Ok(parsed)
}

/// Returns true if an update left all of `fields` unchanged. `changed` has the paths of the changed fields; `None` if
/// they are unknown.
fn keeps(changed: Option<&RawArray>, fields: &[String]) -> bool {
    let Some(changed) = changed else { return fields.is_empty() };
    let is_within = |path: &str, of: &str| {
        path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    changed.into_iter().all(|name| match name {
        Ok(RawBsonRef::String(name)) => {
            fields.iter().all(|field| !is_within(name, field) && !is_within(field, name))
        }
        _ => false,
    })
}

fn detail_of(event: &RawDocument) -> bson::error::Result<Detail> {
    let document = match event.get("fullDocument")? {
        Some(RawBsonRef::Document(document)) => Some(document.to_owned()),
        _ => None,
    };
    let write = match event.get("operationType")? {
        Some(RawBsonRef::String("delete")) => Write::Delete,
        _ if document.is_some() => Write::Put,
        _ => Write::Update,
    };
    let of = event.get("collectionUUID")?.map(Bson::try_from).transpose()?;
    Ok(Detail { write, of: of.as_ref().map(Bson::to_string), document })
}

/// Returns the cluster time inside a resume token, or `None` if the token has another format. A token's `_data` is a
/// hexadecimal key string whose first field is the time (`82`, then seconds and increment, big endian). Every server
/// since 4.2 writes it so; high-water-mark tokens, which carry no event, included.
#[must_use]
pub fn token_time(token: &RawDocument) -> Option<Timestamp> {
    let data = token.get_str("_data").ok()?;
    let hex = data.strip_prefix("82")?;
    let part = |range: std::ops::Range<usize>| u32::from_str_radix(hex.get(range)?, 16).ok();
    Some(Timestamp { time: part(0..8)?, increment: part(8..16)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    #[test]
    fn a_token_tells_its_cluster_time() {
        let token = rawdoc! {"_data": "8265A1B2C3000000042B0229296E04"};
        assert_eq!(token_time(&token), Some(Timestamp { time: 0x65A1_B2C3, increment: 4 }));
        assert_eq!(token_time(&rawdoc! {"_data": "00"}), None);
    }

    #[test]
    fn an_update_keeps_the_fields_that_it_did_not_touch() {
        let fields = ["userID".to_owned(), "a.b".to_owned()];
        for (changed, kept) in [
            (rawdoc! {"names": []}, true),
            (rawdoc! {"names": ["text", "userIDs", "user", "a.c", "ab"]}, true),
            (rawdoc! {"names": ["text", "userID"]}, false),
            (rawdoc! {"names": ["a"]}, false),
            (rawdoc! {"names": ["a.b"]}, false),
            (rawdoc! {"names": ["a.b.c"]}, false),
            (rawdoc! {"names": [1]}, false),
        ] {
            let names = changed.get_array("names").unwrap();
            assert_eq!(keeps(Some(names), &fields), kept, "{changed:?}");
        }
        assert!(!keeps(None, &fields), "unknown");
        assert!(keeps(None, &[]), "nothing places it");
    }
}
