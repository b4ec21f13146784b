//! Findings of a plan: obstacles and warnings, each with a remedy.
//!
//! A check never writes, and never reads a large collection unless requested: a check that would cost too much is
//! reported as omitted. A check that fails is a warning, so that a missing privilege does not look like a clean
//! result.

mod balancer;
mod cluster;
mod definition;
mod documents;
mod privileges;
mod shards;

pub(super) use balancer::balancer_finding;
pub(super) use cluster::cluster_findings;
pub(super) use definition::{definition_findings, index_findings};
pub(super) use documents::{Wanted, document_findings};
pub(super) use privileges::privilege_findings;
pub(super) use shards::{PredictedDuration, crossing_finding, shard_findings};

use crate::reshard::plan::{Finding, Flow, Flowing, Request, Weight};

pub(super) fn obstacle(code: &str, what: impl Into<String>, help: impl Into<String>) -> Finding {
    finding(Weight::Obstacle, code, what.into(), help.into())
}

pub(super) fn warning(code: &str, what: impl Into<String>, help: impl Into<String>) -> Finding {
    finding(Weight::Warning, code, what.into(), help.into())
}

fn finding(weight: Weight, code: &str, what: String, help: String) -> Finding {
    Finding { weight, code: code.to_owned(), what, help }
}

/// Returns a warning if fewer connections were requested than there are pairs of shards with documents to move;
/// `None` otherwise.
pub(super) fn socket_finding(request: &Request, flows: &[Flow]) -> Option<Finding> {
    let is_bound = matches!(request.flowing, Flowing::Wfs | Flowing::Orchestra);
    (is_bound && request.sockets > 0 && flows.len() > request.sockets as usize).then(|| {
        warning(
            "few_sockets",
            format!(
                "{} connections were requested, but {} pairs of shards have something to move, and \
                 each gets one",
                request.sockets,
                flows.len()
            ),
            "increase --sockets, or accept it",
        )
    })
}

/// Returns the findings with obstacles before warnings, otherwise in the order in which they were found.
pub(super) fn sorted(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|finding| finding.weight == Weight::Warning);
    findings
}
