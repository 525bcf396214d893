//! The disk of Postgres is full, under load.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{
    Consumer, Flow, Ledger, PrivatePostgres, SmallDisk, Trial, kafka, start_postgres, trials, wait_until,
};

const LIMIT: Duration = Duration::from_secs(60);

pub fn tests() -> Vec<Trial> {
    trials![no_room_for_tables, no_room_for_the_log]
}

fn skipped() -> Result<()> {
    eprintln!("skipped: a small disk needs a mount, and this user may not mount");
    Ok(())
}

/// A file system as full as one likes, whose owner is the server's.
pub fn disk_of(server: &PrivatePostgres, megabytes: u32) -> Result<Option<SmallDisk>> {
    let Some(disk) = SmallDisk::mount(megabytes)? else { return Ok(None) };
    fs::create_dir(disk.path().join("postgres"))?;
    let owner = fs::metadata(server.data_dir())?;
    // Only root may give away, and only root has to.
    let _ = chown(disk.path().join("postgres"), Some(owner.uid()), Some(owner.gid()));
    Ok(Some(disk))
}

/// Not ready, still there, and not asking again and again without a pause.
fn rests(consumer: &mut Consumer) -> Result<()> {
    consumer.wait_ready(503, LIMIT)?;
    ensure!(consumer.is_running()?, "the process has ended");
    Ok(())
}

/// The tables cannot grow: each batch is refused, the server serves.
fn no_room_for_tables() -> Result<()> {
    let server = start_postgres(&[])?;
    let Some(disk) = disk_of(&server, 64)? else { return skipped() };
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "full")?, "full", 2)?;
    let place = disk.path().join("postgres");
    flow.ledger.db.execute(&format!("CREATE TABLESPACE small LOCATION '{}'", place.display()))?;
    flow.ledger.db.execute("ALTER TABLE ALL IN TABLESPACE pg_default SET TABLESPACE small")?;
    flow.ledger.db.execute("ALTER INDEX ALL IN TABLESPACE pg_default SET TABLESPACE small")?;
    let mut consumer = flow.consume(&["--batch", "500"])?;
    flow.send_load(2_000, 2)?;
    flow.wait_done(LIMIT)?;
    disk.fill()?;
    flow.send_load(10_000, 3)?;
    consumer.wait_metric("postonce_transaction_failures_total", &[("reason", "unavailable")], 3.0, LIMIT)?;
    rests(&mut consumer)?;
    flow.check().context("while the disk is full")?;
    let refused = consumer.failures("unavailable")?;
    disk.make_room()?;
    consumer.wait_ready(200, LIMIT)?;
    flow.wait_done(LIMIT)?;
    ensure!(consumer.is_running()?, "the process has ended");
    // Pauses that double: some dozens in a minute, not thousands.
    ensure!(refused < 200.0, "it was refused {refused} times: there was no pause");
    consumer.finish()?;
    flow.check_against_undisturbed()
}

/// The log of Postgres cannot be written: the server panics, and may not even come back
/// before there is room.
fn no_room_for_the_log() -> Result<()> {
    let mut server = start_postgres(&[("min_wal_size", "32MB"), ("max_wal_size", "48MB")])?;
    let Some(disk) = disk_of(&server, 160)? else { return skipped() };
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh_in(&server, "wal")?, "wal", 2)?;
    server.stop_fast()?;
    let (own, small) = (server.data_dir().join("pg_wal"), disk.path().join("postgres/pg_wal"));
    let moved = Command::new("cp").arg("-a").args([&own, &small]).status()?;
    ensure!(moved.success(), "cannot move pg_wal: {moved}");
    fs::remove_dir_all(&own)?;
    symlink(&small, &own)?;
    server.start_again()?;
    flow.ledger.db.reconnect();

    let mut consumer = flow.consume(&["--batch", "500"])?;
    flow.send_load(2_000, 2)?;
    flow.wait_done(LIMIT)?;
    disk.fill()?;
    // More than the segments that are there can hold.
    flow.send_load(80_000, 3)?;
    wait_until(LIMIT, "the server's panic", || {
        Ok(server.log_tail(400).contains("PANIC:  could not write to file").then_some(()))
    })?;
    rests(&mut consumer)?;
    disk.make_room()?;
    // It restarts by itself, unless its recovery, too, found no room.
    wait_until(LIMIT, "the server", || {
        if server.has_ended()? {
            server.start_again()?;
        }
        flow.ledger.offsets().map(Some)
    })?;
    flow.wait_done(LIMIT)?;
    consumer.wait_ready(200, LIMIT)?;
    ensure!(consumer.is_running()?, "the process has ended");
    consumer.finish()?;
    flow.check_against_undisturbed()
}
