//! `--since-last`: on from the last verification without findings.
//!
//! The history goes on from the batches where that run ended, and the balances from what
//! it saw; every resource that has had an event since is judged by itself, by all of its
//! events and postings. What has no new event was right then and is not looked at again.

use super::VerifyError;
use super::accounts;
use super::report::{Check, Finding, Findings};
use super::snapshot::{Head, Stream};
use super::sums::Sums;
use super::suspects::{Suspects, any_of};
use super::tables::{Scan, Table};
use crate::chain::Hash;
use crate::read::{MinorUnits, When};
use postonce_schema::{AccountId, ResourceId, Rules};
use sqlx::postgres::PgConnection;
use std::collections::{BTreeMap, HashSet};
use uuid::Uuid;

/// Offsets that one statement asks for, of all streams together.
const WINDOW: i64 = 300_000;
/// Resources judged at a time.
const RESOURCES: usize = 100_000;

/// The last verification without findings.
pub struct Last {
    pub started_at: When,
    pub heads: BTreeMap<i64, Head>,
    /// How far each stream was proved from the topic: by another run, as a rule.
    pub deep: BTreeMap<i64, Head>,
    pub quarantined: i128,
}

type HeadRow = (i64, i64, i64, Vec<u8>, Vec<u8>);

/// Reads it, and what the balances were then.
pub async fn last(connection: &mut PgConnection, sums: &mut Sums) -> Result<Last, VerifyError> {
    let mut snapshot = crate::read::snapshot(connection).await?;
    // The one whose balances are kept: a clock that was put back changes nothing. None are
    // kept where nothing had been posted.
    let run: Option<(Uuid, When, MinorUnits)> = sqlx::query_as(
        "SELECT verification_id, (extract(epoch FROM started_at) * 1000000)::bigint, quarantined::text
         FROM verifications WHERE findings = 0
         ORDER BY verification_id IN (SELECT verification_id FROM verified_balances) DESC, finished_at DESC LIMIT 1",
    )
    .fetch_optional(&mut *snapshot)
    .await?;
    let (id, started_at, MinorUnits(quarantined)) = run.ok_or(VerifyError::NoFormerRun)?;
    let heads: Vec<HeadRow> = sqlx::query_as(
        "SELECT stream, next_offset, batch_seq, message_chain, batch_chain FROM verified_streams
         WHERE verification_id = $1",
    )
    .bind(id)
    .fetch_all(&mut *snapshot)
    .await?;
    let deep: Vec<HeadRow> = sqlx::query_as(
        "SELECT DISTINCT ON (stream) stream, next_offset, batch_seq, message_chain, batch_chain
         FROM verified_streams s JOIN verifications v USING (verification_id) WHERE v.findings = 0 AND s.deep
         ORDER BY stream, next_offset DESC",
    )
    .fetch_all(&mut *snapshot)
    .await?;
    let balances: Vec<(Uuid, MinorUnits, MinorUnits)> =
        sqlx::query_as("SELECT account_id, debits::text, credits::text FROM verified_balances")
            .fetch_all(&mut *snapshot)
            .await?;
    snapshot.commit().await?;
    for (account, MinorUnits(debits), MinorUnits(credits)) in balances {
        sums.account(AccountId::from_bytes(account.into_bytes())).before = (debits, credits);
    }
    let heads = heads.into_iter().map(head).collect::<Result<_, VerifyError>>()?;
    let deep = deep.into_iter().map(head).collect::<Result<_, VerifyError>>()?;
    Ok(Last { started_at, heads, deep, quarantined })
}

fn head((stream, next_offset, batch_seq, messages, batches): HeadRow) -> Result<(i64, Head), VerifyError> {
    let hash = |bytes: Vec<u8>| -> Result<Hash, VerifyError> {
        bytes.try_into().map_err(|_| sqlx::Error::Decode("a hash in verified_streams is not 32 bytes".into()).into())
    };
    Ok((stream, Head { next_offset, batch_seq, message_chain: hash(messages)?, batch_chain: hash(batches)? }))
}

