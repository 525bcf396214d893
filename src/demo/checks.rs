//! What must hold at the end. Each check is computed from the tables, apart from the
//! code that wrote them, and says what is wrong where it fails.

use super::books::{Books, Expected};
use super::parts::Log;
use super::positions;
use anyhow::Result;
use indicatif::HumanCount;
use postonce_consumer::read::MinorUnits;
use postonce_consumer::read::counts::Counts;
use postonce_producer::generate::Summary;
use postonce_schema::{AccountId, POSITIONS_TOML, Rules};
use sqlx::postgres::PgConnection;
use std::collections::{BTreeMap, HashMap};
use uuid::Uuid;

/// What the consumer may take at most.
const MEMORY_LIMIT_MIB: u64 = 300;

/// Something that must hold.
#[derive(Debug, Clone)]
pub struct Check {
    pub what: String,
    /// What was found instead.
    pub failure: Option<String>,
}

impl Check {
    fn new(what: impl Into<String>, failure: Option<String>) -> Self {
        Self { what: what.into(), failure }
    }

    pub fn holds(&self) -> bool {
        self.failure.is_none()
    }
}

pub fn crash_in_the_middle(outcomes: u64, all: u64) -> Check {
    let failure = (outcomes == 0 || outcomes >= all)
        .then(|| format!("{outcomes} of {all} messages had an outcome when the consumer was killed"));
    Check::new("the crash came in the middle of the work", failure)
}

pub fn outcomes(passes: &[(Counts, Expected); 2]) -> Vec<Check> {
    let names = ["first pass: outcomes are what the generator has sent", "second pass: each event was a duplicate"];
    let check = |(name, (counts, expected)): (&str, &(Counts, Expected))| {
        let found = Expected::of(counts);
        Check::new(name, (found != *expected).then(|| format!("{found:?} instead of {expected:?}")))
    };
    names.into_iter().zip(passes).map(check).collect()
}

pub fn nothing_trimmed(log: &[Log]) -> Check {
    let trimmed = log.iter().find(|one| one.start != 0);
    Check::new(
        "the mock broker still has every message (each partition begins at offset 0)",
        trimmed.map(|one| format!("partition {} begins at {}", one.partition, one.start)),
    )
}

pub fn second_pass_changed_nothing(first: &Books, second: &Books) -> Check {
    let digest = second.net.get(..16).unwrap_or_default();
    let what = format!(
        "the second pass posted nothing and changed no balance and no resource\n        \
         (SHA-256 of the net balances {digest}..., the same in every run of this workload)"
    );
    let counts = [
        ("events", first.events, second.events),
        ("postings", first.postings, second.postings),
        ("conflicts", first.conflicts, second.conflicts),
        ("incidents", first.incidents, second.incidents),
    ];
    let mut changes: Vec<String> = counts
        .into_iter()
        .filter(|(_, before, after)| before != after)
        .map(|(name, before, after)| format!("{before} {name} became {after}"))
        .collect();
    if first.balances != second.balances {
        changes.push("balances changed".to_owned());
    }
    if first.resources != second.resources {
        changes.push("resources changed".to_owned());
    }
    Check::new(what, (!changes.is_empty()).then(|| changes.join(", ")))
}

/// None where the kernel does not tell.
pub fn memory(peak_kib: Option<u64>) -> Option<Check> {
    let mib = peak_kib?.div_ceil(1024);
    let failure = (mib >= MEMORY_LIMIT_MIB).then(|| format!("{mib} MiB"));
    Some(Check::new(format!("the consumer's memory stayed under {MEMORY_LIMIT_MIB} MiB (peak {mib} MiB)"), failure))
}

/// All that is asked of the tables.
pub async fn of_the_ledger(connection: &mut PgConnection, log: &[Log], sent: &Summary) -> Result<Vec<Check>> {
    let rules = Rules::parse(POSITIONS_TOML)?;
    Ok(vec![
        offsets(connection, log).await?,
        quarantine(connection, sent).await?,
        balances_are_postings(connection).await?,
        balances_are_positions(connection, &rules).await?,
        trial_balance(connection).await?,
        one_event_each(connection).await?,
    ])
}

