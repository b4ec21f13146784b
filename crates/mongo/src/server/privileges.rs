//! The privileges of a user, from the reply to `connectionStatus`.

use bson::{Bson, Document};

/// Returns those of `actions` that the connected user may not perform on the database `db`, or on its collection
/// `coll` if that is given. `status` is the server's reply to `connectionStatus` with `showPrivileges`; without
/// authorisation every client may perform all actions.
pub(crate) fn privileges_lacking<'a>(
    status: &Document,
    db: &str,
    coll: Option<&str>,
    actions: &[&'a str],
) -> Vec<&'a str> {
    let empty = Document::new();
    let info = status.get_document("authInfo").unwrap_or(&empty);
    let list = |field| info.get_array(field).map(Vec::as_slice).unwrap_or_default();
    if list("authenticatedUsers").is_empty() {
        return Vec::new();
    }
    let held = list("authenticatedUserPrivileges").iter().filter_map(Bson::as_document);
    let held: Vec<&Document> = held.collect();
    let covers = |resource: &Document| {
        let of = |field| resource.get_str(field).ok();
        let is_here = matches!(of("db"), Some(name) if name.is_empty() || name == db);
        let is_it = matches!(of("collection"), Some(name) if name.is_empty() || Some(name) == coll);
        is_any(resource) || (is_here && is_it)
    };
    lacking(&held, actions, covers)
}

pub(crate) fn is_any(resource: &Document) -> bool {
    resource.get_bool("anyResource").unwrap_or(false)
}

/// Returns those of `actions` that no privilege of `held` grants on a resource accepted by `covers`.
pub(crate) fn lacking<'a>(
    held: &[&Document],
    actions: &[&'a str],
    covers: impl Fn(&Document) -> bool,
) -> Vec<&'a str> {
    let granted: Vec<&str> = { held.iter() }
        .filter(|privilege| privilege.get_document("resource").is_ok_and(&covers))
        .filter_map(|privilege| privilege.get_array("actions").ok())
        .flat_map(|actions| actions.iter().filter_map(Bson::as_str))
        .collect();
    let lacks = |action: &&str| !granted.contains(action) && !granted.contains(&"anyAction");
    actions.iter().copied().filter(lacks).collect()
}
