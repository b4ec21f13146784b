//! Testbeds (clusters and single servers) that run in the background, each under a name.
//!
//! A *supervisor* is a separate process that owns a testbed's servers and router, so that they live exactly as long
//! as the supervisor. Its entry is in the [`registry`]: one file for each name, with the supervisor's identity. The
//! supervisor injects faults into its servers on request over a socket ([`control`]), because only their parent can
//! start them again.
//!
//! Invariant: whichever process ends first, nothing is left over. A supervisor that is asked to end ends its servers
//! and removes its files. If it is killed, the kernel kills its servers and the next `down` removes its files. If its
//! launcher ends before it has learnt of the cluster, the supervisor ends by itself ([`launch`]).

pub mod control;
pub mod launch;
pub mod registry;
pub mod status;

use std::future::Future;
use std::pin::pin;

use tokio::net::UnixListener;

use crate::content::{Content, ContentSpec};
use crate::error::{Error, Result};
use registry::{Claim, Phase, Registry, RegistryEntry};

/// Starts the testbed of `spec` under its name, and runs it in this process until `stop` completes.
///
/// `ready` is called once with the registry entry, when the testbed can be used and found by its name. When this
/// returns, all servers and files of the testbed are gone.
pub async fn supervise(
    spec: ContentSpec,
    registry: &Registry,
    ready: impl FnOnce(&RegistryEntry) -> Result<()>,
    stop: impl Future<Output = ()>,
) -> Result<()> {
    let mut stop = pin!(stop);
    let mut claim = registry.claim(&spec)?;
    // Declared after the claim, so that the servers end before their name is free.
    let content = tokio::select! {
        started = Box::pin(Content::start(spec)) => started?,
        () = &mut stop => return Ok(()),
    };
    let socket = content.folder().join("control.sock");
    let listener = UnixListener::bind(&socket)
        .map_err(Error::io(format!("open the control socket {}", socket.display())))?;
    claim.update(|standing| {
        standing.phase = Phase::Ready;
        standing.uri = content.uri();
        standing.admin_uri = content.admin_uri();
        standing.folder = Some(content.folder().to_path_buf());
        standing.unshared = content.unshared();
        standing.nodes = content.nodes();
    })?;
    ready(claim.entry())?;
    tokio::select! {
        served = Box::pin(serve(&content, &listener, &mut claim)) => served,
        () = &mut stop => Ok(()),
    }
}

/// Handles the requests of `listener` one after another: faults that overlap would make their outcomes ambiguous.
async fn serve(content: &Content, listener: &UnixListener, claim: &mut Claim) -> Result<()> {
    loop {
        let accepted = listener.accept().await;
        let (stream, _) = accepted.map_err(Error::io("take a request"))?;
        // A client that disconnects loses its reply; others are not affected.
        let record = || claim.update(|standing| standing.nodes = content.nodes());
        if let Err(error) = control::answer(content, stream, record).await {
            tracing::warn!(%error, "a request was not answered");
        }
    }
}
