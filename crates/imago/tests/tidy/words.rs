//! Names that the code once had, and that do not come back: the field has a standard term for each.
//!
//! The test looks for names in code, as whole words, in the crates where they had a meaning of
//! their own.

use crate::finding::{Finding, assert_clean};
use crate::tree::{Text, texts};
use crate::wording::contains_word;

/// The folder of a crate, the old name, and the standard term.
const OLD: [(&str, &str, &str); 40] = [
    ("store", "Ear", "Reader"),
    ("store", "Gate", "Acceptor"),
    ("store", "Half", "RequestTimeout"),
    ("store", "Life", "EpochState"),
    ("store", "Lives", "Epochs"),
    ("store", "Line", "Pipeline"),
    ("store", "Talk", "Connection"),
    ("store", "Mail", "SiteEvent"),
    ("store", "Door", "SiteSender"),
    ("store", "Begun", "Recovered"),
    ("store", "Place", "Executor"),
    ("store", "GivePart", "CheckpointSink"),
    ("store", "Member", "SiteProcess"),
    ("store", "fronts", "client_threads"),
    ("store", "Frame", "LogEntry"),
    ("store", "Adopt", "InstallReplica"),
    ("store", "Shelf", "Entries"),
    ("store", "Kid", "Child"),
    ("store", "Does", "Handler"),
    ("store", "obey", "execute"),
    ("store", "patiently", "retry"),
    ("store", "Role", "Store, Router or SiteProcess"),
    ("mongo", "Lead", "Coordinator"),
    ("mongo", "converge", "apply"),
    ("mongo", "Slipped", "LateWrites"),
    ("mongo", "slipped", "late_writes"),
    ("mongo", "How", "Options"),
    ("bench", "Setting", "Header"),
    ("mongo", "Standing", "Progress"),
    ("mongo", "patiently", "retry_transient"),
    ("mongo", "nudge", "heartbeat"),
    ("mongo", "Straggler", "Mismatch"),
    ("mongo", "stragglers", "mismatches"),
    ("plan", "Ledger", "PendingChanges"),
    ("plan", "Touch", "DirtyKey"),
    ("plan", "Stride", "BatchSize"),
    ("testbed", "keeper", "supervisor"),
    ("testbed", "Front", "RouterProcess"),
    ("bench", "Bed", "ShardedCluster"),
    ("bench", "Ground", "ClusterPair"),
];

fn old_names(text: &Text) -> Vec<Finding> {
    let of = |folder: &str| text.path.starts_with(&format!("crates/{folder}/"));
    if !text.is_rust() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (index, line) in text.body.lines().enumerate() {
        let code = line.split("//").next().unwrap_or(line);
        let old = OLD.iter().filter(|(folder, old, _)| of(folder) && contains_word(code, old));
        found.extend(old.map(|(_, old, now)| {
            Finding::at(&text.path, index, format!("has the name {old}: the term is {now}"))
        }));
    }
    found
}

#[test]
fn old_names_do_not_come_back() {
    assert_clean(texts().iter().flat_map(old_names).collect(), "use the field's term.");
}

#[test]
fn an_old_name_is_found() {
    let found = |path, body: &str| old_names(&Text::new(path, body)).len();
    assert_eq!(found("crates/mongo/src/copy.rs", "    lead: Lead,\n"), 1);
    assert_eq!(found("crates/mongo/src/copy.rs", "    lead: Leader, // a Lead\n"), 0);
    assert_eq!(found("crates/store/src/log.rs", "    lead: Lead,\n"), 0);
}
