//! What a database administrator does to a server: copies of its data, put back later,
//! and standbys.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce::private_postgres::PrivatePostgres;

use crate::database::Db;
use crate::wait::wait_until;

const LIMIT: Duration = Duration::from_secs(60);

/// Whether this server came with `pg_basebackup`. (The Postgres 18 that the set-up
/// fetches did not.)
pub fn has_base_backup(server: &PrivatePostgres) -> bool {
    Path::new(server.command("pg_basebackup").get_program()).is_file()
}

/// A copy of a server's data, taken while it serves, by `pg_basebackup`.
pub fn base_backup(server: &PrivatePostgres) -> Result<PathBuf> {
    let copy = server.data_dir().with_file_name("backup");
    pg_basebackup(server, server, &copy, &[])?;
    Ok(copy)
}

/// A copy as a snapshot of the disk holds it: of a server that was cut off in the middle
/// and recovers from its log when it starts. The server is away for it.
pub fn snapshot(server: &mut PrivatePostgres) -> Result<PathBuf> {
    let copy = server.data_dir().with_file_name("snapshot");
    server.stop_immediately()?;
    let status = Command::new("cp").arg("-a").arg(server.data_dir()).arg(&copy).stdin(Stdio::null()).status()?;
    ensure!(status.success(), "cannot copy the data directory: {status}");
    server.start_again()?;
    Ok(copy)
}

/// The server is killed, its data is gone for ever, and the copy stands in its place. It
/// is not started yet.
pub fn put_back(server: &mut PrivatePostgres, copy: &Path) -> Result<()> {
    server.kill_postmaster()?;
    // Sessions of the killed postmaster may still be there, and make files.
    wait_until(LIMIT, "the end of the old data", || {
        fs::remove_dir_all(server.data_dir()).or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        Ok(Some(()))
    })?;
    Ok(fs::rename(copy, server.data_dir())?)
}

/// Makes `standby` (any server, its data is thrown away) an asynchronous standby of `primary`.
pub fn follow(standby: &mut PrivatePostgres, primary: &PrivatePostgres) -> Result<()> {
    standby.stop_immediately()?;
    let data = standby.data_dir();
    // The primary's names a directory that goes with the primary.
    let settings = fs::read(data.join("postgresql.conf"))?;
    fs::remove_dir_all(&data)?;
    pg_basebackup(standby, primary, &data, &["--write-recovery-conf"])?;
    fs::write(data.join("postgresql.conf"), settings)?;
    standby.start_again()
}

/// The standby hears no more of its primary; what it has not heard by now is lost to it.
pub fn stop_following(standby: &Db) -> Result<()> {
    standby.execute("ALTER SYSTEM SET primary_conninfo = ''")?;
    standby.execute("SELECT pg_reload_conf()")?;
    wait_until(LIMIT, "the end of the walreceiver", || {
        let receiving: i64 = standby.one("SELECT count(*) FROM pg_stat_wal_receiver")?;
        Ok((receiving == 0).then_some(()))
    })
}

/// As the user who owns `user`'s data, with the programs of its installation.
fn pg_basebackup(user: &PrivatePostgres, from: &PrivatePostgres, into: &Path, more: &[&str]) -> Result<()> {
    let url = from.url("postgres");
    let output = user
        .command("pg_basebackup")
        .arg("--dbname")
        .arg(&url)
        .args(["--checkpoint=fast", "--wal-method=stream", "--no-sync", "--pgdata"])
        .arg(into)
        .args(more)
        .stdin(Stdio::null())
        .output()
        .context("cannot run pg_basebackup")?;
    ensure!(output.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    Ok(())
}
