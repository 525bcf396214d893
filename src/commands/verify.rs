//! `postonce verify`: are the books right?

use crate::args::{self, ClientArgs, DatabaseArgs, Output, OutputArgs, RulesArgs, TopicArgs};
use crate::{reader, table};
use anyhow::Context;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use postonce_consumer::checkpoint::Checkpoint;
use postonce_consumer::config::{GroupProtocol, Kafka};
use postonce_consumer::database::Database;
use postonce_consumer::verify::report::{Against, Checked, Finding, Gap, Report};
use postonce_consumer::verify::{Progress, Request, Topic, verify};
use postonce_schema::{Decoder, Kinds};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The run went well and found a difference.
const DIFFERENCE: u8 = 3;

const HELP: &str = "\
Reads every table once, in short snapshots, while consumers go on writing: balances,
postings and the positions computed anew from the stored facts must agree for each
account and each resource; every offset must be in exactly one batch with one outcome
that agrees with the rows; each batch must hash to what it recorded.

Offsets that retention had deleted before they were read, and that a person has accepted
as lost (`consume --accept-gap`), are listed with his name. They are no finding.

--since-last goes on from the last run without findings: only what is new is read, every
resource that has a new event, and every balance. Run it every hour, and the whole now
and then: what is edited in the old part only a whole run sees.

--deep reads the topic too: every message must be the event that stands at its offset,
every hole a hole, and the message chain must come to the hash recorded in each batch.
Only so is a history found out that somebody has rewritten with all its hashes. Where
retention has deleted the beginning, it starts at the first batch that the log still
holds, and says so. With --since-last it goes on from where the last --deep has come to.

--against reads the topic up to a file of `postonce checkpoint`, in the same way: the
messages before it must be those that were signed off, and the ledger must say the same
of each. It holds also after a restore. If the ledger stands exactly there, its books
must be the same too.

Findings are named by account, resource, event and offset. Of each check the first 100
are listed, the rest is counted. Each run is kept in `verifications`, if this role may
(postonce_operator may): --since-last goes on from there.

Exit code: 0 all is right, 3 something was found, 1 nothing can be said.

Examples:
  postonce verify
  postonce verify --since-last
  postonce verify --deep -b localhost:9092
  postonce verify --deep --since-last -b localhost:9092
  postonce verify --against 2026-01-31.json -b localhost:9092
  postonce verify -o json | jq '.checks[] | select(.findings > 0)'";

