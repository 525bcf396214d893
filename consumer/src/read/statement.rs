//! `statement`: an account's postings, newest first, with the balance after each.

use super::cursor::{Cursor, Place};
use super::{MinorUnits, When, snapshot};
use crate::error::DatabaseError;
use postonce_schema::{AccountId, Timestamp};
use serde::Serialize;
use sqlx::postgres::PgConnection;
use uuid::Uuid;

/// Which part of which account.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    pub account: &'a str,
    pub asset: &'a str,
    /// Inclusive.
    pub from: Option<Timestamp>,
    /// Exclusive, so that one period's end is the next one's beginning. A cursor
    /// knows its own and takes precedence.
    pub to: Option<Timestamp>,
    pub limit: u16,
    /// The page before's `next`.
    pub before: Option<Cursor>,
}

/// One page of a statement.
#[derive(Clone, Debug, Serialize)]
pub struct Statement {
    pub account: String,
    pub asset: String,
    /// After the first line of this page.
    pub closing_balance: MinorUnits,
    /// Newest first.
    pub lines: Vec<StatementLine>,
    /// Before the last line of this page.
    pub opening_balance: MinorUnits,
    /// Where the next, older page begins; `None` if this is the last one.
    pub next: Option<Cursor>,
}

/// One posting as the account sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, sqlx::FromRow)]
pub struct StatementLine {
    pub effective_at: When,
    #[serde(rename = "type")]
    pub event_type: Option<String>,
    pub resource: Option<String>,
    pub counter_account: Option<String>,
    /// Debits are positive, credits negative.
    pub amount: MinorUnits,
    /// After this line.
    #[sqlx(skip)]
    pub balance: MinorUnits,
    pub event_id: Option<String>,
    pub recorded_at: Option<When>,
    /// `topic/partition/offset/line`
    pub posting: String,
    #[serde(skip)]
    stream: i64,
    #[serde(skip)]
    message_offset: i64,
    #[serde(skip)]
    line: i16,
}

/// Why there is no statement.
#[derive(Debug, thiserror::Error)]
pub enum StatementError {
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error("there is no account {account} in {asset}")]
    NoAccount { account: String, asset: String },
    #[error("the cursor belongs to another account")]
    OtherAccount,
}

impl From<sqlx::Error> for StatementError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error.into())
    }
}

/// One page. The balances of all pages of one statement add up exactly, whatever is
/// posted between two of them: they tell the books as the first page found them.
pub async fn statement(connection: &mut PgConnection, request: &Request<'_>) -> Result<Statement, StatementError> {
    let id = AccountId::new(request.account, request.asset);
    let account = Uuid::from_bytes(*id.as_bytes());
    let mut transaction = snapshot(connection).await?;
    let start = match &request.before {
        Some(cursor) if cursor.account != Cursor::account_mark(id) => return Err(StatementError::OtherAccount),
        Some(Cursor { last, balance, seen, .. }) => {
            Start { before: Some(*last), balance: *balance, seen: seen.clone() }
        }
        None => newest(&mut transaction, request, account).await?,
    };
    let limit = usize::from(request.limit.max(1));
    let mut lines = read_page(&mut transaction, account, &start, request.from, limit).await?;
    transaction.commit().await?;

    let more = lines.len() > limit;
    lines.truncate(limit);
    let mut balance = start.balance;
    for line in &mut lines {
        line.balance = MinorUnits(balance);
        balance -= line.amount.0;
    }
    let next = lines.last().filter(|_| more).map(|last| Cursor {
        account: Cursor::account_mark(id),
        last: last.place(),
        balance,
        seen: start.seen,
    });
    Ok(Statement {
        account: request.account.to_owned(),
        asset: request.asset.to_owned(),
        closing_balance: MinorUnits(start.balance),
        lines,
        opening_balance: MinorUnits(balance),
        next,
    })
}

/// Where a page begins.
struct Start {
    /// Behind this place; `None` is the newest.
    before: Option<Place>,
    /// After the posting that comes first.
    balance: i128,
    seen: Vec<(i64, i64)>,
}

impl StatementLine {
    fn place(&self) -> Place {
        Place {
            effective_at: self.effective_at.0,
            stream: self.stream,
            message_offset: self.message_offset,
            line: self.line,
        }
    }
}

/// Where a statement without a cursor begins: at the account's newest posting before
/// `to`, with the balance there.
async fn newest(connection: &mut PgConnection, request: &Request<'_>, account: Uuid) -> Result<Start, StatementError> {
    let balance: Option<MinorUnits> =
        sqlx::query_scalar("SELECT (debits - credits)::text FROM balances WHERE account_id = $1")
            .bind(account)
            .fetch_optional(&mut *connection)
            .await?;
    let Some(MinorUnits(mut balance)) = balance else {
        return Err(StatementError::NoAccount { account: request.account.to_owned(), asset: request.asset.to_owned() });
    };
    let mut before = None;
    if let Some(to) = request.to {
        let MinorUnits(later) =
            sqlx::query_scalar(FROM_THEN_ON).bind(account).bind(to.to_string()).fetch_one(&mut *connection).await?;
        balance -= later;
        // Less than any posting at that very time: `to` is exclusive.
        before = Some(Place { effective_at: to, stream: i64::MIN, message_offset: i64::MIN, line: i16::MIN });
    }
    let seen = sqlx::query_as("SELECT stream, next_offset FROM streams ORDER BY stream").fetch_all(connection).await?;
    Ok(Start { before, balance, seen })
}

