//! Findings about the user's privileges, compared with those that the change of shape needs.

use bson::{Bson, Document, doc};

use super::{Finding, obstacle, warning};
use crate::STATE_DB;
use crate::error::Result;
use crate::namespace::Namespace;
use crate::server::endpoint::Endpoint;
use crate::server::privileges::{is_any, lacking};

/// Actions that the user needs on the collection and on its shadow.
const NEEDED: [&str; 11] = [
    "changeStream",
    "collMod",
    "createCollection",
    "createIndex",
    "dropCollection",
    "enableSharding",
    "find",
    "insert",
    "moveChunk",
    "remove",
    "update",
];
/// Actions that the user needs on the database that contains the state of jobs.
const STATE: [&str; 4] = ["find", "insert", "remove", "update"];
/// Actions that the user needs on the cluster to block writes for the cut-over and to write past the write block.
const BLOCKING: [&str; 2] = ["bypassWriteBlockingMode", "setUserWriteBlockMode"];

/// Returns the findings about privileges that the connected user lacks for a change of the collection `ns`. Without
/// authorisation every user may do everything.
pub(in crate::reshard) async fn privilege_findings(
    router: &Endpoint,
    ns: &Namespace,
) -> Result<Vec<Finding>> {
    let status = router.run("admin", doc! {"connectionStatus": 1, "showPrivileges": true}).await?;
    Ok(missing(&status, ns))
}

fn missing(status: &Document, ns: &Namespace) -> Vec<Finding> {
    let empty = Document::new();
    let info = status.get_document("authInfo").unwrap_or(&empty);
    let list = |field| info.get_array(field).map(Vec::as_slice).unwrap_or_default();
    if list("authenticatedUsers").is_empty() {
        return Vec::new();
    }
    let held: Vec<&Document> =
        list("authenticatedUserPrivileges").iter().filter_map(Bson::as_document).collect();
    let on_database = |db: &str, resource: &Document| {
        let is = |field, wanted: &str| resource.get_str(field).is_ok_and(|found| found == wanted);
        is_any(resource) || (is("collection", "") && (is("db", "") || is("db", db)))
    };
    let on_cluster =
        |resource: &Document| is_any(resource) || resource.get_bool("cluster").unwrap_or(false);
    let mut found = Vec::new();
    let needed = lacking(&held, &NEEDED, |resource| on_database(&ns.db, resource));
    if !needed.is_empty() {
        found.push(obstacle(
            "privileges",
            format!("the user may not {} on the database {}", needed.join(", "), ns.db),
            format!(
                "grant the roles readWrite and dbAdmin on {} and clusterManager on admin, or name \
                 another user",
                ns.db
            ),
        ));
    }
    let state = lacking(&held, &STATE, |resource| on_database(STATE_DB, resource));
    if !state.is_empty() {
        found.push(obstacle(
            "privileges",
            format!("the user may not {} on the database {STATE_DB}", state.join(", ")),
            format!("grant the role readWrite on {STATE_DB}: the job's state is kept there"),
        ));
    }
    let blocking = lacking(&held, &BLOCKING, on_cluster);
    if !blocking.is_empty() {
        found.push(warning(
            "privileges_block",
            format!("the user may not {} on the cluster", blocking.join(", ")),
            "grant these actions (the role restore or root has them) if writes are to be blocked \
             by setUserWriteBlockMode",
        ));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codes(privileges: &[Document]) -> Vec<String> {
        let status = doc! {"authInfo": {
            "authenticatedUsers": [{"user": "u", "db": "admin"}],
            "authenticatedUserPrivileges": privileges,
        }};
        missing(&status, &Namespace::new("shop", "c")).into_iter().map(|f| f.code).collect()
    }

    #[test]
    fn each_action_counts_on_what_it_is_granted() {
        let all = |db: &str, coll: &str| {
            doc! {"resource": {"db": db, "collection": coll}, "actions": NEEDED.to_vec()}
        };
        let state = all("imago", "");
        let block = doc! {"resource": {"cluster": true}, "actions": BLOCKING.to_vec()};
        assert_eq!(codes(&[all("shop", ""), state.clone(), block.clone()]), [""; 0]);
        assert_eq!(codes(&[all("shop", ""), block.clone()]), ["privileges"], "of jobs");
        assert_eq!(codes(&[all("", ""), block.clone()]), [""; 0]);
        assert_eq!(codes(&[all("other", ""), state.clone(), block.clone()]), ["privileges"]);
        // The shadow is another collection.
        assert_eq!(codes(&[all("shop", "c"), state.clone(), block]), ["privileges"]);
        assert_eq!(codes(&[all("shop", ""), state]), ["privileges_block"]);
        let any = doc! {"resource": {"anyResource": true}, "actions": ["anyAction"]};
        assert_eq!(codes(&[any]), [""; 0]);
    }

    #[test]
    fn without_authorisation_everybody_may_do_everything() {
        let status = doc! {"authInfo": {"authenticatedUsers": []}};
        assert!(missing(&status, &Namespace::new("shop", "c")).is_empty());
    }
}