/// Prove the books from the tables, and from the topic too
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Only what came after the last verification without findings
    #[arg(long, env = "POSTONCE_SINCE_LAST")]
    pub since_last: bool,

    /// Read the topic again too; needs --brokers
    #[arg(long, env = "POSTONCE_DEEP")]
    pub deep: bool,

    /// Prove this checkpoint from the topic too; needs --brokers
    #[arg(long, env = "POSTONCE_AGAINST", value_name = "FILE")]
    pub against: Option<PathBuf>,

    /// Kafka bootstrap servers, for --deep and --against
    #[arg(long, short = 'b', env = "KAFKA_BROKERS", value_name = "HOST:PORT")]
    pub brokers: Option<String>,

    #[command(flatten)]
    pub topic: TopicArgs,

    #[command(flatten)]
    pub client: ClientArgs,

    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub rules: RulesArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    args::needs(!args.deep && args.against.is_none(), args.brokers.is_some(), "--deep and --against need --brokers");
    // What a consumer has accepted is no question any more.
    let decoder = Decoder { rules: args.rules.read()?, kinds: Kinds::All, max_ahead: Duration::MAX };
    let checkpoint = args.against.as_deref().map(read_checkpoint).transpose()?;
    let kafka = kafka(&args)?;
    let wanted = args.deep || checkpoint.is_some();
    let topic = |kafka| Topic { kafka, deep: args.deep, against: checkpoint.as_ref() };
    let request =
        Request { decoder: &decoder, since_last: args.since_last, topic: kafka.as_ref().filter(|_| wanted).map(topic) };
    let database = Database::new(&args.database.database_url, &args.database.schema)?;
    let bar = Bar::new();
    let report = reader::ask(&args.database, async |connection| {
        Ok(verify(connection, &database, &request, &|progress| bar.show(progress)).await?)
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

/// None without brokers.
fn kafka(args: &Args) -> anyhow::Result<Option<Kafka>> {
    let Some(brokers) = args.brokers.clone() else { return Ok(None) };
    let kafka = Kafka {
        brokers,
        topic: args.topic.name.clone(),
        // No group is joined.
        group: String::new(),
        protocol: GroupProtocol::Classic,
        properties: args.client.properties.clone(),
        unidentified_topic: false,
    };
    kafka.check()?;
    Ok(Some(kafka))
}

fn read_checkpoint(path: &Path) -> anyhow::Result<Checkpoint> {
    let told = || format!("--against {}", path.display());
    let text = std::fs::read_to_string(path).with_context(told)?;
    Checkpoint::parse(&text).with_context(told)
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
            Progress::Offsets(done, all) => self.of("offsets", done, all),
            Progress::Topic(done, all) => self.of("topic", done, all),
        }
    }

    fn of(&self, what: &'static str, done: u64, all: u64) {
        if self.0.message() != what {
            let template = "{msg} {wide_bar} {human_pos} of {human_len}, {per_sec}, {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                self.0.set_style(style);
            }
            self.0.reset();
            self.0.set_message(what);
            self.0.set_length(all);
        }
        self.0.set_position(done);
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
            table::or_dash(stream.topic_from),
            table::or_dash(stream.topic_to),
        ]
    });
    out.push('\n');
    let headings = ["STREAM", ">FROM", ">VERIFIED UP TO", ">BATCHES", ">TOPIC READ FROM", ">TO"];
    out.push_str(&table::columns(&headings, streams));
    for stream in &report.streams {
        if let Some(why) = &stream.topic_not_read {
            let (topic, why) = (table::visible(&stream.topic), table::visible(why));
            let _ = writeln!(out, "{topic}/{} was not read again: {why}", stream.partition);
        }
    }
    if let Some(against) = &report.against {
        push_against(&mut out, against);
    }
    push_gaps(&mut out, &report.gaps);
    for checked in report.checks.iter().filter(|checked| checked.findings > 0) {
        push_findings(&mut out, checked);
    }
    push_summary(&mut out, report);
    out
}

fn push_gaps(out: &mut String, gaps: &[Gap]) {
    for (place, gap) in gaps.iter().enumerate() {
        let (topic, last) = (table::visible(&gap.topic), gap.next_offset.saturating_sub(1));
        let before = if place == 0 { "\n" } else { "" };
        // Writing to a string does not fail.
        let _ = write!(out, "{before}{topic}/{}: offsets {} to {last} were lost", gap.partition, gap.from_offset);
        out.push_str(" to retention before they were read");
        let _ = match (&gap.accepted_by, gap.accepted_at) {
            (Some(person), Some(at)) => writeln!(out, "; {} has accepted it, {at}", table::visible(person)),
            _ => writeln!(out),
        };
    }
}

fn push_against(out: &mut String, against: &Against) {
    let _ = writeln!(out, "\nCheckpoint of {}:", table::visible(&against.taken_at));
    for proved in &against.streams {
        let what = match (&proved.not_read, proved.read_from) {
            (Some(why), _) => format!("not read again: {}", table::visible(why)),
            (None, from) => format!("read again from offset {} to {}", table::or_dash(from), proved.next_offset),
        };
        let _ = writeln!(out, "  {}/{} {what}", table::visible(&proved.topic), proved.partition);
    }
    out.push_str(match against.books_compared {
        true => "  the ledger stands exactly there: its books were compared too\n",
        false => "  the ledger stands elsewhere by now: its books were not compared\n",
    });
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
    if let Some(since) = report.since {
        let _ = writeln!(out, "\nOnly what came after the verification of {since}.");
    }
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
