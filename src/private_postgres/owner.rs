//! Postgres refuses to run as root. As root we run it as somebody who may do
//! less.
#![allow(unsafe_code, reason = "raw bindings to libc: users by name")]

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::{fs, ptr};

use anyhow::{Context, Result, bail};

/// In the order of liking: the first is made by the packages of Postgres, the
/// second is everywhere.
const CANDIDATES: [&str; 2] = ["postgres", "nobody"];

/// The unprivileged user who owns the data and runs the server.
#[derive(Debug, Clone)]
pub struct Owner {
    pub name: &'static str,
    pub uid: u32,
    pub gid: u32,
}

impl Owner {
    /// `None` if we are not root and may run the server ourselves.
    pub fn needed() -> Result<Option<Self>> {
        // SAFETY: takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return Ok(None);
        }
        for name in CANDIDATES {
            if let Some((uid, gid)) = user(name)?
                && uid != 0
            {
                return Ok(Some(Self { name, uid, gid }));
            }
        }
        bail!(
            "Postgres does not run as root, and this machine has no user {}: run this as another user",
            CANDIDATES.join(" or ")
        )
    }

    /// Makes this user the owner of a file or directory.
    pub fn take(&self, path: &Path) -> Result<()> {
        chown(path, Some(self.uid), Some(self.gid))
            .with_context(|| format!("cannot hand {} to user {}", path.display(), self.name))
    }
}

fn user(name: &str) -> Result<Option<(u32, u32)>> {
    let name = CString::new(name)?;
    let mut record = MaybeUninit::<libc::passwd>::uninit();
    let mut strings = vec![0; 16 * 1024];
    let mut found = ptr::null_mut();
    // SAFETY: every pointer is to memory that lives through the call, with its true length.
    let status = unsafe {
        libc::getpwnam_r(name.as_ptr(), record.as_mut_ptr(), strings.as_mut_ptr(), strings.len(), &mut found)
    };
    if status != 0 || found.is_null() {
        return Ok(None);
    }
    // SAFETY: `found` is not null, so the call has filled the record.
    let record = unsafe { record.assume_init_ref() };
    Ok(Some((record.pw_uid, record.pw_gid)))
}

/// Whether any user may pass through this directory and all above it.
pub fn everyone_may_enter(directory: &Path) -> bool {
    let Ok(real) = directory.canonicalize() else {
        return false;
    };
    real.ancestors().all(|step| fs::metadata(step).is_ok_and(|found| found.mode() & 0o001 != 0))
}
