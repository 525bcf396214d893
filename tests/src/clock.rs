//! A machine clock that is wrong, for a program of the test: `wrong_clock.c` stands between
//! it and the time of day. How long things take stays as it is.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use postonce::private_postgres::{PrivatePostgres, StartOptions};
use tempfile::TempDir;

use crate::parts::repository;

/// A clock that can be set while programs look at it.
pub struct Clock {
    directory: TempDir,
    wrong_by: File,
}

impl Clock {
    /// A clock that is right. `None` where programs cannot be made to look at it.
    pub fn right() -> Result<Option<Self>> {
        if !cfg!(target_os = "linux") {
            return Ok(None);
        }
        let directory = tempfile::Builder::new().prefix("postonce-clock-").tempdir()?;
        // A server's own user must see the time, too.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755))?;
        let output = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o"])
            .arg(directory.path().join("wrong_clock.so"))
            .arg(repository().join("tests/src/wrong_clock.c"))
            .arg("-ldl")
            .output()
            .context("no C compiler")?;
        ensure!(output.status.success(), "cc: {}", String::from_utf8_lossy(&output.stderr));
        let wrong_by = OpenOptions::new().write(true).create_new(true).open(directory.path().join("seconds"))?;
        let clock = Self { directory, wrong_by };
        clock.set("+0")?;
        Ok(Some(clock))
    }

    /// So far from the right time from now on, such as `-5d` or `+10y`.
    pub fn set(&self, offset: &str) -> Result<()> {
        let number = offset.trim_end_matches(['y', 'd']);
        let days = if offset.ends_with('y') { 365 } else { 1 };
        let seconds = number.parse::<i64>().with_context(|| offset.to_owned())? * days * 86_400;
        Ok(self.wrong_by.write_all_at(&seconds.to_ne_bytes(), 0)?)
    }

    /// What makes a program look at this clock.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let file = |name| self.file(name).display().to_string();
        vec![("LD_PRELOAD", file("wrong_clock.so")), ("WRONG_CLOCK", file("seconds"))]
    }

    /// A Postgres like `model` that looks at this clock.
    pub fn start_postgres(&self, model: &PrivatePostgres) -> Result<PrivatePostgres> {
        let programs = self.file("bin");
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

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}
