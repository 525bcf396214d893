//! `postonce incidents list`

use super::FilterArgs;
use crate::args::{DatabaseArgs, Output, OutputArgs};
use crate::cases::PageArgs;
use crate::{reader, table};
use postonce_consumer::cases::incidents::{Incident, Page, list};
use std::process::ExitCode;

const HELP: &str = "\
Newest first, by when the incident was opened; that is the time that --since and
--until mean.

Examples:
  postonce incidents list
  postonce incidents list --code conflict --kind payment
  postonce incidents list --all-states --resource stripe/acct_1/pi_3Nf -o json";

/// List the incidents
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
    let rows = page.incidents.iter().map(|row| {
        [
            table::visible(&row.place),
            table::visible(&row.code),
            table::or_dash(row.kind.as_ref()),
            table::or_dash(row.resource.as_ref()),
            row.updated_at.to_string(),
            row.opened_at.to_string(),
            state(row),
            table::visible(&row.detail),
        ]
    });
    let headings = ["PLACE", "CODE", "KIND", "RESOURCE", "UPDATED AT", "OPENED", "STATE", "WHAT"];
    let mut text = table::columns(&headings, rows);
    if let Some(next) = &page.next {
        text.push_str(&format!("older incidents: --before {next}\n"));
    }
    text
}

/// The state in words.
pub(super) fn state(row: &Incident) -> String {
    row.closed_at.map_or_else(|| "open".to_owned(), |at| format!("closed {at}"))
}
