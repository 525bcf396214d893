//! What people have decided, and the deciding of it.

use super::key::{IncidentKey, MessageKey};
use crate::chain::Hash;
use crate::error::DatabaseError;
use crate::read::When;
use serde::Serialize;
use sqlx::postgres::PgConnection;

/// Who decides, and why.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'a> {
    pub person: &'a str,
    pub why: Option<&'a str>,
}

/// One decision, as it is kept for ever.
#[derive(Clone, Debug, Serialize, sqlx::FromRow)]
pub struct Action {
    pub acted_at: When,
    pub action: String,
    /// The name that the person gave.
    pub person: String,
    /// The role that the database knows.
    pub role: String,
    pub why: Option<String>,
    pub code: Option<String>,
}

/// Every decision on a refused message, under whichever code, oldest first.
pub async fn of_message(connection: &mut PgConnection, hash: &Hash) -> Result<Vec<Action>, DatabaseError> {
    let actions = sqlx::query_as(
        "SELECT (extract(epoch FROM acted_at) * 1000000)::bigint AS acted_at, action, person, role, why, code
         FROM actions WHERE message_hash = $1 ORDER BY acted_at, action_id",
    );
    Ok(actions.bind(hash.as_slice()).fetch_all(connection).await?)
}

/// Every decision on an incident, oldest first.
pub async fn of_incident(connection: &mut PgConnection, key: &IncidentKey) -> Result<Vec<Action>, DatabaseError> {
    let actions = sqlx::query_as(
        "SELECT (extract(epoch FROM acted_at) * 1000000)::bigint AS acted_at, action, person, role, why, code
         FROM actions WHERE stream = $1 AND from_offset = $2 AND code = $3 AND action = 'incident_close'
         ORDER BY acted_at, action_id",
    );
    Ok(actions.bind(key.stream).bind(key.offset).bind(&key.code).fetch_all(connection).await?)
}

/// Writes down that these messages are about to be sent again, and names those that still
/// are open: only they may be sent. Committed when this returns.
pub async fn record_retry(
    connection: &mut PgConnection,
    keys: &[MessageKey],
    decision: Decision<'_>,
) -> Result<Vec<MessageKey>, DatabaseError> {
    let recorded = sqlx::query_as(
        "INSERT INTO actions (action_id, action, person, why, message_hash, code)
         SELECT gen_random_uuid(), 'quarantine_retry', $3, $4, q.message_hash, q.code
         FROM unnest($1::bytea[], $2::text[]) AS n (message_hash, code)
         JOIN quarantine q USING (message_hash, code)
         WHERE q.closed_at IS NULL
         RETURNING message_hash AS hash, code",
    );
    Ok(recorded
        .bind(keys.iter().map(|key| key.hash.as_slice()).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.code.as_str()).collect::<Vec<_>>())
        .bind(decision.person)
        .bind(decision.why)
        .fetch_all(connection)
        .await?)
}

/// Dismisses those of these messages that are open, each with its action, in one
/// transaction; names them.
pub async fn dismiss(
    connection: &mut PgConnection,
    keys: &[MessageKey],
    decision: Decision<'_>,
) -> Result<Vec<MessageKey>, DatabaseError> {
    // Locked in the order of the key, as the consumer's batches lock them.
    let dismissed = sqlx::query_as(
        "WITH open AS (
             SELECT q.message_hash, q.code
             FROM unnest($1::bytea[], $2::text[]) AS n (message_hash, code)
             JOIN quarantine q USING (message_hash, code)
             WHERE q.closed_at IS NULL
             ORDER BY q.message_hash, q.code FOR UPDATE OF q
         ), closed AS (
             UPDATE quarantine q SET closed_at = clock_timestamp()
             FROM open WHERE q.message_hash = open.message_hash AND q.code = open.code
             RETURNING q.message_hash, q.code
         )
         INSERT INTO actions (action_id, action, person, why, message_hash, code)
         SELECT gen_random_uuid(), 'quarantine_dismiss', $3, $4, message_hash, code FROM closed
         RETURNING message_hash AS hash, code",
    );
    Ok(dismissed
        .bind(keys.iter().map(|key| key.hash.as_slice()).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.code.as_str()).collect::<Vec<_>>())
        .bind(decision.person)
        .bind(decision.why)
        .fetch_all(connection)
        .await?)
}

/// Closes those of these incidents that are open, each with its action, in one
/// transaction; names them.
pub async fn close(
    connection: &mut PgConnection,
    keys: &[IncidentKey],
    decision: Decision<'_>,
) -> Result<Vec<IncidentKey>, DatabaseError> {
    let closed = sqlx::query_as(
        "WITH open AS (
             SELECT i.stream, i.message_offset, i.code
             FROM unnest($1::bigint[], $2::bigint[], $3::text[]) AS n (stream, message_offset, code)
             JOIN incidents i USING (stream, message_offset, code)
             WHERE i.closed_at IS NULL
             ORDER BY i.stream, i.message_offset, i.code FOR UPDATE OF i
         ), closed AS (
             UPDATE incidents i SET closed_at = clock_timestamp()
             FROM open WHERE i.stream = open.stream AND i.message_offset = open.message_offset AND i.code = open.code
             RETURNING i.stream, i.message_offset, i.code
         )
         INSERT INTO actions (action_id, action, person, why, stream, from_offset, code)
         SELECT gen_random_uuid(), 'incident_close', $4, $5, stream, message_offset, code FROM closed
         RETURNING stream, from_offset AS \"offset\", code",
    );
    Ok(closed
        .bind(keys.iter().map(|key| key.stream).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.offset).collect::<Vec<_>>())
        .bind(keys.iter().map(|key| key.code.as_str()).collect::<Vec<_>>())
        .bind(decision.person)
        .bind(decision.why)
        .fetch_all(connection)
        .await?)
}
