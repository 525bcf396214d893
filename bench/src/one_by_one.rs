//! 4: one transaction for each event, as everybody writes it first: begin, the dedup row on
//! conflict do nothing, two entry rows, the offset, commit. Over 1 connection and over 8.
//!
//! What helps it is given to it: its own tables with nothing but their keys, prepared
//! statements, both entry rows in one statement, a partition for each connection (so nobody
//! waits for another's offset), and events that lie ready in memory, parsed. It has no
//! accounts, no states, no balances.

use crate::bench::{Bench, Run};
use crate::ledger::{Ledger, on_threads};
use crate::load::mix;
use crate::plan::{Contestant, Measurement};
use crate::usage::{Client, Meter};
use anyhow::{Result, ensure};
use sqlx::{Connection, PgConnection};
use std::sync::Barrier;
use std::time::Instant;

pub const MEASUREMENT: Measurement = Measurement {
    number: 4,
    name: "one_by_one",
    what: "one transaction for each event: begin, dedup row, two entry rows, offset, commit",
    contestants: &[
        Contestant { name: "one_by_one, 1 connection", run: |bench, _| of(bench, 1) },
        Contestant { name: "one_by_one, 8 connections", run: |bench, _| of(bench, 8) },
    ],
};

const TABLES: &str = "
    CREATE SCHEMA plain;
    CREATE TABLE plain.events (event_id text PRIMARY KEY, received_at timestamptz NOT NULL DEFAULT now());
    CREATE TABLE plain.entries (
        event_id text NOT NULL, line smallint NOT NULL, account text NOT NULL, amount bigint NOT NULL,
        PRIMARY KEY (event_id, line));
    CREATE TABLE plain.offsets (partition integer PRIMARY KEY, next_offset bigint NOT NULL);";

fn of(bench: &Bench, connections: usize) -> Result<Run> {
    let each = bench.size.pick(300, 4_000, 20_000);
    let ledger = Ledger::empty(&bench.parts, "one_by_one")?;
    ledger.db.execute(TABLES)?;
    ledger.checkpoint()?;
    let start = Barrier::new(connections);
    let meter = Meter::start(&bench.parts, Client::Ourselves)?;
    let times = on_threads(connections, |number, runtime| {
        let connection = runtime.block_on(PgConnection::connect(&ledger.url));
        let partition = i32::try_from(number);
        start.wait();
        let (mut connection, partition) = (connection?, partition?);
        let begun = Instant::now();
        runtime.block_on(async {
            for offset in 0..each {
                post(&mut connection, partition, offset).await?;
            }
            anyhow::Ok(())
        })?;
        anyhow::Ok(begun.elapsed().as_secs_f64())
    })?;
    let usage = meter.stop()?;
    let events = u64::try_from(each)? * u64::try_from(connections)?;
    check(&ledger, events)?;
    let mut run = Run { events, seconds: times.into_iter().fold(0.0, f64::max), usage, ..Run::default() };
    run.usage.disk_bytes = Some(ledger.disk_bytes("plain")?);
    Ok(run)
}

async fn post(connection: &mut PgConnection, partition: i32, offset: i64) -> Result<()> {
    let (chance, other) = (mix(offset.unsigned_abs()), mix(partition.unsigned_abs().into()));
    let (id, amount) = (format!("evt_{:032x}", u128::from(chance) << 64 | u128::from(other)), 12_345_i64);
    let (psp, merchant) = ("assets:psp:stripe", format!("liabilities:merchant:m_{:06}", chance % 5_000));
    let mut transaction = connection.begin().await?;
    let new = sqlx::query("INSERT INTO plain.events (event_id) VALUES ($1) ON CONFLICT DO NOTHING")
        .bind(&id)
        .execute(&mut *transaction)
        .await?
        .rows_affected();
    if new == 1 {
        sqlx::query(
            "INSERT INTO plain.entries (event_id, line, account, amount) VALUES ($1, 0, $2, $4), ($1, 1, $3, -$4)",
        )
        .bind(&id)
        .bind(psp)
        .bind(&merchant)
        .bind(amount)
        .execute(&mut *transaction)
        .await?;
    }
    sqlx::query(
        "INSERT INTO plain.offsets (partition, next_offset) VALUES ($1, $2)
         ON CONFLICT (partition) DO UPDATE SET next_offset = excluded.next_offset",
    )
    .bind(partition)
    .bind(offset + 1)
    .execute(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(())
}

/// A baseline that loses events is no baseline.
fn check(ledger: &Ledger<'_>, events: u64) -> Result<()> {
    let events = i64::try_from(events)?;
    let known: i64 = ledger.db.one("SELECT count(*) FROM plain.events")?;
    let entries: i64 = ledger.db.one("SELECT count(*) FROM plain.entries")?;
    let offsets: i64 = ledger.db.one("SELECT sum(next_offset)::bigint FROM plain.offsets")?;
    ensure!(
        (known, entries, offsets) == (events, events * 2, events),
        "{events} events became {known} dedup rows, {entries} entry rows and {offsets} offsets"
    );
    Ok(())
}
