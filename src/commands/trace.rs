//! `postonce trace`: why is this balance so?

use crate::args::{DatabaseArgs, Output, OutputArgs};
use crate::{reader, table};
use anyhow::ensure;
use postonce_consumer::read::trace::{ResourceTrace, TracedEvent, trace, trace_event};
use postonce_schema::{EventId, Timestamp};
use std::fmt::Write;
use std::process::ExitCode;

const HELP: &str = "\
Shows every event seen for a resource, where it came from, its outcome and why, and
what it posted. Duplicates are counted in the batch that brought them and have no
row of their own. What was refused is in quarantine: see `postonce status`.

An event id alone is found by reading all events, seconds on a large ledger; with
--at (the event's updatedAt) it is one look.

Examples:
  postonce trace stripe/acct_1/pi_3Nf
  postonce trace stripe/acct_1/pi_3Nf --kind payment -o json
  postonce trace evt_6a… --at 2026-01-02T03:04:05.123456Z";

/// Show every event of a resource, what became of it and why
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// A resource such as stripe/acct_1/pi_3Nf, or an event id `evt_…`
    #[arg(env = "POSTONCE_TRACE", value_name = "RESOURCE|EVENT-ID")]
    pub subject: String,

    /// Only this kind, where a path names resources of several kinds
    #[arg(long, env = "POSTONCE_KIND")]
    pub kind: Option<String>,

    /// The event's updatedAt: finds an event id at once
    #[arg(long, env = "POSTONCE_AT", value_name = "TIME", value_parser = reader::time)]
    pub at: Option<Timestamp>,

    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let subject = args.subject.as_str();
    let traces = reader::ask(&args.database, async |connection| match EventId::parse(subject) {
        Some(id) => {
            if args.at.is_none() {
                eprintln!("reading all events for the id; --at UPDATED_AT finds it at once");
            }
            Ok(trace_event(connection, id, args.at).await?.into_iter().collect())
        }
        None => Ok(trace(connection, subject, args.kind.as_deref()).await?),
    })?;
    ensure!(
        !traces.is_empty(),
        "nothing is known of {}; was it refused? see `postonce status`",
        table::visible(subject)
    );
    table::print(&match args.output.output {
        Output::Json => table::json(&traces)?,
        Output::Table => traces.iter().map(|trace| as_text(trace, subject)).collect::<Vec<_>>().join("\n"),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn as_text(trace: &ResourceTrace, subject: &str) -> String {
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = writeln!(out, "{} {}", trace.kind, table::visible(&trace.resource));
    let _ = writeln!(out, "  state        {} of {}", trace.state, trace.updated_at);
    let _ = writeln!(out, "  revision     {} (rules version {})", trace.revision, trace.rules_version);
    let _ = writeln!(out, "  facts        {}", table::visible(trace.facts.get()));
    let _ = writeln!(out, "  resource id  {}", trace.resource_id);
    let _ = writeln!(out, "\nEvents in the order in which they were recorded, * is the state:");
    for event in &trace.events {
        push_event(&mut out, event, event.event_id == subject);
    }
    if !trace.incidents.is_empty() {
        let _ = writeln!(out, "\nIncidents:");
    }
    for incident in &trace.incidents {
        let closed = incident.closed_at.map_or("open".to_owned(), |time| format!("closed {time}"));
        let _ = writeln!(
            out,
            "  {} {} ({closed}): {}",
            incident.opened_at,
            incident.code,
            table::visible(&incident.detail)
        );
    }
    let _ = writeln!(out, "\nDuplicates are counted in the batch that brought them and not listed.");
    out
}

fn push_event(out: &mut String, event: &TracedEvent, asked_for: bool) {
    let mark = if event.stands { "*" } else { " " };
    let asked = if asked_for { "  <- the event asked for" } else { "" };
    let _ = writeln!(out, "{mark} {} {} {}{asked}", event.updated_at, event.event_type, event.outcome);
    let _ = writeln!(out, "    why       {}", table::visible(&event.why));
    let topic = table::or_dash(event.topic.as_ref());
    let place = format!("{topic}/{}/{}", table::or_dash(event.partition), event.offset);
    let source = table::or_dash(event.source.as_ref());
    let time = table::or_dash(event.message_time);
    let _ = writeln!(out, "    message   {place} of {time}, source {source}");
    let _ = writeln!(out, "    recorded  {}", table::or_dash(event.recorded_at));
    let _ = writeln!(out, "    event     {}", event.event_id);
    for posting in &event.postings {
        let asset = posting.asset.as_deref().unwrap_or("?");
        let (debit, credit) = (table::or_dash(posting.debit.as_ref()), table::or_dash(posting.credit.as_ref()));
        let _ = writeln!(
            out,
            "    posted    {debit} <- {credit}  {} {}",
            table::amount(posting.amount, asset),
            table::visible(asset)
        );
    }
}
