//! What the commands that read the ledger have in common.

use crate::args::DatabaseArgs;
use anyhow::Context;
use postonce_consumer::database::Database;
use postonce_consumer::read;
use postonce_schema::Timestamp;
use sqlx::postgres::PgConnection;

/// Asks a question over one connection.
pub fn ask<T>(
    args: &DatabaseArgs,
    question: impl AsyncFnOnce(&mut PgConnection) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let database = Database::new(&args.database_url, &args.schema)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("no async runtime")?;
    runtime.block_on(async {
        let mut connection = database.connect().await?;
        let found = read::holds_a_ledger(&mut connection).await?;
        anyhow::ensure!(found, "there is no ledger at {database}; create it with `postonce migrate`");
        question(&mut connection).await
    })
}

/// A point in time on the command line: RFC 3339, or a date for its midnight in UTC.
pub fn time(text: &str) -> Result<Timestamp, String> {
    let midnight = format!("{text}T00:00:00Z");
    Timestamp::parse(if text.len() == 10 { &midnight } else { text })
        .map_err(|why| format!("{why}; write 2026-01-31 (midnight, UTC) or RFC 3339 such as 2026-01-31T12:00:00+01:00"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_date_is_its_midnight() {
        assert_eq!(time("2026-01-31"), time("2026-01-31T00:00:00Z"));
        assert_eq!(time("2026-01-31T01:00:00+01:00"), time("2026-01-31"));
        for refused in ["2026-02-30", "yesterday", "", "2026-01-31 00:00:00", "2026-1-31"] {
            assert!(time(refused).is_err(), "{refused}");
        }
    }
}
