//! What is compared, row by row, in the order of its key on both sides.

use super::merge::{Keyed, Rows};
use crate::read::MinorUnits;
use crate::store::Time;
use sqlx::FromRow;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

/// An event with one of the contents that are known of it.
#[derive(Debug, FromRow)]
pub struct Known {
    pub updated_at: Time,
    pub event_id: Vec<u8>,
    pub fingerprint: Uuid,
    pub resource_id: Uuid,
    pub stream: i64,
    pub message_offset: i64,
}

/// A resource in its state.
#[derive(Debug, FromRow)]
pub struct Resource {
    pub resource_id: Uuid,
    pub kind: String,
    pub path: String,
    pub state: String,
    pub updated_at: Time,
    pub rules_version: i32,
    pub facts: String,
}

/// What the postings of one resource come to between two accounts (of one asset: an
/// account has only one).
#[derive(Debug, FromRow)]
pub struct PostingSum {
    /// Nil where the postings have lost their event.
    pub resource_id: Uuid,
    pub low: Uuid,
    pub high: Uuid,
    /// Debited to `low` and credited to `high`, or less than 0.
    pub amount: MinorUnits,
}

/// What an account holds, debits less credits.
#[derive(Debug, Clone, FromRow)]
pub struct Balance {
    pub account_id: Uuid,
    pub path: Option<String>,
    pub asset: Option<String>,
    pub balance: MinorUnits,
}

impl Keyed for Known {
    type Key = (i64, Vec<u8>, Uuid);

    fn key(&self) -> Self::Key {
        (self.updated_at.0.micros(), self.event_id.clone(), self.fingerprint)
    }
}

impl Keyed for Resource {
    type Key = Uuid;

    fn key(&self) -> Uuid {
        self.resource_id
    }
}

impl Keyed for PostingSum {
    type Key = (Uuid, Uuid, Uuid);

    fn key(&self) -> Self::Key {
        (self.resource_id, self.low, self.high)
    }
}

impl Keyed for Balance {
    type Key = Uuid;

    fn key(&self) -> Uuid {
        self.account_id
    }
}

/// Which of two contents came first, and so stands in `events`, may differ: both tables
/// are one set.
pub fn known(connection: &mut PgConnection) -> Rows<'_, Known> {
    sqlx::query_as(
        "SELECT updated_at, event_id, fingerprint, resource_id, stream, message_offset
         FROM (SELECT updated_at, event_id, fingerprint, resource_id, stream, message_offset FROM events
               UNION ALL
               SELECT updated_at, event_id, fingerprint, resource_id, stream, message_offset FROM conflicts) known
         ORDER BY updated_at, event_id, fingerprint",
    )
    .fetch(connection)
}

pub fn resources(connection: &mut PgConnection) -> Rows<'_, Resource> {
    sqlx::query_as(
        "SELECT resource_id, kind, path, state, updated_at, rules_version, facts::text AS facts
         FROM resources ORDER BY resource_id",
    )
    .fetch(connection)
}

/// Which steps were posted depends on the order of arrival; what they come to does not.
pub fn postings(connection: &mut PgConnection) -> Rows<'_, PostingSum> {
    sqlx::query_as(
        "SELECT resource_id, low, high, sum(amount)::text AS amount
         FROM (SELECT coalesce(e.resource_id, '00000000-0000-0000-0000-000000000000') AS resource_id,
                      least(debit, credit) AS low, greatest(debit, credit) AS high,
                      CASE WHEN debit < credit THEN amount ELSE -amount END::numeric AS amount
               FROM postings p
               LEFT JOIN (SELECT stream, message_offset, resource_id FROM events WHERE outcome = 'P'
                          UNION ALL SELECT stream, message_offset, resource_id FROM conflicts) e
                    USING (stream, message_offset)) signed
         GROUP BY resource_id, low, high HAVING sum(amount) <> 0
         ORDER BY resource_id, low, high",
    )
    .fetch(connection)
}

pub fn balances(connection: &mut PgConnection) -> Rows<'_, Balance> {
    sqlx::query_as(
        "SELECT b.account_id, a.path, a.asset, (b.debits - b.credits)::text AS balance
         FROM balances b LEFT JOIN accounts a USING (account_id)
         WHERE b.debits <> b.credits ORDER BY b.account_id",
    )
    .fetch(connection)
}
