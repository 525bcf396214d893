//! `postonce export`: the ledger for other programs, so that nobody need believe ours.

mod beancount;
mod journal;
mod layout;
pub mod names;
mod rows;
mod target;

use crate::args::DatabaseArgs;
use crate::reader;
use beancount::Beancount;
use clap::ValueEnum;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use journal::{Journal, Program};
use layout::Layout;
use postonce_consumer::read::export::{AccountPrefix, Event, Export, Selection};
use postonce_schema::Timestamp;
use sqlx::postgres::PgConnection;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use target::Target;

const HELP: &str = "\
One transaction for each event that moved money, dated by its updatedAt (the date in
UTC), with the debit and the credit of each posting. Amounts are decimals of the
currency (12.34 EUR, 1234 JPY, 1.234 KWD); other assets are whole numbers. Event id,
full time, resource and place (topic/partition/offset) are tags or metadata.

The ledger is read in one snapshot and passes through a few megabytes of memory. The
snapshot lasts until the last row is written: a reader that stops reading holds it
open, and vacuum with it. With --out the file is written under another name and
renamed at the end.

With --account the file has every event that moved money of that account or of one
below it, with all of its postings, so that it balances: the balances of these accounts
are whole, those of their counter accounts are not. With --from the file has movements,
no opening balances.

Accounts and assets by format:
  hledger, ledger  Accounts as they are. Currencies as they are, other assets in quotes.
  beancount        The root with a capital letter; then in each segment
                     a-z first         its capital letter
                     0-9 first         as it is
                     other first       X-x, then as below
                     A-Z a-z 0-9       as they are
                     -  .  _  %XX      --  -d  -u  -XX
                   (liabilities:merchant:m_42 is Liabilities:Merchant:M-u42.) No two
                   accounts have one name; `open` tells the account as metadata.
                   Assets as they are where beancount can hold them; else with '0 behind
                   (one letter; an end in . _ -; TRUE, FALSE, NULL); longer than 24
                   bytes: X' and 22 hex digits of SHA-256. `commodity` tells the asset.
  csv, jsonl       Our own names. One row for each debit and each credit: effective_at,
                   event_id, type, resource, topic, partition, offset, line, account,
                   asset, minor_units (debits positive, credits negative), amount (the
                   same as a decimal). CSV is that of RFC 4180. A resource or topic that
                   a spreadsheet would compute (= + - @ or ' in front) has one more ' in
                   front: a program takes one ' away; jsonl has it as it came.
In tags and metadata, bytes outside ! to ~ and \" % , ; [ \\ ] are written as %XX.

Exit codes: 0 done; 1 an error; 2 wrong usage; 130 or 143 stopped by SIGINT or SIGTERM.

Examples:
  postonce export --format hledger | hledger -f - check --strict
  postonce export --format hledger | hledger -f - balance --monthly
  postonce export --format beancount --out ledger.beancount && bean-check ledger.beancount
  postonce export --format csv --account liabilities:merchant:m_42 --from 2026-01-01 --to 2026-02-01
  postonce export --format jsonl | jq -r 'select(.asset == \"EUR\") | .amount'";

/// Write the ledger for hledger, beancount, ledger-cli, spreadsheets and programs
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// For which program
    #[arg(long, short = 'f', env = "POSTONCE_EXPORT_FORMAT")]
    pub format: Format,

    /// Only events that moved money of this account or of one below it
    #[arg(long, env = "POSTONCE_ACCOUNT_PREFIX", value_name = "PREFIX")]
    pub account: Option<String>,

    /// Only what took effect at or after this time: RFC 3339, or a date
    #[arg(long, env = "POSTONCE_FROM", value_name = "TIME", value_parser = reader::time)]
    pub from: Option<Timestamp>,

    /// Only what took effect before this time: RFC 3339, or a date
    #[arg(long, env = "POSTONCE_TO", value_name = "TIME", value_parser = reader::time)]
    pub to: Option<Timestamp>,

    /// Write to this file instead of standard output
    #[arg(long, env = "POSTONCE_EXPORT_OUT", value_name = "FILE")]
    pub out: Option<PathBuf>,

    #[command(flatten)]
    pub database: DatabaseArgs,
}

/// In whose words.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A journal for hledger
    Hledger,
    /// For beancount
    Beancount,
    /// A journal for ledger-cli
    Ledger,
    /// One row for each debit and each credit
    Csv,
    /// One JSON object for each debit and each credit
    Jsonl,
}

impl Format {
    fn layout(self) -> Box<dyn Layout> {
        match self {
            Self::Hledger => Box::new(Journal::new(Program::Hledger)),
            Self::Ledger => Box::new(Journal::new(Program::Ledger)),
            Self::Beancount => Box::new(Beancount::default()),
            Self::Csv => Box::new(rows::Csv),
            Self::Jsonl => Box::new(rows::Jsonl),
        }
    }
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let Args { format, account, from, to, out, database } = args;
    let selection = Selection { account: account.as_deref().map(AccountPrefix::new), from, to };
    let written = reader::ask(&database, async |connection| {
        let mut target = Target::open(out.as_deref())?;
        let bar = progress_bar(out.is_none());
        let counts = write(connection, selection, &mut *format.layout(), &mut target, &bar).await?;
        bar.finish_and_clear();
        target.finish()?;
        Ok(counts)
    });
    match written {
        Ok(Counts { events, postings }) => {
            if let Some(path) = out {
                let (events, postings) = (HumanCount(events), HumanCount(postings));
                eprintln!("{}: {events} transactions with {postings} postings", path.display());
            }
        }
        // `| head` has seen enough.
        Err(error) if is_closed_pipe(&error) => {}
        Err(error) => return Err(error),
    }
    Ok(ExitCode::SUCCESS)
}

#[derive(Default)]
struct Counts {
    events: u64,
    postings: u64,
}

/// Writes what is selected, as it comes.
async fn write(
    connection: &mut PgConnection,
    selection: Selection,
    layout: &mut dyn Layout,
    target: &mut Target,
    bar: &ProgressBar,
) -> anyhow::Result<Counts> {
    let mut export = Export::begin(connection, selection).await?;
    layout.head(target)?;
    if layout.declares_accounts() {
        bar.set_message("accounts");
        write_accounts(&mut export, layout, target).await?;
    }
    bar.set_message("postings");
    let mut counts = Counts::default();
    let mut current: Option<Event> = None;
    let mut pages = export.postings().await?;
    loop {
        let page = pages.next().await?;
        if page.is_empty() {
            break;
        }
        for posting in page {
            if current.as_ref() != Some(&posting.event) {
                layout.event(&posting.event, target)?;
                counts.events += 1;
                current = Some(posting.event.clone());
            }
            layout.posting(&posting, target)?;
            counts.postings += 1;
        }
        bar.set_position(counts.postings);
    }
    Ok(counts)
}

async fn write_accounts(export: &mut Export<'_>, layout: &mut dyn Layout, target: &mut Target) -> anyhow::Result<()> {
    let mut pages = export.accounts().await?;
    loop {
        let page = pages.next().await?;
        if page.is_empty() {
            return Ok(layout.end_of_accounts(target)?);
        }
        page.iter().try_for_each(|account| layout.account(account, target))?;
    }
}

/// On stderr, if that is a terminal and the rows do not go there too.
fn progress_bar(to_stdout: bool) -> ProgressBar {
    if to_stdout && io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {human_pos}, {per_sec}, {elapsed}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
