//! Who may advance a stream, and where it goes on.
//!
//! A claim is a random token, written to the stream's row when its partition has
//! just been assigned, never otherwise: two owners claiming back and forth would
//! stop each other for ever. The fence of every transaction compares it.

use crate::chain::{Hash, START};
use crate::failure::Failure;
use postonce_schema::StreamId;
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};
use std::collections::BTreeMap;
use uuid::Uuid;

/// One lineage of offsets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lineage {
    pub cluster_id: String,
    pub topic: String,
    /// As Kafka prints it, base64.
    pub topic_id: String,
}

impl Lineage {
    /// The stream of one of the topic's partitions.
    pub fn stream(&self, partition: i32) -> StreamId {
        StreamId::new(&self.cluster_id, &self.topic, &self.topic_id, partition)
    }

    /// A lineage of its own over the same topic, for a replay that runs the real transaction:
    /// no offset and no claim of the live consumers is its own.
    pub fn of_replay(&self) -> Self {
        Self { topic_id: format!("{REPLAY}{}", Uuid::from_u128(rand::random())), ..self.clone() }
    }

    fn is_replay(&self) -> bool {
        self.topic_id.starts_with(REPLAY)
    }
}

/// Kafka's own topic ids are base64 and hold no colon.
const REPLAY: &str = "replay:";

/// A claimed stream, as the last commit left it. It lives no longer than the
/// worker's life.
#[derive(Debug, Clone)]
pub struct Claim {
    pub stream: StreamId,
    pub partition: i32,
    /// The random token that makes the claim ours.
    pub token: Uuid,
    pub epoch: i64,
    /// The first offset without an outcome.
    pub next_offset: i64,
    /// The leader's epoch of what stands before that offset, where it is known: the broker
    /// tells from it whether the log still is the one that was read.
    pub leader_epoch: Option<i32>,
    pub batch_seq: i64,
    pub message_chain: Hash,
    pub batch_chain: Hash,
}

/// The claims of one worker.
pub type Claims = BTreeMap<StreamId, Claim>;

/// Another lineage under which the ledger knows a topic of this name.
#[derive(Debug, Clone)]
pub struct KnownLineage {
    pub lineage: Lineage,
    pub offsets: i64,
}

/// Whether the ledger has read of this lineage before, or a person has accepted it.
pub async fn is_known(connection: &mut PgConnection, lineage: &Lineage) -> Result<bool, Failure> {
    let known = sqlx::query_scalar(
        "SELECT EXISTS (SELECT FROM streams
                        WHERE (cluster_id, topic, topic_id) = ($1, $2, $3) AND NOT replay)
             OR EXISTS (SELECT FROM actions WHERE action = 'accept_lineage' AND stream = $4)",
    )
    .bind(&lineage.cluster_id)
    .bind(&lineage.topic)
    .bind(&lineage.topic_id)
    .bind(lineage.stream(0).as_i64())
    .fetch_one(connection)
    .await?;
    Ok(known)
}

/// The lineages, other than `lineage`, that have consumed a topic of this name.
pub async fn other_lineages(connection: &mut PgConnection, lineage: &Lineage) -> Result<Vec<KnownLineage>, Failure> {
    let rows = sqlx::query(
        "SELECT cluster_id, topic_id, sum(next_offset - first_offset)::bigint FROM streams
         WHERE topic = $1 AND (cluster_id, topic_id) <> ($2, $3) AND NOT replay
         GROUP BY cluster_id, topic_id ORDER BY max(created_at) DESC",
    )
    .bind(&lineage.topic)
    .bind(&lineage.cluster_id)
    .bind(&lineage.topic_id)
    .fetch_all(connection)
    .await?;
    let known = |row: &PgRow| {
        let (cluster_id, topic_id) = (row.try_get(0)?, row.try_get(1)?);
        let lineage = Lineage { cluster_id, topic: lineage.topic.clone(), topic_id };
        Ok(KnownLineage { lineage, offsets: row.try_get(2)? })
    };
    rows.iter().map(known).collect()
}

/// Claims a stream. A stream that the ledger does not know yet begins at `log_start`.
///
/// The UPDATE waits for a former owner's transaction that is still open and then
/// sees what it left: a plain SELECT would read the offset from before its commit.
pub async fn claim(
    connection: &mut PgConnection,
    lineage: &Lineage,
    partition: i32,
    log_start: i64,
) -> Result<Claim, Failure> {
    let stream = lineage.stream(partition);
    let mut transaction = connection.begin().await?;
    sqlx::query(
        "INSERT INTO streams (stream, cluster_id, topic, topic_id, partition, first_offset, next_offset,
                              message_chain, batch_chain, replay)
         VALUES ($1, $2, $3, $4, $5, $6, $6, $7, $7, $8) ON CONFLICT (stream) DO NOTHING",
    )
    .bind(stream.as_i64())
    .bind(&lineage.cluster_id)
    .bind(&lineage.topic)
    .bind(&lineage.topic_id)
    .bind(partition)
    .bind(log_start)
    .bind(START.as_slice())
    .bind(lineage.is_replay())
    .execute(&mut *transaction)
    .await?;
    let claim = take(&mut transaction, stream, partition, Uuid::from_u128(rand::random()), None).await?;
    transaction.commit().await?;
    // The stream's id is 63 bits of a hash: two lineages with one id would share offsets.
    claim.ok_or_else(|| {
        Failure::Damage(format!("stream {} is not partition {partition} of {lineage:?}", stream.as_i64()))
    })
}

