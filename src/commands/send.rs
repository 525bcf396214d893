//! `postonce send`: JSONL to the topic.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use postonce_producer::{Config, Encoding, Envelope, Error, Message, Producer};

use super::interrupt;
use super::lines::{Line, Lines, MAX_LINE_BYTES};
use crate::args::{KafkaArgs, Output, OutputArgs};

/// A wrong address is named after so long.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// Longer than an event's own two minutes: each is settled by then.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(150);
/// After a signal somebody is waiting for the end.
const FLUSH_TIMEOUT_AFTER_SIGNAL: Duration = Duration::from_secs(20);

const HELP: &str = "\
Each line is one event, a JSON object with a \"resource\"; its Kafka key is the
resource (or the member \"partitionkey\"). Lines are sent as they are: whether an
event is valid, the consumer judges. Blank lines are passed over. An event that
is sent twice is posted once, so after a failure the whole file may be sent again.

Exit codes: 0 every event was confirmed by Kafka; 1 a line was malformed, an
event was not delivered, or another error; 2 wrong usage; 130 or 143 stopped by
SIGINT or SIGTERM, after what had been read was flushed.

Examples:
  postonce send events.jsonl -b localhost:9092
  zstd -dc events.jsonl.zst | postonce send --cloudevents binary
  postonce send events.jsonl -X security.protocol=SASL_SSL -X sasl.mechanism=SCRAM-SHA-512 \\
      -X sasl.username=app -X sasl.password=…";

/// Send events from a JSONL file or standard input to the topic
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// The events, one JSON object a line; `-` is standard input
    #[arg(env = "POSTONCE_SEND_FILE", default_value = "-")]
    pub file: PathBuf,

    #[command(flatten)]
    pub kafka: KafkaArgs,

    /// Send each event as a CloudEvent 1.0 instead of plain JSON
    #[arg(long, env = "POSTONCE_CLOUDEVENTS", value_enum, value_name = "MODE")]
    pub cloudevents: Option<CloudEvents>,

    /// Go on after a malformed line instead of stopping there
    #[arg(long, env = "POSTONCE_SKIP_BAD")]
    pub skip_bad: bool,

    /// Events under way at one time; at this number reading waits
    #[arg(long, env = "POSTONCE_MAX_IN_FLIGHT", default_value_t = 50_000, value_name = "EVENTS")]
    pub max_in_flight: usize,

    #[command(flatten)]
    pub output: OutputArgs,
}

/// The two ways of CloudEvents over Kafka.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloudEvents {
    /// One JSON object with the attributes and the data
    Structured,
    /// The attributes as `ce_` headers, the data as the value
    Binary,
}

/// Why reading ended.
enum Ended {
    Input,
    Malformed {
        line: usize,
        reason: String,
    },
    Signal(i32),
    /// Nothing more can be sent.
    Producer(Error),
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let mut lines = Lines::open(&args.file)?;
    interrupt::watch().context("cannot watch for signals")?;
    let config = Config { max_in_flight: args.max_in_flight, ..config(&args.kafka) };
    let producer = connect(&config)?;
    let bar = progress_bar(lines.length, "{bytes} of {total_bytes}");
    let started = Instant::now();
    let mut skipped = 0;
    let ended = send_lines(&mut lines, &producer, &args, &bar, &mut skipped)?;
    let timeout = match ended {
        Ended::Signal(_) => FLUSH_TIMEOUT_AFTER_SIGNAL,
        _ => FLUSH_TIMEOUT,
    };
    let flushed = producer.flush(timeout);
    bar.finish_and_clear();
    name_failures(&producer, &lines.name);
    let counts = Counts { skipped, ..Counts::of(&producer, started.elapsed()) };
    counts.print(args.output.output)?;

    let Counts { sent, delivered, failed, .. } = counts;
    match ended {
        Ended::Producer(error) => {
            Err(error).context(format!("sending stopped: {delivered} of {sent} events were confirmed"))
        }
        Ended::Malformed { line, reason } => anyhow::bail!(
            "{}:{line}: {reason} ({delivered} events before it were confirmed, nothing after it was sent; \
             --skip-bad passes over such lines)",
            lines.name
        ),
        _ if flushed.is_err() => {
            flushed.context(format!("{delivered} of {sent} events were confirmed"))?;
            Ok(ExitCode::FAILURE)
        }
        Ended::Input if failed > 0 => anyhow::bail!("{failed} of {sent} events were not delivered"),
        Ended::Input => Ok(ExitCode::SUCCESS),
        Ended::Signal(signal) => Ok(interrupt::exit_code(signal)),
    }
}

