//! `balances`: what each account holds, now or at an earlier time, and the trial
//! balance.

use super::MinorUnits;
use crate::error::DatabaseError;
use postonce_schema::Timestamp;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgConnection;

/// One account of one asset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, sqlx::FromRow)]
pub struct AccountBalance {
    pub account: String,
    pub asset: String,
    pub debits: MinorUnits,
    pub credits: MinorUnits,
    /// debits − credits
    pub balance: MinorUnits,
}

/// All accounts of one asset: the difference is zero, or the books are damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, sqlx::FromRow)]
pub struct AssetTotal {
    pub asset: String,
    pub debits: MinorUnits,
    pub credits: MinorUnits,
    pub difference: MinorUnits,
}

/// Which accounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Accounts<'a> {
    /// Text with which their path begins; empty for all.
    pub prefix: &'a str,
    pub asset: Option<&'a str>,
}

/// Balances by path and asset: the present ones, or those at the end of `as_of`.
/// The latter add up all postings of these accounts that took effect by then.
pub async fn balances(
    connection: &mut PgConnection,
    accounts: Accounts<'_>,
    as_of: Option<Timestamp>,
) -> Result<Vec<AccountBalance>, DatabaseError> {
    let query = match as_of {
        None => sqlx::query_as(NOW),
        Some(_) => sqlx::query_as(AS_OF),
    };
    let query = query.bind(accounts.prefix).bind(accounts.asset);
    let query = match as_of {
        None => query,
        Some(time) => query.bind(time.to_string()),
    };
    Ok(query.fetch_all(connection).await?)
}

// A range and not LIKE or starts_with: the index on (path, asset) serves it on every
// version. Paths hold nothing above 'z', so prefix || '~' ends the range exactly.
const NOW: &str = "
SELECT a.path AS account, a.asset, b.debits::text AS debits, b.credits::text AS credits,
       (b.debits - b.credits)::text AS balance
FROM accounts a JOIN balances b USING (account_id)
WHERE a.path >= $1 AND a.path < $1 || '~' AND ($2::text IS NULL OR a.asset = $2)
ORDER BY a.path, a.asset";

const AS_OF: &str = "
WITH chosen AS (
    SELECT account_id, path, asset FROM accounts
    WHERE path >= $1 AND path < $1 || '~' AND ($2::text IS NULL OR asset = $2)
), sides AS (
    SELECT debit AS account_id, sum(amount) AS debits, 0 AS credits FROM postings
    WHERE effective_at <= $3::text::timestamptz AND debit IN (SELECT account_id FROM chosen) GROUP BY debit
    UNION ALL
    SELECT credit, 0, sum(amount) FROM postings
    WHERE effective_at <= $3::text::timestamptz AND credit IN (SELECT account_id FROM chosen) GROUP BY credit
)
SELECT c.path AS account, c.asset, sum(s.debits)::text AS debits, sum(s.credits)::text AS credits,
       (sum(s.debits) - sum(s.credits))::text AS balance
FROM sides s JOIN chosen c USING (account_id)
GROUP BY c.path, c.asset
ORDER BY c.path, c.asset";

/// Debits and credits of every asset over all accounts.
pub async fn trial_balance(connection: &mut PgConnection) -> Result<Vec<AssetTotal>, DatabaseError> {
    let totals = sqlx::query_as(
        "SELECT asset, debits::text AS debits, credits::text AS credits, difference::text AS difference
         FROM trial_balance ORDER BY asset",
    );
    Ok(totals.fetch_all(connection).await?)
}

/// The assets in which a path has an account.
pub async fn assets_of(connection: &mut PgConnection, path: &str) -> Result<Vec<String>, DatabaseError> {
    let assets = sqlx::query_scalar("SELECT asset FROM accounts WHERE path = $1 ORDER BY asset").bind(path);
    Ok(assets.fetch_all(connection).await?)
}
