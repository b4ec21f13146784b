//! Rolls of three real nodes whose files cannot be changed: a disk that is full, a file that is changed by hand meanwhile; and
//! a node that does not come back with its old file either. Clients ask all the while, and are refused nothing.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use imago_testbed::require;

use super::ring::{Clients, has_line, ring, settle};
use crate::standing::Standing;

const PAGE: usize = 4_096;
const NEW: [&str; 2] = ["--set", "native_transport_max_threads=48"];
const NEW_LINE: &str = "native_transport_max_threads: 48";

/// A small disk in the place of a folder, with what was in the folder; it is gone with this value, and what was there before
/// is back.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// None where this process may not mount one.
    fn over(folder: &Path) -> Option<Self> {
        let files: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        let kept: Vec<_> = files
            .iter()
            .map(|file| (file, fs::read(file).unwrap(), fs::metadata(file).unwrap().permissions()))
            .collect();
        let mount = ["-t", "tmpfs", "-o", "size=256k", "imago-test"];
        let output = Command::new("mount").args(mount).arg(folder).output();
        let mounted = output.is_ok_and(|output| output.status.success());
        require(if mounted { Ok(()) } else { Err("only root may mount a small disk") })?;
        let disk = Self(folder.to_owned());
        for (file, bytes, permissions) in kept {
            fs::write(file, bytes).unwrap();
            fs::set_permissions(file, permissions).unwrap();
        }
        Some(disk)
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Leaves room for so many files of a page each.
    fn leave(&self, pages: usize) {
        let mut filler = File::create(self.filler()).unwrap();
        let mut written = 0;
        while filler.write_all(&[7; PAGE]).is_ok() {
            written += PAGE;
        }
        filler.set_len((written - pages * PAGE) as u64).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(ended.is_ok_and(|ended| ended.success()), "{} stays mounted", self.0.display());
    }
}

/// Everything in a folder but the filler, by name.
fn content(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<_> = files
        .filter(|file| !file.ends_with("filler"))
        .map(|file| (file.clone(), fs::read(file).unwrap()))
        .collect();
    all.sort();
    all
}

/// A roll comes to the second node, whose disk is full: it is left as it is.
fn a_full_disk(ring: &Standing) {
    let file = ring.configuration("ring-2", "cassandra.yaml");
    assert!(fs::metadata(&file).unwrap().len() < PAGE as u64, "a file takes one page");
    let folder = file.parent().unwrap();
    let Some(disk) = SmallDisk::over(folder) else { return };
    let (before, pids) = (content(folder), ring.pids());
    for pages in [0, 1] {
        disk.leave(pages);
        settle(ring, &ring.roll(&NEW));
        let said = ring.refused(&ring.roll(&NEW), 1);
        assert!(said.contains("writing the new configuration on ring-2"), "{said}");
        assert!(said.contains("No space left on device"), "{said}");
        assert_eq!(content(folder), before, "{pages} pages");
        assert_eq!(ring.pids()[1..], pids[1..], "neither ring-2 nor ring-3 was stopped");
    }
    // What follows the writing of both files needs no more room.
    disk.leave(2);
    settle(ring, &ring.roll(&NEW));
    let said = ring.refused(&ring.roll(&[&NEW[..], &["--consistency", "all"]].concat()), 4);
    assert!(said.contains("cannot be stopped"), "{said}");
    let live = ring.json(&ring.roll(&["--set", "concurrent_reads=40"]));
    assert_eq!(live["nodes"].as_array().unwrap().len(), 3, "{live}");
    assert!(has_line(ring, "ring-2", "concurrent_reads: 40"));
}

#[test]
#[ignore = "three nodes of Java are started by make test-long"]
fn a_full_disk_a_file_changed_by_hand_and_a_node_that_stays_away_cost_clients_nothing() {
    let Some(ring) = ring() else { return };
    let mix = ["--mix", "read=45,update=35,insert=15,delete=5", "--reinsert", "0.3"];
    let mut clients = Clients::start(&ring, &mix);
    a_full_disk(&ring);

    // Behind the writing of its new file that of ring-3 is edited by hand, once.
    let file = ring.configuration("ring-3", "cassandra.yaml");
    let (edits, away) = (ring.path("edits"), ring.path("away"));
    let shell = ring.path("shell.sh");
    let script = format!(
        "s=$(mktemp)\ncat > \"$s\"\nif grep -q imago-before \"$s\" && [ -e '{edits}' ]; then rm '{edits}'; \
         echo '# by hand' >> '{file}'; fi\nsh \"$s\"\nr=$?\nrm -f \"$s\"\nexit $r\n",
        edits = edits.display(),
        file = file.display()
    );
    fs::write(&shell, script).unwrap();
    let text = fs::read_to_string(&ring.cluster).unwrap();
    let start = text.lines().find_map(|line| line.strip_prefix("start = \"")).unwrap();
    let start = start.trim_end_matches('"').replace("{name}", "ring-3");
    let node = "name = \"ring-3\"\n";
    let own = format!(
        "{node}shell = \"sh '{}'\"\nstart = \"if [ -e '{}' ]; then echo 'no Java here' >&2; exit 1; fi; {start}\"\n",
        shell.display(),
        away.display()
    );
    let cluster = ring.path("cluster.toml");
    fs::write(&cluster, text.replace(node, &own)).unwrap();
    let roll = ["tune", "roll", "--cluster", cluster.to_str().unwrap()];
    let roll = [&roll[..], &NEW].concat();
    let pids = ring.pids();

    settle(&ring, &roll);
    fs::write(&edits, "").unwrap();
    let before = fs::read_to_string(&file).unwrap();
    let said = ring.refused(&roll, 1);
    assert!(said.contains("ring-3") && said.contains("has been changed meanwhile"), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("{before}# by hand\n"));
    let status = ring.json(&["testbed", "status", "ring"]);
    assert_eq!(status["health"], "up", "ring-3 runs with it: {status}");
    assert!(has_line(&ring, "ring-2", NEW_LINE) && !has_line(&ring, "ring-3", NEW_LINE));

    // A node that does not come back, with its old file either: the roll ends, and the others serve.
    settle(&ring, &roll);
    fs::write(&away, "").unwrap();
    let said = ring.refused(&roll, 1);
    assert!(said.contains("ring-3 does not start") && said.contains("no Java here"), "{said}");
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("{before}# by hand\n"));
    clients.go_on_for(600);
    let said = ring.refused(&roll, 4);
    assert!(said.contains("not settled") && said.contains("ring-3"), "{said}");

    // It is mended and started by hand; the next roll ends what was begun.
    fs::remove_file(&away).unwrap();
    ring.inject("restart", "ring-3");
    settle(&ring, &roll);
    let done = ring.json(&roll);
    assert_eq!(done["nodes"].as_array().unwrap().len(), 3, "{done}");
    assert!(has_line(&ring, "ring-3", "# by hand") && has_line(&ring, "ring-3", NEW_LINE));
    let after = ring.pids();
    assert!(pids[2] != after[2], "{pids:?} {after:?}");
    clients.end(1_000);
}
