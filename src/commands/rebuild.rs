//! `postonce rebuild`: the whole topic into another schema, and the two ledgers compared.

use crate::args::{Output, OutputArgs};
use crate::commands::interrupt;
use crate::progress;
use crate::reread::{self, RereadArgs};
use crate::table;
use anyhow::Context;
use postonce_consumer::database::Database;
use postonce_consumer::rebuild::{Finding, Progress, Rebuild, Report, What, WhatIf, rebuild};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::ExitCode;

const HELP: &str = "\
Reads the whole topic, from where the log begins to where the live ledger stands, posts
it by the real transaction into a schema of its own, and compares what the two ledgers
say: known events with their fingerprints, resources, net balances, postings as sums for
each resource and pair of accounts, the outcome of each offset, the message chains. Which
steps were posted, revisions and borders of batches may differ with the order of arrival
and are not compared. The live ledger is only read; its consumers may go on.

Explained, and no difference: what the log does not hold any more, what came from another
topic or lineage, what was dismissed in quarantine or accepted by a copy. What is accepted
now and waits in quarantine live is told apart, with the resources, postings and balances
that differ only because of it.

With --positions FILE whose rules are not those in use it says instead what the balances
would be under these rules. Give it the same --kinds and --max-ahead-hours as `consume`.

It needs about as much room as the live ledger, and the right to create a schema. The
schema is kept to look into, unless --drop is given; after an error, SIGTERM or SIGINT it
is half built, and dropped in any case.

Exit codes: 0 equal, 3 it ran well and found a difference, 1 an error, 2 wrong usage,
12 the log ends before the ledger's offset, 13 the rules are not those in use, 130 or
143 after a signal.

Examples:
  postonce rebuild -b localhost:9092 --drop
  postonce rebuild --into audit_2026_01
  postonce rebuild --positions new-fees.toml --drop -o json | jq .what_if";

/// Build the ledger anew from the topic, and compare
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    again: RereadArgs,

    /// The schema for the rebuilt ledger, in the same database; it must not hold anything yet
    #[arg(long, env = "POSTONCE_INTO", default_value = "postonce_rebuild", value_name = "SCHEMA")]
    into: String,

    /// Drop the schema afterwards
    #[arg(long, env = "POSTONCE_DROP")]
    drop: bool,

    /// How many differences of each kind are named; all are counted
    #[arg(long, env = "POSTONCE_DIFFERENCES", default_value = "20", value_name = "N")]
    differences: usize,

    #[command(flatten)]
    output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    interrupt::watch().context("no signals can be watched")?;
    let output = args.output.output;
    let most = args.differences;
    let run = request(args)?;
    let bar = progress::Progress::begin("posting");
    let watch = |progress| {
        match progress {
            Progress::Posting(done, total) => bar.at("posting", done, total),
            Progress::Comparing => bar.then("comparing"),
        }
        interrupt::signal().is_none()
    };
    let result = rebuild(&run, &watch);
    drop(bar);
    let report = match result {
        Ok(report) => report,
        Err(error) => return reread::end(error),
    };
    table::print(&match output {
        Output::Json => as_json(&report)?,
        Output::Table => as_text(&report, most),
    })?;
    Ok(reread::exit_code(report.is_equal()))
}

fn request(args: Args) -> anyhow::Result<Rebuild> {
    Ok(Rebuild {
        database: Database::new(&args.again.database.database_url, &args.again.database.schema)?,
        kafka: args.again.kafka(),
        what_if: args.again.decoder.rules.positions.is_some(),
        decoder: args.again.decoder.read()?,
        into: args.into,
        workers: args.again.workers(),
        differences: args.differences,
        drop: args.drop,
    })
}

fn as_json(report: &Report) -> anyhow::Result<String> {
    let lineage = &report.lineage;
    let findings = &report.findings;
    let (differences, explained): (BTreeMap<What, u64>, BTreeMap<What, u64>) =
        findings.counts.iter().map(|(what, count)| (*what, *count)).partition(|(what, _)| what.is_difference());
    table::json(&json!({
        "equal": report.is_equal(),
        "topic": lineage.topic,
        "topic_id": lineage.topic_id,
        "cluster_id": lineage.cluster_id,
        "schema": report.kept,
        "partitions": report.spans,
        "not_read_yet": report.behind,
        "messages": { "live": report.live, "rebuilt": report.rebuilt },
        "compared": report.compared,
        "differences": differences,
        "explained": explained,
        "first": findings.first,
        "what_if": report.what_if,
        "seconds": { "posting": report.posting_took.as_secs_f64(), "comparing": report.comparing_took.as_secs_f64() },
    }))
}

