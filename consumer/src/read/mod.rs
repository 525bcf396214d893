//! The questions that people ask of the books, one file each. All of them read and
//! none of them writes: the replies are plain structs for tables, JSON and HTTP.
//!
//! A question that needs several statements asks them of one snapshot, so that a
//! consumer at work beside it cannot make the answer contradict itself.

pub mod balances;
mod columns;
pub mod counts;
pub mod cursor;
mod events_of;
pub mod export;
mod reasons;
pub mod statement;
pub mod status;
pub mod trace;

pub use columns::{MinorUnits, When};
pub(crate) use events_of::{events_of, look_up_only};

use crate::error::DatabaseError;
use sqlx::postgres::PgConnection;
use sqlx::{Connection, Postgres, Transaction};

/// One state of the books for several statements. `connection` must not be in a
/// transaction already.
pub(crate) async fn snapshot(connection: &mut PgConnection) -> Result<Transaction<'_, Postgres>, DatabaseError> {
    Ok(connection.begin_with("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?)
}

/// Whether a schema on the search path holds a ledger.
pub async fn holds_a_ledger(connection: &mut PgConnection) -> Result<bool, DatabaseError> {
    let sql = "SELECT to_regclass('streams') IS NOT NULL AND to_regclass('stream_positions') IS NOT NULL";
    Ok(sqlx::query_scalar(sql).fetch_one(connection).await?)
}