/// Whether the batches at which the last run ended are still there, as they were.
pub async fn still_there(
    connection: &mut PgConnection,
    last: &Last,
    streams: &BTreeMap<i64, Stream>,
    findings: &mut Findings,
) -> Result<(), VerifyError> {
    for (stream, head) in last.heads.iter().chain(&last.deep).filter(|(_, head)| head.batch_seq > 0) {
        findings.compared(Check::Since, 1);
        let found: Option<(i64, Vec<u8>)> =
            sqlx::query_as("SELECT next_offset, hash FROM batches WHERE stream = $1 AND seq = $2")
                .bind(stream)
                .bind(head.batch_seq)
                .fetch_optional(&mut *connection)
                .await?;
        let same = found.is_some_and(|(next, hash)| next == head.next_offset && hash == head.batch_chain);
        if !same || streams.get(stream).is_none_or(|now| now.next_offset < head.next_offset) {
            let what = format!(
                "batch {}, where a verification without findings has ended, is not what it was then; verify the whole \
                 ledger, without --since-last",
                head.batch_seq
            );
            findings.add(Check::Since, Finding::new(what).at(*stream, head.next_offset));
        }
    }
    Ok(())
}

/// Only what is new of the big tables, in windows of all streams together.
pub fn scans(last: &Last, streams: &BTreeMap<i64, Stream>) -> [Scan; 3] {
    let windows = windows(&new_offsets(last, streams), "message_offset");
    Table::ALL.map(|table| table.offsets(windows.iter().cloned()))
}

/// The same of `account_postings`.
pub fn account_postings(last: &Last, streams: &BTreeMap<i64, Stream>) -> Scan {
    accounts::offsets(windows(&new_offsets(last, streams), "base_offset"))
}

/// Of each stream, the end exclusive.
fn new_offsets(last: &Last, streams: &BTreeMap<i64, Stream>) -> Vec<(i64, i64, i64)> {
    let new = |stream: &Stream| {
        let from = last.heads.get(&stream.stream).map_or(stream.first_offset, |head| head.next_offset);
        (from < stream.next_offset).then_some((stream.stream, from, stream.next_offset))
    };
    streams.values().filter_map(new).collect()
}

/// Each window takes the same share of every stream's range.
fn windows(ranges: &[(i64, i64, i64)], column: &str) -> Vec<String> {
    let offsets: i64 = ranges.iter().map(|(_, from, to)| to - from).fold(0, i64::saturating_add);
    let count = offsets / WINDOW + 1;
    let window = |number: i64| {
        let share = |(stream, from, to): &(i64, i64, i64)| {
            let border = |number: i64| from.saturating_add((to - from) / count * number);
            let end = if number + 1 == count { *to } else { border(number + 1) };
            let begin = border(number);
            let range = format!("(stream = {stream} AND {column} >= {begin} AND {column} < {end})");
            (begin < end).then_some(range)
        };
        ranges.iter().filter_map(share).collect::<Vec<_>>().join(" OR ")
    };
    (0..count).map(window).filter(|window| !window.is_empty()).collect()
}

/// Judges every resource that has had an event since.
pub async fn touched(
    connection: &mut PgConnection,
    rules: &Rules,
    touched: &HashSet<ResourceId>,
    findings: &mut Findings,
) -> Result<(), VerifyError> {
    let ids: Vec<ResourceId> = touched.iter().copied().collect();
    let count = u64::try_from(ids.len()).unwrap_or(u64::MAX);
    for check in [Check::Resources, Check::Trace, Check::Events, Check::Positions] {
        findings.compared(check, count);
    }
    let mut broken = Vec::new();
    for ids in ids.chunks(RESOURCES) {
        let mut suspects = Suspects::default();
        broken.append(&mut suspects.follow(connection, rules, ids).await?);
        suspects.judge_all(connection, findings).await?;
    }
    if !broken.is_empty() {
        let mut suspects = Suspects::default();
        suspects.read(connection, rules, &any_of(&broken)).await?;
        suspects.judge_all(connection, findings).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_every_new_offset_once() {
        assert!(windows(&[], "message_offset").is_empty());
        assert_eq!(
            windows(&[(7, 10, 12)], "message_offset"),
            ["(stream = 7 AND message_offset >= 10 AND message_offset < 12)"]
        );
        let all = windows(&[(1, 0, 500_000), (2, 5, 6), (3, 0, 150_001)], "message_offset");
        assert_eq!(all.len(), 3);
        let of = |stream: i64| {
            let range = |window: &String| {
                let own = window.split(" OR ").find(|one| one.contains(&format!("stream = {stream} ")))?;
                let number = |sign: &str| own.split(sign).nth(1)?.split([' ', ')']).next()?.parse::<i64>().ok();
                Some((number("offset >= ")?, number("offset < ")?))
            };
            all.iter().filter_map(range).collect::<Vec<_>>()
        };
        for (stream, from, to) in [(1, 0, 500_000), (2, 5, 6), (3, 0, 150_001)] {
            let ranges = of(stream);
            assert_eq!((ranges[0].0, ranges[ranges.len() - 1].1), (from, to), "{ranges:?}");
            assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0), "{ranges:?}");
        }
    }
}
