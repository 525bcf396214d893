//! The short snapshots: how far the streams were, and what the balances said there.

use super::VerifyError;
use super::copy::copy_out;
use super::report::{Check, Finding, Findings};
use super::sums::Sums;
use crate::chain::{Hash, START};
use crate::read::snapshot;
use postonce_schema::{AccountId, StreamId};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{FromRow, Row};
use std::collections::{BTreeMap, HashMap};

/// A row of `streams`.
#[derive(Clone, Debug)]
pub struct Stream {
    pub stream: i64,
    pub cluster_id: String,
    pub topic: String,
    pub topic_id: String,
    pub partition: i32,
    pub replay: bool,
    pub first_offset: i64,
    pub next_offset: i64,
    pub batch_seq: i64,
    pub message_chain: Hash,
    pub batch_chain: Hash,
}

/// How far every stream was in one snapshot. What lies before it is committed and never
/// changes; what lies behind it, that snapshot has not seen.
#[derive(Clone, Debug, Default)]
pub struct Cut(HashMap<i64, i64>);

impl Cut {
    pub fn of(streams: impl IntoIterator<Item = (i64, i64)>) -> Self {
        Self(streams.into_iter().collect())
    }

    pub async fn read(connection: &mut PgConnection) -> Result<Self, VerifyError> {
        let streams: Vec<(i64, i64)> =
            sqlx::query_as("SELECT stream, next_offset FROM streams").fetch_all(connection).await?;
        Ok(Self::of(streams))
    }

    /// Whether the snapshot has seen what was written for this offset.
    pub fn covers(&self, stream: i64, offset: i64) -> bool {
        self.0.get(&stream).is_some_and(|next_offset| offset < *next_offset)
    }
}

impl FromRow<'_, PgRow> for Stream {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let hash = |column: &str| {
            let bytes: &[u8] = row.try_get(column)?;
            bytes.try_into().map_err(|_| sqlx::Error::Decode(format!("streams.{column} is not 32 bytes").into()))
        };
        Ok(Self {
            stream: row.try_get("stream")?,
            cluster_id: row.try_get("cluster_id")?,
            topic: row.try_get("topic")?,
            topic_id: row.try_get("topic_id")?,
            partition: row.try_get("partition")?,
            replay: row.try_get("replay")?,
            first_offset: row.try_get("first_offset")?,
            next_offset: row.try_get("next_offset")?,
            batch_seq: row.try_get("batch_seq")?,
            message_chain: hash("message_chain")?,
            batch_chain: hash("batch_chain")?,
        })
    }
}

impl Stream {
    fn is_named_right(&self) -> bool {
        let Self { stream, cluster_id, topic, topic_id, partition, .. } = self;
        StreamId::new(cluster_id, topic, topic_id, *partition).as_i64() == *stream
    }

    /// Before its first batch.
    pub fn beginning(&self) -> Head {
        Head { next_offset: self.first_offset, batch_seq: 0, message_chain: START, batch_chain: START }
    }

    pub fn head(&self) -> Head {
        let Self { next_offset, batch_seq, message_chain, batch_chain, .. } = *self;
        Head { next_offset, batch_seq, message_chain, batch_chain }
    }
}

/// Where a stream's batches stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub next_offset: i64,
    pub batch_seq: i64,
    pub message_chain: Hash,
    pub batch_chain: Hash,
}

/// What one short snapshot says.
pub struct Books {
    pub streams: BTreeMap<i64, Stream>,
    /// Σ times_seen.
    pub quarantined: i128,
}

/// Reads streams, accounts, balances and the count of refused messages in one snapshot.
pub async fn books(
    connection: &mut PgConnection,
    sums: &mut Sums,
    findings: &mut Findings,
) -> Result<Books, VerifyError> {
    let mut snapshot = snapshot(connection).await?;
    let streams: Vec<Stream> = sqlx::query_as("SELECT * FROM streams").fetch_all(&mut *snapshot).await?;
    let quarantined: String = sqlx::query_scalar("SELECT coalesce(sum(times_seen), 0)::text FROM quarantine")
        .fetch_one(&mut *snapshot)
        .await?;
    streams.iter().filter(|stream| !stream.is_named_right()).for_each(|stream| {
        let what = "the stream's id is not the hash of its lineage: its row was edited";
        findings.add(Check::Offsets, Finding::new(what).at(stream.stream, stream.next_offset));
    });
    accounts(&mut snapshot, sums, findings).await?;
    balances(&mut snapshot, sums, findings).await?;
    snapshot.commit().await?;
    Ok(Books {
        streams: streams.into_iter().map(|stream| (stream.stream, stream)).collect(),
        quarantined: quarantined.parse().unwrap_or(i128::MIN),
    })
}

pub const ACCOUNTS: &str = "SELECT account_id, path, asset FROM accounts";
pub const BALANCES: &str = "SELECT account_id, debits::text, credits::text FROM balances";

async fn accounts(connection: &mut PgConnection, sums: &mut Sums, findings: &mut Findings) -> Result<(), VerifyError> {
    let mut count = 0;
    copy_out(connection, ACCOUNTS, |mut row| {
        let (id, path, asset) = (AccountId::from_bytes(row.array()?), row.text()?, row.text()?);
        count += 1;
        let place = sums.asset(asset);
        sums.account(id).asset = Some(place);
        let expected = AccountId::new(path, asset);
        if expected != id {
            let what = "the account's id is not the hash of its path and asset: its row was edited";
            let mut finding = Finding::new(what).instead(uuid(expected), uuid(id));
            (finding.account, finding.asset) = (Some(path.to_owned()), Some(asset.to_owned()));
            findings.add(Check::Accounts, finding);
        }
        Ok::<(), VerifyError>(())
    })
    .await?;
    findings.compared(Check::Accounts, count);
    Ok(())
}

async fn balances(connection: &mut PgConnection, sums: &mut Sums, findings: &mut Findings) -> Result<(), VerifyError> {
    copy_out(connection, BALANCES, |mut row| {
        let id = AccountId::from_bytes(row.array()?);
        let (debits, credits) = (row.text()?, row.text()?);
        match (debits.parse(), credits.parse()) {
            (Ok(debits), Ok(credits)) => sums.account(id).balance = Some((debits, credits)),
            _ => {
                let found = format!("{debits} - {credits}");
                let finding = Finding::new("a balance is no number of minor units").account(id);
                findings.add(Check::Balances, Finding { found: Some(found), ..finding });
            }
        }
        Ok::<(), VerifyError>(())
    })
    .await
}

/// As psql prints it: what a person looks the row up by.
pub fn uuid(id: AccountId) -> String {
    uuid::Uuid::from_bytes(*id.as_bytes()).to_string()
}
