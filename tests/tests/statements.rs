//! Statements, page by page, beside the postings themselves: late events, accounts of every
//! event, and many postings of one moment.

use anyhow::{Result, ensure};
use postonce_consumer::database::Database;
use postonce_consumer::read::statement::{Request, statement};
use postonce_tests::{Flow, Ledger, Message, Trial, kafka, payment, trials};
use std::time::Duration;

pub fn tests() -> Vec<Trial> {
    trials![pages_are_what_the_postings_say, the_rows_behind_statements_can_be_made_anew]
}

const LIMIT: Duration = Duration::from_secs(90);

/// Batches of 70 and of 500; a tenth comes late; 300 payments of one moment, in two partitions.
fn filled(label: &str) -> Result<Flow> {
    let flow = Flow::new(&kafka(), Ledger::fresh(label)?, label, 2)?;
    let at_once = |n: i64| payment(&format!("stripe/at_once/pi_{n}"), "succeeded", "2026-02-01T00:00:00Z", 100 + n);
    flow.send_load(4_000, 5)?;
    let consumer = flow.consume(&["--workers", "2", "--batch", "70"])?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    let consumer = flow.consume(&["--workers", "2", "--batch", "500"])?;
    flow.send((0..300).map(at_once).collect::<Vec<Message>>())?;
    flow.send_load(2_000, 6)?;
    flow.wait_done(LIMIT)?;
    consumer.finish()?;
    flow.check()?;
    Ok(flow)
}

/// A posting's place, as text, and its amount as the account sees it.
type Line = (String, String);

fn pages_are_what_the_postings_say() -> Result<()> {
    let flow = filled("statements")?;
    let db = &flow.ledger.db;
    // The largest accounts, and small ones.
    let accounts: Vec<(String, String, String, i64)> = db.rows(
        "WITH sides AS (SELECT debit AS account_id FROM postings UNION ALL SELECT credit FROM postings),
              sizes AS (SELECT account_id, path, asset, count(*) AS size FROM sides JOIN accounts USING (account_id)
                        GROUP BY account_id, path, asset)
         (SELECT account_id::text, path, asset, size FROM sizes ORDER BY size DESC LIMIT 4)
         UNION ALL (SELECT account_id::text, path, asset, size FROM sizes WHERE size < 100 ORDER BY account_id LIMIT 8)",
    )?;
    ensure!(accounts[0].3 > 300 && accounts.len() == 12, "{accounts:?}");
    let late: i64 =
        db.one("SELECT count(*) FROM account_postings WHERE offsets <> ARRAY(SELECT unnest(offsets) ORDER BY 1)")?;
    ensure!(late > 0, "no row in which a later offset takes effect earlier");
    for (id, path, asset, size) in &accounts {
        let expected: Vec<Line> = db.rows(&format!(
            "SELECT message_offset || '/' || line, (CASE debit WHEN '{id}' THEN amount ELSE -amount END)::text
             FROM postings WHERE '{id}' IN (debit, credit)
             ORDER BY effective_at DESC, stream DESC, message_offset DESC, line DESC"
        ))?;
        assert_eq!(i64::try_from(expected.len())?, *size);
        for limit in [9, 1_000] {
            let (found, pages) = read(&flow.ledger.url, path, asset, limit)?;
            let at = expected.iter().zip(&found).position(|(expected, found)| expected != found);
            ensure!(found == expected, "{path} by {limit}: {} of {size}, other from {at:?} on", found.len());
            ensure!(pages == expected.len().div_ceil(usize::from(limit)).max(1), "{pages} pages of {path} by {limit}");
        }
    }
    Ok(())
}

/// All lines, page by page. Each page begins with the balance at which the one before has ended.
fn read(url: &str, account: &str, asset: &str, limit: u16) -> Result<(Vec<Line>, usize)> {
    let database = Database::new(url, "postonce")?;
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let mut connection = database.connect().await?;
        let (mut lines, mut pages, mut before, mut balance) = (Vec::new(), 0, None, None);
        loop {
            let request = Request { account, asset, from: None, to: None, limit, before };
            let page = statement(&mut connection, &request).await?;
            ensure!(balance.is_none_or(|balance| balance == page.closing_balance.0), "the balance jumps in {account}");
            let place = |posting: &str| posting.splitn(3, '/').nth(2).unwrap_or_default().to_owned();
            lines.extend(page.lines.iter().map(|line| (place(&line.posting), line.amount.0.to_string())));
            (pages, balance, before) = (pages + 1, Some(page.opening_balance.0), page.next);
            if before.is_none() {
                ensure!(balance == Some(0), "{account} begins with {balance:?}");
                return Ok((lines, pages));
            }
        }
    })
}

/// `fill_account_postings` writes the rows that the consumer has written, to the byte.
fn the_rows_behind_statements_can_be_made_anew() -> Result<()> {
    let flow = filled("statements_anew")?;
    let rows = "SELECT a::text FROM account_postings a ORDER BY 1";
    let written: Vec<(String,)> = flow.ledger.db.rows(rows)?;
    ensure!(written.len() > 1_000, "{} rows", written.len());
    flow.ledger.db.execute("TRUNCATE account_postings; CALL fill_account_postings()")?;
    let anew: Vec<(String,)> = flow.ledger.db.rows(rows)?;
    assert_eq!(written, anew);
    flow.check()
}
