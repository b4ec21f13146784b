//! Sites in processes of their own: the router's side of the connections, and the site's process.

pub(in crate::engine) mod acceptor;
mod marks;
mod reader;
mod receive;
pub(in crate::engine) mod remote_site;
pub(in crate::engine) mod site_process;
pub(crate) mod traffic;
mod transfer;
mod waiting;
pub(in crate::engine) mod wire;
