//! `postonce replay`: the topic again, through the same code.

use crate::args::{Output, OutputArgs};
use crate::commands::interrupt;
use crate::progress;
use crate::reread::{self, RereadArgs};
use crate::{reader, table};
use anyhow::Context;
use postonce_consumer::chain;
use postonce_consumer::database::Database;
use postonce_consumer::replay::{Books, Difference, Place, Progress, Replay, Report, Span, What, replay};
use serde_json::json;
use std::fmt::Write as _;
use std::process::ExitCode;

const HELP: &str = "\
Reads the topic again, judges every message as `consume` does, and compares with what
the ledger knows. Nothing is written: no offset moves, no row changes, and it may run
beside the live consumers. Give it the same --positions, --kinds and --max-ahead-hours as
`consume`.

It reads from where the log begins to where the live ledger stands, never past the last
stable offset. In an equal ledger every event is a duplicate and every refused message
is in quarantine: new, conflicts and differences are 0.

With --execute the range goes through the real transaction, under a lineage of its own:
what is known leaves batch rows and nothing else, what is not is posted. The live
offsets stay where they are, and the live consumers may go on.

--from and --to take `earliest`, `end`, an offset for every partition, PARTITION:OFFSET
for one (repeat it), or a time (RFC 3339, or a date for its midnight in UTC) for the
first message with that Kafka timestamp. --to is exclusive.

Exit codes: 0 equal, 3 it ran well and found a difference, 1 an error, 2 wrong usage,
12 the log ends before the ledger's offset, 13 the rules file contradicts the rules in
use, 130 or 143 after a signal.

Examples:
  postonce replay -b localhost:9092
  postonce replay --from 2026-01-31 --to 2026-02-01
  postonce replay --execute --to end
  postonce replay --from 0:1000 --to 0:2000 -o json | jq .differences";

/// Read the topic again and prove that the ledger knows all of it
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    again: RereadArgs,

    /// Where to begin; by default where the log does
    #[arg(long, env = "POSTONCE_FROM", value_name = "PLACE", value_delimiter = ',', value_parser = place)]
    from: Vec<Place>,

    /// Where to end; by default where the live ledger stands
    #[arg(long, env = "POSTONCE_TO", value_name = "PLACE", value_delimiter = ',', value_parser = place)]
    to: Vec<Place>,

    /// How many differences are named; all are counted
    #[arg(long, env = "POSTONCE_DIFFERENCES", default_value = "20", value_name = "N")]
    differences: usize,

    /// Do not hash the books before and after (it reads every resource)
    #[arg(long, env = "POSTONCE_NO_DIGEST")]
    no_digest: bool,

    /// Not only look: post what the ledger does not know, by the real transaction
    #[arg(long, env = "POSTONCE_EXECUTE")]
    execute: bool,

    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    interrupt::watch().context("no signals can be watched")?;
    let output = args.output.output;
    let run = request(args)?;
    let bar = progress::Progress::begin("replaying");
    let watch = |progress| {
        match progress {
            Progress::Hashing => bar.then("hashing the books"),
            Progress::Reading(done, total) => bar.at("replaying", done, total),
        }
        interrupt::signal().is_none()
    };
    let result = replay(&run, &watch);
    drop(bar);
    let report = match result {
        Ok(report) => report,
        Err(error) => return reread::end(error),
    };
    table::print(&match output {
        Output::Json => as_json(&report)?,
        Output::Table => as_text(&report),
    })?;
    Ok(reread::exit_code(report.is_equal()))
}

fn request(args: Args) -> anyhow::Result<Replay> {
    Ok(Replay {
        database: Database::new(&args.again.database.database_url, &args.again.database.schema)?,
        kafka: args.again.kafka(),
        decoder: args.again.decoder.read()?,
        from: args.from,
        to: args.to,
        workers: args.again.workers(),
        differences: args.differences,
        digest: !args.no_digest,
        execute: args.execute,
    })
}

fn place(text: &str) -> Result<Place, String> {
    let offset = |text: &str| text.parse::<i64>().ok().filter(|n| *n >= 0);
    match text {
        "earliest" => return Ok(Place::Earliest),
        "end" => return Ok(Place::End),
        _ => {}
    }
    if let Some(offset) = offset(text) {
        return Ok(Place::Offset(offset));
    }
    if let Some((partition, of)) = text.split_once(':')
        && let (Ok(partition @ 0..), Some(offset)) = (partition.parse(), offset(of))
    {
        return Ok(Place::Partition { partition, offset });
    }
    let time = reader::time(text).map(Place::Time);
    time.map_err(|why| format!("{why}; or earliest, end, an offset, or PARTITION:OFFSET"))
}

fn rate(report: &Report) -> f64 {
    // Exact up to 2^32 events, which is as exact as a rate needs to be.
    let read = f64::from(u32::try_from(report.counts.read).unwrap_or(u32::MAX));
    read / report.took.as_secs_f64().max(1e-6)
}

fn as_json(report: &Report) -> anyhow::Result<String> {
    let lineage = &report.lineage;
    table::json(&json!({
        "equal": report.is_equal(),
        "executed_as": report.executed,
        "topic": lineage.topic,
        "topic_id": lineage.topic_id,
        "cluster_id": lineage.cluster_id,
        "partitions": report.spans,
        "not_read_yet": report.behind,
        "counts": report.counts,
        "differences": { "total": report.differences.total(), "by_kind": report.differences.counts, "first": report.differences.first },
        "digest": { "before": report.before, "after": report.after },
        "seconds": report.took.as_secs_f64(),
        "events_per_second": rate(report).round(),
    }))
}

