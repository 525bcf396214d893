//! `--against`: a checkpoint that was kept elsewhere, proved from the topic.

use super::VerifyError;
use super::deep::border;
use super::report::{Check, Finding, Findings};
use super::snapshot::{Head, Stream};
use crate::chain::{Hash, Parts, START, hex};
use crate::checkpoint::{Checkpoint, StreamAt, take};
use crate::config::Kafka;
use crate::reread::{Ranges, Source, Watch};
use crate::stream::message;
use postonce_schema::{Rules, StreamId};
use rdkafka::Message as _;
use serde::Serialize;
use sqlx::postgres::PgConnection;
use std::collections::BTreeMap;

/// Messages in one stretch.
const STRETCH: usize = 10_000;

/// What became of the checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct Against {
    pub taken_at: String,
    pub streams: Vec<Proved>,
    /// Whether the ledger stands exactly there, so that its books were compared too.
    pub books_compared: bool,
}

/// One stream of the checkpoint.
#[derive(Clone, Debug, Serialize)]
pub struct Proved {
    pub topic: String,
    pub partition: i32,
    pub next_offset: i64,
    /// The first offset that was read again: where it is not the stream's first, retention
    /// has deleted what was before, and the chain recorded in the ledger was taken on trust.
    pub read_from: Option<i64>,
    pub not_read: Option<String>,
}

/// A chain that is being recomputed.
struct Chain<'c> {
    signed: &'c StreamAt,
    stream: StreamId,
    hash: Hash,
    from: i64,
    to: i64,
}

/// Reads the topic up to the checkpoint, and compares.
pub async fn check(
    connection: &mut PgConnection,
    (checkpoint, kafka): (&Checkpoint, &Kafka),
    rules: &Rules,
    streams: &BTreeMap<i64, Stream>,
    findings: &mut Findings,
    progress: &dyn Fn(u64, u64),
) -> Result<Against, VerifyError> {
    let source = Source::open(kafka)?;
    let mut chains: BTreeMap<i32, Chain<'_>> = BTreeMap::new();
    let mut proved = Vec::with_capacity(checkpoint.streams.len());
    for signed in &checkpoint.streams {
        let begun = begin(connection, &source, signed, streams, findings).await?;
        proved.push(Proved {
            topic: signed.topic.clone(),
            partition: signed.partition,
            next_offset: signed.next_offset,
            read_from: begun.as_ref().ok().map(|chain| chain.from),
            not_read: begun.as_ref().err().cloned(),
        });
        chains.extend(begun.ok().map(|chain| (signed.partition, chain)));
    }
    read(&source, &mut chains, progress)?;
    for chain in chains.values() {
        findings.compared(Check::Checkpoint, 1);
        if chain.hash != chain.signed.message_chain {
            let what = format!(
                "the messages before offset {} do not hash to the message chain that was signed off: the topic or the \
                 checkpoint was changed",
                chain.signed.next_offset
            );
            let finding = Finding::new(what).at(chain.stream.as_i64(), chain.signed.next_offset);
            let finding = finding.instead(hex::text(&chain.signed.message_chain), hex::text(&chain.hash));
            findings.add(Check::Checkpoint, finding);
        }
    }
    let books_compared = books(connection, (checkpoint, streams), rules, findings).await?;
    Ok(Against { taken_at: checkpoint.taken_at.clone(), streams: proved, books_compared })
}

