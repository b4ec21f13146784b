//! CPU limit of a node, enforced by a control group of the kernel, so that nodes on one machine slow each other
//! down no more than nodes on separate machines.
//!
//! A process enters its group before it becomes the server, so that a JVM counts its processors under the limit. The
//! name of a group contains the process that made it; groups of processes that ended are removed by the next process
//! that makes one. Both versions of control groups are supported. If the machine has neither, or this user may not
//! make groups, nodes run without a limit, and the testbed reports the reason.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{Liveness, ProcessId};

/// Period after which the kernel renews the CPU quota of a group, in µs. It is short, so that a server that has used
/// up its quota is not suspended for long.
const PERIOD_US: u64 = 20_000;
const PREFIX: &str = "imago-testbed-";
/// Shell script that writes its own process id to the file in argument 0, and executes the command in the remaining
/// arguments.
const ENTER: &str = r#"echo $$ > "$0" && exec "$@""#;

/// Version and mount point of the machine's control groups, which determine where groups are made and how a limit is
/// written.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Hierarchy {
    /// Version 1, with the mount point of the controller `cpu`.
    V1(PathBuf),
    /// Version 2, with the mount point common to all controllers.
    V2(PathBuf),
}

impl Hierarchy {
    /// Returns the hierarchy with the CPU controller in `mounts`, the content of `/proc/mounts`, or the reason why
    /// there is none.
    fn of(mounts: &str) -> Result<Self, String> {
        let mut two = None;
        for line in mounts.lines() {
            let mut fields = line.split(' ').skip(1);
            let (Some(place), Some(kind), Some(options)) =
                (fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            match kind {
                "cgroup" if options.split(',').any(|option| option == "cpu") => {
                    return Ok(Self::V1(place.into()));
                }
                "cgroup2" => two = Some(PathBuf::from(place)),
                _ => {}
            }
        }
        let place = two.ok_or("this machine has no control groups for processors")?;
        let given = fs::read_to_string(place.join("cgroup.subtree_control")).unwrap_or_default();
        if given.split_whitespace().any(|controller| controller == "cpu") {
            return Ok(Self::V2(place));
        }
        Err(format!("the control groups below {} do not have processors", place.display()))
    }

    fn folder(&self) -> &Path {
        match self {
            Self::V1(folder) | Self::V2(folder) => folder,
        }
    }

    /// Returns the names and new contents of the group's files that limit it to `percent` of one processor.
    fn limit(&self, percent: u16) -> Vec<(&'static str, String)> {
        let quota_us = PERIOD_US * u64::from(percent) / 100;
        match self {
            Self::V1(_) => vec![
                ("cpu.cfs_period_us", PERIOD_US.to_string()),
                ("cpu.cfs_quota_us", quota_us.to_string()),
            ],
            Self::V2(_) => vec![("cpu.max", format!("{quota_us} {PERIOD_US}"))],
        }
    }

    /// Returns the name and new content of the group's file that removes its limit.
    fn no_limit(&self) -> (&'static str, String) {
        match self {
            Self::V1(_) => ("cpu.cfs_quota_us", "-1".to_owned()),
            Self::V2(_) => ("cpu.max", format!("max {PERIOD_US}")),
        }
    }
}

/// CPU limit of one node, as a control group; dropping it removes the group, whose processes must have ended.
#[derive(Debug)]
pub(crate) struct CpuShare {
    group: PathBuf,
    hierarchy: Hierarchy,
    percent: u16,
}

impl CpuShare {
    /// Least CPU limit of a server, in percent of one processor: with less no server replies within a useful time.
    pub(crate) const PERCENT_MIN: u16 = 10;

    /// Makes a control group for `node` if `percent`, the limit in percent of one processor, is given. If that fails,
    /// returns `None` and stores the reason in `missing`.
    pub(crate) fn if_requested(
        node: &str,
        percent: Option<u16>,
        missing: &mut Option<String>,
    ) -> Option<Self> {
        let made = Self::of(node, percent?).map_err(|why| *missing = Some(why));
        made.ok()
    }

    /// Returns the reason why `percent`, a limit in percent of one processor, is invalid; `None` if it is valid or
    /// absent.
    pub(crate) fn limit_error(percent: Option<u16>) -> Option<String> {
        let percent = percent.filter(|percent| *percent < Self::PERCENT_MIN)?;
        let least = Self::PERCENT_MIN;
        Some(format!("{percent} % of a processor: a server needs at least {least} %"))
    }

    /// Makes a control group for `node` that is limited to `percent` of one processor, or returns the reason why that
    /// is impossible.
    pub(crate) fn of(node: &str, percent: u16) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/mounts").map_err(|error| error.to_string())?;
        Self::make(&Hierarchy::of(&mounts)?, node, percent)
    }

    fn make(hierarchy: &Hierarchy, node: &str, percent: u16) -> Result<Self, String> {
        sweep(hierarchy.folder());
        let ProcessId { pid, start_ticks } = ProcessId::own();
        let group = hierarchy.folder().join(format!("{PREFIX}{pid}-{start_ticks}-{node}"));
        let cannot = |what: &str, error: std::io::Error| {
            format!("cannot {what} the control group {}: {error}", group.display())
        };
        fs::create_dir(&group).map_err(|error| cannot("make", error))?;
        let share = Self { group: group.clone(), hierarchy: hierarchy.clone(), percent };
        share.enforce(true).map_err(|error| cannot("limit", error))?;
        Ok(share)
    }