fn as_text(report: &Report) -> String {
    let mut out = String::new();
    out.push_str(&table::columns(
        &["PARTITION", ">FROM", ">TO", ">LOG BEGINS", ">LEDGER AT", ">LOG ENDS"],
        report.spans.iter().map(span_row),
    ));
    let counts = &report.counts;
    let must_be_0 = |count: u64| if count == 0 { "" } else { "must be 0" }.to_owned();
    let rows = [
        ("read", counts.read, String::new()),
        ("duplicates", counts.duplicates, String::new()),
        ("superseded", counts.superseded, must_be_0(counts.superseded)),
        ("conflicts", counts.conflicts, must_be_0(counts.conflicts)),
        ("rejected", counts.rejected, String::new()),
        ("accepted now, in quarantine", counts.accepted_now, String::new()),
        ("new (must be 0)", counts.new, String::new()),
        ("holes", counts.holes, String::new()),
    ];
    out.push('\n');
    out.push_str(&table::columns(
        &["MESSAGES", ">COUNT", ""],
        rows.map(|(name, count, note)| [name.to_owned(), count.to_string(), note]),
    ));
    push_digest(&mut out, report);
    // Writing to a string does not fail.
    let _ =
        writeln!(out, "\n{} messages in {:.1} s, {:.0} a second", counts.read, report.took.as_secs_f64(), rate(report));
    push_notes(&mut out, report);
    push_differences(&mut out, report);
    let _ = writeln!(out, "\n{}", verdict(report));
    out
}

fn span_row(span: &Span) -> [String; 6] {
    let ledger = table::or_dash(span.live.map(|live| live.next_offset));
    let numbers = [i64::from(span.partition), span.from, span.to, span.log_start].map(|number| number.to_string());
    let [partition, from, to, start] = numbers;
    [partition, from, to, start, ledger, span.log_end.to_string()]
}

fn push_digest(out: &mut String, report: &Report) {
    let (Some(before), Some(after)) = (&report.before, &report.after) else { return };
    let text =
        |books: &Books| format!("{} over {} resources", chain::hex::text(&books.digest.sha256), books.digest.resources);
    let _ = writeln!(out, "\nledger before  {}", text(before));
    let _ = match () {
        () if before.digest == after.digest => writeln!(out, "ledger after   the same"),
        () if before.offsets == after.offsets => {
            writeln!(out, "ledger after   {}: CHANGED while nothing was consumed", text(after))
        }
        () => writeln!(
            out,
            "ledger after   {}: the live consumers went on by {} offsets",
            text(after),
            after.offsets.saturating_sub(before.offsets)
        ),
    };
}

/// What the range leaves out.
fn push_notes(out: &mut String, report: &Report) {
    reread::push_gone(out, &report.spans, "nothing is said of them");
    if let Some(topic_id) = &report.executed {
        let _ = writeln!(out, "executed under topic id {topic_id}: {} events were posted or noted", report.counts.new);
    }
    if report.behind > 0 {
        let _ = writeln!(out, "the live ledger has {} offsets yet to read", report.behind);
    }
}

fn push_differences(out: &mut String, report: &Report) {
    let (first, total) = (&report.differences.first, report.differences.total());
    if total == 0 {
        return;
    }
    let shown =
        if u64::try_from(first.len()) == Ok(total) { String::new() } else { format!(", the first {}", first.len()) };
    let _ = writeln!(out, "\n{total} difference{}{shown}:", if total == 1 { "" } else { "s" });
    for one in first {
        push_difference(out, &report.lineage.topic, one);
    }
}

fn push_difference(out: &mut String, topic: &str, one: &Difference) {
    let place = format!("{}/{}/{}", table::visible(topic), one.partition, one.offset);
    let _ = writeln!(out, "  {place}  {}: {}", one.what.name(), table::visible(&one.detail));
    if let Some(event) = &one.event {
        let (name, resource) = (&event.type_name, table::visible(&event.resource));
        let _ = writeln!(out, "      {name} {resource} of {}\n      {}", event.updated_at, event.event_id);
    }
}

fn verdict(report: &Report) -> &'static str {
    match () {
        () if report.is_equal() && report.counts.read == 0 => "EQUAL: there was nothing to read",
        () if report.is_equal() => "EQUAL: the ledger knows every message that was read",
        () if report.executed.is_some() => "DIFFERENT: the ledger did not know all of it, and does now",
        () if report.differences.total() == 0 => "DIFFERENT: the books have changed while nothing was consumed",
        () if report.differences.counts.keys().all(|what| *what == What::AcceptedNow) => {
            "DIFFERENT: only by what is in quarantine and these rules accept; `postonce quarantine retry` brings it in"
        }
        () => "DIFFERENT: the ledger and the topic do not say the same",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!(place("earliest"), Ok(Place::Earliest));
        assert_eq!(place("end"), Ok(Place::End));
        assert_eq!(place("42"), Ok(Place::Offset(42)));
        assert_eq!(place("3:42"), Ok(Place::Partition { partition: 3, offset: 42 }));
        assert!(matches!(place("2026-01-31"), Ok(Place::Time(_))));
        assert!(matches!(place("2026-01-31T12:00:00+01:00"), Ok(Place::Time(_))));
        for refused in ["", "-1", "1:", ":1", "1:-1", "-1:1", "latest", "2026-02-30"] {
            assert!(place(refused).is_err(), "{refused}");
        }
    }
}
