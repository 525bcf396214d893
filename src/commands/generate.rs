//! `postonce generate`: a workload, as JSONL or straight to the topic.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use jiff::Timestamp;
use postonce_producer::generate::{Generated, Generator, Pace, Steady, Summary, Workload};
use postonce_producer::{Config, Producer, send_all};

use super::interrupt;
use super::send::{Counts, connect, progress_bar, table, write_result};
use crate::args::{self, ClientArgs, Output, OutputArgs, TopicArgs};

/// The ledger refuses events more than this ahead of Kafka's clock.
const MAX_AHEAD: Duration = Duration::from_secs(24 * 3600);

const HELP: &str = "\
Payments in all their states, and the refunds, disputes, fees, payouts, top-ups,
transfers, settlements and conversions around them: thousands of merchants, some
far busier than others, ten currencies. The same options give the same bytes.

The fractions are of all messages, from 0 to 1:
  --duplicates  an earlier event again, byte for byte or in other words
  --disorder    an event that comes up to 400 places late
  --poison      a message that the ledger must refuse, of every class
  --conflicts   the type, resource and time of an earlier event, another amount
unique + duplicates + conflicts + poison = events. The summary goes to standard
output, or to standard error if the events go there.

A line of JSONL cannot hold every poison: messages that are no JSON object, not
UTF-8, empty, null or without a resource come with --send only. Lines in which a
member stands twice cannot be sent as CloudEvents; send them plain.

Exit codes: 0 done, with --send all confirmed; 1 an error; 2 wrong usage; 130 or
143 stopped by SIGINT or SIGTERM (0 with --forever).

Examples:
  postonce generate --events 1000 > events.jsonl
  postonce generate --events 300000 --duplicates 0.1 --disorder 0.2 --poison 0.01 \\
      --conflicts 0.001 --send -b localhost:9092
  postonce generate --forever --rate 200 --duplicates 0.1 --poison 0.001 --send -b localhost:9092";

/// Generate a realistic workload: the same seed, the same bytes
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Messages in all
    #[arg(long, short = 'n', env = "POSTONCE_GENERATE_EVENTS", default_value_t = 1_000, value_name = "N")]
    pub events: u64,

    /// Where chance begins
    #[arg(long, env = "POSTONCE_GENERATE_SEED", default_value_t = 1)]
    pub seed: u64,

    /// The fraction of repeated events
    #[arg(long, env = "POSTONCE_GENERATE_DUPLICATES", default_value_t = 0.0, value_name = "FRACTION")]
    pub duplicates: f64,

    /// The fraction of late events
    #[arg(long, env = "POSTONCE_GENERATE_DISORDER", default_value_t = 0.0, value_name = "FRACTION")]
    pub disorder: f64,

    /// The fraction of messages that must be refused
    #[arg(long, env = "POSTONCE_GENERATE_POISON", default_value_t = 0.0, value_name = "FRACTION")]
    pub poison: f64,

    /// The fraction of contradictions
    #[arg(long, env = "POSTONCE_GENERATE_CONFLICTS", default_value_t = 0.0, value_name = "FRACTION")]
    pub conflicts: f64,

    /// The time before the first event, RFC 3339; they follow 0.2 s apart on average
    #[arg(long, env = "POSTONCE_GENERATE_START", default_value = "2024-01-01T00:00:00Z", value_name = "TIME")]
    pub start: Timestamp,

    /// Write JSONL to this file instead of standard output
    #[arg(long, env = "POSTONCE_GENERATE_OUT", value_name = "FILE", conflicts_with = "send")]
    pub out: Option<PathBuf>,

    /// Send to the topic instead of writing JSONL; needs --brokers
    #[arg(long, env = "POSTONCE_GENERATE_SEND")]
    pub send: bool,

    /// So many messages a second at most; by default as many as go
    #[arg(long, env = "POSTONCE_GENERATE_RATE", value_name = "PER_SECOND")]
    pub rate: Option<NonZeroU32>,

    /// One workload after the other until SIGINT or SIGTERM, each with the next seed, its
    /// events of the last half hour; --events and --start say nothing then
    #[arg(long, env = "POSTONCE_GENERATE_FOREVER")]
    pub forever: bool,

    /// Kafka bootstrap servers, `host:port[,host:port…]`
    #[arg(long, short = 'b', env = "KAFKA_BROKERS", value_name = "HOST:PORT")]
    pub brokers: Option<String>,

    #[command(flatten)]
    pub topic: TopicArgs,

    #[command(flatten)]
    pub client: ClientArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    args::needs(!args.send, args.brokers.is_some(), "--send needs --brokers");
    args::needs(args.rate.is_none() && !args.forever, args.send, "--rate and --forever need --send");
    if args.forever {
        let mut steady = Steady::new(fractions(&args))?;
        return send(&args, None, &mut steady, Steady::summary);
    }
    let mut generator = Generator::new(workload(&args)?)?;
    if args.send {
        return send(&args, Some(args.events), &mut generator, |generator| generator.summary().clone());
    }
    write(&args, generator)
}

