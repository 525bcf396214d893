//! `postonce verify`: are the books right?

use crate::args::{DatabaseArgs, Output, OutputArgs, RulesArgs};
use crate::{reader, table};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use postonce_consumer::database::Database;
use postonce_consumer::verify::report::{Checked, Finding, Report};
use postonce_consumer::verify::{Progress, verify};
use std::fmt::Write;
use std::process::ExitCode;

/// The run went well and found a difference.
const DIFFERENCE: u8 = 3;

const HELP: &str = "\
Reads every table once, in short snapshots, while consumers go on writing: balances,
postings and the positions computed anew from the stored facts must agree for each
account and each resource; every offset must be in exactly one batch with one outcome
that agrees with the rows; each batch must hash to what it recorded.

Findings are named by account, resource, event and offset. Of each check the first 100
are listed, the rest is counted. Each run is kept in `verifications`.

Exit code: 0 all is right, 3 something was found, 1 nothing can be said.

Examples:
  postonce verify
  postonce verify -o json | jq '.checks[] | select(.findings > 0)'";

/// Prove the books from the tables, and from the topic too
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub rules: RulesArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let rules = args.rules.read()?;
    let database = Database::new(&args.database.database_url, &args.database.schema)?;
    let bar = Bar::new();
    let report = reader::ask(&args.database, async |connection| {
        Ok(verify(connection, &database, &rules, &|progress| bar.show(progress)).await?)
    })?;
    bar.0.finish_and_clear();
    if let Some(why) = &report.not_recorded {
        eprintln!("this run is not written down, and --since-last cannot go on from it: {why}");
    }
    table::print(&match args.output.output {
        Output::Json => table::json(&report)?,
        Output::Table => as_text(&report),
    })?;
    Ok(if report.findings == 0 { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENCE) })
}

/// On stderr, and only if that is a terminal.
struct Bar(ProgressBar);

impl Bar {
    fn new() -> Self {
        Self(ProgressBar::new_spinner())
    }

    fn show(&self, progress: Progress) {
        match progress {
            Progress::Resources(count) => {
                self.0.set_message(format!("positions of {} resources", HumanCount(count)));
                self.0.tick();
            }
            Progress::Offsets(done, all) => {
                if self.0.length() != Some(all) {
                    let template = "{msg} {wide_bar} {human_pos} of {human_len}, {per_sec}, {eta} left";
                    if let Ok(style) = ProgressStyle::with_template(template) {
                        self.0.set_style(style);
                    }
                    self.0.set_message("offsets");
                    self.0.set_length(all);
                }
                self.0.set_position(done);
            }
        }
    }
}

fn as_text(report: &Report) -> String {
    let rows = report.checks.iter().map(|checked| {
        let result = if checked.findings == 0 { "ok".to_owned() } else { HumanCount(checked.findings).to_string() };
        [checked.check.to_owned(), result, HumanCount(checked.compared).to_string(), checked.what.to_owned()]
    });
    let mut out = table::columns(&["CHECK", ">FINDINGS", ">COMPARED", "WHAT MUST HOLD"], rows);
    let streams = report.streams.iter().map(|stream| {
        let replay = if stream.replay { " (replay)" } else { "" };
        [
            format!("{}/{}{replay}", table::visible(&stream.topic), stream.partition),
            stream.from_offset.to_string(),
            stream.next_offset.to_string(),
            stream.batches.to_string(),
        ]
    });
    out.push('\n');
    out.push_str(&table::columns(&["STREAM", ">FROM", ">VERIFIED UP TO", ">BATCHES"], streams));
    for gap in &report.gaps {
        let (topic, last) = (table::visible(&gap.topic), gap.next_offset - 1);
        // Writing to a string does not fail.
        let _ = write!(out, "\n{topic}/{}: offsets {} to {last} were lost", gap.partition, gap.from_offset);
        out.push_str(" to retention before they were read, and a person has accepted it");
    }
    if !report.gaps.is_empty() {
        out.push('\n');
    }
    for checked in report.checks.iter().filter(|checked| checked.findings > 0) {
        push_findings(&mut out, checked);
    }
    push_summary(&mut out, report);
    out
}

fn push_findings(out: &mut String, checked: &Checked) {
    let _ = writeln!(out, "\n{}: {} found", checked.check, HumanCount(checked.findings));
    for finding in &checked.first {
        let _ = writeln!(out, "  - {}", table::visible(&finding.what));
        for (name, value) in places(finding) {
            let _ = writeln!(out, "      {name:<9} {}", table::visible(&value));
        }
    }
    let listed = u64::try_from(checked.first.len()).unwrap_or(u64::MAX);
    if checked.findings > listed {
        let _ = writeln!(out, "  and {} more", HumanCount(checked.findings - listed));
    }
}

fn places(finding: &Finding) -> Vec<(&'static str, String)> {
    let account = finding.account.as_ref().map(|account| match &finding.asset {
        Some(asset) => format!("{account} {asset}"),
        None => account.clone(),
    });
    let asset = finding.asset.clone().filter(|_| finding.account.is_none());
    let place = finding.topic.as_ref().zip(finding.offset).map(|(topic, offset)| match finding.partition {
        Some(partition) => format!("{topic}/{partition}/{offset}"),
        None => format!("{topic}, offset {offset}"),
    });
    let all = [
        ("account", account),
        ("asset", asset),
        ("resource", finding.resource.clone()),
        ("event", finding.event.map(|event| event.to_string())),
        ("message", place),
        ("expected", finding.expected.clone()),
        ("found", finding.found.clone()),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

fn push_summary(out: &mut String, report: &Report) {
    let totals = &report.totals;
    let verdict = match report.findings {
        0 => "all is right".to_owned(),
        count => format!("{} found", HumanCount(count)),
    };
    let _ = writeln!(
        out,
        "\n{verdict}: {} offsets, {} events, {} postings, {} resources, {} accounts in {:.1} s ({} rows/s)",
        HumanCount(totals.offsets),
        HumanCount(totals.events),
        HumanCount(totals.postings),
        HumanCount(totals.resources),
        HumanCount(totals.accounts),
        report.seconds,
        whole(report.rows_per_second),
    );
}

fn whole(rate: f64) -> String {
    format!("{rate:.0}")
}