#[derive(sqlx::FromRow)]
struct BatchRow {
    partition: i32,
    reached: i64,
    seq: i64,
    from_offset: i64,
    next_offset: i64,
    outcomes: Vec<u8>,
}

/// Each offset of the log stands in one batch, with one byte that is an outcome.
async fn offsets(connection: &mut PgConnection, log: &[Log]) -> Result<Check> {
    let rows: Vec<BatchRow> = sqlx::query_as(
        "SELECT s.partition, s.next_offset AS reached, b.seq, b.from_offset, b.next_offset, b.outcomes
         FROM batches b JOIN streams s USING (stream) ORDER BY s.partition, b.seq",
    )
    .fetch_all(connection)
    .await?;
    let messages: i64 = log.iter().map(|one| one.end).sum();
    let what = format!(
        "each of {} offsets has exactly one outcome: {} batches, no gap, no overlap",
        HumanCount(u64::try_from(messages)?),
        HumanCount(u64::try_from(rows.len())?),
    );
    Ok(Check::new(what, uncovered(&rows, log)))
}

fn uncovered(rows: &[BatchRow], log: &[Log]) -> Option<String> {
    let mut covered: HashMap<i32, (i64, i64)> = HashMap::new();
    for row in rows {
        let BatchRow { partition, reached, seq, from_offset, next_offset, ref outcomes } = *row;
        let place = format!("partition {partition}, batch {seq}, offsets {from_offset} to {next_offset}");
        let (before_seq, before) = covered.insert(partition, (seq, next_offset)).unwrap_or_default();
        if (seq, from_offset) != (before_seq + 1, before) {
            return Some(format!("{place}: comes after batch {before_seq} up to {before}"));
        }
        let counts = match Counts::of(outcomes) {
            Ok(counts) => counts,
            Err(error) => return Some(format!("{place}: {error}")),
        };
        // The mock broker writes no transaction markers: there is nothing that could be a hole.
        if counts.holes != 0 || i64::try_from(counts.messages()) != Ok(next_offset - from_offset) {
            return Some(format!("{place}: {counts:?}"));
        }
        if next_offset > reached {
            return Some(format!("{place}: the stream has come to {reached} only"));
        }
    }
    log.iter().find_map(|one| {
        let (_, end) = covered.get(&one.partition).copied().unwrap_or_default();
        (end != one.end)
            .then(|| format!("partition {}: outcomes up to {end}, messages up to {}", one.partition, one.end))
    })
}

/// Every refused message is there, by code; each came twice.
async fn quarantine(connection: &mut PgConnection, sent: &Summary) -> Result<Check> {
    let rows: Vec<(String, i64)> =
        sqlx::query_as("SELECT code, sum(times_seen)::bigint FROM quarantine WHERE closed_at IS NULL GROUP BY code")
            .fetch_all(connection)
            .await?;
    let mut found = BTreeMap::new();
    for (code, times) in rows {
        found.insert(code, u64::try_from(times)?);
    }
    let expected: BTreeMap<String, u64> =
        sent.rejections().into_iter().map(|(code, count)| (code.to_owned(), count * 2)).collect();
    let what = format!("every poison message is in quarantine under its code ({} codes)", expected.len());
    Ok(Check::new(what, (found != expected).then(|| format!("{found:?} instead of {expected:?}"))))
}

async fn balances_are_postings(connection: &mut PgConnection) -> Result<Check> {
    let wrong: Vec<(String, String, String)> = sqlx::query_as(
        "WITH sides AS (
             SELECT debit AS account_id, amount AS debits, 0 AS credits FROM postings
             UNION ALL
             SELECT credit, 0, amount FROM postings
         ), sums AS (
             SELECT account_id, sum(debits) AS debits, sum(credits) AS credits FROM sides GROUP BY account_id
         )
         SELECT coalesce(a.path || ' ' || a.asset, 'an account without a name'),
                concat(coalesce(b.debits, 0), ' - ', coalesce(b.credits, 0)),
                concat(coalesce(s.debits, 0), ' - ', coalesce(s.credits, 0))
         FROM balances b FULL JOIN sums s USING (account_id) LEFT JOIN accounts a USING (account_id)
         WHERE (coalesce(b.debits, 0), coalesce(b.credits, 0)) IS DISTINCT FROM
               (coalesce(s.debits, 0), coalesce(s.credits, 0)) OR a.path IS NULL
         ORDER BY 1",
    )
    .fetch_all(connection)
    .await?;
    let failure = wrong.first().map(|(account, balance, postings)| {
        format!("{account}: balance {balance}, postings {postings} (wrong accounts: {})", wrong.len())
    });
    Ok(Check::new("balances = sum of the postings, for each account", failure))
}

