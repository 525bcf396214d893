//! `export`: the postings with their events, in the order of their effect, page by
//! page, so that a ledger of any size passes through a little memory.

use super::snapshot;
use crate::error::DatabaseError;
use postonce_schema::{AccountPath, Timestamp};
use sqlx::postgres::{PgConnection, PgRow};
use sqlx::{AssertSqlSafe, FromRow, Postgres, Transaction};
use std::marker::PhantomData;

/// Rows in one answer of the server.
const PAGE: u16 = 5_000;

/// Which part of the ledger.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    /// Only events that moved money of this account or of one below it, with all of
    /// their postings: a half of an event would not balance.
    pub account: Option<AccountPrefix>,
    /// Inclusive.
    pub from: Option<Timestamp>,
    /// Exclusive, so that one period's end is the next one's beginning.
    pub to: Option<Timestamp>,
}

/// An account and all below it: `liabilities:merchant:m_4` is not the beginning of
/// `liabilities:merchant:m_42`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountPrefix(String);

impl AccountPrefix {
    /// A colon at the end changes nothing.
    pub fn new(text: &str) -> Self {
        Self(text.strip_suffix(':').unwrap_or(text).to_owned())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An account of one asset that the selection moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedAccount {
    pub path: AccountPath,
    pub asset: String,
    /// Its earliest posting in the selection.
    pub first: Timestamp,
}

/// One posting: an amount from `credit` to `debit`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Posting {
    pub event: Event,
    pub line: i16,
    pub debit: AccountPath,
    pub credit: AccountPath,
    pub asset: String,
    /// Minor units.
    pub amount: i64,
}

/// What moved the money.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub effective_at: Timestamp,
    pub event_id: String,
    pub type_name: String,
    pub resource: String,
    pub topic: String,
    pub partition: i32,
    pub offset: i64,
    /// Tells the lineages of one topic apart.
    stream: i64,
}

/// Why there is no export.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error("there is no account {0} and none below it; `postonce balances` lists them")]
    NoAccount(String),
    #[error("the ledger is damaged: {what} {why}; `postonce verify` says more")]
    Damaged { what: String, why: String },
}

impl From<sqlx::Error> for ExportError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

/// One state of the ledger, to be asked for accounts and postings.
pub struct Export<'c> {
    transaction: Transaction<'c, Postgres>,
    selection: Selection,
}

impl<'c> Export<'c> {
    pub async fn begin(connection: &'c mut PgConnection, selection: Selection) -> Result<Self, ExportError> {
        let mut transaction = snapshot(connection).await?;
        // All rows will be read, not only the first tenth that a cursor is planned for.
        sqlx::raw_sql("SET LOCAL cursor_tuple_fraction = 1; SET LOCAL work_mem = '64MB'")
            .execute(&mut *transaction)
            .await?;
        match &selection.account {
            // Each table once, one after the other. By look-ups, events that share one
            // updatedAt (a date, in some topics) would be compared each with each.
            None => sqlx::raw_sql("SET LOCAL enable_nestloop = off").execute(&mut *transaction).await.map(drop)?,
            Some(prefix) => ensure_known(&mut transaction, prefix).await?,
        }
        Ok(Self { transaction, selection })
    }

    /// By path and asset.
    pub async fn accounts(&mut self) -> Result<Pages<'_, MovedAccount>, ExportError> {
        self.open("accounts", ACCOUNTS).await
    }

    /// By effective_at, then by stream, offset and line: the postings of an event follow
    /// each other.
    pub async fn postings(&mut self) -> Result<Pages<'_, Posting>, ExportError> {
        self.open("postings", POSTINGS).await
    }

    async fn open<T>(&mut self, name: &'static str, query: &str) -> Result<Pages<'_, T>, ExportError> {
        let Selection { account, from, to } = &self.selection;
        let chosen = if account.is_some() { TOUCHING } else { ALL };
        let declare = format!("DECLARE export_{name} NO SCROLL CURSOR FOR WITH chosen AS ({chosen}) {query}");
        sqlx::query(AssertSqlSafe(declare))
            .bind(from.map_or_else(|| "-infinity".to_owned(), |time| time.to_string()))
            .bind(to.map_or_else(|| "infinity".to_owned(), |time| time.to_string()))
            .bind(account.as_ref().map_or("", AccountPrefix::as_str))
            .execute(&mut *self.transaction)
            .await?;
        let fetch = format!("FETCH {PAGE} FROM export_{name}");
        Ok(Pages { connection: &mut self.transaction, fetch, of: PhantomData })
    }
}

