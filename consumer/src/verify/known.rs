//! What the ledger must know of the messages that have no row at their offset: a
//! duplicate the same event from elsewhere, a refused one its bytes in quarantine.

use super::VerifyError;
use super::report::{Check, Finding, Findings};
use crate::chain::Hash;
use postonce_schema::{EventId, Fingerprint, Timestamp};
use sqlx::postgres::PgConnection;
use std::collections::HashSet;
use uuid::Uuid;

/// What one stretch of the topic leaves to be looked up.
#[derive(Default)]
pub struct LookUps {
    pub duplicates: Vec<Duplicate>,
    /// Stream, offset, and the message's name.
    pub refused: Vec<(i64, i64, Hash)>,
}

/// A message that the ledger calls a duplicate.
pub struct Duplicate {
    pub stream: i64,
    pub offset: i64,
    pub id: EventId,
    pub updated_at: Timestamp,
    pub fingerprint: Fingerprint,
}

/// One look at the primary key for each, whatever the planner thinks of the tables.
const KNOWN: &str = "
SELECT k.event_id, e.fingerprint
FROM unnest($1::text[], $2::bytea[]) AS k (updated_at, event_id)
CROSS JOIN LATERAL (SELECT fingerprint FROM events
                    WHERE updated_at = k.updated_at::timestamptz AND event_id = k.event_id OFFSET 0) e
UNION ALL
SELECT event_id, fingerprint FROM conflicts WHERE event_id = ANY($2)";

impl LookUps {
    /// Looks all of them up.
    pub async fn judge(&self, connection: &mut PgConnection, findings: &mut Findings) -> Result<(), VerifyError> {
        self.duplicates(connection, findings).await?;
        self.refused(connection, findings).await
    }

    async fn duplicates(&self, connection: &mut PgConnection, findings: &mut Findings) -> Result<(), VerifyError> {
        if self.duplicates.is_empty() {
            return Ok(());
        }
        let known: Vec<(Vec<u8>, Uuid)> = sqlx::query_as(KNOWN)
            .bind(self.duplicates.iter().map(|one| one.updated_at.to_string()).collect::<Vec<_>>())
            .bind(self.duplicates.iter().map(|one| one.id.as_bytes().as_slice()).collect::<Vec<_>>())
            .fetch_all(connection)
            .await?;
        let known: HashSet<(&[u8], [u8; 16])> =
            known.iter().map(|(id, fingerprint)| (id.as_slice(), fingerprint.into_bytes())).collect();
        for one in &self.duplicates {
            if !known.contains(&(one.id.as_bytes().as_slice(), *one.fingerprint.as_bytes())) {
                let what = "the ledger calls this message a duplicate, but knows no such event with this content";
                findings.add(Check::Topic, Finding::new(what).at(one.stream, one.offset).event(one.id));
            }
        }
        Ok(())
    }

    async fn refused(&self, connection: &mut PgConnection, findings: &mut Findings) -> Result<(), VerifyError> {
        if self.refused.is_empty() {
            return Ok(());
        }
        let names: Vec<&[u8]> = self.refused.iter().map(|(.., name)| name.as_slice()).collect();
        let known: Vec<Vec<u8>> =
            sqlx::query_scalar("SELECT message_hash FROM quarantine WHERE message_hash = ANY($1)")
                .bind(names)
                .fetch_all(connection)
                .await?;
        let known: HashSet<Vec<u8>> = known.into_iter().collect();
        for (stream, offset, _) in self.refused.iter().filter(|(.., name)| !known.contains(name.as_slice())) {
            let what = "the ledger has refused this message, but its bytes are not in quarantine";
            findings.add(Check::Topic, Finding::new(what).at(*stream, *offset));
        }
        Ok(())
    }
}