fn as_text(report: &Report, most: usize) -> String {
    let mut out = String::new();
    let spans = report.spans.iter().map(|span| {
        [i64::from(span.partition), span.from, span.to, span.log_start, span.log_end].map(|number| number.to_string())
    });
    out.push_str(&table::columns(&[">PARTITION", ">FROM", ">TO", ">LOG BEGINS", ">LOG ENDS"], spans));
    let judged = [("live", report.live), ("rebuilt", report.rebuilt)]
        .map(|(side, judged)| [side.to_owned(), judged.accepted.to_string(), judged.refused.to_string()]);
    out.push('\n');
    out.push_str(&table::columns(&["MESSAGES", ">ACCEPTED", ">REFUSED"], judged));
    // Writing to a string does not fail.
    let _ = match &report.what_if {
        Some(what_if) => push_what_if(&mut out, what_if, most),
        None => push_compared(&mut out, report),
    };
    let (posting, comparing) = (report.posting_took.as_secs_f64(), report.comparing_took.as_secs_f64());
    let _ = writeln!(out, "\nposted in {posting:.1} s, compared in {comparing:.1} s");
    reread::push_gone(&mut out, &report.spans, "what came from them is only live");
    if report.behind > 0 {
        let _ = writeln!(out, "at the start the live ledger had {} offsets yet to read", report.behind);
    }
    let _ = match &report.kept {
        Some(schema) => {
            writeln!(out, "the rebuilt ledger is in schema {schema}; DROP SCHEMA {schema} CASCADE when you are done")
        }
        None => Ok(()),
    };
    let _ = writeln!(out, "\n{}", verdict(report));
    out
}

fn push_compared(out: &mut String, report: &Report) -> std::fmt::Result {
    let compared = &report.compared;
    let count = |what| report.findings.counts.get(&what).copied().unwrap_or(0);
    let events =
        count(What::EventOnlyLive) + count(What::EventOnlyRebuilt) + count(What::RefusedNow) + count(What::AcceptedNow);
    let rows = [
        ("known events", compared.events, events),
        ("resources", compared.resources, count(What::Resource)),
        ("postings by resource and pair", compared.postings, count(What::Postings)),
        ("net balances", compared.balances, count(What::Balance)),
        ("message chains", compared.message_chains, count(What::MessageChain)),
    ];
    out.push('\n');
    let rows = rows.map(|(name, all, different)| [name.to_owned(), all.to_string(), different.to_string()]);
    out.push_str(&table::columns(&["COMPARED", ">ALL", ">DIFFERENT"], rows));
    for (what, count) in &report.findings.counts {
        writeln!(out, "\n{count} {}{}", what.name(), if what.is_difference() { "" } else { " (no difference)" })?;
        for finding in report.findings.first.get(what).into_iter().flatten() {
            push_finding(out, *what, finding)?;
        }
    }
    Ok(())
}

fn push_finding(out: &mut String, what: What, finding: &Finding) -> std::fmt::Result {
    let mut parts: Vec<String> = Vec::new();
    if let (Some(topic), Some(partition)) = (&finding.topic, finding.partition) {
        let offset = finding.offset.map_or(String::new(), |offset| format!("/{offset}"));
        parts.push(format!("{}/{partition}{offset}", table::visible(topic)));
    }
    parts.extend(finding.type_name.clone());
    parts.extend(finding.resource.as_deref().map(table::visible));
    parts.extend(finding.updated_at.as_ref().map(|time| format!("of {time}")));
    parts.extend((what == What::Postings && finding.resource.is_none()).then(|| "of no known event:".to_owned()));
    parts.extend((!finding.accounts.is_empty()).then(|| finding.accounts.join(" <- ")));
    parts.extend(finding.asset.clone());
    writeln!(out, "  {}", parts.join(" "))?;
    if let Some(id) = &finding.event_id {
        writeln!(out, "      {id}")?;
    }
    if finding.live.is_some() || finding.rebuilt.is_some() {
        writeln!(out, "      live     {}", amount_or_text(finding.live.as_deref(), finding.asset.as_deref()))?;
        writeln!(out, "      rebuilt  {}", amount_or_text(finding.rebuilt.as_deref(), finding.asset.as_deref()))?;
    }
    Ok(())
}

/// Minor units where there is an asset.
fn amount_or_text(text: Option<&str>, asset: Option<&str>) -> String {
    match (text.and_then(|text| text.parse().ok()), asset) {
        (Some(units), Some(asset)) => table::amount(postonce_consumer::read::MinorUnits(units), asset),
        _ => table::or_dash(text),
    }
}

fn push_what_if(out: &mut String, what_if: &WhatIf, most: usize) -> std::fmt::Result {
    writeln!(out, "\nOther rules than those in use:")?;
    for line in what_if.rules.lines() {
        writeln!(out, "  {}", table::visible(line))?;
    }
    let rows = what_if.accounts.iter().take(most).map(|change| {
        let amount = |units| table::amount(units, &change.asset);
        [
            table::visible(&change.account),
            table::visible(&change.asset),
            amount(change.live),
            amount(change.rebuilt),
            amount(change.difference),
        ]
    });
    out.push('\n');
    out.push_str(&table::columns(&["ACCOUNT", "ASSET", ">LIVE", ">UNDER THESE RULES", ">DIFFERENCE"], rows));
    let left = what_if.accounts.len().saturating_sub(most);
    if left > 0 {
        writeln!(out, "and {left} more: --differences {} or -o json shows them", what_if.accounts.len())?;
    }
    Ok(())
}

fn verdict(report: &Report) -> &'static str {
    match (&report.what_if, report.is_equal()) {
        (Some(_), true) => "EQUAL: no balance would be another under these rules",
        (Some(_), false) => "DIFFERENT: these rules come to other balances",
        (None, true) => "EQUAL: the topic comes to the same books",
        (None, false) if report.differs_by_quarantine_only() => {
            "DIFFERENT: only by what is in quarantine and these rules accept; `postonce quarantine retry` brings it in"
        }
        (None, false) => "DIFFERENT: the topic does not come to the same books",
    }
}
