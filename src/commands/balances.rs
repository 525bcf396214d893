//! `postonce balances`: what each account holds.

use crate::args::{DatabaseArgs, Output, OutputArgs};
use crate::{reader, table};
use postonce_consumer::read::balances::{AccountBalance, Accounts, balances};
use postonce_schema::Timestamp;
use std::process::ExitCode;

const HELP: &str = "\
balance = debits - credits, so liabilities and income are negative. The table shows
major units with the asset's decimals (12.34); JSON has minor units as strings
(\"1234\"), for they may be larger than what a JSON reader keeps exactly.

--as-of counts by updatedAt, when things happened, not by when they were recorded,
and adds up all postings of these accounts: give a prefix on a large ledger.

Examples:
  postonce balances
  postonce balances liabilities:merchant:m_42 --asset EUR
  postonce balances assets --as-of 2026-01-31T23:59:59.999999Z
  postonce balances -o json | jq -r '.[] | [.account, .asset, .balance] | @tsv'";

/// Show what each account holds, now or at an earlier time
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Only accounts whose path begins with this text
    #[arg(
        env = "POSTONCE_ACCOUNT_PREFIX",
        value_name = "ACCOUNT-PREFIX",
        default_value = "",
        hide_default_value = true
    )]
    pub prefix: String,

    /// Only this asset, such as EUR
    #[arg(long, env = "POSTONCE_ASSET")]
    pub asset: Option<String>,

    /// As of this time, inclusive: RFC 3339, or a date for its midnight in UTC
    #[arg(long, env = "POSTONCE_AS_OF", value_name = "TIME", value_parser = reader::time)]
    pub as_of: Option<Timestamp>,

    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let found = reader::ask(&args.database, async |connection| {
        let accounts = Accounts { prefix: &args.prefix, asset: args.asset.as_deref() };
        Ok(balances(connection, accounts, args.as_of).await?)
    })?;
    table::print(&match args.output.output {
        Output::Json => table::json(&found)?,
        Output::Table => as_table(&found),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn as_table(found: &[AccountBalance]) -> String {
    let rows = found.iter().map(|AccountBalance { account, asset, debits, credits, balance }| {
        let amount = |units| table::amount(units, asset);
        [table::visible(account), table::visible(asset), amount(*debits), amount(*credits), amount(*balance)]
    });
    table::columns(&["ACCOUNT", "ASSET", ">DEBITS", ">CREDITS", ">BALANCE"], rows)
}
