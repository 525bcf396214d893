//! `postonce quarantine list`

use super::FilterArgs;
use crate::args::{DatabaseArgs, Output, OutputArgs};
use crate::cases::PageArgs;
use crate::{reader, table};
use postonce_consumer::cases::quarantine::{Page, Refused, State, list};
use std::process::ExitCode;

/// Digits of an id in the table; eight name a message.
const ID_DIGITS: usize = 12;

const HELP: &str = "\
Newest first, by when the ledger first refused the message: FIRST SEEN is the time
that --since and --until mean. (The message's own Kafka timestamp is in the JSON.)

AT is the place in the event, a JSON pointer or header:NAME; \"\" is the whole value.
STATE: open; retried TIME (sent again, nothing heard of it yet); refused again (after
a retry); dismissed; accepted PLACE (the copy that the ledger took).

Examples:
  postonce quarantine list
  postonce quarantine list --code unknown_type --since 2026-01-31
  postonce quarantine list --all-states --limit 500 -o json | jq '.messages[].id'";

/// List the refused messages
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,

    #[command(flatten)]
    page: PageArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let filter = args.filter.filter(args.page.all_states);
    let page = reader::ask(&args.database, async |connection| {
        Ok(list(connection, &filter, args.page.limit, args.page.before.as_ref()).await?)
    })?;
    table::print(&match args.output.output {
        Output::Json => table::json(&page)?,
        Output::Table => as_table(&page),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn as_table(page: &Page) -> String {
    let rows = page.messages.iter().map(|row| {
        [
            row.id.chars().take(ID_DIGITS).collect(),
            table::visible(&row.code),
            format!("\"{}\"", table::visible(&row.place)),
            table::visible(&row.first),
            row.times_seen.to_string(),
            row.first_seen.to_string(),
            state(row),
            short(&row.reason),
        ]
    });
    let headings = ["ID", "CODE", "AT", "FIRST PLACE", ">SEEN", "FIRST SEEN", "STATE", "REASON"];
    let mut text = table::columns(&headings, rows);
    if let Some(next) = &page.next {
        text.push_str(&format!("older messages: --before {next}\n"));
    }
    text
}

/// The state in words.
pub(super) fn state(row: &Refused) -> String {
    match row.state() {
        State::Open => "open".to_owned(),
        State::Retried => format!("retried {}", table::or_dash(row.retried_at)),
        State::RefusedAgain => "refused again".to_owned(),
        State::Dismissed => "dismissed".to_owned(),
        State::Accepted => format!("accepted {}", table::or_dash(row.accepted.as_ref())),
    }
}

/// So much of a reason as fits beside the rest.
fn short(reason: &str) -> String {
    const MOST: usize = 60;
    let mut text: String = reason.chars().take(MOST).collect();
    if reason.chars().nth(MOST).is_some() {
        text.push('…');
    }
    table::visible(&text)
}
