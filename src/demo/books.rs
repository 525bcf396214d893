//! What the ledger says after a pass, and what it should say.

use anyhow::Result;
use postonce_consumer::read::counts::Counts;
use postonce_producer::generate::Summary;
use sqlx::postgres::PgConnection;

/// The ledger after a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Books {
    pub outcomes: Counts,
    /// Rows that only ever are added.
    pub events: i64,
    pub postings: i64,
    pub conflicts: i64,
    pub incidents: i64,
    /// SHA-256 over every account's debits and credits.
    pub balances: String,
    /// SHA-256 over what every account holds: the same for the same events, in whatever
    /// order they came.
    pub net: String,
    /// SHA-256 over every resource's state, revision and facts.
    pub resources: String,
}

impl Books {
    pub async fn read(connection: &mut PgConnection) -> Result<Self> {
        let mut outcomes = Counts::default();
        for bytes in
            sqlx::query_scalar::<_, Vec<u8>>("SELECT outcomes FROM batches").fetch_all(&mut *connection).await?
        {
            outcomes += Counts::of(&bytes)?;
        }
        let (events, postings, conflicts, incidents): (i64, i64, i64, i64) = sqlx::query_as(
            "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM postings),
                    (SELECT count(*) FROM conflicts), (SELECT count(*) FROM incidents)",
        )
        .fetch_one(&mut *connection)
        .await?;
        let (balances, net, resources): (String, String, String) =
            sqlx::query_as(DIGESTS).fetch_one(connection).await?;
        Ok(Self { outcomes, events, postings, conflicts, incidents, balances, net, resources })
    }
}

// A digest of row digests: one string of all rows could pass Postgres' 1 GB.
const DIGESTS: &str = "
SELECT (SELECT encode(sha256(string_agg(sha256(convert_to(concat_ws(' ', account_id, debits, credits), 'UTF8')), ''
                                        ORDER BY account_id)), 'hex')
        FROM balances),
       (SELECT encode(sha256(string_agg(sha256(convert_to(concat_ws(' ', account_id, debits - credits), 'UTF8')), ''
                                        ORDER BY account_id)), 'hex')
        FROM balances WHERE debits <> credits),
       (SELECT encode(sha256(string_agg(sha256(convert_to(concat_ws(' ', resource_id, state, revision, rules_version,
                                                                    facts), 'UTF8')), '' ORDER BY resource_id)), 'hex')
        FROM resources)";

/// The outcomes that a pass must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Posted, noted or superseded: which of them depends on the order of arrival.
    pub accepted: u64,
    pub duplicate: u64,
    pub conflict: u64,
    pub rejected: u64,
}

impl Expected {
    pub fn first_pass(sent: &Summary) -> Self {
        let Summary { unique, duplicates, conflicts, poison, .. } = *sent;
        Self { accepted: unique, duplicate: duplicates, conflict: conflicts, rejected: poison }
    }

    /// Everything is known by now, contradictions too; poison stays poison.
    pub fn second_pass(sent: &Summary) -> Self {
        let Summary { unique, duplicates, conflicts, poison, .. } = *sent;
        Self { accepted: 0, duplicate: unique + duplicates + conflicts, conflict: 0, rejected: poison }
    }

    pub fn of(counts: &Counts) -> Self {
        let Counts { duplicate, conflict, rejected, .. } = *counts;
        Self { accepted: accepted(counts), duplicate, conflict, rejected }
    }

    pub fn messages(&self) -> u64 {
        self.accepted + self.duplicate + self.conflict + self.rejected
    }
}

pub fn accepted(counts: &Counts) -> u64 {
    counts.posted + counts.noted + counts.superseded
}

/// What came after `before`. Fewer than before is no more than zero: the ledger was
/// tampered with, and the checks will say so.
pub fn difference(after: &Counts, before: &Counts) -> Counts {
    Counts {
        posted: after.posted.saturating_sub(before.posted),
        noted: after.noted.saturating_sub(before.noted),
        duplicate: after.duplicate.saturating_sub(before.duplicate),
        superseded: after.superseded.saturating_sub(before.superseded),
        conflict: after.conflict.saturating_sub(before.conflict),
        rejected: after.rejected.saturating_sub(before.rejected),
        holes: after.holes.saturating_sub(before.holes),
        lost: after.lost.saturating_sub(before.lost),
    }
}
