//! A checkpoint signs off the books at one moment: how far every stream was, the hash
//! of every message up to there, and the hash of what the books said. Kept outside, it
//! proves later that the history before it is unchanged, also after a restore.

use crate::chain::{self, Hash};
use crate::digest::{self, Digest, DigestError};
use crate::read::balances::{AssetTotal, trial_balance};
use crate::read::snapshot;
use postonce_schema::Rules;
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{FromRow, Row};

/// The `format` of a checkpoint that this version writes and reads.
pub const FORMAT: &str = "postonce:checkpoint:v1";

/// The books at one moment. As JSON it is an interface: fields are added, never changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoint {
    pub format: String,
    /// By the database's clock, RFC 3339 in UTC.
    pub taken_at: String,
    pub streams: Vec<StreamAt>,
    pub books: Digest,
    pub trial_balance: Vec<AssetTotal>,
    pub rules: Vec<RulesAt>,
}

/// One lineage of offsets, and how far it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamAt {
    pub cluster_id: String,
    pub topic: String,
    pub topic_id: String,
    pub partition: i32,
    pub first_offset: i64,
    /// The first offset that had no outcome yet.
    pub next_offset: i64,
    /// Over every message before `next_offset`.
    #[serde(with = "chain::hex")]
    pub message_chain: Hash,
    pub batches: i64,
    #[serde(with = "chain::hex")]
    pub batch_chain: Hash,
}

/// A version of the rules that was in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesAt {
    pub version: i32,
    /// RFC 3339 in UTC.
    pub valid_from: String,
    #[serde(with = "chain::hex")]
    pub sha256: Hash,
}

/// A file that is no checkpoint, or one of a later version.
#[derive(Debug, thiserror::Error)]
pub enum NotACheckpoint {
    #[error("no checkpoint: {0}")]
    Json(#[from] serde_json::Error),
    #[error("its format is \"{0}\", and this version of Postonce reads \"{FORMAT}\"")]
    Format(String),
    #[error("its offsets {1} to {2} of {0} are no range")]
    Offsets(String, i64, i64),
}

impl Checkpoint {
    /// Reads what `postonce checkpoint` has written.
    pub fn parse(json: &str) -> Result<Self, NotACheckpoint> {
        #[derive(Deserialize)]
        struct Format {
            format: String,
        }
        let Format { format } = serde_json::from_str(json)?;
        if format != FORMAT {
            return Err(NotACheckpoint::Format(format));
        }
        let checkpoint: Self = serde_json::from_str(json)?;
        match checkpoint.streams.iter().find(|at| at.first_offset < 0 || at.next_offset < at.first_offset) {
            Some(StreamAt { topic, partition, first_offset, next_offset, .. }) => {
                Err(NotACheckpoint::Offsets(format!("{topic}/{partition}"), *first_offset, *next_offset))
            }
            None => Ok(checkpoint),
        }
    }
}

/// Takes a checkpoint from one snapshot, which lasts for as long as it takes to read
/// every resource: on a large ledger not in the busiest hour, for vacuum waits for it.
pub async fn take(connection: &mut PgConnection, rules: &Rules) -> Result<Checkpoint, DigestError> {
    let mut snapshot = snapshot(connection).await?;
    let taken_at = sqlx::query_scalar("SELECT to_char(now(), 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')")
        .fetch_one(&mut *snapshot)
        .await?;
    // A replay's streams are no part of the topic's history.
    let streams = sqlx::query_as(
        "SELECT cluster_id, topic, topic_id, partition, first_offset, next_offset, message_chain, batch_seq, batch_chain
         FROM streams WHERE NOT replay ORDER BY topic, cluster_id, created_at, topic_id, partition",
    )
    .fetch_all(&mut *snapshot)
    .await?;
    let rules_in_use = sqlx::query_as(
        "SELECT version, to_char(valid_from, 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') AS valid_from, hash
         FROM rules ORDER BY version",
    )
    .fetch_all(&mut *snapshot)
    .await?;
    let trial_balance = trial_balance(&mut snapshot).await?;
    let books = digest::books(&mut snapshot, rules).await?;
    snapshot.commit().await?;
    Ok(Checkpoint { format: FORMAT.to_owned(), taken_at, streams, books, trial_balance, rules: rules_in_use })
}

impl FromRow<'_, PgRow> for StreamAt {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            cluster_id: row.try_get("cluster_id")?,
            topic: row.try_get("topic")?,
            topic_id: row.try_get("topic_id")?,
            partition: row.try_get("partition")?,
            first_offset: row.try_get("first_offset")?,
            next_offset: row.try_get("next_offset")?,
            message_chain: hash(row, "message_chain")?,
            batches: row.try_get("batch_seq")?,
            batch_chain: hash(row, "batch_chain")?,
        })
    }
}

impl FromRow<'_, PgRow> for RulesAt {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        Ok(Self {
            version: row.try_get("version")?,
            valid_from: row.try_get("valid_from")?,
            sha256: hash(row, "hash")?,
        })
    }
}

fn hash(row: &PgRow, column: &str) -> sqlx::Result<Hash> {
    let bytes: &[u8] = row.try_get(column)?;
    bytes.try_into().map_err(|_| sqlx::Error::Decode(format!("{column} is not 32 bytes").into()))
}
