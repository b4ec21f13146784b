//! A clock of its own for some processes, as on a machine whose clock is wrong.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use imago_testbed::require;

/// The library that gives processes another clock, and the file with its difference in seconds.
pub(crate) struct OtherClock {
    library: PathBuf,
    ahead: PathBuf,
}

impl OtherClock {
    /// Builds the library; `None` without a C compiler. The clock is right until it is set.
    pub(crate) fn build(folder: &Path) -> Option<Self> {
        let (source, library) = (folder.join("clock.c"), folder.join("clock.so"));
        std::fs::write(&source, include_str!("clock.c")).unwrap();
        let mut built = Command::new("cc");
        built.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source);
        let built =
            built.output().map_err(|missing| format!("there is no C compiler (cc): {missing}"));
        let output = require(built)?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let clock = Self { library, ahead: folder.join("ahead") };
        clock.set("0");
        Some(clock)
    }

    /// Sets the difference in seconds for processes that start from now on.
    pub(crate) fn set(&self, ahead_s: &str) {
        std::fs::write(&self.ahead, ahead_s).unwrap();
    }

    /// The environment by which those processes have the clock whose command line contains `of`.
    pub(crate) fn variables<'c>(&'c self, of: &'c str) -> [(&'static str, &'c OsStr); 3] {
        [
            ("LD_PRELOAD", self.library.as_os_str()),
            ("CLOCK_OF", OsStr::new(of)),
            ("CLOCK_AHEAD", self.ahead.as_os_str()),
        ]
    }
}
