//! Tells the program of which commit, and in which profile, it is built.

use std::process::Command;

fn main() {
    for file in ["HEAD", "logs/HEAD"] {
        println!("cargo:rerun-if-changed=../../.git/{file}");
    }
    let asked = Command::new("git").args(["rev-parse", "--short=9", "HEAD"]).output();
    let told = asked.ok().filter(|asked| asked.status.success());
    let commit = told.and_then(|told| String::from_utf8(told.stdout).ok());
    let commit = commit.as_deref().map_or("unknown", str::trim);
    let profile = std::env::var("PROFILE").unwrap_or_else(|_| "unknown".to_owned());
    println!("cargo:rustc-env=IMAGO_COMMIT={commit}");
    println!("cargo:rustc-env=IMAGO_BUILD_PROFILE={profile}");
}
