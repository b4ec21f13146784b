//! Users that can bypass a validator.
//!
//! Each write carries the flag that requests the bypass, so servers cannot predict which writers use it. Servers can
//! report which users have the privilege.

use bson::{Bson, Document, doc};
use imago_job::run::Run;

use crate::error::{Error, Result, code};
use crate::namespace::Namespace;
use crate::server::block::{about_user, has_users};
use crate::server::endpoint::Endpoint;

const ACTION: &str = "bypassDocumentValidation";
/// Maximum number of users that the warning names.
const NAMED_MAX: usize = 10;
/// Maximum number of users whose privileges are queried.
const USERS_MAX: usize = 1_000;

/// The users that can bypass the validation of a collection.
#[derive(Debug, PartialEq)]
enum Bypassing {
    /// Every client can: the cluster has no authorisation.
    Everybody,
    /// The users with these names can, not including the connected user.
    These(Vec<String>),
    /// Unknown, because the connected user lacks the privilege to query the others.
    Unknown,
}

/// Warns of users that can bypass the validator that blocks the collection `ns`. If a query fails, the warning
/// contains the error, and the commit continues.
pub(in crate::reshard) async fn warn(run: &Run, cluster: &Endpoint, ns: &Namespace) {
    let who = match bypassing(cluster, ns).await {
        Ok(Bypassing::These(users)) if users.is_empty() => return,
        Ok(Bypassing::These(users)) => {
            let named: Vec<&str> = users.iter().take(NAMED_MAX).map(String::as_str).collect();
            let more = users.len().saturating_sub(NAMED_MAX);
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("{}{more} may bypass a validator", named.join(", "))
        }
        Ok(Bypassing::Everybody) => {
            "without authorisation every client may bypass a validator".into()
        }
        Ok(Bypassing::Unknown) => "the users that may bypass a validator are not known".into(),
        Err(error) => format!("the users that may bypass a validator are not known: {error}"),
    };
    run.reporter().warning(
        "validator_bypassed",
        format!("{who}: --block validator does not stop writes with {ACTION}"),
        "make sure that no client uses it at the commit (mongorestore can): an update between the \
         last check and the rename would be lost, and reported; or use --block user-writes",
    );
}

async fn bypassing(cluster: &Endpoint, ns: &Namespace) -> Result<Bypassing> {
    let me = about_user(cluster).await?;
    if !has_users(&me) {
        return Ok(Bypassing::Everybody);
    }
    let ask = |command: Document| async move {
        match cluster.run("admin", command).await {
            Ok(reply) => Ok(Some(reply)),
            Err(Error::Server { cause, .. }) if code(&cause) == Some(13) => Ok(None),
            Err(error) => Err(error),
        }
    };
    let Some(all) = ask(doc! {"usersInfo": {"forAllDBs": true}}).await? else {
        return Ok(Bypassing::Unknown);
    };
    let named = users_of(&all).map(|user| {
        let name = |field: &str| user.get(field).cloned().unwrap_or(Bson::Null);
        Bson::Document(doc! {"user": name("user"), "db": name("db")})
    });
    let named: Vec<Bson> = named.take(USERS_MAX).collect();
    let Some(known) = ask(doc! {"usersInfo": named, "showPrivileges": true}).await? else {
        return Ok(Bypassing::Unknown);
    };
    let my_own = me.get_array("authenticatedUsers").cloned().unwrap_or_default();
    let is_me = |user: &Document| {
        let is =
            |me: &Document| me.get("user") == user.get("user") && me.get("db") == user.get("db");
        my_own.iter().filter_map(Bson::as_document).any(is)
    };
    let may = users_of(&known).filter(|user| !is_me(user) && may_bypass(user, ns));
    let name = |user: &Document| user.get_str("user").unwrap_or("?").to_owned();
    Ok(Bypassing::These(may.map(name).collect()))
}

fn users_of(reply: &Document) -> impl Iterator<Item = &Document> {
    reply.get_array("users").into_iter().flatten().filter_map(Bson::as_document)
}

/// Returns true if a privilege of the user or of its roles covers the bypass of validation on the collection `ns`.
fn may_bypass(user: &Document, ns: &Namespace) -> bool {
    let privileges = user.get_array("inheritedPrivileges").into_iter().flatten();
    privileges.filter_map(Bson::as_document).any(|privilege| {
        let covers = privilege.get_document("resource").is_ok_and(|resource| {
            let is = |field, own: &str| {
                resource.get_str(field).is_ok_and(|named| named.is_empty() || named == own)
            };
            resource.get_bool("anyResource").unwrap_or(false)
                || (is("db", &ns.db) && is("collection", &ns.coll))
        });
        let actions = privilege.get_array("actions").into_iter().flatten();
        let grants = actions.filter_map(Bson::as_str).any(|a| a == ACTION || a == "anyAction");
        covers && grants
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_privilege_counts_where_it_covers_the_collection() {
        let may = |resource: Document, action: &str| {
            let privilege = doc! {"resource": resource, "actions": [action]};
            let user = doc! {"user": "u", "inheritedPrivileges": [privilege]};
            may_bypass(&user, &Namespace::new("shop", "reviews"))
        };
        assert!(may(doc! {"db": "shop", "collection": "reviews"}, ACTION));
        assert!(may(doc! {"db": "", "collection": ""}, ACTION));
        assert!(may(doc! {"anyResource": true}, "anyAction"));
        assert!(!may(doc! {"db": "shop", "collection": "others"}, ACTION));
        assert!(!may(doc! {"db": "other", "collection": ""}, ACTION));
        assert!(!may(doc! {"cluster": true}, ACTION));
        assert!(!may(doc! {"db": "shop", "collection": ""}, "insert"));
    }
}
