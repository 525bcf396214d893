//! The tables at the end.

use super::books::{Expected, accepted};
use super::checks::Check;
use crate::table;
use anyhow::Result;
use indicatif::HumanCount;
use postonce_consumer::read::balances::{AccountBalance, Accounts, AssetTotal, balances, trial_balance};
use postonce_consumer::read::counts::Counts;
use postonce_consumer::read::status::status;
use sqlx::postgres::PgConnection;
use std::cmp::Reverse;
use std::time::Duration;

const SHOWN_ACCOUNTS: usize = 10;

/// Outcomes of both passes beside what was sent, and how fast it went.
pub fn outcomes(passes: &[(Counts, Expected); 2], times: [Duration; 2]) -> String {
    let [(first, sent_first), (second, sent_again)] = passes;
    let count = |number: u64| HumanCount(number).to_string();
    let row = |name: &str, value: fn(&Counts) -> u64, sent: Option<fn(&Expected) -> u64>| {
        let sent = |expected| sent.map_or_else(String::new, |sent| count(sent(expected)));
        [name.to_owned(), count(value(first)), sent(sent_first), count(value(second)), sent(sent_again)]
    };
    let [rate_first, rate_again] =
        [(first, times[0]), (second, times[1])].map(|(counts, time)| count(per_second(counts.messages(), time)));
    let rows = [
        row("posted", |c| c.posted, None),
        row("noted (no money moved)", |c| c.noted, None),
        row("superseded", |c| c.superseded, None),
        row("  these three", accepted, Some(|sent| sent.accepted)),
        row("duplicate", |c| c.duplicate, Some(|sent| sent.duplicate)),
        row("conflict", |c| c.conflict, Some(|sent| sent.conflict)),
        row("rejected", |c| c.rejected, Some(|sent| sent.rejected)),
        row("messages", Counts::messages, Some(Expected::messages)),
        ["messages/s".to_owned(), rate_first, String::new(), rate_again, String::new()],
    ];
    "\n".to_owned() + &table::columns(&["OUTCOME", ">FIRST PASS", ">EXPECTED", ">SECOND PASS", ">EXPECTED"], rows)
}

fn per_second(messages: u64, time: Duration) -> u64 {
    let rate = u128::from(messages) * 1_000_000 / time.as_micros().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

/// Trial balance, the largest accounts, and what a person should look at.
pub async fn ledger(connection: &mut PgConnection) -> Result<String> {
    let totals = trial_balance(connection).await?;
    let all = balances(connection, Accounts::default(), None).await?;
    let status = status(connection).await?;
    let incidents = status.incidents.iter().map(|open| [open.code.clone(), open.open.to_string()]);
    let quarantine = status
        .quarantine
        .iter()
        .map(|open| [open.code.clone(), open.messages.to_string(), open.times_seen.to_string()]);
    Ok([
        trial_balance_table(&totals),
        largest(&all),
        table::columns(&["INCIDENTS", ">OPEN"], incidents),
        table::columns(&["QUARANTINE", ">MESSAGES", ">TIMES SEEN"], quarantine),
    ]
    .join("\n"))
}

fn trial_balance_table(totals: &[AssetTotal]) -> String {
    let rows = totals.iter().map(|AssetTotal { asset, debits, credits, difference }| {
        let amount = |units| table::amount(units, asset);
        [table::visible(asset), amount(*debits), amount(*credits), amount(*difference)]
    });
    table::columns(&["TRIAL BALANCE", ">DEBITS", ">CREDITS", ">DIFFERENCE"], rows)
}

/// The largest accounts of one asset, the one with the most accounts: across
/// currencies "largest" means nothing.
fn largest(all: &[AccountBalance]) -> String {
    let accounts_in = |asset: &str| all.iter().filter(|account| account.asset == asset).count();
    let mut assets: Vec<&str> = all.iter().map(|account| account.asset.as_str()).collect();
    assets.sort_unstable();
    assets.dedup();
    let asset = assets.into_iter().max_by_key(|asset| accounts_in(asset)).unwrap_or_default();
    let mut accounts: Vec<&AccountBalance> = all.iter().filter(|account| account.asset == asset).collect();
    let size = |account: &&AccountBalance| (Reverse(account.balance.0.unsigned_abs()), account.account.clone());
    accounts.sort_by_cached_key(size);
    let rows = accounts.into_iter().take(SHOWN_ACCOUNTS).map(|found| {
        let amount = |units| table::amount(units, asset);
        [table::visible(&found.account), amount(found.debits), amount(found.credits), amount(found.balance)]
    });
    let heading = format!("LARGEST ACCOUNTS ({asset})");
    table::columns(&[&heading, ">DEBITS", ">CREDITS", ">BALANCE"], rows)
}

/// Each check with its answer.
pub fn checks(checks: &[Check]) -> String {
    let mut text = String::from("CHECKS\n");
    for Check { what, failure } in checks {
        match failure {
            None => text.push_str(&format!("ok      {what}\n")),
            Some(why) => text.push_str(&format!("FAILED  {what}\n        {}\n", table::visible(why))),
        }
    }
    text
}
