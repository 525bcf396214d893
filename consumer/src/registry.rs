//! The rules in the database: a version that has judged an event is frozen.

use crate::failure::Failure;
use postonce_schema::{Rules, Version};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{Connection, Row};

/// Why a consumer with these rules must not run.
#[derive(Debug, thiserror::Error)]
pub enum RulesRefused {
    #[error(
        "rules version {version} is in use and frozen, but line {line} of the rules file has changed\n  \
         was: {was}\n  now: {now}\nPut the line back, and append a new version with a later `from`"
    )]
    Altered { version: i32, line: usize, was: String, now: String },
    #[error("rules version {version} is in use, but the rules file does not have it; put it back")]
    Missing { version: i32 },
    #[error(
        "rules version {version} is new and in force from {from}, but an event of {last} has been judged already; \
         choose a later `from`"
    )]
    TooEarly { version: i32, from: String, last: String },
    /// Only where nothing may be registered.
    #[error("rules version {version} is not in use yet: no consumer has run with it")]
    NotInUse { version: i32 },
    #[error(transparent)]
    Failure(#[from] Failure),
}

impl From<sqlx::Error> for RulesRefused {
    fn from(error: sqlx::Error) -> Self {
        Self::Failure(error.into())
    }
}

struct Frozen {
    version: i32,
    hash: Vec<u8>,
    definition: String,
}

/// Compares the rules with those in use, and registers new versions.
pub async fn register(connection: &mut PgConnection, rules: &Rules) -> Result<(), RulesRefused> {
    let frozen = frozen(connection).await?;
    if compare(&frozen, rules)?.is_empty() {
        return Ok(());
    }
    let mut transaction = connection.begin().await?;
    // Waits for every batch that is being written, and keeps the next ones waiting:
    // otherwise one with the older rules could commit an event after `from` between
    // the look at the last event and the commit of the new version.
    sqlx::query("SELECT pg_advisory_xact_lock(hashtextextended('postonce rules ' || current_schema(), 0))")
        .execute(&mut *transaction)
        .await?;
    let frozen = self::frozen(&mut transaction).await?;
    for version in compare(&frozen, rules)? {
        insert(&mut transaction, version).await?;
    }
    transaction.commit().await?;
    Ok(())
}

/// Compares the rules with those in use and writes nothing. The versions that are new.
pub async fn check<'r>(connection: &mut PgConnection, rules: &'r Rules) -> Result<Vec<&'r Version>, RulesRefused> {
    compare(&frozen(connection).await?, rules)
}

async fn frozen(connection: &mut PgConnection) -> Result<Vec<Frozen>, RulesRefused> {
    let rows =
        sqlx::query("SELECT version, hash, definition FROM rules ORDER BY version").fetch_all(connection).await?;
    let frozen =
        |row: &PgRow| Ok(Frozen { version: row.try_get(0)?, hash: row.try_get(1)?, definition: row.try_get(2)? });
    rows.iter().map(frozen).collect()
}

/// The versions of the file that the database does not have yet.
fn compare<'r>(frozen: &[Frozen], rules: &'r Rules) -> Result<Vec<&'r Version>, RulesRefused> {
    for Frozen { version, hash, definition } in frozen {
        let held = rules.version(*version).ok_or(RulesRefused::Missing { version: *version })?;
        if held.hash().as_slice() != hash {
            let (line, was, now) = held.first_change(definition).unwrap_or_default();
            return Err(RulesRefused::Altered { version: *version, line, was, now });
        }
    }
    let is_new = |version: &&Version| frozen.iter().all(|frozen| frozen.version != version.number);
    Ok(rules.versions().iter().filter(is_new).collect())
}

async fn insert(transaction: &mut PgConnection, version: &Version) -> Result<(), RulesRefused> {
    // An event at or after `from` that is known already was judged by older rules.
    let last: Option<String> = sqlx::query_scalar(
        "SELECT to_char(max(updated_at), 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"') FROM events WHERE updated_at >= $1::text::timestamptz",
    )
    .bind(version.from.to_string())
    .fetch_one(&mut *transaction)
    .await?;
    if let Some(last) = last {
        return Err(RulesRefused::TooEarly { version: version.number, from: version.from.to_string(), last });
    }
    sqlx::query("INSERT INTO rules (version, valid_from, hash, definition) VALUES ($1, $2::text::timestamptz, $3, $4)")
        .bind(version.number)
        .bind(version.from.to_string())
        .bind(version.hash().as_slice())
        .bind(version.text())
        .execute(transaction)
        .await?;
    Ok(())
}
