//! Where this machine keeps the programs of a Postgres server.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use anyhow::{Context, Result, bail, ensure};

/// The oldest version that the ledger is tested on.
const OLDEST: u32 = 15;
/// A directory for each version: Debian and its children, the packages of
/// postgresql.org for Fedora and its kin, Alpine.
const VERSIONED: [&str; 3] = ["/usr/lib/postgresql", "/usr", "/usr/libexec"];
const HOMEBREW: [&str; 3] = ["/opt/homebrew/opt", "/usr/local/opt", "/home/linuxbrew/.linuxbrew/opt"];

/// A directory with `initdb` and `postgres`.
#[derive(Debug, Clone)]
pub struct Installation {
    pub bin_dir: PathBuf,
    pub major: u32,
}

impl Installation {
    /// The given directory and nothing else, or the first that is good of:
    /// PATH, `pg_config --bindir`, the package managers' places (newest first).
    pub fn find(given: Option<&Path>) -> Result<Self> {
        if let Some(directory) = given {
            return Self::examine(directory)
                .with_context(|| format!("no usable Postgres server in {}", directory.display()));
        }
        let mut too_old = None;
        for directory in candidates() {
            match Self::examine(&directory) {
                Ok(found) if found.major >= OLDEST => return Ok(found),
                Ok(old) => too_old = too_old.or(Some(old)),
                // Most places hold no server; that is no error.
                Err(_) => {}
            }
        }
        if let Some(old) = too_old {
            bail!(
                "Postgres {} in {} is too old: {OLDEST} or newer is needed. {INSTALL}",
                old.major,
                old.bin_dir.display()
            );
        }
        bail!(
            "no Postgres server on this machine (initdb and postgres were looked for in PATH, `pg_config --bindir`, /usr/lib/postgresql and Homebrew's directories). {INSTALL}"
        )
    }

    /// The path of one of its programs.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin_dir.join(name)
    }

    /// The same programs at another place. Postgres finds its libraries and
    /// files beside its programs, wherever they stand.
    pub fn copy_to(&self, place: &Path) -> Result<Self> {
        let root = self.bin_dir.parent().context("the programs' directory has no parent")?;
        let from = root.join(".");
        fs::create_dir_all(place)?;
        let status = Command::new("cp").arg("-a").arg(from).arg(place).stdin(Stdio::null()).status()?;
        ensure!(status.success(), "cannot copy {} to {}", root.display(), place.display());
        // The directory itself took over its model's closed door.
        fs::set_permissions(place, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        Ok(Self { bin_dir: place.join("bin"), major: self.major })
    }

    /// A directory that merely looks right (a wrapper script, another
    /// architecture) does not answer with its version.
    fn examine(directory: &Path) -> Result<Self> {
        ensure!(directory.join("initdb").is_file(), "there is no initdb");
        // PATH may hold links to the programs while their libraries are found beside the originals.
        let postgres = directory.join("postgres").canonicalize().context("there is no postgres")?;
        let output = Command::new(&postgres).arg("--version").stdin(Stdio::null()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let major = major_version(&text).with_context(|| format!("postgres --version says {:?}", text.trim()))?;
        let bin_dir = postgres.parent().filter(|real| real.join("initdb").is_file()).unwrap_or(directory);
        Ok(Self { bin_dir: bin_dir.to_owned(), major })
    }
}

const INSTALL: &str = "Install it with one of:
  Debian, Ubuntu   apt-get install postgresql
  Fedora           dnf install postgresql-server
  Alpine           apk add postgresql
  macOS            brew install postgresql@18";

/// `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)` is 15, `18rc1` is 18.
fn major_version(text: &str) -> Option<u32> {
    let version = text.strip_prefix("postgres (PostgreSQL) ")?;
    let digits = version.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn candidates() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default();
    let pg_config = Command::new("pg_config").arg("--bindir").stdin(Stdio::null()).stderr(Stdio::null()).output();
    if let Ok(output) = pg_config
        && output.status.success()
    {
        found.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    for root in VERSIONED.iter().chain(&HOMEBREW) {
        found.extend(newest_first(Path::new(root)));
    }
    found
}

/// `/usr/lib/postgresql/17/bin` before `/usr/lib/postgresql/9.6/bin`, `…/postgresql@18/bin` before `…@17`.
fn newest_first(root: &Path) -> Vec<PathBuf> {
    let mut versions: Vec<(u32, PathBuf)> = fs::read_dir(root)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let name = name.to_str()?;
            let number = ["postgresql@", "pgsql-"].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
            Some((number.split('.').next()?.parse().ok()?, entry.path().join("bin")))
        })
        .collect();
    versions.sort();
    versions.into_iter().rev().map(|(_, path)| path).collect()
}
