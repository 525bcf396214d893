//! The questions that people ask of the books, over rows made by hand.

use anyhow::Result;
use postonce_consumer::read::balances::{Accounts, balances, trial_balance};
use postonce_consumer::read::statement::{Request, Statement, StatementError, statement};
use postonce_consumer::read::status::status;
use postonce_consumer::read::trace::{trace, trace_event};
use postonce_schema::{AccountId, EventId, ResourceId, Timestamp};
use postonce_tests::{Database, Trial, trials};
use sqlx::postgres::PgConnection;

pub fn tests() -> Vec<Trial> {
    trials![
        pages_of_a_statement_tell_one_state_of_the_books,
        a_conflict_that_stands_is_explained,
        as_of_an_earlier_time
    ]
}

const FEES: &str = "income:fees";
const MERCHANT: &str = "liabilities:merchant:m";

/// A ledger with one stream, and one posting of 100 minor units for each of `events`
/// seconds of 2026-01-01.
fn books(label: &str, events: u8) -> Result<(Database, postonce_consumer::database::Database)> {
    let database = Database::fresh(label)?;
    let ledger = postonce_consumer::database::Database::new(&database.url, "postonce")?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(ledger.migrate())?;
    database.db.execute(&format!(
        "SET search_path = postonce; SET timezone = 'UTC';
         INSERT INTO rules VALUES (1, '1970-01-01', sha256('r'),
             E'version 1\\nkind payment\\nstate payment.failed rank 4\\nstate payment.succeeded rank 5');
         INSERT INTO streams (stream, cluster_id, topic, topic_id, partition, first_offset, next_offset, message_chain, batch_chain)
             VALUES (1, 'c', 'payments', 't', 0, 0, 0, sha256('m'), sha256('b'));
         INSERT INTO accounts VALUES ({fees}, '{FEES}', 'EUR'), ({merchant}, '{MERCHANT}', 'EUR');
         INSERT INTO balances VALUES ({fees}, 0, 0), ({merchant}, 0, 0)",
        fees = account(FEES),
        merchant = account(MERCHANT),
    ))?;
    for second in 0..events {
        post(&database, i64::from(second), "payment.succeeded", "r", second, 100)?;
    }
    Ok((database, ledger))
}

fn at(second: u8) -> Timestamp {
    Timestamp::parse(&format!("2026-01-01T00:00:{second:02}Z")).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn account(path: &str) -> String {
    format!("'{}'::uuid", hex(AccountId::new(path, "EUR").as_bytes()))
}

/// An event and its posting, as a batch of its own.
fn post(database: &Database, offset: i64, type_name: &str, resource: &str, second: u8, amount: i64) -> Result<()> {
    let (kind, state) = type_name.split_once('.').unwrap();
    let (fees, merchant, time) = (account(FEES), account(MERCHANT), at(second));
    let event = hex(EventId::new(kind, state, resource, time).as_bytes());
    let id = hex(ResourceId::new(kind, resource).as_bytes());
    database.db.execute(&format!(
        "SET search_path = postonce; BEGIN;
         INSERT INTO events VALUES ('{time}', '\\x{event}', '{id}', '{fingerprint:032x}', 1, {offset}, NULL, 'P', '{state}', NULL);
         INSERT INTO resources VALUES ('{id}', '{kind}', '{resource}', '{state}', '{time}', 1, 1, '{{\"amount\":1}}')
             ON CONFLICT (resource_id) DO UPDATE SET updated_at = excluded.updated_at;
         INSERT INTO postings VALUES (1, {offset}, 0, {merchant}, {fees}, {amount}, '{time}');
         INSERT INTO account_postings VALUES ({merchant}, '{time}', 1, {offset}, '{{0}}'), ({fees}, '{time}', 1, {offset}, '{{0}}');
         UPDATE balances SET debits = debits + {amount} WHERE account_id = {merchant};
         UPDATE balances SET credits = credits + {amount} WHERE account_id = {fees};
         INSERT INTO batches VALUES (1, {offset}, {offset}, {next}, 'P', sha256('m'), sha256('p'), sha256('h'));
         UPDATE streams SET next_offset = {next}, batch_seq = batch_seq + 1 WHERE stream = 1;
         COMMIT",
        fingerprint = offset,
        next = offset + 1,
    ))?;
    Ok(())
}

fn ask<T>(
    ledger: &postonce_consumer::database::Database,
    question: impl AsyncFnOnce(&mut PgConnection) -> Result<T>,
) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { question(&mut ledger.connect().await?).await })
}

fn request(limit: u16) -> Request<'static> {
    Request { account: FEES, asset: "EUR", from: None, to: None, limit, before: None }
}

fn seconds_and_balances(page: &Statement) -> Vec<(i64, i128)> {
    let start = at(0).micros();
    page.lines.iter().map(|line| ((line.effective_at.0.micros() - start) / 1_000_000, line.balance.0)).collect()
}

