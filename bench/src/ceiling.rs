//! 1: the ceiling. The very rows that the consumer has written, by COPY BINARY from memory,
//! into the same tables with the same indexes: what Postgres takes if nobody asks it anything.
//!
//! As many connections as the consumer has workers, and the borders of the transactions are
//! the consumer's own. No look-up, no conflict, no compare-and-set, no fence. A row that the
//! consumer changes again and again (a balance, a stream's offset) is written once, in its
//! last state, at the end and within the time: COPY cannot update, and a ceiling that wrote
//! each step of a balance would be lower than what the disk needs. So the tables end the
//! same, row for row, and `verify` is run on them to show it.

use crate::bench::{Bench, Run};
use crate::ledger::{block_on, on_threads};
use crate::load::{InMemory, Payments};
use crate::memory;
use crate::plan::{Contestant, Measurement};
use crate::rows::{self, Transaction};
use crate::usage::{Client, Meter};
use anyhow::{Context, Result};
use sqlx::{Connection, PgConnection};
use std::sync::Barrier;
use std::time::Instant;

pub const MEASUREMENT: Measurement = Measurement {
    number: 1,
    name: "ceiling",
    what: "the ceiling: the very same rows by COPY BINARY from memory",
    contestants: &[Contestant { name: "ceiling", run }],
};

/// All rows of a ledger.
pub struct Rows {
    events: u64,
    /// For each connection.
    transactions: Vec<Vec<Transaction>>,
    at_the_end: Transaction,
}

fn run(bench: &Bench, round: usize) -> Result<Run> {
    let rows = match bench.rows.get() {
        Some(rows) => rows,
        None => {
            let rows = prepare(bench)?;
            bench.rows.get_or_init(|| rows)
        }
    };
    let ledger = bench.fresh_ledger("ceiling")?;
    // One that waits for all: the last rows come when every transaction is committed.
    let (start, end) = (Barrier::new(bench.workers), Barrier::new(bench.workers));
    let meter = Meter::start(&bench.parts, Client::Ourselves)?;
    let times = on_threads(bench.workers, |number, runtime| {
        let connection = runtime.block_on(PgConnection::connect(&ledger.url));
        start.wait();
        let begun = Instant::now();
        let written = runtime.block_on(async {
            let mut connection = connection?;
            let mine = rows.transactions.get(number).context("a connection without rows")?;
            for transaction in mine {
                write(&mut connection, transaction).await?;
            }
            anyhow::Ok(connection)
        });
        end.wait();
        let mut connection = written?;
        if number == 0 {
            runtime.block_on(write(&mut connection, &rows.at_the_end))?;
        }
        anyhow::Ok(begun.elapsed().as_secs_f64())
    })?;
    let seconds = times.into_iter().fold(0.0, f64::max);
    let run = Run { events: rows.events, seconds, usage: meter.stop()?, ..Run::default() };
    memory::finish(bench, round, &ledger, run)
}

/// Lets the consumer fill a ledger and reads it.
fn prepare(bench: &Bench) -> Result<Rows> {
    let payments = Payments::usual(bench.memory_events());
    let messages = InMemory::of(payments.events, |number, event| payments.write(number, event));
    let ledger = bench.fresh_ledger("model")?;
    memory::fill(bench, &ledger, &messages)?;
    let transactions = on_threads(bench.workers, |number, runtime| {
        let partitions = memory::partitions(number, bench.workers).map(i32::try_from);
        let streams = partitions
            .map(|partition| Ok(memory::lineage().stream(partition?).as_i64()))
            .collect::<Result<Vec<_>>>()?;
        runtime.block_on(rows::of_streams(&ledger, &streams))
    })?;
    Ok(Rows { events: payments.events, transactions, at_the_end: block_on(rows::at_the_end(&ledger))? })
}

async fn write(connection: &mut PgConnection, transaction: &Transaction) -> Result<()> {
    let mut open = connection.begin().await?;
    for copy in transaction {
        let mut into = open.copy_in_raw(&copy.statement).await?;
        into.send(copy.rows.as_slice()).await?;
        into.finish().await?;
    }
    open.commit().await?;
    Ok(())
}
