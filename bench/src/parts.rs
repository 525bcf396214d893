//! Postgres and Kafka of the bench's own, with their data on a disk.
#![allow(unsafe_code, reason = "raw bindings to libc or librdkafka, in tests")]

use crate::args::Args;
use anyhow::{Context, Result, bail, ensure};
use postonce::private_postgres::{PrivatePostgres, StartOptions};
use postonce_tests::{Db, Kafka};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

const GIB: u64 = 1 << 30;

/// What runs beside the bench. Dropping it stops both and removes their data.
pub struct Parts {
    pub postgres: PrivatePostgres,
    pub kafka: Kafka,
    /// To the server's own database, for questions about the server.
    pub server: Db,
    /// Where the data of both lies.
    pub directory: PathBuf,
}

/// Starts both.
pub fn start(args: &Args) -> Result<Parts> {
    let directory = directory(args.directory.as_deref())?;
    // Both make their directories with this crate.
    ensure!(
        tempfile::env::override_temp_dir(&directory).is_ok(),
        "the directory for data is already another one than {}",
        directory.display()
    );
    let settings = settings(&directory)?;
    let postgres = PrivatePostgres::start(StartOptions { bin_dir: args.pg_bin.clone(), settings })?;
    ensure!(
        postgres.data_dir().starts_with(&directory),
        "the user who runs Postgres cannot reach {}; choose another --directory",
        directory.display()
    );
    let kafka = Kafka::start()?;
    let server = Db::new(&postgres.url("postgres"));
    Ok(Parts { postgres, kafka, server, directory })
}

/// As a person who cares would set them for this machine; none of them touches durability.
fn settings(directory: &Path) -> Result<Vec<(String, String)>> {
    let memory = memory()?;
    // A topic, a ledger and its WAL have to fit beside each other.
    let wal = (free(directory)? / 4).clamp(GIB, 16 * GIB);
    let mib = |bytes: u64| format!("{}MB", bytes >> 20);
    // wal_compression is set where the server is started: that knows whether the build has lz4.
    let settings = [
        ("shared_buffers", mib((memory / 4).min(2 * GIB))),
        ("max_wal_size", mib(wal)),
        ("checkpoint_timeout", "30min".to_owned()),
    ];
    Ok(settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

/// The directory that was asked for, or the first of the usual ones that is on a disk.
fn directory(asked: Option<&Path>) -> Result<PathBuf> {
    if let Some(directory) = asked {
        let directory = directory.canonicalize().with_context(|| format!("--directory {}", directory.display()))?;
        ensure!(
            !in_memory(&directory)?,
            "--directory {} is a file system in memory: nothing measured there is true of a disk",
            directory.display()
        );
        return Ok(directory);
    }
    for candidate in [std::env::temp_dir(), PathBuf::from("/tmp"), PathBuf::from("/var/tmp")] {
        if candidate.is_dir() && !in_memory(&candidate)? {
            return Ok(candidate);
        }
    }
    bail!("$TMPDIR, /tmp and /var/tmp are file systems in memory: name a directory on a disk by --directory")
}

/// Whether what is written there is gone with the power.
#[cfg(target_os = "linux")]
pub fn in_memory(path: &Path) -> Result<bool> {
    /// By linux/magic.h; the type of the field differs between C libraries, the numbers do not.
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut told = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: a string that ends with a zero, and room for the answer.
    let status = unsafe { libc::statfs(name.as_ptr(), told.as_mut_ptr()) };
    ensure!(status == 0, "statfs {}: {}", path.display(), std::io::Error::last_os_error());
    // SAFETY: the call has filled it.
    let kind = unsafe { told.assume_init() }.f_type as u64 & 0xffff_ffff;
    Ok([TMPFS, RAMFS].contains(&kind))
}

/// Elsewhere a file system in memory is nothing that anybody has by chance.
#[cfg(not(target_os = "linux"))]
pub fn in_memory(_: &Path) -> Result<bool> {
    Ok(false)
}

/// Bytes that may still be written there.
pub fn free(path: &Path) -> Result<u64> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    let mut told = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: a string that ends with a zero, and room for the answer.
    let status = unsafe { libc::statvfs(name.as_ptr(), told.as_mut_ptr()) };
    ensure!(status == 0, "statvfs {}: {}", path.display(), std::io::Error::last_os_error());
    // SAFETY: the call has filled it.
    let told = unsafe { told.assume_init() };
    #[allow(clippy::unnecessary_cast, reason = "u64 here, u32 on other systems")]
    Ok(told.f_bavail as u64 * told.f_frsize as u64)
}

/// Bytes of memory that this machine has.
pub fn memory() -> Result<u64> {
    // SAFETY: two questions that take nothing.
    let (pages, size) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    ensure!(pages > 0 && size > 0, "this machine does not say how much memory it has");
    Ok(u64::try_from(pages)? * u64::try_from(size)?)
}
