//! MongoDB's wire protocol, to the extent that a proxy between a driver and a router needs.
//!
//! A message is stored as the bytes that were received, so it is forwarded unchanged; a command in it is a view of
//! these bytes. Only uncompressed messages are supported: the proxy removes the compression from a client's hello
//! ([`Message::without_compression`]), so that neither side ever uses it.
//!
//! Source: the server's documentation of the wire protocol, `OP_MSG`, and of the legacy `OP_QUERY`, in which old
//! drivers still send their hello.

mod command;
mod message;
mod proxy;

pub use command::{Command, Sequence};
pub use message::{MESSAGE_BYTES_MAX, Message, Opcode};
pub use proxy::{CONNECTIONS_MAX, Handler, Upstream, serve};
