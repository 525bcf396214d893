//! A machine clock that is wrong: libfaketime (Debian's package `faketime`) between a
//! program and the time of day. How long things take stays as it is.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use postonce::private_postgres::{PrivatePostgres, StartOptions};
use tempfile::TempDir;

/// A clock that can be set while programs look at it.
pub struct Clock {
    directory: TempDir,
    library: PathBuf,
}

impl Clock {
    /// A clock that is right. `None` where libfaketime is not installed.
    pub fn right() -> Result<Option<Self>> {
        let Some(library) = library() else { return Ok(None) };
        let directory = tempfile::Builder::new().prefix("postonce-clock-").tempdir()?;
        // A server's own user must see the time, too.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let clock = Self { directory, library };
        clock.set("+0")?;
        Ok(Some(clock))
    }

    /// So far from the right time from now on, such as `-5d` or `+10y`.
    pub fn set(&self, offset: &str) -> Result<()> {
        // Whoever looks meanwhile sees the old one or the new one.
        let new = self.directory.path().join("new");
        fs::write(&new, offset)?;
        Ok(fs::rename(new, self.file())?)
    }

    /// What makes a program look at this clock.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", self.library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_DISABLE_SHM", "1".to_owned()),
        ]
    }

    /// A Postgres like `model` that looks at this clock.
    pub fn start_postgres(&self, model: &PrivatePostgres) -> Result<PrivatePostgres> {
        let programs = self.directory.path().join("bin");
        fs::create_dir(&programs)?;
        let set: String = self.environment().iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
        // What makes the cluster need not know the time.
        for (name, before) in [("initdb", ""), ("postgres", set.as_str())] {
            let real = model.command(name);
            let script = format!("#!/bin/sh\n{before}exec '{}' \"$@\"\n", Path::new(real.get_program()).display());
            fs::write(programs.join(name), script)?;
            fs::set_permissions(programs.join(name), fs::Permissions::from_mode(0o755))?;
        }
        fs::set_permissions(&programs, fs::Permissions::from_mode(0o755))?;
        PrivatePostgres::start(StartOptions { bin_dir: Some(programs), settings: Vec::new() })
            .context("a Postgres with a clock of its own")
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("time")
    }
}

/// Where the packages put it: a directory for each kind of machine, or none.
fn library() -> Option<PathBuf> {
    let kinds = fs::read_dir("/usr/lib").into_iter().flatten().flatten().map(|entry| entry.path());
    kinds
        .chain(["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from))
        .map(|place| place.join("faketime/libfaketimeMT.so.1"))
        .find(|library| library.is_file())
}
