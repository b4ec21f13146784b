//! The destination's disk becomes full, and gets room again.

use std::path::{Path, PathBuf};
use std::process::Command;

use bson::doc;
use imago_testbed::{Cluster, ClusterSpec, require};
use serde_json::Value;

use crate::faults::program::{Program, run};
use crate::faults::stage::Stage;

/// Room for an empty server, and for a part of the copy.
const DISK_MB: u32 = 400;
const DOCUMENTS: i32 = 150;
const DOCUMENT_BYTES: usize = 1_000_000;

/// A small disk, which is gone with this value.
struct Disk(PathBuf);

impl Disk {
    /// None where this process may not mount one.
    fn at(folder: &Path) -> Option<Self> {
        let disk = Self(folder.to_owned());
        disk.mount(&format!("size={DISK_MB}m")).then_some(disk)
    }

    fn mount(&self, options: &str) -> bool {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "imago-test"]).arg(&self.0);
        mount.output().is_ok_and(|output| output.status.success())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        Command::new("umount").arg("--lazy").arg(&self.0).output().ok();
    }
}

/// Bytes that no server compresses.
fn noise(seed: i32) -> Vec<u8> {
    let mut z = u64::from(seed.unsigned_abs()) + 1;
    let mut byte = || {
        z ^= z << 13;
        z ^= z >> 7;
        z ^= z << 17;
        z.to_le_bytes()[3]
    };
    (0..DOCUMENT_BYTES).map(|_| byte()).collect()
}

#[tokio::test]
async fn a_full_disk_of_the_destination_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Disk::at(folder.path()).ok_or("only root may mount a small disk");
    let Some(disk) = require(disk) else { return };
    let stage = Stage::new(1).await;
    let spec = ClusterSpec {
        folder: Some(folder.path().to_owned()),
        ..ClusterSpec::replica_set("full", 1)
    };
    let full = Box::pin(Cluster::start(spec)).await.unwrap();
    let node = full.nodes()[0].name.clone();
    let mut subject = stage.collection("shop.albums", 50, 500).await;
    subject.to = full.uri();
    let source = subject.source().await;
    for n in 0..DOCUMENTS {
        let bytes = bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: noise(n) };
        let photo = doc! {"_id": format!("photo-{n:05}"), "jpeg": bytes};
        source.run("shop", doc! {"insert": "photos", "documents": [photo]}).await.unwrap();
    }
    let mut copy: Program = subject.copy(&["--ns", "shop.photos", "--pace", "full"]);
    let is_named = |said: &Value| {
        let message = said["message"].as_str().unwrap_or_default();
        said["code"] == "no_answer" && message.contains("the destination ")
    };
    copy.until("the destination is named", is_named).await;
    assert!(copy.is_running(), "it waits");
    assert!(disk.mount(&format!("remount,size={}m", 4 * DISK_MB)));
    full.restart(&node).await.unwrap();
    let job = copy.phase("follow").await;
    copy.terminate();
    copy.ended().await.with(5);
    subject.load.stop().await;
    subject.resume(&job).ended().await.with(0);
    run(&["verify", "--from", &subject.from, "--to", &subject.to, "--ns", "shop.*"], 0).await;
    subject.load.check(&subject.to).await;
}