fn fractions(args: &Args) -> Workload {
    Workload {
        duplicates: args.duplicates,
        disorder: args.disorder,
        poison: args.poison,
        conflicts: args.conflicts,
        lines_only: !args.send,
        start: args.start,
        ..Workload::new(args.events, args.seed)
    }
}

fn workload(args: &Args) -> anyhow::Result<Workload> {
    let workload = fractions(args);
    let limit = Timestamp::now().checked_add(MAX_AHEAD).context("the clock is wrong")?;
    if let Some(latest) = workload.latest() {
        anyhow::ensure!(
            latest <= limit,
            "the last events might lie at {latest:.0}, and the ledger refuses what is more than 24 h ahead; \
             choose an earlier --start"
        );
    }
    Ok(workload)
}

fn write(args: &Args, mut generator: Generator) -> anyhow::Result<ExitCode> {
    let written = match &args.out {
        Some(path) => {
            let file = File::create(path).with_context(|| format!("cannot create {}", path.display()))?;
            write_lines(&mut generator, file)
        }
        None => write_lines(&mut generator, io::stdout().lock()),
    };
    match written {
        Ok(()) => {}
        // `| head` has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        Err(error) => {
            let path = args.out.as_deref().unwrap_or(Path::new("standard output"));
            return Err(error).with_context(|| format!("cannot write {}", path.display()));
        }
    }
    let summary = text(generator.summary(), None, args.output.output);
    if args.out.is_some() {
        write_result(&summary)?;
    } else {
        eprintln!("{summary}");
    }
    Ok(ExitCode::SUCCESS)
}

fn write_lines(generator: &mut Generator, target: impl Write) -> io::Result<()> {
    let mut target = BufWriter::with_capacity(1 << 17, target);
    for message in generator {
        // Never a null value: the workload is for lines only.
        target.write_all(&message.value.unwrap_or_default())?;
        target.write_all(b"\n")?;
    }
    target.flush()
}

/// Sends what `source` gives, until it ends or a signal comes.
fn send<S: Iterator<Item = Generated>>(
    args: &Args,
    all: Option<u64>,
    source: &mut S,
    summary: impl Fn(&S) -> Summary,
) -> anyhow::Result<ExitCode> {
    interrupt::watch().context("cannot watch for signals")?;
    let producer = producer(args)?;
    let bar = progress_bar(all, "{human_pos} of {human_len} events");
    let started = Instant::now();
    let mut pace = args.rate.map(Pace::new);
    // Not `take_while`: it would draw one event more than is sent.
    let events = std::iter::from_fn(|| {
        let stopped = || interrupt::signal().is_some();
        let wanted = pace.as_mut().map_or_else(|| !stopped(), |pace| pace.wait(stopped));
        wanted.then(|| source.next()).flatten()
    });
    let sent = send_all(&producer, events, |sent| bar.set_position(sent));
    bar.finish_and_clear();
    for failure in producer.take_failures() {
        tracing::error!("message {} (from 0) not delivered: {}", failure.tag, failure.reason);
    }
    let counts = Counts::of(&producer, started.elapsed());
    write_result(&text(&summary(source), Some(&counts), args.output.output))?;
    let Counts { sent: handed_over, delivered, failed, .. } = counts;
    sent.with_context(|| format!("sending stopped: {delivered} of {handed_over} events were confirmed"))?;
    anyhow::ensure!(failed == 0, "{failed} of {handed_over} events were not delivered");
    // To be stopped is how it ends that knows no end.
    let stopped = interrupt::signal().filter(|_| !args.forever);
    Ok(stopped.map_or(ExitCode::SUCCESS, interrupt::exit_code))
}

fn producer(args: &Args) -> anyhow::Result<Producer> {
    let brokers = args.brokers.as_ref().context("--send needs --brokers or KAFKA_BROKERS")?;
    let mut config = Config::new(brokers, &args.topic.name);
    config.properties.clone_from(&args.client.properties);
    connect(&config)
}

/// The summary, and what became of it if it was sent.
fn text(summary: &Summary, counts: Option<&Counts>, output: Output) -> String {
    let rejections = summary.rejections();
    if output == Output::Json {
        let mut json = serde_json::json!({
            "events": summary.events,
            "unique": summary.unique,
            "duplicates": summary.duplicates,
            "conflicts": summary.conflicts,
            "poison": summary.poison,
            "poison_by_code": rejections,
            "out_of_order": summary.out_of_order,
        });
        if let Some(counts) = counts {
            json["delivery"] = counts.json();
        }
        return json.to_string();
    }
    let mut rows = Vec::new();
    let mut row = |name: &str, value: u64| rows.push((name.to_owned(), value.to_string()));
    row("events", summary.events);
    row("  unique", summary.unique);
    row("  duplicates", summary.duplicates);
    row("  conflicts", summary.conflicts);
    row("  poison", summary.poison);
    for (code, count) in rejections {
        row(&format!("    {code}"), count);
    }
    row("out of order", summary.out_of_order);
    if let Some(counts) = counts {
        rows.extend(counts.rows().into_iter().filter(|(name, _)| name != "skipped"));
    }
    table(rows)
}

#[cfg(test)]
#[path = "generate_tests.rs"]
mod tests;
