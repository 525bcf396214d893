//! `--against`: a checkpoint that was kept elsewhere, proved from the topic.
//!
//! The messages before it must hash to the chain that was signed off, and each must be
//! what the ledger says of its offset. So neither the topic nor the ledger's history has
//! been changed since, also where an older backup was put back and the consumer has posted
//! the same again in other batches.

use super::VerifyError;
use super::report::{Check, Finding, Findings, VerifiedStream};
use super::snapshot::Stream;
use crate::chain::{Hash, hex};
use crate::checkpoint::{Checkpoint, StreamAt, take};
use crate::claim::Lineage;
use postonce_schema::{Rules, StreamId};
use serde::Serialize;
use sqlx::postgres::PgConnection;
use std::collections::BTreeMap;

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
    /// The first offset that was read again. Where it is not the stream's first, retention
    /// has deleted what was before; that the ledger's own chain leads to the signed one
    /// proves it right.
    pub read_from: Option<i64>,
    pub not_read: Option<String>,
}

/// Up to where the messages of one stream were signed off.
#[derive(Clone, Copy, Debug)]
pub struct Signed {
    pub next_offset: i64,
    pub message_chain: Hash,
}

impl Signed {
    /// What this checkpoint says of a stream, where the ledger can be held against it.
    pub fn of(checkpoint: &Checkpoint, stream: &Stream) -> Option<Self> {
        let signed = checkpoint.streams.iter().find(|signed| id(signed) == stream.stream)?;
        let StreamAt { next_offset, message_chain, .. } = *signed;
        (signed.first_offset == stream.first_offset).then_some(Self { next_offset, message_chain })
    }
}

fn id(signed: &StreamAt) -> i64 {
    StreamId::new(&signed.cluster_id, &signed.topic, &signed.topic_id, signed.partition).as_i64()
}

/// Refuses a checkpoint that signs nothing off of this topic: nothing can be proved.
pub fn is_of(checkpoint: &Checkpoint, lineage: &Lineage) -> Result<(), VerifyError> {
    let Lineage { cluster_id, topic, topic_id } = lineage;
    if checkpoint.streams.iter().any(|at| (&at.cluster_id, &at.topic, &at.topic_id) == (cluster_id, topic, topic_id)) {
        return Ok(());
    }
    let signed = match checkpoint.streams.first() {
        Some(at) => format!("topic {} (id {}, cluster {})", at.topic, at.topic_id, at.cluster_id),
        None => "no topic at all".to_owned(),
    };
    let asked = format!("topic {topic} (id {topic_id}, cluster {cluster_id})");
    Err(VerifyError::OtherTopic { signed, asked })
}

/// What the reading of the topic does not see: streams that are gone, and the books.
pub async fn check(
    connection: &mut PgConnection,
    checkpoint: &Checkpoint,
    rules: &Rules,
    (streams, verified): (&BTreeMap<i64, Stream>, &[VerifiedStream]),
    findings: &mut Findings,
) -> Result<Against, VerifyError> {
    let mut proved = Vec::with_capacity(checkpoint.streams.len());
    for signed in &checkpoint.streams {
        let stream = id(signed);
        holds(signed, streams.get(&stream), findings);
        let read = read_from(signed, verified.iter().find(|told| told.stream == stream));
        proved.push(Proved {
            topic: signed.topic.clone(),
            partition: signed.partition,
            next_offset: signed.next_offset,
            read_from: read.as_ref().ok().copied(),
            not_read: read.err(),
        });
    }
    if findings.of(Check::Checkpoint) == 0 && proved.iter().all(|one| one.read_from.is_none()) {
        let why = proved.iter().find_map(|one| one.not_read.clone()).unwrap_or_default();
        return Err(VerifyError::NothingProved(why));
    }
    let books_compared = books(connection, (checkpoint, streams), rules, findings).await?;
    Ok(Against { taken_at: checkpoint.taken_at.clone(), streams: proved, books_compared })
}

/// From where on the topic was read up to what was signed off, or why it was not.
fn read_from(signed: &StreamAt, told: Option<&VerifiedStream>) -> Result<i64, String> {
    let Some(told) = told else { return Err("the ledger has no such stream".to_owned()) };
    match (told.topic_from, &told.topic_not_read) {
        (Some(from), _) if from <= signed.next_offset => Ok(from),
        (Some(from), _) => Err(format!("retention has deleted all of it: the log is read from offset {from}")),
        (None, Some(why)) => Err(why.clone()),
        (None, None) => Err("the ledger's stream begins at another offset".to_owned()),
    }
}

/// The ledger holds all that was signed off of a stream.
fn holds(signed: &StreamAt, here: Option<&Stream>, findings: &mut Findings) {
    let StreamAt { topic, partition, first_offset, next_offset, .. } = signed;
    if here.is_some_and(|here| here.next_offset >= *next_offset && here.first_offset == *first_offset) {
        return;
    }
    let what = format!("the ledger does not hold what was signed off of {topic}/{partition}");
    let range = |first: i64, next: i64| format!("offsets {first} to {}", next.saturating_sub(1));
    let found = here.map_or_else(|| "no such stream".to_owned(), |here| range(here.first_offset, here.next_offset));
    let finding = Finding::new(what).at(id(signed), *next_offset);
    findings.add(Check::Checkpoint, finding.instead(range(*first_offset, *next_offset), found));
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
    checkpoint.streams.iter().map(|at| (id(at), (at.first_offset, at.next_offset))).collect()
}