/// Rows as they come from the server.
pub struct Pages<'e, T> {
    connection: &'e mut PgConnection,
    fetch: String,
    of: PhantomData<T>,
}

impl<T> Pages<'_, T> {
    async fn rows<R>(&mut self) -> Result<Vec<R>, ExportError>
    where
        R: for<'r> FromRow<'r, PgRow> + Send + Unpin,
    {
        let fetch = sqlx::query_as(AssertSqlSafe(self.fetch.clone()));
        Ok(fetch.fetch_all(&mut *self.connection).await?)
    }
}

impl Pages<'_, MovedAccount> {
    /// Empty at the end.
    pub async fn next(&mut self) -> Result<Vec<MovedAccount>, ExportError> {
        self.rows::<AccountRow>().await?.into_iter().map(MovedAccount::try_from).collect()
    }
}

impl Pages<'_, Posting> {
    /// Empty at the end.
    pub async fn next(&mut self) -> Result<Vec<Posting>, ExportError> {
        self.rows::<PostingRow>().await?.into_iter().map(Posting::try_from).collect()
    }
}

async fn ensure_known(connection: &mut PgConnection, prefix: &AccountPrefix) -> Result<(), ExportError> {
    let sql = "SELECT EXISTS (SELECT FROM accounts WHERE path = $1 OR (path >= $1 || ':' AND path < $1 || ';'))";
    let known: bool = sqlx::query_scalar(sql).bind(prefix.as_str()).fetch_one(connection).await?;
    if known { Ok(()) } else { Err(ExportError::NoAccount(prefix.0.clone())) }
}

// $3 is not used, but a parameter without a type is refused.
const ALL: &str = "
    SELECT * FROM postings
    WHERE effective_at >= $1::text::timestamptz AND effective_at < $2::text::timestamptz AND $3::text IS NOT NULL";

// ';' is the byte after ':': the range holds what is below the account and nothing else.
const TOUCHING: &str = "
    WITH mine AS (
        SELECT account_id FROM accounts WHERE path = $3::text OR (path >= $3 || ':' AND path < $3 || ';')
    ), touched AS (
        SELECT stream, message_offset FROM postings
        WHERE effective_at >= $1::text::timestamptz AND effective_at < $2::text::timestamptz
          AND debit IN (SELECT account_id FROM mine)
        UNION
        SELECT stream, message_offset FROM postings
        WHERE effective_at >= $1::text::timestamptz AND effective_at < $2::text::timestamptz
          AND credit IN (SELECT account_id FROM mine)
    )
    SELECT p.* FROM postings p JOIN touched USING (stream, message_offset)";

// By pairs first: there are far fewer pairs of accounts than postings.
const ACCOUNTS: &str = "
, pairs AS (
    SELECT debit, credit, min(effective_at) AS first FROM chosen GROUP BY debit, credit
), moved AS (
    SELECT debit AS account_id, first FROM pairs UNION ALL SELECT credit, first FROM pairs
)
SELECT m.account_id::text AS account_id, a.path, a.asset,
       (extract(epoch FROM min(m.first)) * 1000000)::bigint AS first
FROM moved m LEFT JOIN accounts a USING (account_id)
GROUP BY m.account_id, a.path, a.asset
ORDER BY a.path, a.asset";

