//! The topic once more, every message against what the tables say of it: all of it with
//! `--deep`, with `--against` what was signed off.
//!
//! Without it whoever can write the tables could write a history that agrees with
//! itself. The messages are out of his reach: each must be the event that the ledger
//! recorded at its offset, every hole must be one, and the message chain must come to the
//! recorded hash at the end of every batch, and to the signed one where it was signed.

use super::against::Signed;
use super::known::LookUps;
use super::partition::Partition;
use super::report::{Check, Finding, Findings, VerifiedStream};
use super::snapshot::{Head, Stream};
use super::{Topic, VerifyError};
use crate::batch::Received;
use crate::chain::START;
use crate::claim::Lineage;
use crate::reread::{Ranges, Source, Watch};
use crate::stream::message;
use postonce_schema::{Decoder, StreamId};
use rdkafka::Message as _;
use sqlx::postgres::PgConnection;
use std::collections::BTreeMap;

/// Messages in one stretch.
const STRETCH: usize = 10_000;

/// What is to be read, and from where.
pub struct Reading<'r> {
    pub source: &'r Source,
    pub topic: &'r Topic<'r>,
    pub decoder: &'r Decoder,
    /// How far each stream was read by the last deep runs, if this one goes on from there.
    pub since: &'r BTreeMap<i64, Head>,
}

/// Reads the streams of this topic again. How many messages there were.
pub async fn read(
    connection: &mut PgConnection,
    reading: &Reading<'_>,
    streams: &BTreeMap<i64, Stream>,
    verified: &mut [VerifiedStream],
    findings: &mut Findings,
    progress: &dyn Fn(u64, u64),
) -> Result<u64, VerifyError> {
    let Reading { source, decoder, .. } = *reading;
    let mut partitions = partitions(connection, reading, streams, verified, findings).await?;
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
            partition.load(connection, position.saturating_sub(1)).await?;
            partition.pass(*position, findings);
        }
        look_ups.judge(connection, findings).await?;
        progress(all.saturating_sub(ranges.left()), all);
    }
    partitions.into_values().for_each(|partition| partition.finish(findings));
    findings.compared(Check::Topic, messages);
    Ok(messages)
}

/// The streams that are read, by their partition; of the others it is told why not.
async fn partitions<'s>(
    connection: &mut PgConnection,
    reading: &Reading<'_>,
    streams: &'s BTreeMap<i64, Stream>,
    verified: &mut [VerifiedStream],
    findings: &mut Findings,
) -> Result<BTreeMap<i32, Partition<'s>>, VerifyError> {
    let Topic { deep, against, .. } = *reading.topic;
    let mut partitions = BTreeMap::new();
    for stream in streams.values() {
        let signed = against.and_then(|checkpoint| Signed::of(checkpoint, stream));
        if !deep && signed.is_none() {
            continue;
        }
        let begun = match not_this_topic(stream, reading.source.lineage()) {
            Some(why) => Err(why),
            None => begin(connection, reading, stream, signed).await?,
        };
        let Some(told) = verified.iter_mut().find(|told| told.stream == stream.stream) else { continue };
        match begun {
            Ok(partition) => {
                if deep && partition.end < stream.next_offset {
                    let what = "the topic ends before the offset where the ledger stands: messages are gone";
                    let finding = Finding::new(what).at(stream.stream, partition.end);
                    findings.add(Check::Topic, finding.instead(stream.next_offset, partition.end));
                }
                (told.topic_from, told.topic_to) = (Some(partition.next), Some(partition.end.max(partition.next)));
                told.deep = deep && partition.end >= stream.next_offset;
                partitions.insert(stream.partition, partition);
            }
            Err(why) => told.topic_not_read = Some(why),
        }
    }
    Ok(partitions)
}

fn not_this_topic(stream: &Stream, lineage: &Lineage) -> Option<String> {
    if stream.replay {
        return Some("a replay: its offsets are none of the topic's".to_owned());
    }
    let Stream { cluster_id, topic, topic_id, .. } = stream;
    let same = (cluster_id, topic, topic_id) == (&lineage.cluster_id, &lineage.topic, &lineage.topic_id);
    (!same).then(|| {
        let Lineage { cluster_id: cluster, topic: name, topic_id: id } = lineage;
        format!("it is of topic {topic} (id {topic_id}, cluster {cluster_id}); --topic {name} is id {id} of {cluster}")
    })
}

/// Where the reading of a stream begins and ends, or why there is nothing to read.
async fn begin<'s>(
    connection: &mut PgConnection,
    reading: &Reading<'_>,
    stream: &'s Stream,
    signed: Option<Signed>,
) -> Result<Result<Partition<'s>, String>, VerifyError> {
    let (log_start, log_end) = reading.source.bounds(stream.partition)?;
    let ledger_end = if reading.topic.deep { stream.next_offset } else { 0 };
    let end = ledger_end.max(signed.as_ref().map_or(0, |signed| signed.next_offset)).min(log_end);
    // What was signed off is read from the beginning: its hash is over all of it.
    let since = reading.since.get(&stream.stream).filter(|_| signed.is_none());
    let first = since.copied().unwrap_or_else(|| stream.beginning());
    if first.next_offset >= log_start || first.next_offset >= end {
        return Ok(Ok(Partition::new(stream, first, end, signed)));
    }
    Ok(match border(connection, stream.stream, log_start).await? {
        Some(head) if head.next_offset < end => Ok(Partition::new(stream, head, end, signed)),
        _ => Err(format!("retention has deleted all of it: the log begins at {log_start}")),
    })
}

/// Where the first batch begins that the log still holds from its first offset on, with
/// the message chain recorded there.
async fn border(connection: &mut PgConnection, stream: i64, log_start: i64) -> Result<Option<Head>, VerifyError> {
    let row: Option<(i64, i64, Vec<u8>, Vec<u8>)> = sqlx::query_as(
        "SELECT b.from_offset, p.seq, p.message_chain, p.hash
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
