//! Where an export goes: standard output, or a file that is there whole or not at all.

use crate::commands::interrupt;
use anyhow::{Context, ensure};
use std::fs::Permissions;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

const BUFFER: usize = 1 << 17;

pub enum Target {
    Stdout(BufWriter<io::StdoutLock<'static>>),
    File { path: PathBuf, temporary: BufWriter<NamedTempFile> },
}

impl Target {
    pub fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else {
            return Ok(Self::Stdout(BufWriter::with_capacity(BUFFER, io::stdout().lock())));
        };
        // The rename would put a file where a device or a pipe was.
        let other = path.metadata().is_ok_and(|found| !found.is_file());
        ensure!(!other, "--out {}: this is no regular file; leave --out away and redirect", path.display());
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        // In the same directory: a rename does not cross file systems. Readable as any
        // file that a program writes: the mode is only the most that umask may leave.
        let temporary = tempfile::Builder::new()
            .prefix(".postonce-export-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(directory)
            .with_context(|| format!("--out {}: no file can be made there", path.display()))?;
        let litter = temporary.path().to_owned();
        interrupt::end_at_once(move || drop(std::fs::remove_file(&litter))).context("cannot watch for signals")?;
        Ok(Self::File { path: path.to_owned(), temporary: BufWriter::with_capacity(BUFFER, temporary) })
    }

    /// What is written up to here is the whole export.
    pub fn finish(self) -> anyhow::Result<()> {
        match self {
            Self::Stdout(mut stdout) => Ok(stdout.flush()?),
            Self::File { path, temporary } => {
                let told = || format!("--out {}", path.display());
                let temporary = temporary.into_inner().map_err(io::IntoInnerError::into_error).with_context(told)?;
                temporary.as_file().sync_all().with_context(told)?;
                temporary.persist(&path).with_context(told)?;
                Ok(())
            }
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(stdout) => stdout.write(bytes),
            Self::File { temporary, .. } => temporary.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => stdout.flush(),
            Self::File { temporary, .. } => temporary.flush(),
        }
    }
}
