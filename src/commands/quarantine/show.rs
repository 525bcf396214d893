//! `postonce quarantine show`

use super::list::state;
use crate::args::{DatabaseArgs, Output, OutputArgs};
use crate::cases;
use crate::payload::{self, Extent, HeaderPayload, Payload};
use crate::{reader, table};
use anyhow::{Context, bail};
use postonce_consumer::cases::name::Name;
use postonce_consumer::cases::quarantine::{Detail, Refused, show};
use postonce_consumer::chain::decode_headers;
use postonce_schema::Header;
use std::fmt::Write as _;
use std::process::ExitCode;

const HELP: &str = "\
Text is shown with control and writing-direction characters made visible, so that a
poisoned message cannot steer the terminal; what is not UTF-8 is a hex dump. Long
values are cut unless --full. --raw writes the value's bytes as they came, and only
them: for a file or a program, not for a terminal.

The ledger keeps the first and the last place of a message and how often it came;
the places between are in the topic.

Examples:
  postonce quarantine show 3f9c2a7b81d4
  postonce quarantine show payments/3/1042 --full
  postonce quarantine show 3f9c2a7b81d4 --raw > value.bin";

/// Show one refused message: why, where, its bytes, and what was done about it
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// An id (eight hex digits or more), or topic/partition/offset
    #[arg(env = "POSTONCE_MESSAGE", value_name = "ID|PLACE", value_parser = Name::of_message)]
    name: Name,

    /// Only the row of this code
    #[arg(long, env = "POSTONCE_CODE")]
    code: Option<String>,

    /// All bytes, however many
    #[arg(long, env = "POSTONCE_FULL")]
    full: bool,

    /// Write the value's bytes to stdout, untouched
    #[arg(long, env = "POSTONCE_RAW", conflicts_with = "full")]
    raw: bool,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let detail =
        reader::ask(&args.database, async |connection| Ok(show(connection, &args.name, args.code.as_deref()).await?))?;
    if args.raw {
        return raw(&detail);
    }
    let extent = if args.full { Extent::Full } else { Extent::Cut };
    let headers = decode_headers(&detail.original.headers).context("the stored headers are damaged")?;
    table::print(&match args.output.output {
        Output::Json => as_json(&detail, &headers, extent)?,
        Output::Table => as_text(&detail, &headers, extent),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn raw(detail: &Detail) -> anyhow::Result<ExitCode> {
    match &detail.original.value {
        Some(value) => table::print_bytes(value)?,
        None => bail!("the message has no value (a tombstone): there are no bytes to write"),
    }
    Ok(ExitCode::SUCCESS)
}

fn as_json(detail: &Detail, headers: &[Header<'_>], extent: Extent) -> anyhow::Result<String> {
    let payload = |bytes: &Option<Vec<u8>>| bytes.as_deref().map(|bytes| Payload::of(bytes, extent));
    table::json(&serde_json::json!({
        "id": detail.rows.first().map(|row| &row.id),
        "rows": detail.rows,
        "key": payload(&detail.original.key),
        "value": payload(&detail.original.value),
        "headers": headers.iter().map(|header| HeaderPayload::of(header, extent)).collect::<Vec<_>>(),
        "actions": detail.actions,
    }))
}

fn as_text(detail: &Detail, headers: &[Header<'_>], extent: Extent) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    if let Some(row) = detail.rows.first() {
        let _ = writeln!(out, "{}", row.id);
    }
    detail.rows.iter().for_each(|row| push_row(&mut out, row));
    let _ = writeln!(out, "\nKey:\n{}", payload::block(detail.original.key.as_deref(), extent).trim_end());
    let _ = writeln!(out, "\nHeaders:");
    if headers.is_empty() {
        let _ = writeln!(out, "  (none)");
    }
    for header in headers {
        let name = payload::line(Some(header.name), extent);
        let _ = writeln!(out, "  | {name}: {}", payload::line(header.value, extent));
    }
    let bytes = detail.original.value.as_ref().map_or(0, Vec::len);
    let _ = write!(out, "\nValue, {bytes} bytes:\n{}", payload::block(detail.original.value.as_deref(), extent));
    cases::push_actions(&mut out, &detail.actions);
    out
}

fn push_row(out: &mut String, row: &Refused) {
    let _ = writeln!(out, "\n{}  {}", table::visible(&row.code), state(row));
    let _ = writeln!(out, "  at          \"{}\"", table::visible(&row.place));
    let _ = writeln!(out, "  reason      {}", table::visible(&row.reason));
    let _ = writeln!(out, "  times seen  {}", row.times_seen);
    let time = table::or_dash(row.message_time);
    let _ =
        writeln!(out, "  first       {} at {}, its Kafka timestamp {time}", table::visible(&row.first), row.first_seen);
    let _ = writeln!(out, "  last        {} at {}", table::visible(&row.last), row.last_seen);
    if let Some(closed) = row.closed_at {
        let _ = writeln!(out, "  closed      {closed}");
    }
}
