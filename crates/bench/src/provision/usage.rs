//! Resource use of processes while a chain runs: mean and maximum of processor time and memory.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::process::cpu_s;

/// Length of an observation. The kernel counts processor time in hundredths of a second, so that this length resolves
/// 2 % of a processor; a shorter one would be coarser.
const WINDOW: Duration = Duration::from_millis(500);

/// Resource use of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// Name of the node.
    pub node: String,
    /// Number of busy processors, mean over the run.
    pub cpu_mean: f64,
    /// Number of busy processors in the busiest half second.
    pub cpu_max: f64,
    /// Resident memory, mean over the run, in bytes.
    pub memory_mean: f64,
    /// Maximum resident memory, in bytes.
    pub memory_max: f64,
}

/// Observes processes until `stop` is cancelled. A process that has ended before the first observation has no entry
/// in the result.
pub(crate) async fn watch(nodes: Vec<(String, u32)>, stop: CancellationToken) -> Vec<Usage> {
    let began = Instant::now();
    let mut watched: Vec<Watched> = nodes
        .into_iter()
        .filter_map(|(node, pid)| {
            let cpu_s = cpu_s(pid)?;
            Some(Watched {
                node,
                pid,
                first_s: cpu_s,
                last_s: cpu_s,
                cpu_max: 0.0,
                memory: Vec::new(),
            })
        })
        .collect();
    let mut last = began;
    loop {
        let is_over = tokio::select! {
            () = stop.cancelled() => true,
            () = tokio::time::sleep(WINDOW) => false,
        };
        let now = Instant::now();
        let window_s = (now - last).as_secs_f64();
        // The last window is cut short: it counts for the maximum only if no earlier window saw any processor use.
        let is_whole = !is_over || watched.iter().all(|one| one.cpu_max == 0.0);
        for one in &mut watched {
            one.sample(window_s, is_whole);
        }
        last = now;
        if is_over {
            break;
        }
    }
    let lasted_s = began.elapsed().as_secs_f64();
    watched.into_iter().filter_map(|one| one.usage(lasted_s)).collect()
}

struct Watched {
    node: String,
    pid: u32,
    first_s: f64,
    last_s: f64,
    cpu_max: f64,
    memory: Vec<f64>,
}

impl Watched {
    fn sample(&mut self, window_s: f64, is_whole: bool) {
        if let Some(now_s) = cpu_s(self.pid) {
            if is_whole {
                self.cpu_max = self.cpu_max.max((now_s - self.last_s) / window_s);
            }
            self.last_s = now_s;
        }
        self.memory.extend(resident_bytes(self.pid));
    }

    fn usage(self, lasted_s: f64) -> Option<Usage> {
        let count = self.memory.len() as f64;
        let memory_max = self.memory.iter().copied().reduce(f64::max)?;
        Some(Usage {
            node: self.node,
            cpu_mean: (self.last_s - self.first_s) / lasted_s,
            cpu_max: self.cpu_max,
            memory_mean: self.memory.iter().sum::<f64>() / count,
            memory_max,
        })
    }
}

/// Returns the resident memory of a process, in bytes; None if the process does not exist.
pub(crate) fn resident_bytes(pid: u32) -> Option<f64> {
    parse_status(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

fn parse_status(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_of_a_status() {
        let status = "Name:\tmongod\nVmHWM:\t  210000 kB\nVmRSS:\t  204800 kB\nThreads:\t41\n";
        assert_eq!(parse_status(status), Some(209_715_200.0));
        assert_eq!(parse_status("Name:\tkthreadd\n"), None);
    }

    #[tokio::test]
    async fn this_process_uses_memory() {
        let stop = CancellationToken::new();
        stop.cancel();
        let own = std::process::id();
        let used = watch(vec![("own".into(), own), ("gone".into(), u32::MAX)], stop).await;
        assert_eq!(used.len(), 1, "{used:?}");
        assert!(used[0].memory_max > 1e6 && used[0].cpu_mean >= 0.0, "{used:?}");
    }
}