fn send_lines(
    lines: &mut Lines,
    producer: &Producer,
    args: &Args,
    bar: &ProgressBar,
    skipped: &mut u64,
) -> anyhow::Result<Ended> {
    let encoding = match args.cloudevents {
        None => Encoding::Plain,
        Some(CloudEvents::Structured) => Encoding::CloudEventsStructured,
        Some(CloudEvents::Binary) => Encoding::CloudEventsBinary,
    };
    loop {
        let position = lines.position;
        let (line, sent) = match lines.next() {
            Ok(Line::End) => return Ok(Ended::Input),
            Ok(Line::Interrupted) => return Ok(Ended::Signal(interrupt::signal().unwrap_or(libc::SIGINT))),
            Ok(Line::TooLong(line)) => (line, Err(format!("longer than {MAX_LINE_BYTES} bytes"))),
            Ok(Line::Text(line, text)) => match send_line(producer, text, line, encoding) {
                Ok(sent) => (line, sent),
                Err(error) => return Ok(Ended::Producer(error)),
            },
            Err(error) => {
                // What was read goes out all the same.
                let _ = producer.flush(FLUSH_TIMEOUT);
                let delivered = producer.report().delivered;
                return Err(error).context(format!("cannot read {} ({delivered} events were confirmed)", lines.name));
            }
        };
        match sent {
            Ok(()) => {}
            Err(reason) if args.skip_bad => {
                *skipped += 1;
                tracing::warn!("{}:{line}: {reason}; skipped", lines.name);
            }
            Err(reason) => return Ok(Ended::Malformed { line, reason }),
        }
        if line.is_multiple_of(1_024) {
            name_failures(producer, &lines.name);
            if let Some(signal) = interrupt::signal() {
                return Ok(Ended::Signal(signal));
            }
        }
        bar.inc(lines.position - position);
    }
}

/// The outer error ends the run, the inner one is this line's.
fn send_line(producer: &Producer, text: &[u8], line: usize, encoding: Encoding) -> Result<Result<(), String>, Error> {
    let envelope = match Envelope::parse(text) {
        Ok(envelope) => envelope,
        Err(malformed) => return Ok(Err(malformed.to_string())),
    };
    match envelope.encode(encoding) {
        Ok(encoded) => producer.send(Message::of(&encoded, line)).map(Ok),
        Err(malformed) => Ok(Err(malformed.to_string())),
    }
}

fn name_failures(producer: &Producer, name: &str) {
    for failure in producer.take_failures() {
        tracing::error!("{name}:{}: not delivered: {}", failure.tag, failure.reason);
    }
}

fn config(kafka: &KafkaArgs) -> Config {
    Config { properties: kafka.client.properties.clone(), ..Config::new(&kafka.brokers, &kafka.topic.name) }
}

/// A producer that has reached its cluster.
pub(super) fn connect(config: &Config) -> anyhow::Result<Producer> {
    let producer = Producer::new(config)?;
    producer.check(CONNECT_TIMEOUT)?;
    Ok(producer)
}

/// On standard error, and only if that is a terminal.
pub(super) fn progress_bar(length: Option<u64>, counter: &str) -> ProgressBar {
    let Some(length) = length else {
        return ProgressBar::no_length();
    };
    let bar = ProgressBar::new(length);
    match ProgressStyle::with_template(&format!("{{wide_bar}} {counter}, {{eta}} left")) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// What became of the events, and how fast.
pub(super) struct Counts {
    pub(super) sent: u64,
    pub(super) delivered: u64,
    pub(super) failed: u64,
    pub(super) skipped: u64,
    elapsed: Duration,
}

impl Counts {
    pub(super) fn of(producer: &Producer, elapsed: Duration) -> Self {
        let report = producer.report();
        Self { sent: report.sent, delivered: report.delivered, failed: report.failed, skipped: 0, elapsed }
    }

    fn per_second(&self) -> u128 {
        u128::from(self.delivered) * 1_000_000 / self.elapsed.as_micros().max(1)
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::json!({
            "sent": self.sent,
            "delivered": self.delivered,
            "failed": self.failed,
            "skipped": self.skipped,
            "seconds": self.elapsed.as_secs_f64(),
            "events_per_second": u64::try_from(self.per_second()).unwrap_or(u64::MAX),
        })
    }

    pub(super) fn rows(&self) -> Vec<(String, String)> {
        let row = |name: &str, value: String| (name.to_owned(), value);
        vec![
            row("sent", self.sent.to_string()),
            row("delivered", self.delivered.to_string()),
            row("failed", self.failed.to_string()),
            row("skipped", self.skipped.to_string()),
            row("seconds", format!("{:.1}", self.elapsed.as_secs_f64())),
            row("events/s", self.per_second().to_string()),
        ]
    }

    fn print(&self, output: Output) -> anyhow::Result<()> {
        match output {
            Output::Json => write_result(&self.json().to_string()),
            Output::Table => write_result(&table(self.rows())),
        }
    }
}

/// Names on the left, numbers on the right.
pub(super) fn table(rows: Vec<(String, String)>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    for (name, value) in rows {
        table.add_row([name, value]);
    }
    if let Some(numbers) = table.column_mut(1) {
        numbers.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// A reader that has gone away is no error of ours.
pub(super) fn write_result(text: &str) -> anyhow::Result<()> {
    use std::io::Write;
    match writeln!(std::io::stdout(), "{text}") {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error).context("cannot write the result"),
        _ => Ok(()),
    }
}

#[cfg(test)]
#[path = "send_tests.rs"]
mod tests;
