//! The sentences of the advice on the shape of a cluster: time, cost and deadline of each shape.
//!
//! Each sentence begins with the shape or its difference from the advised one, and gives the time before the cost.

use super::candidate::{Advice, Candidate, Question};
use super::grid::Dimension;
use super::shape::{CacheAt, Reads, Shape, counted, size};

/// Returns the sentence for the advised shape; `of` is the number of shapes compared.
pub(super) fn advice(
    advised: &Candidate,
    advice: Advice,
    question: &Question<'_>,
    of: usize,
) -> String {
    let prediction = &advised.prediction;
    let (shape, time) = (prediction.shape, seconds(prediction.job_s));
    let deadline = seconds(question.deadline_s);
    let bound = prediction.bottleneck;
    match advice {
        Advice::Meets(_) => {
            let rank = if question.prices.is_some() {
                "the cheapest"
            } else {
                "the one with the fewest processors, and then the least memory,"
            };
            format!(
                "Provision {shape}: {time} of {deadline}, {}; it is bounded by {bound}, and of {of} shapes {rank} that meets the deadline.",
                paid(advised)
            )
        }
        Advice::Misses(_, by_s) => format!(
            "No shape of {of} meets the deadline of {deadline}: the fastest is {shape}, which takes {time}, {} too long; it is bounded by {bound}.",
            seconds(by_s)
        ),
    }
}

/// Returns the sentence against a neighbour of the advised shape, which differs from it in `dimension`.
pub(super) fn neighbour(
    dimension: Dimension,
    other: &Candidate,
    advised: &Candidate,
    question: &Question<'_>,
) -> String {
    let (its, own) = (other.prediction.shape, advised.prediction.shape);
    let job_s = other.prediction.job_s;
    let late_s = job_s - question.deadline_s;
    let (subject, one) = instead(dimension, its, own);
    let takes = if one { "takes" } else { "take" };
    let costs = difference(other, advised, one);
    if late_s > 0.0 {
        // Only a shape that meets the deadline is advised for its cost.
        let besides = if advised.prediction.job_s > question.deadline_s {
            format!(", {} longer", seconds((job_s - advised.prediction.job_s).max(0.0)))
        } else {
            format!(", {} beyond the deadline", seconds(late_s))
        };
        return format!("{subject} {takes} {}{besides}", seconds(job_s));
    }
    format!("{subject} {takes} {} and {costs}", seconds(job_s))
}

/// Describes the difference of a neighbour from the advised shape, and returns whether the description is singular.
fn instead(dimension: Dimension, its: Shape, own: Shape) -> (String, bool) {
    match dimension {
        Dimension::Shards => {
            (format!("{} instead of {}", counted(its.shards, "shard"), own.shards), its.shards == 1)
        }
        Dimension::Replicas => {
            let read = match its.reads {
                Reads::Nearest if own.replicas == 1 => ", all of them read,",
                Reads::Primary if own.replicas == 1 => ", of which only the primary is read,",
                _ => "",
            };
            let members = counted(its.replicas, "member");
            let text = format!("{members} of each shard instead of {}{read}", own.replicas);
            (text, its.replicas == 1)
        }
        Dimension::Storage => {
            let of = |bytes: Option<u64>| match bytes {
                Some(bytes) => size(bytes),
                None => "enough for all documents".into(),
            };
            let (its, own) = (of(its.storage_bytes), of(own.storage_bytes));
            (format!("storage caches of {its} instead of {own}"), false)
        }
        Dimension::Cache => {
            let text = match (its.cache_bytes, own.cache_bytes) {
                (0, own) => format!("no cache instead of {}", size(own)),
                (its, 0) => format!("a cache of {} instead of none", size(its)),
                (its, own) => format!("a cache of {} instead of {}", size(its), size(own)),
            };
            (text, true)
        }
        Dimension::Reads => {
            let text = match its.reads {
                Reads::Primary => "reading primaries only instead of the nearest members",
                Reads::Nearest => "reading the nearest members instead of primaries only",
            };
            (text.into(), true)
        }
        Dimension::CacheAt => {
            let text = match its.cache_at {
                CacheAt::Worker => "the cache at the workers instead of at the router",
                CacheAt::Router => "the cache at the router instead of at the workers",
            };
            (text.into(), true)
        }
    }
}

/// Returns the sentence for the gain of even shares of keys. `largest` is the share of the keys on the largest shard,
/// from 0 to 1.
pub(super) fn uneven(
    even: &Candidate,
    as_is: &Candidate,
    advised: &Candidate,
    advice: Advice,
    largest: f64,
    question: &Question<'_>,
) -> String {
    let shape = even.prediction.shape;
    let (before, after) = (seconds(as_is.prediction.job_s), seconds(even.prediction.job_s));
    let gain = match advice {
        Advice::Misses(..) if even.prediction.job_s <= question.deadline_s => {
            "which meets the deadline".into()
        }
        Advice::Misses(..) => {
            format!(
                "{} less than the fastest shape as it is",
                seconds(advised.prediction.job_s - even.prediction.job_s)
            )
        }
        Advice::Meets(_) => {
            format!("and {} than the advised shape", difference(even, advised, true))
        }
    };
    format!(
        "Uneven shards are the cause: with even shares {shape} would take {after} instead of {before} (the largest shard has {:.0} % of the keys), {gain}",
        largest * 100.0
    )
}

/// Describes the cost of a candidate: processors and memory, and the prices if they are known.
fn paid(candidate: &Candidate) -> String {
    let needs =
        format!("{} and {}", processors(candidate.processors), size(candidate.memory_bytes as u64));
    match (candidate.price_hour, candidate.price_job()) {
        (Some(hour), Some(job)) => {
            format!("{needs}, {} an hour, {} a job", money(hour), money(job))
        }
        _ => needs,
    }
}

/// Describes the difference in cost between two candidates: in price if it is known, else in processors or memory.
fn difference(other: &Candidate, one: &Candidate, singular: bool) -> String {
    if let (Some(its), Some(own)) = (other.price_hour, one.price_hour) {
        let verb = if singular { "costs" } else { "cost" };
        let more = its - own;
        if more.abs() <= 1e-6 * own.abs() {
            return format!("{verb} the same");
        }
        let direction = if more > 0.0 { "more" } else { "less" };
        return format!("{verb} {} an hour {direction}", money(more.abs()));
    }
    let verb = if singular { "needs" } else { "need" };
    let more = other.processors - one.processors;
    if more.abs() > 1e-6 * one.processors {
        let direction = if more > 0.0 { "more" } else { "fewer" };
        return format!("{verb} {} {direction}", processors(more.abs()));
    }
    let bytes = other.memory_bytes - one.memory_bytes;
    if bytes.abs() > 1e-6 * one.memory_bytes {
        let direction = if bytes > 0.0 { "more" } else { "less" };
        return format!("{verb} {} of memory {direction}", size(bytes.abs() as u64));
    }
    format!("{verb} the same processors and memory")
}

/// Formats a number of processors.
fn processors(number: f64) -> String {
    let text = format!("{number:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    format!("{text} {}", if text == "1" { "processor" } else { "processors" })
}

/// Formats a price with three significant digits.
fn money(amount: f64) -> String {
    if amount == 0.0 {
        return "0".into();
    }
    // Three significant digits.
    let digits = (2 - amount.abs().log10().floor() as i32).clamp(0, 9) as usize;
    format!("{amount:.digits$}")
}

/// Formats a time in seconds with three significant digits; from 100 s on, in whole seconds.
fn seconds(s: f64) -> String {
    match s {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s => format!("{:.1} ms", s * 1000.0),
    }
}