/// Says that a claim goes on over a new connection, if it is still ours. The epoch
/// moves on: the backend of the old connection is that of a former owner now.
///
/// The database may be another one by now: a backup that was put back, a standby that had
/// not heard of the last commits. It may know the token and still tell another history.
pub async fn renew(connection: &mut PgConnection, claim: &Claim) -> Result<Claim, Failure> {
    let mut transaction = connection.begin().await?;
    let renewed = take(&mut transaction, claim.stream, claim.partition, claim.token, Some(claim)).await?;
    transaction.commit().await?;
    renewed.ok_or(Failure::FenceLost)
}

/// Whether all these claims still are the streams' own, and the streams as they were left.
pub async fn are_ours(connection: &mut PgConnection, claims: &Claims) -> Result<bool, Failure> {
    let ours: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM unnest($1::bigint[], $2::uuid[], $3::bigint[], $4::bytea[])
                              AS n (stream, claim, next_offset, message_chain)
         JOIN streams s ON s.stream = n.stream AND s.claim = n.claim
                       AND s.next_offset = n.next_offset AND s.message_chain = n.message_chain",
    )
    .bind(claims.keys().map(|stream| stream.as_i64()).collect::<Vec<_>>())
    .bind(claims.values().map(|claim| claim.token).collect::<Vec<_>>())
    .bind(claims.values().map(|claim| claim.next_offset).collect::<Vec<_>>())
    .bind(claims.values().map(|claim| claim.message_chain.as_slice()).collect::<Vec<_>>())
    .fetch_one(connection)
    .await?;
    Ok(i64::try_from(claims.len()) == Ok(ours))
}

/// Writes the token and this connection's backend to the stream's row. With `held`
/// only if the row is as that claim left it.
async fn take(
    transaction: &mut PgConnection,
    stream: StreamId,
    partition: i32,
    token: Uuid,
    held: Option<&Claim>,
) -> Result<Option<Claim>, Failure> {
    let row = sqlx::query(
        "WITH me AS (SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()),
              taken AS (
                  UPDATE streams s
                  SET claim = $2, epoch = s.epoch + 1, backend_pid = me.pid, backend_start = me.backend_start
                  FROM me
                  WHERE s.stream = $1 AND s.partition = $3
                    AND ($4::uuid IS NULL
                         OR (s.claim = $4 AND s.next_offset = $5 AND s.message_chain = $6 AND s.batch_chain = $7))
                  RETURNING s.*),
              noted AS (
                  INSERT INTO claims (stream, epoch, claim, backend_pid, backend_start)
                  SELECT stream, epoch, claim, backend_pid, backend_start FROM taken)
         SELECT epoch, next_offset, batch_seq, message_chain, batch_chain,
                CASE WHEN leader_epoch_offset = next_offset THEN leader_epoch END
         FROM taken",
    )
    .bind(stream.as_i64())
    .bind(token)
    .bind(partition)
    .bind(held.map(|claim| claim.token))
    .bind(held.map(|claim| claim.next_offset))
    .bind(held.map(|claim| claim.message_chain.as_slice()))
    .bind(held.map(|claim| claim.batch_chain.as_slice()))
    .fetch_optional(transaction)
    .await?;
    let claim = |row: PgRow| {
        Ok(Claim {
            stream,
            partition,
            token,
            epoch: row.try_get(0)?,
            next_offset: row.try_get(1)?,
            batch_seq: row.try_get(2)?,
            message_chain: hash(row.try_get(3)?)?,
            batch_chain: hash(row.try_get(4)?)?,
            leader_epoch: row.try_get(5)?,
        })
    };
    row.map(claim).transpose()
}

/// Ends the transactions of former owners that keep `backend_pid` waiting. `streams`
/// are those that this worker holds or is about to claim, with the epoch of its
/// claim: whoever claimed one of them earlier and still blocks us is frozen or cut
/// off, and its batch is lost at the fence anyway. Returns how many were ended.
pub async fn end_former_owners(
    connection: &mut PgConnection,
    backend_pid: i32,
    streams: &[(StreamId, i64)],
) -> Result<u64, Failure> {
    // backend_start: a process id is used again, perhaps by a stranger.
    // epoch: a zombie must never end its rightful successor.
    // RECURSIVE: we may wait for a stranger who waits for the frozen one.
    let ended = sqlx::query(
        "WITH RECURSIVE blocking (pid) AS (
             SELECT unnest(pg_blocking_pids($1)) UNION SELECT unnest(pg_blocking_pids(pid)) FROM blocking)
         SELECT pg_terminate_backend(a.pid)
         FROM blocking
         JOIN pg_stat_activity a ON a.pid = blocking.pid
         WHERE EXISTS (SELECT FROM unnest($2::bigint[], $3::bigint[]) AS mine (stream, epoch)
                       JOIN claims c ON c.stream = mine.stream AND c.epoch < mine.epoch
                       WHERE c.backend_pid = a.pid AND c.backend_start = a.backend_start)",
    )
    .bind(backend_pid)
    .bind(streams.iter().map(|(stream, _)| stream.as_i64()).collect::<Vec<_>>())
    .bind(streams.iter().map(|(_, epoch)| *epoch).collect::<Vec<_>>())
    .execute(connection)
    .await?;
    Ok(ended.rows_affected())
}

/// The process id of the server's side of this connection.
pub async fn backend_pid(connection: &mut PgConnection) -> Result<i32, Failure> {
    Ok(sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(connection).await?)
}

fn hash(bytes: &[u8]) -> Result<Hash, Failure> {
    bytes.try_into().map_err(|_| Failure::Damage("a chain's hash is not 32 bytes".to_owned()))
}
