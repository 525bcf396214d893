//! `--deep`: the topic once more, every message against what the tables say of it.
//!
//! Without it whoever can write the tables could write a history that agrees with
//! itself. The messages are out of his reach: each must be the event that the ledger
//! recorded at its offset, every hole must be one, and the message chain must come to the
//! recorded hash at the end of every batch.

use super::VerifyError;
use super::copy::copy_out;
use super::partition::Partition;
use super::report::{Check, Finding, Findings, VerifiedStream};
use super::snapshot::{Head, Stream};
use crate::batch::Received;
use crate::chain::{Hash, START};
use crate::config::Kafka;
use crate::reread::{Ranges, Source, Watch};
use crate::stream::message;
use postonce_schema::{Decoder, EventId, Fingerprint, StreamId, Timestamp};
use rdkafka::Message as _;
use sqlx::postgres::PgConnection;
use std::collections::{BTreeMap, HashSet};
use uuid::Uuid;

/// Messages in one stretch.
const STRETCH: usize = 10_000;

/// What one stretch leaves to be looked up.
#[derive(Default)]
pub struct LookUps {
    /// What the ledger calls duplicates: it must know them.
    pub duplicates: Vec<Duplicate>,
    /// What it has refused: the message's name must be in quarantine.
    pub refused: Vec<(i64, i64, Hash)>,
}

/// A message that the ledger calls a duplicate.
pub struct Duplicate {
    pub stream: i64,
    pub offset: i64,
    pub id: EventId,
    pub updated_at: Timestamp,
    pub fingerprint: Fingerprint,
}

/// Reads the streams of this topic again, from where the log begins or from `since` on.
/// How many messages there were.
pub async fn read(
    connection: &mut PgConnection,
    (kafka, decoder): (&Kafka, &Decoder),
    (streams, since): (&BTreeMap<i64, Stream>, &BTreeMap<i64, Head>),
    verified: &mut [VerifiedStream],
    findings: &mut Findings,
    progress: &dyn Fn(u64, u64),
) -> Result<u64, VerifyError> {
    let source = Source::open(kafka)?;
    let mut partitions: BTreeMap<i32, Partition<'_>> = BTreeMap::new();
    for stream in streams.values() {
        let told = verified.iter_mut().find(|told| told.stream == stream.stream);
        let begin = match not_this_topic(stream, &source) {
            Some(why) => Err(why),
            None => begin(connection, &source, stream, since.get(&stream.stream)).await?,
        };
        match begin {
            Ok(partition) => {
                // The messages behind the end are gone, and the chain cannot be finished.
                if partition.end < stream.next_offset {
                    let what = "the topic ends before the offset where the ledger stands: messages are gone";
                    let finding = Finding::new(what).at(stream.stream, partition.end);
                    findings.add(Check::Topic, finding.instead(stream.next_offset, partition.end));
                }
                told.into_iter().for_each(|told| told.topic_from = Some(partition.next));
                partitions.insert(stream.partition, partition);
            }
            Err(why) => told.into_iter().for_each(|told| told.topic_not_read = Some(why.clone())),
        }
    }
    let mut ranges = Ranges::new(partitions.values().map(|p| (p.stream.partition, p.next, p.end)));
    let (all, mut messages) = (ranges.left(), 0);
    source.seek(&ranges)?;
    let mut watch = Watch::start(&ranges);
    while !ranges.is_done() {
        let stretch = source.next(&mut ranges, STRETCH)?;
        watch.check(&ranges)?;
        let mut look_ups = LookUps::default();
        for borrowed in &stretch.messages {
            let Some(partition) = partitions.get_mut(&borrowed.partition()) else { continue };
            partition.load(connection, borrowed.offset()).await?;
            let received = Received::read(message(borrowed, StreamId::from_i64(partition.stream.stream)), decoder);
            partition.message(&received, &mut look_ups, findings);
            messages += 1;
        }
        for (id, position) in &stretch.positions {
            let Some(partition) = partitions.get_mut(id) else { continue };
            partition.load(connection, position - 1).await?;
            partition.pass(*position, findings);
        }
        look_up(connection, look_ups, findings).await?;
        progress(all - ranges.left(), all);
    }
    findings.compared(Check::Topic, messages);
    Ok(messages)
}

fn not_this_topic(stream: &Stream, source: &Source) -> Option<String> {
    let lineage = source.lineage();
    let same = (&stream.cluster_id, &stream.topic, &stream.topic_id)
        == (&lineage.cluster_id, &lineage.topic, &lineage.topic_id);
    match (stream.replay, same) {
        (true, _) => Some("a replay: its offsets are none of the topic's".to_owned()),
        (false, true) => None,
        (false, false) => Some(format!(
            "it is of topic {} (id {}, cluster {}); --topic {} is id {} of cluster {}",
            stream.topic, stream.topic_id, stream.cluster_id, lineage.topic, lineage.topic_id, lineage.cluster_id
        )),
    }
}