// Outer joins: a posting that has lost its partner is an error, not a row less. The
// times stand twice because the planner infers equalities, not ranges: so it reads the
// events of the range and no others. A conflict that stands has its dedup row in
// conflicts; its state is in the row of its id's first arrival.
const POSTINGS: &str = "
, moving AS (
    SELECT updated_at, stream, message_offset, event_id, resource_id, state FROM events
    WHERE outcome = 'P' AND updated_at >= $1::text::timestamptz AND updated_at < $2::text::timestamptz
    UNION ALL
    SELECT updated_at, c.stream, c.message_offset, event_id, c.resource_id, first.state
    FROM conflicts c LEFT JOIN events first USING (updated_at, event_id)
    WHERE updated_at >= $1::text::timestamptz AND updated_at < $2::text::timestamptz
)
SELECT (extract(epoch FROM p.effective_at) * 1000000)::bigint AS effective_at,
       p.stream, p.message_offset, p.line, s.topic, s.partition,
       'evt_' || encode(e.event_id, 'hex') AS event_id, r.kind || '.' || e.state AS type_name, r.path AS resource,
       d.path AS debit, c.path AS credit, d.asset AS debit_asset, c.asset AS credit_asset, p.amount
FROM chosen p
LEFT JOIN moving e
       ON e.updated_at = p.effective_at AND e.stream = p.stream AND e.message_offset = p.message_offset
LEFT JOIN resources r ON r.resource_id = e.resource_id
LEFT JOIN streams s ON s.stream = p.stream
LEFT JOIN accounts d ON d.account_id = p.debit
LEFT JOIN accounts c ON c.account_id = p.credit
ORDER BY p.effective_at, p.stream, p.message_offset, p.line";

#[derive(FromRow)]
struct AccountRow {
    account_id: String,
    path: Option<String>,
    asset: Option<String>,
    first: i64,
}

#[derive(FromRow)]
struct PostingRow {
    effective_at: i64,
    stream: i64,
    message_offset: i64,
    line: i16,
    topic: Option<String>,
    partition: Option<i32>,
    event_id: Option<String>,
    type_name: Option<String>,
    resource: Option<String>,
    debit: Option<String>,
    credit: Option<String>,
    debit_asset: Option<String>,
    credit_asset: Option<String>,
    amount: i64,
}

impl TryFrom<AccountRow> for MovedAccount {
    type Error = ExportError;

    fn try_from(row: AccountRow) -> Result<Self, ExportError> {
        let damaged = |why| ExportError::Damaged { what: format!("account {}", row.account_id), why };
        let (path, asset) = row.path.zip(row.asset).ok_or_else(|| damaged("has postings and no row".to_owned()))?;
        Ok(Self { path: path_of(&path).map_err(&damaged)?, asset, first: time_of(row.first).map_err(&damaged)? })
    }
}

impl TryFrom<PostingRow> for Posting {
    type Error = ExportError;

    fn try_from(row: PostingRow) -> Result<Self, ExportError> {
        let PostingRow { stream, message_offset: offset, line, .. } = row;
        let damaged =
            |why| ExportError::Damaged { what: format!("posting {line} of offset {offset} in stream {stream}"), why };
        let lacks = |what: &str| damaged(format!("has no {what}"));
        let event = Event {
            effective_at: time_of(row.effective_at).map_err(&damaged)?,
            event_id: row.event_id.ok_or_else(|| lacks("event"))?,
            type_name: row.type_name.ok_or_else(|| lacks("resource"))?,
            resource: row.resource.ok_or_else(|| lacks("resource"))?,
            topic: row.topic.ok_or_else(|| lacks("stream"))?,
            partition: row.partition.ok_or_else(|| lacks("stream"))?,
            offset,
            stream,
        };
        let asset = row.debit_asset.ok_or_else(|| lacks("debit account"))?;
        if row.credit_asset.as_ref() != Some(&asset) {
            return Err(damaged(format!("does not take from an account of {asset} what it gives to one")));
        }
        Ok(Self {
            event,
            line,
            debit: path_of(&row.debit.unwrap_or_default()).map_err(&damaged)?,
            credit: path_of(&row.credit.unwrap_or_default()).map_err(&damaged)?,
            asset,
            amount: row.amount,
        })
    }
}

fn path_of(path: &str) -> Result<AccountPath, String> {
    AccountPath::parse(path).map_err(|why| format!("has the path {path:?}, and {why}"))
}

fn time_of(micros: i64) -> Result<Timestamp, String> {
    Timestamp::from_micros(micros).ok_or_else(|| "has a time outside the years 1970 to 9999".to_owned())
}
