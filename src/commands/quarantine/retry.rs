//! `postonce quarantine retry`

use super::ChoiceArgs;
use super::resend::{Destinations, Undelivered};
use crate::args::{ClientArgs, DatabaseArgs, Output, OutputArgs};
use crate::commands::interrupt;
use crate::person::{self, PersonArgs};
use crate::{reader, table};
use anyhow::Context;
use postonce_consumer::cases::CaseError;
use postonce_consumer::cases::actions::{Decision, record_retry};
use postonce_consumer::cases::key::MessageKey;
use postonce_consumer::cases::quarantine::original;
use postonce_consumer::chain::Hash;
use serde::Serialize;
use sqlx::postgres::PgConnection;
use std::collections::{HashMap, HashSet};
use std::process::ExitCode;

/// Messages that are held in memory and whose delivery is awaited together. Each may be as
/// long as Kafka allows.
const CHUNK: usize = 20;

const HELP: &str = "\
Sends the message again as it came (key, value, headers) to the topic and partition
where it was first refused, with one header more: postonce-retry, its first place.
Its Kafka timestamp is that of now, so an event that was too far in the future then
may be accepted today. The row closes when a consumer has accepted the copy: the
topic carries the decision, and a ledger that is restored or built anew comes to
the same. If the copy is refused again, the same row counts on, and stays open.

Whether upstream has sent the event again itself does not matter: the copy is then
a duplicate, posts nothing, and closes the row.

The action is committed before the message is sent. After a crash in between,
`show` tells of a retry and the topic has no copy: retry again. A copy too many is
a duplicate. Kafka confirms each copy (acks=all, idempotent); one that it does not
take is named, its row stays open, and the exit code is 1.

Exit codes: 0 Kafka has confirmed every copy, 1 it has not, or another error,
2 wrong usage, 130 or 143 stopped by SIGINT or SIGTERM between two messages.

Examples:
  postonce quarantine retry 3f9c2a7b81d4
  postonce quarantine retry payments/3/1042 --why 'the new rules know this type'
  postonce quarantine retry --all --code unknown_type --since 2026-01-31 --yes";

/// Send refused messages to the topic again
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    choice: ChoiceArgs,

    /// Kafka bootstrap servers, `host:port[,host:port…]`
    #[arg(long, short = 'b', env = "KAFKA_BROKERS", value_name = "HOST:PORT")]
    brokers: String,

    #[command(flatten)]
    client: ClientArgs,

    /// Send to this topic on these brokers, whatever topic and cluster the message was
    /// refused on: for a ledger that has moved to another cluster. Its key chooses the
    /// partition
    #[arg(long, env = "POSTONCE_RETRY_TO", value_name = "TOPIC")]
    to: Option<String>,

    /// Why, for the record
    #[arg(long, env = "POSTONCE_WHY", value_name = "TEXT", value_parser = person::why)]
    why: Option<String>,

    #[command(flatten)]
    person: PersonArgs,

    #[command(flatten)]
    database: DatabaseArgs,

    #[command(flatten)]
    output: OutputArgs,
}

/// What became of the copies.
#[derive(Serialize, Default)]
struct Report {
    asked: usize,
    /// Confirmed by Kafka.
    sent: usize,
    /// Closed by somebody else in the meantime, and not sent.
    closed: usize,
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    id: String,
    reason: String,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    interrupt::watch().context("no signals can be watched")?;
    let person = args.person.name()?;
    let decision = Decision { person: &person, why: args.why.as_deref() };
    let report = reader::ask(&args.database, async |connection| {
        let keys = args.choice.keys(connection, "Send again").await?;
        let messages = by_message(keys);
        let mut destinations = Destinations::new(&args.brokers, &args.client, args.to.as_deref());
        let mut report = Report { asked: messages.len(), ..Report::default() };
        for chunk in messages.chunks(CHUNK) {
            if interrupt::signal().is_some() {
                break;
            }
            retry(connection, &mut destinations, chunk, decision, &mut report).await?;
        }
        Ok(report)
    })?;
    table::print(&match args.output.output {
        Output::Json => table::json(&report)?,
        Output::Table => as_text(&report),
    })?;
    Ok(match interrupt::signal() {
        _ if !report.failed.is_empty() => ExitCode::FAILURE,
        Some(signal) => interrupt::exit_code(signal),
        None => ExitCode::SUCCESS,
    })
}

/// The rows of each message together, in the order in which the messages came: one that
/// was refused under two codes is sent once.
fn by_message(keys: Vec<MessageKey>) -> Vec<Vec<MessageKey>> {
    let mut places: HashMap<Hash, usize> = HashMap::new();
    let mut messages: Vec<Vec<MessageKey>> = Vec::new();
    for key in keys {
        let place = *places.entry(key.hash).or_insert(messages.len());
        match messages.get_mut(place) {
            Some(rows) => rows.push(key),
            None => messages.push(vec![key]),
        }
    }
    messages
}

/// Records and sends a chunk, and waits for Kafka's word on each copy.
async fn retry(
    connection: &mut PgConnection,
    destinations: &mut Destinations<'_>,
    messages: &[Vec<MessageKey>],
    decision: Decision<'_>,
    report: &mut Report,
) -> anyhow::Result<()> {
    // Nothing may be recorded of what cannot be sent from here.
    let mut originals = Vec::with_capacity(messages.len());
    for rows in messages {
        let key = rows.first().context("a message without a row")?;
        let found = original(connection, key).await?.ok_or_else(|| CaseError::Changed(key.id()))?;
        destinations.check(&found)?;
        originals.push(found);
    }
    let rows: Vec<MessageKey> = messages.iter().flatten().cloned().collect();
    let recorded = record_retry(connection, &rows, decision).await?;
    let open: HashSet<Hash> = recorded.iter().map(|key| key.hash).collect();
    let mut queued = 0;
    for (tag, (rows, original)) in messages.iter().zip(&originals).enumerate() {
        if rows.iter().any(|key| open.contains(&key.hash)) {
            destinations.send(original, tag)?;
            queued += 1;
        } else {
            report.closed += 1;
        }
    }
    let undelivered = destinations.flush()?;
    report.sent += queued - undelivered.len().min(queued);
    for Undelivered { tag, reason } in undelivered {
        let id = messages.get(tag).and_then(|rows| rows.first()).map(MessageKey::id).unwrap_or_default();
        report.failed.push(Failed { id, reason });
    }
    Ok(())
}

fn as_text(report: &Report) -> String {
    let Report { asked, sent, closed, failed } = report;
    let mut text =
        format!("{sent} of {asked} sent again and confirmed by Kafka; each row closes when its copy is accepted\n");
    if *closed > 0 {
        text.push_str(&format!("{closed} were closed by somebody else in the meantime and not sent\n"));
    }
    for Failed { id, reason } in failed {
        text.push_str(&format!("not delivered: {id}: {}\n", table::visible(reason)));
    }
    text
}