/// Where the reading of a stream begins, or why there is nothing to read.
async fn begin<'s>(
    connection: &mut PgConnection,
    source: &Source,
    stream: &'s Stream,
    since: Option<&Head>,
) -> Result<Result<Partition<'s>, String>, VerifyError> {
    let (log_start, log_end) = source.bounds(stream.partition)?;
    let end = stream.next_offset.min(log_end);
    let first = since.copied().unwrap_or_else(|| stream.beginning());
    if first.next_offset >= log_start || first.next_offset == stream.next_offset {
        return Ok(Ok(Partition::new(stream, first, end)));
    }
    Ok(match border(connection, stream.stream, log_start).await? {
        Some(head) => Ok(Partition::new(stream, head, end)),
        None => Err(format!("retention has deleted all of it: the log begins at {log_start}")),
    })
}

/// Where the first batch begins that the log still holds from its first offset on, with
/// the message chain recorded there.
pub async fn border(connection: &mut PgConnection, stream: i64, log_start: i64) -> Result<Option<Head>, VerifyError> {
    let row: Option<(i64, i64, Vec<u8>, Vec<u8>)> = sqlx::query_as(
        "SELECT b.from_offset, b.seq - 1, p.message_chain, b.previous_hash
         FROM batches b JOIN batches p ON p.stream = b.stream AND p.seq = b.seq - 1
         WHERE b.stream = $1 AND b.from_offset >= $2 ORDER BY b.from_offset LIMIT 1",
    )
    .bind(stream)
    .bind(log_start)
    .fetch_optional(connection)
    .await?;
    let head = |(next_offset, batch_seq, messages, batches): (i64, i64, Vec<u8>, Vec<u8>)| Head {
        next_offset,
        batch_seq,
        // The column's own constraint says 32 bytes.
        message_chain: messages.try_into().unwrap_or(START),
        batch_chain: batches.try_into().unwrap_or(START),
    };
    Ok(row.map(head))
}

async fn look_up(connection: &mut PgConnection, look_ups: LookUps, findings: &mut Findings) -> Result<(), VerifyError> {
    duplicates(connection, &look_ups.duplicates, findings).await?;
    let names: Vec<&[u8]> = look_ups.refused.iter().map(|(.., name)| name.as_slice()).collect();
    if names.is_empty() {
        return Ok(());
    }
    let known: Vec<Vec<u8>> = sqlx::query_scalar("SELECT message_hash FROM quarantine WHERE message_hash = ANY($1)")
        .bind(names)
        .fetch_all(connection)
        .await?;
    let known: HashSet<Vec<u8>> = known.into_iter().collect();
    for (stream, offset, _) in look_ups.refused.iter().filter(|(.., name)| !known.contains(name.as_slice())) {
        let what = "the ledger has refused this message, but its bytes are not in quarantine";
        findings.add(Check::Topic, Finding::new(what).at(*stream, *offset));
    }
    Ok(())
}

/// One look at the primary key for each, whatever the planner thinks of the tables.
const KNOWN: &str = "
SELECT k.event_id, e.fingerprint
FROM unnest($1::text[], $2::bytea[]) AS k (updated_at, event_id)
CROSS JOIN LATERAL (SELECT fingerprint FROM events
                    WHERE updated_at = k.updated_at::timestamptz AND event_id = k.event_id OFFSET 0) e
UNION ALL
SELECT event_id, fingerprint FROM conflicts WHERE event_id = ANY($2)";

async fn duplicates(
    connection: &mut PgConnection,
    duplicates: &[Duplicate],
    findings: &mut Findings,
) -> Result<(), VerifyError> {
    if duplicates.is_empty() {
        return Ok(());
    }
    let known: Vec<(Vec<u8>, Uuid)> = sqlx::query_as(KNOWN)
        .bind(duplicates.iter().map(|one| one.updated_at.to_string()).collect::<Vec<_>>())
        .bind(duplicates.iter().map(|one| one.id.as_bytes().as_slice()).collect::<Vec<_>>())
        .fetch_all(connection)
        .await?;
    let known: HashSet<(Vec<u8>, [u8; 16])> =
        known.into_iter().map(|(id, fingerprint)| (id, fingerprint.into_bytes())).collect();
    for one in duplicates {
        if !known.contains(&(one.id.as_bytes().to_vec(), *one.fingerprint.as_bytes())) {
            let what = "the ledger calls this message a duplicate, but knows no such event with this content";
            findings.add(Check::Topic, Finding::new(what).at(one.stream, one.offset).event(one.id));
        }
    }
    Ok(())
}

/// The ids and contents of the dedup rows in a range of offsets, conflicts too.
pub async fn rows(
    connection: &mut PgConnection,
    (stream, from, to): (i64, i64, i64),
    mut each: impl FnMut(i64, EventId, Fingerprint),
) -> Result<(), VerifyError> {
    for table in ["events", "conflicts"] {
        let select = format!(
            "SELECT message_offset, event_id, fingerprint FROM {table}
             WHERE stream = {stream} AND message_offset >= {from} AND message_offset < {to}"
        );
        copy_out(connection, &select, |mut row| {
            let offset = row.i64()?;
            each(offset, EventId::from_bytes(row.array()?), Fingerprint::from_bytes(row.array()?));
            Ok::<(), VerifyError>(())
        })
        .await?;
    }
    Ok(())
}
