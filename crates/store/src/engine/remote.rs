//! Sites in processes of their own: how the router has them, and what such a process does.

pub(in crate::engine) mod acceptor;
mod marks;
mod reader;
pub(in crate::engine) mod remote_site;
pub(in crate::engine) mod site_process;
pub(crate) mod traffic;
mod waiting;
pub(in crate::engine) mod wire;
