//! Processors that do not fall asleep while something is measured.
//!
//! Members that are held to a small share leave the machine idle most of the time. A virtual processor that is woken for
//! each request makes it dearer, by half as much again on the machine on which Imago is developed; and the busier the
//! machine is, the less so. Then two shards would seem to take less than half the time of one. A loop of idle priority on
//! each processor takes only the time that nothing else wants, and keeps it awake.

use std::process::{Child, Command, Stdio};

/// The loops, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct Awake {
    loops: Vec<Child>,
}

impl Awake {
    /// Starts a loop for each processor; or says why it cannot.
    pub(crate) fn keep() -> Result<Self, String> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let mut awake = Self { loops: Vec::new() };
        for _ in 0..processors {
            let mut command = Command::new("chrt");
            command.args(["--idle", "0", "sh", "-c", "while :; do :; done"]);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            // It ends with this process, too, however that ends.
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
            // One that has ended by itself cannot be killed.
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