fn pages_of_a_statement_tell_one_state_of_the_books() -> Result<()> {
    let (database, ledger) = books("statement", 5)?;
    let first = ask(&ledger, async |connection| Ok(statement(connection, &request(2)).await?))?;
    assert_eq!(seconds_and_balances(&first), [(4, -500), (3, -400)]);
    // It comes late, and its place is in a page that has not been read.
    post(&database, 5, "payment.succeeded", "late", 1, 7)?;
    let older = Request { before: first.next.clone(), ..request(10) };
    let second = ask(&ledger, async |connection| Ok(statement(connection, &older).await?))?;
    assert_eq!(seconds_and_balances(&second), [(2, -300), (1, -200), (0, -100)]);
    assert_eq!((second.opening_balance.0, second.next), (0, None));

    let anew = ask(&ledger, async |connection| Ok(statement(connection, &request(10)).await?))?;
    assert_eq!(seconds_and_balances(&anew), [(4, -507), (3, -407), (2, -307), (1, -207), (1, -200), (0, -100)]);
    let part = Request { from: Some(at(1)), to: Some(at(3)), ..request(10) };
    let part = ask(&ledger, async |connection| Ok(statement(connection, &part).await?))?;
    assert_eq!(seconds_and_balances(&part), [(2, -307), (1, -207), (1, -200)]);
    assert_eq!(part.opening_balance.0, -100);
    let other = Request { account: MERCHANT, before: first.next, ..request(2) };
    let refused = ask(&ledger, async |connection| Ok(statement(connection, &other).await.unwrap_err()))?;
    assert!(matches!(refused, StatementError::OtherAccount), "{refused}");
    Ok(())
}

fn a_conflict_that_stands_is_explained() -> Result<()> {
    let (database, ledger) = books("trace", 1)?;
    let event = EventId::new("payment", "succeeded", "r", at(0));
    let id = hex(ResourceId::new("payment", "r").as_bytes());
    database.db.execute(&format!(
        "SET search_path = postonce;
         INSERT INTO conflicts VALUES ('\\x{}', 'ffffffff-0000-0000-0000-000000000000', '{}', '{id}', 1, 1, NULL, NULL, NULL, '', '');
         INSERT INTO batches VALUES (1, 1, 1, 4, 'C' || '..'::bytea, sha256('m'), sha256('p'), sha256('h'))",
        hex(event.as_bytes()),
        at(0),
    ))?;
    for traces in [
        ask(&ledger, async |connection| Ok(trace(connection, "r", None).await?))?,
        ask(&ledger, async |connection| Ok(trace_event(connection, event, Some(at(0))).await?.into_iter().collect()))?,
        ask(&ledger, async |connection| Ok(trace_event(connection, event, None).await?.into_iter().collect()))?,
    ] {
        let [resource] = traces.as_slice() else { panic!("{traces:?}") };
        let seen: Vec<_> =
            resource.events.iter().map(|event| (event.outcome.as_str(), event.stands, event.postings.len())).collect();
        assert_eq!(seen, [("posted", false, 1), ("conflict", true, 0)], "{resource:?}");
        assert!(resource.events[0].why.contains("greatest fingerprint"), "{}", resource.events[0].why);
    }
    let other = ask(&ledger, async |connection| Ok(trace(connection, "r", Some("refund")).await?))?;
    assert!(other.is_empty());

    let status = ask(&ledger, async |connection| Ok(status(connection).await?))?;
    let counts = status.streams[0].outcomes;
    assert_eq!((counts.posted, counts.conflict, counts.holes, counts.messages()), (1, 1, 2, 2));
    assert_eq!((status.outcomes, status.streams[0].owner.as_str()), (counts, "none"));
    Ok(())
}

fn as_of_an_earlier_time() -> Result<()> {
    let (_database, ledger) = books("as_of", 5)?;
    let of = |prefix| Accounts { prefix, asset: None };
    let found = |prefix, as_of| {
        let rows = ask(&ledger, async |connection| Ok(balances(connection, of(prefix), as_of).await?))?;
        anyhow::Ok(rows.into_iter().map(|row| (row.account, row.balance.0)).collect::<Vec<_>>())
    };
    let both = |fees, merchant| vec![(FEES.to_owned(), fees), (MERCHANT.to_owned(), merchant)];
    assert_eq!(found("", None)?, both(-500, 500));
    assert_eq!(found("", Some(at(2)))?, both(-300, 300), "the time itself counts");
    assert_eq!(found("", Some(Timestamp::EPOCH))?, []);
    assert_eq!(found("liabilities:merchant:m", None)?, both(-500, 500)[1..]);
    assert_eq!(found("liabilities:merchant:m0", None)?, []);
    let totals = ask(&ledger, async |connection| Ok(trial_balance(connection).await?))?;
    assert_eq!((totals.len(), totals[0].debits.0, totals[0].difference.0), (1, 500, 0));
    Ok(())
}