// A row that ends before the time has nothing from then on.
const FROM_THEN_ON: &str = "
SELECT coalesce(sum(CASE p.debit WHEN $1 THEN p.amount ELSE -p.amount END), 0)::text
FROM account_postings r
CROSS JOIN LATERAL unnest(r.offsets) AS o(past)
CROSS JOIN LATERAL (
    SELECT * FROM postings WHERE stream = r.stream AND message_offset = r.base_offset + o.past OFFSET 0
) p
WHERE r.account_id = $1 AND r.last_effective_at >= $2::text::timestamptz
  AND $1 IN (p.debit, p.credit) AND p.effective_at >= $2::text::timestamptz";

async fn read_page(
    connection: &mut PgConnection,
    account: Uuid,
    start: &Start,
    from: Option<Timestamp>,
    limit: usize,
) -> Result<Vec<StatementLine>, StatementError> {
    // A page must not depend on statistics: without them, or in a generic plan, the planner
    // takes the account for a small one and sorts all of its rows, or reads all postings.
    // With these off only the walk along account_postings_account is left, and from each of
    // its rows the way down postings_offset.
    sqlx::raw_sql(
        "SET LOCAL enable_sort = off; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;
         SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off",
    )
    .execute(&mut *connection)
    .await?;
    let (streams, offsets): (Vec<i64>, Vec<i64>) = start.seen.iter().copied().unzip();
    let (until, stream, message_offset, line) = match start.before {
        Some(place) => (place.effective_at.to_string(), place.stream, place.message_offset, place.line),
        None => ("infinity".to_owned(), i64::MAX, i64::MAX, i16::MAX),
    };
    let lines = sqlx::query_as(PAGE)
        .bind(account)
        .bind(streams)
        .bind(offsets)
        .bind(from.unwrap_or(Timestamp::EPOCH).to_string())
        .bind(until)
        .bind(stream)
        .bind(message_offset)
        .bind(line)
        .bind(i64::try_from(limit + 1).unwrap_or(i64::MAX));
    Ok(lines.fetch_all(connection).await?)
}

// The newest n postings before a time stand in rows of two kinds. Those that end before it:
// each of them has a posting at its last_effective_at, so the newest n rows have them, and
// WITH TIES those that end at the same time as the last, of which the place decides. And
// those that reach to it or past it: none reaches over an hour's border, so they end before
// the next. `seen`: see Cursor; a batch is in it with all of its rows or none.
// The joins are LEFT: a posting whose event is lost must show, not vanish.
const PAGE: &str = "
WITH seen AS MATERIALIZED (
    SELECT * FROM unnest($2::bigint[], $3::bigint[]) AS s(stream, next_offset)
), rows AS (
    (SELECT stream, base_offset, offsets FROM account_postings a
     WHERE account_id = $1 AND last_effective_at >= $5::text::timestamptz
       AND last_effective_at < date_trunc('hour', $5::text::timestamptz, 'UTC') + interval '1 hour'
       AND base_offset < (SELECT s.next_offset FROM seen s WHERE s.stream = a.stream))
    UNION ALL
    (SELECT stream, base_offset, offsets FROM account_postings a
     WHERE account_id = $1 AND last_effective_at >= $4::text::timestamptz AND last_effective_at < $5::text::timestamptz
       AND base_offset < (SELECT s.next_offset FROM seen s WHERE s.stream = a.stream)
     ORDER BY last_effective_at DESC FETCH FIRST $9 ROWS WITH TIES)
), page AS (
    SELECT p.effective_at, p.stream, p.message_offset, p.line,
           CASE p.debit WHEN $1 THEN p.credit ELSE p.debit END AS counter,
           CASE p.debit WHEN $1 THEN p.amount ELSE -p.amount END AS amount
    FROM rows r
    CROSS JOIN LATERAL unnest(r.offsets) AS o(past)
    CROSS JOIN LATERAL (
        SELECT * FROM postings WHERE stream = r.stream AND message_offset = r.base_offset + o.past OFFSET 0
    ) p
    WHERE $1 IN (p.debit, p.credit) AND p.effective_at >= $4::text::timestamptz
      AND (p.effective_at, p.stream, p.message_offset, p.line)
          < ($5::text::timestamptz, $6::bigint, $7::bigint, $8::smallint)
    ORDER BY p.effective_at DESC, p.stream DESC, p.message_offset DESC, p.line DESC LIMIT $9
)
SELECT (extract(epoch FROM p.effective_at) * 1000000)::bigint AS effective_at,
       r.kind || '.' || e.state AS event_type, r.path AS resource, a.path AS counter_account,
       p.amount::text AS amount, 'evt_' || encode(e.event_id, 'hex') AS event_id,
       (extract(epoch FROM b.recorded_at) * 1000000)::bigint AS recorded_at,
       coalesce(s.topic || '/' || s.partition, p.stream::text) || '/' || p.message_offset || '/' || p.line AS posting,
       p.stream, p.message_offset, p.line
FROM page p
LEFT JOIN streams s ON s.stream = p.stream
LEFT JOIN accounts a ON a.account_id = p.counter
LEFT JOIN LATERAL (
    SELECT event_id, resource_id, state FROM events
    WHERE updated_at = p.effective_at AND stream = p.stream AND message_offset = p.message_offset
    UNION ALL
    -- A conflict that stands has posted too; the first arrival of its id has the state.
    SELECT c.event_id, c.resource_id, first.state FROM conflicts c JOIN events first USING (updated_at, event_id)
    WHERE c.stream = p.stream AND c.message_offset = p.message_offset
) e ON true
LEFT JOIN resources r ON r.resource_id = e.resource_id
LEFT JOIN LATERAL (
    SELECT recorded_at FROM batches WHERE stream = p.stream AND from_offset <= p.message_offset
    ORDER BY from_offset DESC LIMIT 1
) b ON true
ORDER BY p.effective_at DESC, p.stream DESC, p.message_offset DESC, p.line DESC";
