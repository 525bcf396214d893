//! Real purchases: 69,659 of them, of the 23,570 customers of CDNOW from January 1997
//! to June 1998 (Fader and Hardie, "Forecasting Repeat Sales at CDNOW", 2001).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use postonce_tests::{Flow, Ledger, PostonceProcess, Trial, kafka, repository, trials};
use tempfile::NamedTempFile;

pub fn tests() -> Vec<Trial> {
    trials![purchases_to_the_cent]
}

const LIMIT: Duration = Duration::from_secs(180);
/// Of the file, by `awk '{ split($4, part, "."); cents += part[1] * 100 + part[2] }'`.
const TOTAL_CENTS: i64 = 250_031_563;
const PURCHASES: usize = 69_659;

struct Purchase {
    customer: String,
    line: usize,
    /// `YYYYMMDD`.
    date: String,
    cents: i64,
}

fn purchases() -> Result<Vec<Purchase>> {
    let path = repository().join("target/data/CDNOW_master.txt");
    let text = std::fs::read_to_string(&path).with_context(|| format!("{}: run ./setup.sh test", path.display()))?;
    let mut purchases = Vec::new();
    for (line, row) in (1..).zip(text.lines()).skip(1) {
        let [customer, date, _, dollars] = row.split_whitespace().collect::<Vec<_>>()[..] else {
            anyhow::bail!("line {line}: {row}");
        };
        // From the decimals as they stand: never a float.
        let (whole, cents) = dollars.split_once('.').context("no decimals")?;
        ensure!(cents.len() == 2 && date.len() == 8, "line {line}: {row}");
        let cents = whole.parse::<i64>()? * 100 + cents.parse::<i64>()?;
        purchases.push(Purchase { customer: customer.to_owned(), line, date: date.to_owned(), cents });
    }
    Ok(purchases)
}

fn purchases_to_the_cent() -> Result<()> {
    let purchases = purchases()?;
    ensure!(purchases.len() == PURCHASES, "{} purchases", purchases.len());
    let mut jsonl = String::new();
    for Purchase { customer, line, date, cents } in &purchases {
        let day = format!("{}-{}-{}", &date[..4], &date[4..6], &date[6..]);
        writeln!(
            jsonl,
            r#"{{"type":"payment.succeeded","resource":"cdnow/{customer}/{line}","updatedAt":"{day}T00:00:00Z","source":"cdnow","data":{{"provider":"cards","merchant":"cdnow","amount":{cents},"fee":0,"currency":"USD"}}}}"#
        )?;
    }
    let file = NamedTempFile::new()?;
    std::fs::write(file.path(), jsonl)?;
    let kafka = kafka();
    let flow = Flow::new(&kafka, Ledger::fresh("cdnow")?, "cdnow", 4)?;
    let bootstrap = kafka.bootstrap();
    let path = file.path().to_str().context("a path")?;
    let send = || PostonceProcess::run(&["send", path, "--topic", &flow.topic, "--brokers", &bootstrap], &[], LIMIT);

    let consumer = flow.consume(&["--workers", "2"])?;
    send()?;
    flow.wait_done(LIMIT)?;
    check(&flow.ledger, &purchases)?;
    let rows: String = flow.ledger.db.one("SELECT sum(revision)::text FROM resources")?;

    // All of it again: nothing changes.
    send()?;
    flow.wait_done(LIMIT)?;
    let duplicates = consumer.metric("postonce_events_total", &[("outcome", "duplicate")])?;
    assert_eq!(duplicates, PURCHASES as f64);
    consumer.finish()?;
    check(&flow.ledger, &purchases)?;
    assert_eq!(flow.ledger.db.one::<String>("SELECT sum(revision)::text FROM resources")?, rows);
    flow.check_whole()
}

fn check(ledger: &Ledger, purchases: &[Purchase]) -> Result<()> {
    assert_eq!(ledger.balance("assets:psp:cards", "USD")?, TOTAL_CENTS);
    assert_eq!(ledger.balance("liabilities:merchant:cdnow", "USD")?, -TOTAL_CENTS);
    assert_eq!(ledger.db.one::<i64>("SELECT count(*) FROM account_balances")?, 2);
    let (mut customers, mut days) = (BTreeMap::<String, i64>::new(), BTreeMap::<String, i64>::new());
    for Purchase { customer, date, cents, .. } in purchases.iter().filter(|purchase| purchase.cents > 0) {
        *customers.entry(customer.clone()).or_default() += cents;
        *days.entry(date.clone()).or_default() += cents;
    }
    let by = |what: &str| -> Result<BTreeMap<String, i64>> {
        let rows: Vec<(String, i64)> = ledger.db.rows(&format!(
            "SELECT {what}, sum(amount)::bigint FROM postings
             JOIN events USING (stream, message_offset) JOIN resources USING (resource_id) GROUP BY 1"
        ))?;
        Ok(rows.into_iter().collect())
    };
    ensure!(by("split_part(path, '/', 2)")? == customers, "the sums of the customers differ");
    ensure!(by("to_char(effective_at AT TIME ZONE 'UTC', 'YYYYMMDD')")? == days, "the sums of the days differ");
    Ok(())
}
