//! What can go wrong beside a rejected message.

use std::time::Duration;

/// Postgres cannot be reached or does not answer as it should.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    #[error("the Postgres URL cannot be read; write postgres://user:password@host:port/database")]
    BadUrl,
    #[error("\"{0}\" is no schema name; write [a-z_][a-z0-9_]*, at most 63 bytes")]
    BadSchemaName(String),
    #[error("no connection to Postgres at {at}: {source}")]
    Unreachable { at: String, source: sqlx::Error },
    #[error("Postgres at {at} did not answer within {after:?}")]
    TimedOut { at: String, after: Duration },
    #[error("the schema could not be brought up to date: {0}")]
    Migration(#[source] sqlx::migrate::MigrateError),
    #[error("the ledger at {at} is not there or not up to date; run `postonce migrate`")]
    NotMigrated { at: String },
    #[error("Postgres refused a query: {0}")]
    Query(#[from] sqlx::Error),
}