async fn balances_are_positions(connection: &mut PgConnection, rules: &Rules) -> Result<Check> {
    let computed = positions::net_amounts(connection, rules).await?;
    let rows: Vec<(Uuid, MinorUnits)> =
        sqlx::query_as("SELECT account_id, (debits - credits)::text FROM balances").fetch_all(&mut *connection).await?;
    let held: HashMap<AccountId, i128> =
        rows.into_iter().map(|(id, MinorUnits(net))| (AccountId::from_bytes(id.into_bytes()), net)).collect();
    let wrong = disagreement(&held, &computed);
    let failure = match wrong.first() {
        None => None,
        Some(account) => {
            let id = Uuid::from_bytes(*account.as_bytes());
            let name: Option<String> =
                sqlx::query_scalar("SELECT path || ' ' || asset FROM accounts WHERE account_id = $1")
                    .bind(id)
                    .fetch_optional(connection)
                    .await?;
            let net = |amounts: &HashMap<AccountId, i128>| amounts.get(account).copied().unwrap_or_default();
            let (name, accounts) = (name.unwrap_or_else(|| id.to_string()), wrong.len());
            Some(format!("{name}: balance {}, positions {} (wrong accounts: {accounts})", net(&held), net(&computed)))
        }
    };
    let what = "balances = sum of the positions, computed anew from the facts of each resource";
    Ok(Check::new(what, failure))
}

/// The accounts on which two sums differ; absent is zero.
fn disagreement(held: &HashMap<AccountId, i128>, computed: &HashMap<AccountId, i128>) -> Vec<AccountId> {
    let mut wrong: Vec<AccountId> = held
        .keys()
        .chain(computed.keys().filter(|account| !held.contains_key(account)))
        .filter(|account| held.get(account).unwrap_or(&0) != computed.get(account).unwrap_or(&0))
        .copied()
        .collect();
    wrong.sort_unstable();
    wrong
}

async fn trial_balance(connection: &mut PgConnection) -> Result<Check> {
    let rows: Vec<(String, MinorUnits)> = sqlx::query_as(
        "SELECT a.asset, (sum(b.debits) - sum(b.credits))::text FROM balances b JOIN accounts a USING (account_id)
         GROUP BY a.asset ORDER BY a.asset",
    )
    .fetch_all(connection)
    .await?;
    let wrong = rows.iter().find(|(_, MinorUnits(difference))| *difference != 0);
    let mut failure = wrong.map(|(asset, MinorUnits(difference))| format!("{asset}: {difference} minor units"));
    if rows.is_empty() {
        failure = Some("there are no balances".to_owned());
    }
    Ok(Check::new(format!("trial balance: debits - credits = 0 in each of {} currencies", rows.len()), failure))
}

/// Nothing was posted by a message that is no event, and no posting is without one.
async fn one_event_each(connection: &mut PgConnection) -> Result<Check> {
    let stray: i64 = sqlx::query_scalar(
        "SELECT count(*) FROM (
             SELECT stream, message_offset FROM postings
             EXCEPT SELECT stream, message_offset FROM events WHERE outcome = 'P'
             EXCEPT SELECT stream, message_offset FROM conflicts) stray",
    )
    .fetch_one(connection)
    .await?;
    Ok(Check::new("each posting belongs to one accepted event", (stray != 0).then(|| format!("{stray} do not"))))
}

#[cfg(test)]
#[path = "checks_tests.rs"]
mod tests;
