//! `status`: how far each stream is, what became of its messages, what is open.

use super::counts::Counts;
use super::{When, snapshot};
use crate::error::DatabaseError;
use serde::{Serialize, Serializer};
use sqlx::postgres::PgConnection;
use std::collections::HashMap;

/// Rows of `batches` read at a time: a row holds up to 20,000 outcomes.
const PAGE: i64 = 500;

/// The state of the whole ledger.
#[derive(Clone, Debug, Serialize)]
pub struct Status {
    pub streams: Vec<Stream>,
    /// Over all streams.
    pub outcomes: Counts,
    pub quarantine: Vec<OpenQuarantine>,
    pub incidents: Vec<OpenIncidents>,
    pub rules: Vec<RulesInUse>,
}

/// One lineage of offsets.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct Stream {
    #[serde(serialize_with = "as_text")]
    pub stream: i64,
    pub cluster_id: String,
    pub topic: String,
    pub topic_id: String,
    pub partition: i32,
    pub first_offset: i64,
    /// The first offset that has no outcome yet.
    pub next_offset: i64,
    pub epoch: i64,
    pub batches: i64,
    /// `alive`, `gone`, `none` (never claimed), or `unknown` (this role may not see
    /// the sessions of the consumer's role; `pg_read_all_stats` allows it).
    pub owner: String,
    pub last_recorded_at: Option<When>,
    /// Of a replay that was executed: no part of the topic's history.
    pub replay: bool,
    /// A topic that was deleted and made again has an older lineage beside it.
    pub newest_lineage: bool,
    #[sqlx(skip)]
    pub outcomes: Counts,
}

/// Messages in quarantine that nobody has closed.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct OpenQuarantine {
    pub code: String,
    /// Different messages.
    pub messages: i64,
    /// How often they came.
    pub times_seen: i64,
}

/// Incidents that nobody has closed.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct OpenIncidents {
    pub code: String,
    pub open: i64,
}

/// A version of the rules that has judged events and is frozen.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct RulesInUse {
    pub version: i32,
    pub valid_from: When,
    pub hash: String,
    pub registered_at: When,
}

/// The state of the ledger as of one moment. Reads every row of `batches`: one byte
/// for each message that ever came.
pub async fn status(connection: &mut PgConnection) -> Result<Status, DatabaseError> {
    let mut transaction = snapshot(connection).await?;
    let mut streams: Vec<Stream> = sqlx::query_as(STREAMS).fetch_all(&mut *transaction).await?;
    let counted = outcomes_by_stream(&mut transaction).await?;
    let mut outcomes = Counts::default();
    for stream in &mut streams {
        stream.outcomes = counted.get(&stream.stream).copied().unwrap_or_default();
        outcomes += stream.outcomes;
    }
    let quarantine = sqlx::query_as(
        "SELECT code, count(*) AS messages, sum(times_seen)::bigint AS times_seen
         FROM quarantine WHERE closed_at IS NULL GROUP BY code ORDER BY code",
    )
    .fetch_all(&mut *transaction)
    .await?;
    let incidents = sqlx::query_as(
        "SELECT code, count(*) AS open FROM incidents WHERE closed_at IS NULL GROUP BY code ORDER BY code",
    )
    .fetch_all(&mut *transaction)
    .await?;
    let rules = sqlx::query_as(
        "SELECT version, (extract(epoch FROM valid_from) * 1000000)::bigint AS valid_from,
                encode(hash, 'hex') AS hash, (extract(epoch FROM registered_at) * 1000000)::bigint AS registered_at
         FROM rules ORDER BY version",
    )
    .fetch_all(&mut *transaction)
    .await?;
    transaction.commit().await?;
    Ok(Status { streams, outcomes, quarantine, incidents, rules })
}

// pg_stat_activity shows backend_start only to whom it may: a null is not "gone".
const STREAMS: &str = "
SELECT s.stream, s.cluster_id, s.topic, s.topic_id, s.partition, s.first_offset, s.next_offset, s.epoch,
       s.batch_seq AS batches,
       CASE WHEN s.claim IS NULL THEN 'none'
            WHEN bool_or(a.backend_start = s.backend_start) THEN 'alive'
            WHEN bool_or(a.pid IS NOT NULL AND a.backend_start IS NULL) THEN 'unknown'
            ELSE 'gone' END AS owner,
       (SELECT (extract(epoch FROM b.recorded_at) * 1000000)::bigint FROM batches b
        WHERE b.stream = s.stream ORDER BY b.seq DESC LIMIT 1) AS last_recorded_at,
       s.replay,
       NOT s.replay AND s.created_at = max(s.created_at) FILTER (WHERE NOT s.replay)
                                       OVER (PARTITION BY s.cluster_id, s.topic, s.partition) AS newest_lineage
FROM streams s LEFT JOIN pg_stat_activity a ON a.pid = s.backend_pid
GROUP BY s.stream
ORDER BY s.topic, s.partition, s.created_at, s.stream";

/// Page by page along the primary key: a long history is never in memory at once.
async fn outcomes_by_stream(connection: &mut PgConnection) -> Result<HashMap<i64, Counts>, DatabaseError> {
    let mut counts: HashMap<i64, Counts> = HashMap::new();
    let mut after = (i64::MIN, i64::MIN);
    loop {
        let page: Vec<(i64, i64, Vec<u8>)> = sqlx::query_as(
            "SELECT stream, seq, outcomes FROM batches WHERE (stream, seq) > ($1, $2) ORDER BY stream, seq LIMIT $3",
        )
        .bind(after.0)
        .bind(after.1)
        .bind(PAGE)
        .fetch_all(&mut *connection)
        .await?;
        let Some((stream, seq, _)) = page.last() else {
            return Ok(counts);
        };
        after = (*stream, *seq);
        for (stream, seq, outcomes) in &page {
            let batch = Counts::of(outcomes).map_err(|error| {
                let place = format!("batches, stream {stream}, seq {seq}: {error}");
                sqlx::Error::Decode(place.into())
            })?;
            *counts.entry(*stream).or_default() += batch;
        }
    }
}

/// An id of 63 bits: as a number, most readers of JSON would round it.
fn as_text<S: Serializer>(id: &i64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}