    /// Puts the CPU limit of the group in force if `is_enforced`, else removes it until the next call.
    pub(crate) fn enforce(&self, is_enforced: bool) -> std::io::Result<()> {
        let files = if is_enforced {
            self.hierarchy.limit(self.percent)
        } else {
            vec![self.hierarchy.no_limit()]
        };
        files.into_iter().try_for_each(|(file, content)| fs::write(self.group.join(file), content))
    }

    /// Returns a command that runs `program` in this group; arguments that the caller adds are those of `program`.
    pub(crate) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", ENTER]).arg(self.group.join("cgroup.procs")).arg(program);
        command
    }
}

impl Drop for CpuShare {
    fn drop(&mut self) {
        remove(&self.group);
    }
}

/// Removes the folder of a control group. Attempts are repeated for half a second, because the kernel may still count
/// a process that was just killed.
fn remove(group: &Path) {
    const ATTEMPTS: u32 = 20;
    for _ in 0..ATTEMPTS {
        match fs::remove_dir(group) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                std::thread::sleep(std::time::Duration::from_millis(25));
            }
            _ => return,
        }
    }
    tracing::warn!(group = %group.display(), "could not remove a control group");
}

/// Removes the testbed groups in `folder` whose creating process ended. Their servers have ended too: the kernel
/// killed them.
fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if owner(&entry.file_name()).is_some_and(|owner| owner.liveness() == Liveness::Gone) {
            // A failure is ignored: another process may be removing the same group.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Returns the process that made the control group named `name`; `None` if that is not the name of a testbed's group.
fn owner(name: &OsStr) -> Option<ProcessId> {
    let mut numbers = name.to_str()?.strip_prefix(PREFIX)?.split('-');
    let pid = numbers.next()?.parse().ok()?;
    Some(ProcessId { pid, start_ticks: numbers.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hierarchy_is_the_one_with_processors() {
        let one = "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n\
                   cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n\
                   cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n";
        let found = Hierarchy::of(one).unwrap();
        assert_eq!(found, Hierarchy::V1("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(
            found.limit(50),
            [("cpu.cfs_period_us", "20000".to_owned()), ("cpu.cfs_quota_us", "10000".to_owned())]
        );
        let place = tempfile::tempdir().unwrap();
        let mounts = format!("cgroup2 {} cgroup2 rw 0 0\n", place.path().display());
        let none = Hierarchy::of(&mounts).unwrap_err();
        assert!(none.ends_with("do not have processors"), "{none}");
        fs::write(place.path().join("cgroup.subtree_control"), "cpuset cpu memory\n").unwrap();
        let found = Hierarchy::of(&mounts).unwrap();
        assert_eq!(found, Hierarchy::V2(place.path().into()));
        assert_eq!(found.limit(150), [("cpu.max", "30000 20000".to_owned())]);
        assert!(Hierarchy::of("/dev/vda / ext4 rw 0 0\n").is_err());
    }

    #[test]
    fn groups_of_the_dead_are_swept() {
        let place = tempfile::tempdir().unwrap();
        let own = ProcessId::own();
        let name = |id: ProcessId| format!("{PREFIX}{}-{}-ring-1", id.pid, id.start_ticks);
        let living = place.path().join(name(own));
        let dead = place.path().join(name(ProcessId { start_ticks: own.start_ticks + 1, ..own }));
        let other = place.path().join("system.slice");
        for folder in [&living, &dead, &other] {
            fs::create_dir(folder).unwrap();
        }
        sweep(place.path());
        assert!(living.exists() && other.exists() && !dead.exists());
    }

    #[test]
    fn a_command_enters_its_group_and_becomes_itself() {
        let place = tempfile::tempdir().unwrap();
        let hierarchy = Hierarchy::V1(place.path().into());
        let share = CpuShare { group: place.path().to_path_buf(), hierarchy, percent: 20 };
        let mut command = share.command(Path::new("/bin/sh"));
        command.args(["-c", "echo $$ $NAME"]).env("NAME", "a b");
        let said = command.output().unwrap();
        let entered = fs::read_to_string(place.path().join("cgroup.procs")).unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        assert_eq!(said, format!("{} a b\n", entered.trim()));
        fs::remove_file(place.path().join("cgroup.procs")).unwrap();
    }

    #[test]
    fn a_busy_process_gets_its_share() {
        let Some(share) = crate::require(CpuShare::of("busy", 20)) else { return };
        let mut busy = share.command(Path::new("/bin/sh"));
        // About a second, if a fifth of a processor takes the steps of a fifth of a second.
        busy.args(["-c", "step=0; while [ $step -lt 200000 ]; do step=$((step + 1)); done"]);
        let mut child = crate::process::spawn(busy).unwrap();
        assert!(child.wait().unwrap().success());
        let stat = fs::read_to_string(share.group.join("cpu.stat")).unwrap();
        let throttled = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
        let throttled: u64 = throttled.unwrap().parse().unwrap();
        assert!(throttled > 5, "it wants more than its share in each of its periods: {stat}");
        let quota = || {
            let file = if matches!(share.hierarchy, Hierarchy::V1(_)) {
                "cpu.cfs_quota_us"
            } else {
                "cpu.max"
            };
            fs::read_to_string(share.group.join(file)).unwrap()
        };
        let held = quota();
        share.enforce(false).unwrap();
        assert_ne!(quota(), held);
        share.enforce(true).unwrap();
        assert_eq!(quota(), held);
        let group = share.group.clone();
        drop(share);
        assert!(!group.exists());
    }
}
