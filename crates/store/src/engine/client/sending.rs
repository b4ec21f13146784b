//! Sends replies to a client, and closes a client that does not receive them.
//!
//! While a reply waits to be received, no further request of its client runs. A client that has received
//! less than [`PROGRESS_BYTES`] within [`SEND_WAIT`] is closed. The time is [`CROWDED_WAIT`] if the replies
//! of all clients have nearly reached their limit and this client holds more than its guaranteed share. A client that
//! receives nothing for [`LOOK_EVERY`] is closed as soon as others need its memory.

use std::io::{self, IoSlice};
use std::time::Duration;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::time::{Instant, timeout};

use crate::output_buffer::OutputBuffer;
use crate::reply::Reply;

/// Time within which a client must receive [`PROGRESS_BYTES`].
const SEND_WAIT: Duration = Duration::from_secs(60);
/// Time within which a client must receive [`PROGRESS_BYTES`] if the memory of all clients' replies is nearly
/// exhausted.
const CROWDED_WAIT: Duration = Duration::from_secs(5);
/// Number of received bytes that count as progress of a client.
const PROGRESS_BYTES: usize = 16 * 1024;
/// Interval at which a blocked send is checked for progress.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Sends a reply, which may have several parts, to a client. `output` is the client's output buffer.
///
/// # Errors
/// Returns an error if the connection breaks, or the client does not receive the reply.
pub(in crate::engine) async fn send(
    stream: &mut (impl AsyncWrite + Unpin),
    reply: &Reply,
    output: &OutputBuffer,
) -> io::Result<()> {
    let mut slices = reply.slices();
    let mut slices = &mut slices[..];
    let (mut since, mut bytes) = (Instant::now(), 0);
    let mut wait_on = |written: usize| -> io::Result<()> {
        bytes += written;
        output.set_silent(written == 0);
        if bytes >= PROGRESS_BYTES {
            (since, bytes) = (Instant::now(), 0);
        }
        let is_crowded = output.all().is_crowded() && output.is_large();
        let patience = if is_crowded { CROWDED_WAIT } else { SEND_WAIT };
        if since.elapsed() < patience {
            return Ok(());
        }
        output.all().count_closed();
        Err(io::ErrorKind::TimedOut.into())
    };
    output.set_silent(false);
    while !slices.is_empty() {
        let written = match timeout(LOOK_EVERY, stream.write_vectored(slices)).await {
            Ok(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written?,
            Err(_) => 0,
        };
        IoSlice::advance_slices(&mut slices, written);
        if written == 0 || !slices.is_empty() {
            wait_on(written)?;
        }
    }
    // An encrypted connection may still buffer a part of the reply.
    loop {
        match timeout(LOOK_EVERY, stream.flush()).await {
            Ok(flushed) => return flushed,
            Err(_) => wait_on(0)?,
        }
    }
}
