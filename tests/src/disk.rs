//! A disk that is full when the test wants it.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

/// A file system of its own, a few megabytes in memory. Dropping it takes it away.
pub struct SmallDisk {
    directory: TempDir,
    /// `sudo -n` where we are not root.
    as_root: &'static [&'static str],
}

impl SmallDisk {
    /// `None` where this user may not mount anything, nor become root for it.
    pub fn mount(megabytes: u32) -> Result<Option<Self>> {
        let size = format!("size={megabytes}m,mode=1777");
        for as_root in [&[][..], &["sudo", "-n"]] {
            let directory = tempfile::Builder::new().prefix("postonce-disk-").tempdir()?;
            let mount = ["mount", "-t", "tmpfs", "-o", &size, "tmpfs"];
            if as_root_at(as_root, &mount, directory.path()).is_ok() {
                return Ok(Some(Self { directory, as_root }));
            }
        }
        Ok(None)
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes until nothing more can be written.
    pub fn fill(&self) -> Result<()> {
        let mut ballast = File::create(self.ballast())?;
        let mut piece = 1 << 16;
        while piece > 0 {
            if ballast.write_all(&vec![0; piece]).is_err() {
                piece /= 2;
            }
        }
        Ok(())
    }

    /// Takes away what [`SmallDisk::fill`] has written.
    pub fn make_room(&self) -> Result<()> {
        Ok(fs::remove_file(self.ballast())?)
    }

    fn ballast(&self) -> PathBuf {
        self.path().join("ballast")
    }
}

fn as_root_at(as_root: &[&str], command: &[&str], place: &Path) -> Result<()> {
    let words: Vec<&str> = as_root.iter().chain(command).copied().collect();
    let (program, args) = words.split_first().context("no command")?;
    let output = Command::new(program).args(args).arg(place).stdin(Stdio::null()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim_end());
    Ok(())
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazy: a server that is still ending may hold a file for a moment.
        let _ = as_root_at(self.as_root, &["umount", "--lazy"], self.path());
    }
}
