//! Loops that keep all processors busy, so that none enters an idle state during a measurement.
//!
//! Members with a small CPU limit leave the machine idle most of the time. Waking an idle virtual processor for each
//! request raises the CPU time of the request: by half on the machine on which Imago is developed. The effect is
//! smaller on a busier machine, so two shards would seem to take less than half the time of one. A loop with idle
//! scheduling priority on each processor uses only time that no other process needs, and keeps the processor awake.

use std::process::{Child, Command, Stdio};

/// The processes of the loops. Dropping this ends them.
#[derive(Debug)]
pub(crate) struct Awake {
    loops: Vec<Child>,
}

impl Awake {
    /// Starts one loop for each processor. Returns a message with the reason if `chrt` cannot be started.
    pub(crate) fn keep() -> Result<Self, String> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut awake = Self { loops: Vec::new() };
        for _ in 0..processors {
            let mut command = Command::new("chrt");
            command.args(["--idle", "0", "sh", "-c", "while :; do :; done"]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // `spawn` has the kernel kill the loop when this process ends, for any reason.
            let child = imago_testbed::process::spawn(command).map_err(|cause| {
                format!("processors fall asleep between requests: chrt: {cause}")
            })?;
            awake.loops.push(child);
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.loops {
            // The kill fails if the loop has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_end_with_their_owner() {
        let Some(awake) = imago_testbed::require(Awake::keep()) else { return };
        let pids: Vec<u32> = awake.loops.iter().map(Child::id).collect();
        assert!(!pids.is_empty());
        drop(awake);
        for pid in pids {
            assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid}");
        }
    }
}
