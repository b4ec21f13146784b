//! Members of a shard's replica set.
//!
//! The data centre of a member is its tag `dc`, or `region` if it has no `dc`.

use bson::{Bson, Document};
use imago_plan::reshard::geo;

/// Maximum replication lag of a secondary from which documents are read, in milliseconds.
const LAG_MS_MAX: i64 = 10_000;

/// A member of a shard's replica set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::reshard) struct Member {
    /// Address of the member, as `host:port`.
    pub(in crate::reshard) host: String,
    /// Facts about the member that the choice of readers uses: data centre, primary or not, usable or not.
    pub(in crate::reshard) what: geo::Member,
}

/// Returns the members of a replica set from its configuration (`replSetGetConfig`) and its status
/// (`replSetGetStatus`).
pub(in crate::reshard) fn members(config: &Document, status: &Document) -> Vec<Member> {
    let list = |of: &Document| -> Vec<Document> {
        let members = of.get_array("members").into_iter().flatten();
        members.filter_map(Bson::as_document).cloned().collect()
    };
    let members = list(status);
    let state = |member: &Document| member.get_i32("state").unwrap_or(0);
    let at =
        |member: &Document| member.get_datetime("optimeDate").map_or(0, |at| at.timestamp_millis());
    let newest = members.iter().find(|member| state(member) == 1).map_or(0, at);
    let of = |entry: Document| {
        let host = entry.get_str("host").ok()?.to_owned();
        let own = members.iter().find(|member| member.get_str("name").is_ok_and(|n| n == host))?;
        let tag = |name| entry.get_document("tags").ok()?.get_str(name).ok().map(str::to_owned);
        let what = geo::Member {
            data_centre: tag("dc").or_else(|| tag("region")),
            primary: state(own) == 1,
            usable: state(own) == 1 || (state(own) == 2 && newest - at(own) <= LAG_MS_MAX),
        };
        Some(Member { host, what })
    };
    list(config).into_iter().filter_map(of).collect()
}
