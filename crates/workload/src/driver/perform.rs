//! Performs one operation: sends, times, counts and records it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::OwnedSemaphorePermit;

use super::{Due, Shared, lock};
use crate::history::{Fate, Op, Recorder};
use crate::mix::Kind;
use crate::target::{Insert, Outcome, Target, Update};

pub(super) async fn run<T: Target>(
    shared: Arc<Shared<T>>,
    recorder: Arc<Recorder>,
    due: Due,
    permit: OwnedSemaphorePermit,
) {
    let current = shared.current.borrow().clone();
    let start_ns = shared.now_ns();
    let timeout = shared.options.op_timeout;
    let answer = tokio::time::timeout(timeout, ask(&*current.target, &shared, due)).await;
    let end_ns = shared.now_ns();
    let mut seq = due.seq;
    let fate = match answer.unwrap_or_else(|_| timed_out(timeout)) {
        Outcome::Acked => Fate::Acked,
        Outcome::Found(found) => {
            seq = found;
            Fate::Acked
        }
        Outcome::NotFound => Fate::NotFound,
        Outcome::Refused(message) => failed(&shared, due.kind, Fate::Refused, message),
        Outcome::Unknown(message) => failed(&shared, due.kind, Fate::Unknown, message),
        Outcome::Unavailable { message, perhaps_applied } => {
            lock(&shared.measured).unavailable += 1;
            let fate = if perhaps_applied { Fate::Unknown } else { Fate::Refused };
            failed(&shared, due.kind, fate, message)
        }
    };
    record_fate(&shared, due, fate);
    let op = Op {
        kind: due.kind,
        fate,
        target: current.number,
        key: due.key,
        seq,
        intended_ns: due.intended_ns,
        start_ns,
        end_ns,
    };
    measure(&shared, &op);
    if let Err(error) = recorder.record(op).await {
        lock(&shared.recorder_error).get_or_insert(error);
        shared.stopped.store(true, Ordering::Relaxed);
    }
    shared.ended.fetch_add(1, Ordering::SeqCst);
    // In this order: a task that waits for all permits then owns the recorder alone.
    drop(recorder);
    drop(permit);
}

async fn ask<T: Target>(target: &T, shared: &Shared<T>, due: Due) -> Outcome {
    let Due { kind, key, seq, .. } = due;
    let reviews = &shared.options.reviews;
    match kind {
        Kind::Read => target.read(key).await,
        Kind::Insert => target.insert(Insert { key, seq, review: reviews.review(key, seq) }).await,
        Kind::Update => target.update(Update { key, seq, price: reviews.price(seq) }).await,
        Kind::Delete => target.delete(key).await,
        Kind::Scan => target.scan(key, shared.options.scan_documents).await,
    }
}

fn timed_out(timeout: std::time::Duration) -> Outcome {
    Outcome::Unknown(format!("no answer within {timeout:?}"))
}

fn failed<T>(shared: &Shared<T>, kind: Kind, fate: Fate, message: String) -> Fate {
    lock(&shared.measured).failures.count(kind, fate, message);
    fate
}

fn record_fate<T>(shared: &Shared<T>, due: Due, fate: Fate) {
    match (due.kind, fate) {
        (Kind::Insert, _) => {
            let present = matches!(fate, Fate::Acked | Fate::Unknown);
            lock(&shared.population).insert_answered(due.key, present);
        }
        (Kind::Delete, Fate::Acked) => lock(&shared.population).deleted(due.key),
        _ => {}
    }
}

fn measure<T>(shared: &Shared<T>, op: &Op) {
    let ended = shared.ended.load(Ordering::SeqCst);
    let in_flight = shared.started.load(Ordering::SeqCst).saturating_sub(ended);
    let mut measured = lock(&shared.measured);
    measured.timeline.ended(op.kind, op.fate, op.intended_ns, op.end_ns);
    let delay_us = op.start_ns.saturating_sub(op.intended_ns) / 1000;
    measured.start_delay_us.saturating_record(delay_us.max(1));
    measured.in_flight_peak = measured.in_flight_peak.max(in_flight);
}
