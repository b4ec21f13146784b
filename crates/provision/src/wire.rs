//! MongoDB's wire protocol, as far as a proxy between a driver and a router needs it.
//!
//! A message is kept as the bytes that came, so one that passes is passed unchanged; a command in it is a view of these
//! bytes. Only the uncompressed form is understood: a proxy takes the compression out of a client's hello
//! ([`Message::without_compression`]), so that neither side ever uses it.
//!
//! Source: the server's documentation of the wire protocol, `OP_MSG`, and of the legacy `OP_QUERY`, in which old drivers
//! still say hello.

mod command;
mod message;
mod proxy;

pub use command::{Command, Sequence};
pub use message::{MESSAGE_BYTES_MAX, Message, Opcode};
pub use proxy::{CONNECTIONS_MAX, Handler, Upstream, serve};
