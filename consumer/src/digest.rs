//! One hash over what the books say: two ledgers with the same hash hold the same
//! state of every resource, by the same events, with the same postings in effect.
//!
//! ```text
//! SHA-256( "postonce:books:v1" LF
//!          for each resource, in the order of its id:
//!          kind  path  event_id:32  fingerprint:16  count:4  postings )
//! text     length:4 UTF-8
//! event    the one whose state the resource is in
//! posting  debit:16 credit:16 amount:8, of the resource's position, by the pair of
//!          accounts (the lesser id first)
//! ```
//! Everything in it is computed anew from the resource's own facts. What may differ
//! with the order of arrival (which steps were posted, row ids, borders of batches,
//! times of commits) is left out.

use crate::chain::{self, Hash};
use crate::decide::{Held, UnreadableState};
use crate::error::DatabaseError;
use postonce_schema::{EventId, Position, ResourceId, Rules, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use sqlx::postgres::PgConnection;
use uuid::Uuid;

/// Resources read at a time.
const PAGE: i64 = 10_000;

/// The books in one hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    pub resources: u64,
    #[serde(with = "chain::hex")]
    pub sha256: Hash,
}

/// Why the books could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    State(#[from] UnreadableState),
}

impl From<sqlx::Error> for DigestError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

/// id, kind, path, state, updated_at in microseconds, rules version, facts
type Row = (Uuid, String, String, String, i64, i32, String);

/// Reads every resource, in pages: for one state of the books call it in a transaction
/// with one snapshot.
pub async fn books(connection: &mut PgConnection, rules: &Rules) -> Result<Digest, DigestError> {
    let mut hash = Sha256::new();
    hash.update(b"postonce:books:v1\n");
    let mut resources = 0;
    let mut after: Option<Uuid> = None;
    loop {
        let page: Vec<Row> = sqlx::query_as(
            "SELECT resource_id, kind, path, state, (extract(epoch FROM updated_at) * 1000000)::bigint, rules_version,
                    facts::text
             FROM resources WHERE $1::uuid IS NULL OR resource_id > $1 ORDER BY resource_id LIMIT $2",
        )
        .bind(after)
        .bind(PAGE)
        .fetch_all(&mut *connection)
        .await?;
        let Some((last, ..)) = page.last() else {
            return Ok(Digest { resources, sha256: hash.finalize().into() });
        };
        after = Some(*last);
        for row in &page {
            hash.update(resource(rules, row)?);
            resources += 1;
        }
    }
}

/// The canonical bytes of one resource.
fn resource(rules: &Rules, (id, kind, path, state, micros, version, facts): &Row) -> Result<Vec<u8>, DigestError> {
    let id = ResourceId::from_bytes(*id.as_bytes());
    let names = (kind.as_str(), state.as_str(), *version);
    let updated_at = Timestamp::from_micros(*micros).ok_or_else(|| UnreadableState {
        resource: id,
        kind: kind.clone(),
        state: state.clone(),
        version: *version,
        why: "its time is outside the years 1970 to 9999".to_owned(),
    })?;
    let held = Held::from_names(rules, id, names, (0, updated_at), facts)?;
    let event = EventId::new(kind, state, path, updated_at);
    let fingerprint = held.facts.fingerprint(held.kind, held.state, path, updated_at);
    let postings = Position::of(held.state, &held.facts).minus(Position::default());
    let mut out = Vec::with_capacity(256);
    for text in [kind, path] {
        out.extend_from_slice(&length(text.len()));
        out.extend_from_slice(text.as_bytes());
    }
    out.extend_from_slice(event.as_bytes());
    out.extend_from_slice(fingerprint.as_bytes());
    out.extend_from_slice(&length(postings.len()));
    for posting in postings {
        out.extend_from_slice(posting.debit.id.as_bytes());
        out.extend_from_slice(posting.credit.id.as_bytes());
        out.extend_from_slice(&posting.amount.to_be_bytes());
    }
    Ok(out)
}

/// At most a few kilobytes and 200 postings.
fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}
