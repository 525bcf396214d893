//! 11: a one-row sink, as Kafka Connect's JDBC sink, Bento and Flink do it: from the same
//! topic as 3, two connections, one row and nothing else for each event by multi-row
//! `INSERT … ON CONFLICT (event_id) DO NOTHING` of 5,000, and then the offsets to Kafka.
//!
//! Twice: with the id that the ledger has, hash(type + resource + updatedAt), which knows an
//! event again whoever sends it; and with an id that the payload brings and that rises with
//! time, which is the kindest to an index and knows only what was sent under the same id.
//!
//! What helps it is given to it: arrays by `unnest`, which are no slower than 5,000 times
//! VALUES and cost Postgres less; the payload as text, out of which nothing but the id is
//! read (a column for each field was as quick); the Kafka client set as ours is; partitions
//! shared out beforehand, so no group has to agree; no start of a process. It is a store of
//! events and no ledger: no accounts, no balances, and the offsets are behind the rows.

use crate::args::PARTITIONS;
use crate::bench::{Bench, Run};
use crate::ledger::{Ledger, on_threads};
use crate::plan::{Contestant, Measurement};
use crate::usage::{Client, Meter};
use anyhow::{Context, Result, ensure};
use postonce::commands::interrupt;
use postonce_schema::{EventId, Timestamp};
use postonce_tests::unique;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::BorrowedMessage;
use rdkafka::{Message as _, Offset, TopicPartitionList};
use serde::Deserialize;
use sqlx::{Connection, PgConnection};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub const MEASUREMENT: Measurement = Measurement {
    number: 11,
    name: "sink",
    what: "a one-row sink: multi-row INSERT … ON CONFLICT DO NOTHING of 5,000, offsets in Kafka",
    contestants: &[
        Contestant { name: BY_HASH, run: |bench, _| run(bench, hash) },
        Contestant { name: "sink, rising ids", run: |bench, _| run(bench, rising) },
    ],
};

/// What the ledger is compared with: both know the same events again.
pub const BY_HASH: &str = "sink, ids by hash";

const CONNECTIONS: usize = 2;
const ROWS: usize = 5_000;
const PATIENCE: Duration = Duration::from_millis(100);

const TABLES: &str = "
    CREATE SCHEMA plain;
    CREATE TABLE plain.events (event_id bytea PRIMARY KEY, payload text NOT NULL);";

/// All that it reads of an event.
#[derive(Deserialize)]
struct Payload<'a> {
    r#type: &'a str,
    resource: &'a str,
    #[serde(rename = "updatedAt")]
    updated_at: &'a str,
    #[serde(borrow)]
    data: Data<'a>,
}

#[derive(Deserialize)]
struct Data<'a> {
    event: &'a str,
}

/// How an event is known again.
type Id = fn(&Payload<'_>) -> Result<Vec<u8>>;

fn hash(event: &Payload<'_>) -> Result<Vec<u8>> {
    let (kind, state) = event.r#type.split_once('.').context("a type without a state")?;
    let updated_at = Timestamp::parse(event.updated_at).map_err(anyhow::Error::msg)?;
    Ok(EventId::new(kind, state, event.resource, updated_at).as_bytes().to_vec())
}

fn rising(event: &Payload<'_>) -> Result<Vec<u8>> {
    Ok(event.data.event.as_bytes().to_vec())
}

fn run(bench: &Bench, id: Id) -> Result<Run> {
    let topic = bench.usual_topic()?;
    let ledger = Ledger::empty(&bench.parts, "sink")?;
    ledger.db.execute(TABLES)?;
    ledger.checkpoint()?;
    let (group, read) = (unique("sink"), AtomicU64::new(0));
    let meter = Meter::start(&bench.parts, Client::Ourselves)?;
    let begun = Instant::now();
    on_threads(CONNECTIONS, |number, runtime| {
        let mut connection = runtime.block_on(PgConnection::connect(&ledger.url))?;
        let consumer = consumer(bench, &group)?;
        consumer.assign(&partitions(&topic.name, number)?)?;
        while read.load(Ordering::Relaxed) < topic.events {
            ensure!(interrupt::signal().is_none(), "stopped by a signal");
            let waiting = poll(&consumer)?;
            if waiting.is_empty() {
                continue;
            }
            runtime.block_on(insert(&mut connection, &waiting, id))?;
            consumer.commit_consumer_state(CommitMode::Sync)?;
            read.fetch_add(u64::try_from(waiting.len())?, Ordering::Relaxed);
        }
        Ok(())
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    let usage = meter.stop()?;
    let rows: i64 = ledger.db.one("SELECT count(*) FROM plain.events")?;
    ensure!(u64::try_from(rows)? == topic.events, "{} events became {rows} rows", topic.events);
    let mut run = Run { events: topic.events, seconds, usage, ..Run::default() };
    run.usage.disk_bytes = Some(ledger.disk_bytes("plain")?);
    Ok(run)
}

/// With the properties in which `postonce consume` differs from librdkafka for speed.
fn consumer(bench: &Bench, group: &str) -> Result<BaseConsumer> {
    Ok(bench
        .parts
        .kafka
        .client()
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("fetch.queue.backoff.ms", "2")
        .set("queued.max.messages.kbytes", "8192")
        .set("fetch.max.bytes", "4194304")
        .create()?)
}

/// Of one connection, from their first message on.
fn partitions(topic: &str, connection: usize) -> Result<TopicPartitionList> {
    let mut list = TopicPartitionList::new();
    for partition in (connection..PARTITIONS).step_by(CONNECTIONS) {
        list.add_partition_offset(topic, i32::try_from(partition)?, Offset::Beginning)?;
    }
    Ok(list)
}

/// What is waiting, up to one statement's rows.
fn poll(consumer: &BaseConsumer) -> Result<Vec<BorrowedMessage<'_>>> {
    let mut waiting = Vec::with_capacity(ROWS);
    while waiting.len() < ROWS {
        match consumer.poll(PATIENCE) {
            Some(message) => waiting.push(message?),
            None => break,
        }
    }
    Ok(waiting)
}

async fn insert(connection: &mut PgConnection, messages: &[BorrowedMessage<'_>], id: Id) -> Result<()> {
    let mut ids = Vec::with_capacity(messages.len());
    let mut payloads = Vec::with_capacity(messages.len());
    for message in messages {
        let payload = std::str::from_utf8(message.payload().context("a message without a value")?)?;
        ids.push(id(&serde_json::from_str(payload)?)?);
        payloads.push(payload);
    }
    sqlx::query(
        "INSERT INTO plain.events (event_id, payload) SELECT * FROM unnest($1::bytea[], $2::text[])
         ON CONFLICT (event_id) DO NOTHING",
    )
    .bind(ids)
    .bind(payloads)
    .execute(connection)
    .await?;
    Ok(())
}