/// Where the chain of a stream begins, or why it cannot be recomputed.
async fn begin<'c>(
    connection: &mut PgConnection,
    source: &Source,
    signed: &'c StreamAt,
    streams: &BTreeMap<i64, Stream>,
    findings: &mut Findings,
) -> Result<Result<Chain<'c>, String>, VerifyError> {
    let StreamAt { cluster_id, topic, topic_id, partition, first_offset, next_offset, .. } = signed;
    let stream = StreamId::new(cluster_id, topic, topic_id, *partition);
    let here = streams.get(&stream.as_i64());
    if here.is_none_or(|here| here.next_offset < *next_offset || here.first_offset != *first_offset) {
        let what = format!(
            "the ledger does not hold what was signed off of {topic}/{partition}: offsets {first_offset} to {}",
            next_offset - 1
        );
        let found = here.map(|here| format!("offsets {} to {}", here.first_offset, here.next_offset - 1));
        let finding = Finding::new(what).at(stream.as_i64(), *next_offset);
        findings.add(Check::Checkpoint, Finding { found, ..finding });
    }
    let lineage = source.lineage();
    if (cluster_id, topic, topic_id) != (&lineage.cluster_id, &lineage.topic, &lineage.topic_id) {
        let now = format!("topic {} is id {} of cluster {}", lineage.topic, lineage.topic_id, lineage.cluster_id);
        return Ok(Err(format!("it was signed off of topic {topic} (id {topic_id}, cluster {cluster_id}); {now}")));
    }
    let (log_start, log_end) = source.bounds(*partition)?;
    let to = (*next_offset).min(log_end);
    let chain = |from, hash| Chain { signed, stream, hash, from, to };
    if *first_offset >= log_start || first_offset == next_offset {
        return Ok(Ok(chain(*first_offset, START)));
    }
    Ok(match border(connection, stream.as_i64(), log_start).await? {
        Some(Head { next_offset: from, message_chain, .. }) if from <= *next_offset => Ok(chain(from, message_chain)),
        _ => Err(format!("retention has deleted all of it: the log begins at {log_start}")),
    })
}

fn read(
    source: &Source,
    chains: &mut BTreeMap<i32, Chain<'_>>,
    progress: &dyn Fn(u64, u64),
) -> Result<(), VerifyError> {
    let mut ranges = Ranges::new(chains.iter().map(|(partition, chain)| (*partition, chain.from, chain.to)));
    let all = ranges.left();
    source.seek(&ranges)?;
    let mut watch = Watch::start(&ranges);
    while !ranges.is_done() {
        let stretch = source.next(&mut ranges, STRETCH)?;
        watch.check(&ranges)?;
        for borrowed in &stretch.messages {
            if let Some(chain) = chains.get_mut(&borrowed.partition()) {
                let parts = Parts::of(&message(borrowed, chain.stream));
                chain.hash = parts.link(chain.hash, borrowed.offset());
            }
        }
        progress(all - ranges.left(), all);
    }
    Ok(())
}

/// Where the ledger stands exactly at the checkpoint, its books must be the same too.
async fn books(
    connection: &mut PgConnection,
    (signed, streams): (&Checkpoint, &BTreeMap<i64, Stream>),
    rules: &Rules,
    findings: &mut Findings,
) -> Result<bool, VerifyError> {
    let wanted = places(signed);
    let here = streams.values().filter(|stream| !stream.replay);
    if here.map(|here| (here.stream, (here.first_offset, here.next_offset))).collect::<Places>() != wanted {
        return Ok(false);
    }
    let now = take(connection, rules).await?;
    if places(&now) != wanted {
        return Ok(false);
    }
    findings.compared(Check::Checkpoint, now.books.resources);
    if now.books != signed.books {
        let what = "the ledger stands where the checkpoint was taken, but its books are others";
        let text =
            |books: &crate::digest::Digest| format!("{} of {} resources", hex::text(&books.sha256), books.resources);
        findings.add(Check::Checkpoint, Finding::new(what).instead(text(&signed.books), text(&now.books)));
    }
    for total in &now.trial_balance {
        let was = signed.trial_balance.iter().find(|was| was.asset == total.asset);
        let net = |total: &crate::read::balances::AssetTotal| total.difference;
        if was.map(net) != Some(net(total)) {
            let finding = Finding::new("the trial balance of an asset is not what was signed off");
            let was = was.map_or_else(|| "no such asset".to_owned(), |was| net(was).to_string());
            let finding = Finding { asset: Some(total.asset.clone()), ..finding };
            findings.add(Check::Checkpoint, finding.instead(was, net(total)));
        }
    }
    Ok(true)
}

/// First and next offset of each stream.
type Places = BTreeMap<i64, (i64, i64)>;

fn places(checkpoint: &Checkpoint) -> Places {
    let place = |at: &StreamAt| {
        let stream = StreamId::new(&at.cluster_id, &at.topic, &at.topic_id, at.partition);
        (stream.as_i64(), (at.first_offset, at.next_offset))
    };
    checkpoint.streams.iter().map(place).collect()
}
