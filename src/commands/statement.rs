//! `postonce statement`: an account's postings with the balance after each.

use crate::args::{DatabaseArgs, Output, OutputArgs};
use crate::{reader, table};
use anyhow::bail;
use postonce_consumer::read::balances::assets_of;
use postonce_consumer::read::cursor::Cursor;
use postonce_consumer::read::statement::{Request, Statement, statement};
use postonce_schema::Timestamp;
use sqlx::postgres::PgConnection;
use std::process::ExitCode;

const HELP: &str = "\
Newest first, by updatedAt. Debits are positive, credits negative. The pages of one
statement tell the books as its first page found them: what is posted meanwhile
changes none of them. A page reads no more than it shows, except that --to adds up
the account's postings from that time on once, to know the balance there.

Examples:
  postonce statement assets:psp:stripe --asset EUR
  postonce statement liabilities:merchant:m_42 --from 2026-01-01 --to 2026-02-01
  postonce statement income:fees --limit 500 --before CURSOR";

/// Show an account's postings with the balance after each, newest first
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The account's path, such as assets:psp:stripe
    #[arg(env = "POSTONCE_ACCOUNT")]
    pub account: String,

    /// The account's asset, such as EUR; needed if the path has several
    #[arg(long, env = "POSTONCE_ASSET")]
    pub asset: Option<String>,

    /// Only what took effect at or after this time: RFC 3339, or a date
    #[arg(long, env = "POSTONCE_FROM", value_name = "TIME", value_parser = reader::time)]
    pub from: Option<Timestamp>,

    /// Only what took effect before this time: RFC 3339, or a date
    #[arg(long, env = "POSTONCE_TO", value_name = "TIME", value_parser = reader::time)]
    pub to: Option<Timestamp>,

    /// Lines on a page
    #[arg(long, env = "POSTONCE_LIMIT", value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    pub limit: u16,

    /// The next, older page: the cursor that the page before has shown
    #[arg(long, env = "POSTONCE_BEFORE", value_name = "CURSOR", conflicts_with = "to")]
    pub before: Option<Cursor>,

    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { account, asset, from, to, limit, before, database, output } = args;
    let page = reader::ask(&database, async |connection| {
        let asset = the_asset(connection, &account, asset).await?;
        let request = Request { account: &account, asset: &asset, from, to, limit, before };
        Ok(statement(connection, &request).await?)
    })?;
    table::print(&match output.output {
        Output::Json => table::json(&page)?,
        Output::Table => as_table(&page),
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn the_asset(connection: &mut PgConnection, account: &str, asset: Option<String>) -> anyhow::Result<String> {
    if let Some(asset) = asset {
        return Ok(asset);
    }
    let mut assets = assets_of(connection, account).await?;
    match (assets.pop(), assets.is_empty()) {
        (Some(only), true) => Ok(only),
        (Some(last), false) => bail!("{account} holds {}, {last}; choose one with --asset", assets.join(", ")),
        (None, _) => bail!("there is no account {account}; `postonce balances PREFIX` lists them"),
    }
}

fn as_table(page: &Statement) -> String {
    let amount = |units| table::amount(units, &page.asset);
    let rows = page.lines.iter().map(|line| {
        [
            line.effective_at.to_string(),
            table::or_dash(line.event_type.as_ref()),
            table::or_dash(line.resource.as_ref()),
            table::or_dash(line.counter_account.as_ref()),
            amount(line.amount),
            amount(line.balance),
            table::or_dash(line.recorded_at),
            table::visible(&line.posting),
            table::or_dash(line.event_id.as_ref()),
        ]
    });
    let headings =
        ["EFFECTIVE", "TYPE", "RESOURCE", "COUNTER ACCOUNT", ">AMOUNT", ">BALANCE", "RECORDED", "POSTING", "EVENT"];
    let mut text = format!("{} in {}\n", table::visible(&page.account), table::visible(&page.asset));
    text.push_str(&format!("closing balance {}\n\n", amount(page.closing_balance)));
    text.push_str(&table::columns(&headings, rows));
    text.push_str(&format!("\nopening balance {}\n", amount(page.opening_balance)));
    if let Some(next) = &page.next {
        text.push_str(&format!("older postings: --before {next}\n"));
    }
    text
}
