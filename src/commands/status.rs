//! `postonce status`: how far the ledger is and what is open.

use crate::args::{ClientArgs, DatabaseArgs, Output, OutputArgs};
use crate::{reader, table};
use anyhow::Context;
use postonce_consumer::heard;
use postonce_consumer::read::counts::Counts;
use postonce_consumer::read::status::{Status, Stream, status};
use rdkafka::config::ClientConfig;
use rdkafka::consumer::Consumer;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;
use std::process::ExitCode;
use std::time::Duration;

/// For one answer of Kafka.
const KAFKA_TIMEOUT: Duration = Duration::from_secs(5);

const HELP: &str = "\
Outcomes are counted from the byte that the ledger keeps for each offset. Lag is
messages up to the end of the log that have no outcome yet; it needs Kafka and is
\"-\" without --brokers. Lost are offsets that retention deleted before they were read
and that a person has accepted as lost (consume --accept-gap).

Owner: `alive` while the consumer's session that owns the stream is there, `gone`
after it, `none` before the first, `unknown` if this role may not see the sessions
of others (GRANT pg_read_all_stats).

Examples:
  postonce status
  postonce status -b localhost:9092 -o json | jq .outcomes";

/// Show streams, offsets, lag, outcomes and what is open
#[derive(clap::Args)]
#[command(after_long_help = HELP)]
pub struct Args {
    /// Kafka bootstrap servers, for the lag
    #[arg(long, short = 'b', env = "KAFKA_BROKERS", value_name = "HOST:PORT")]
    pub brokers: Option<String>,

    #[command(flatten)]
    pub client: ClientArgs,

    #[command(flatten)]
    pub database: DatabaseArgs,

    #[command(flatten)]
    pub output: OutputArgs,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let found = reader::ask(&args.database, async |connection| Ok(status(connection).await?))?;
    let lags = match &args.brokers {
        None => vec![None; found.streams.len()],
        Some(brokers) => lags(brokers, &args.client.properties, &found.streams),
    };
    table::print(&match args.output.output {
        Output::Json => as_json(&found, &lags)?,
        Output::Table => as_text(&found, &lags),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The lag of each stream. Kafka's silence is told and leaves the lag unknown: the
/// rest of the answer does not need Kafka.
fn lags(brokers: &str, properties: &[(String, String)], streams: &[Stream]) -> Vec<Option<i64>> {
    let mut lags = vec![None; streams.len()];
    if let Err(error) = fill_lags(&mut lags, brokers, properties, streams) {
        eprintln!("lag unknown: {error:#}");
    }
    lags
}

fn fill_lags(
    lags: &mut [Option<i64>],
    brokers: &str,
    properties: &[(String, String)],
    streams: &[Stream],
) -> anyhow::Result<()> {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", brokers);
    // The end of a log is its last stable offset: what follows cannot be read yet.
    config.set("isolation.level", "read_committed");
    properties.iter().for_each(|(key, value)| {
        config.set(key, value);
    });
    let kafka = heard::client(&config).context("no Kafka client")?;
    let cluster = kafka.client().fetch_cluster_id(KAFKA_TIMEOUT);
    let cluster = cluster.with_context(|| match heard::complaint(&kafka) {
        Some(complaint) => format!("no connection to Kafka: {complaint}"),
        None => "Kafka did not tell its cluster id".to_owned(),
    })?;
    for (stream, lag) in streams.iter().zip(lags) {
        // An older lineage, or another cluster's: its offsets mean nothing here.
        if !stream.newest_lineage || stream.cluster_id != cluster {
            continue;
        }
        match kafka.fetch_watermarks(&stream.topic, stream.partition, KAFKA_TIMEOUT) {
            Ok((_, end)) => *lag = Some((end - stream.next_offset).max(0)),
            Err(KafkaError::MetadataFetch(
                RDKafkaErrorCode::UnknownTopicOrPartition
                | RDKafkaErrorCode::UnknownPartition
                | RDKafkaErrorCode::UnknownTopic,
            )) => {}
            Err(error) => return Err(error).context(format!("{}/{}", stream.topic, stream.partition)),
        }
    }
    Ok(())
}

fn as_json(found: &Status, lags: &[Option<i64>]) -> anyhow::Result<String> {
    let mut report = serde_json::to_value(found)?;
    let streams = report["streams"].as_array_mut();
    for (stream, lag) in streams.into_iter().flatten().zip(lags) {
        stream["lag"] = serde_json::json!(lag);
    }
    table::json(&report)
}

fn as_text(found: &Status, lags: &[Option<i64>]) -> String {
    let streams = found.streams.iter().zip(lags).map(|(stream, lag)| {
        [
            name(stream),
            stream.first_offset.to_string(),
            stream.next_offset.to_string(),
            table::or_dash(*lag),
            stream.batches.to_string(),
            stream.epoch.to_string(),
            stream.owner.clone(),
            table::or_dash(stream.last_recorded_at),
        ]
    });
    let headings = ["STREAM", ">FIRST", ">NEXT", ">LAG", ">BATCHES", ">EPOCH", "OWNER", "LAST BATCH"];
    let mut text = table::columns(&headings, streams);

    let each = found.streams.iter().map(|stream| outcome_row(name(stream), &stream.outcomes));
    let total = std::iter::once(outcome_row("total".to_owned(), &found.outcomes));
    let headings = [
        "STREAM",
        ">POSTED",
        ">NOTED",
        ">DUPLICATE",
        ">SUPERSEDED",
        ">CONFLICT",
        ">REJECTED",
        ">MESSAGES",
        ">HOLES",
        ">LOST",
    ];
    text.push('\n');
    text.push_str(&table::columns(&headings, each.chain(total)));

    if !found.quarantine.is_empty() {
        let rows = found
            .quarantine
            .iter()
            .map(|open| [open.code.clone(), open.messages.to_string(), open.times_seen.to_string()]);
        text.push('\n');
        text.push_str(&table::columns(&["QUARANTINE", ">OPEN", ">TIMES SEEN"], rows));
    }
    if !found.incidents.is_empty() {
        let rows = found.incidents.iter().map(|open| [open.code.clone(), open.open.to_string()]);
        text.push('\n');
        text.push_str(&table::columns(&["INCIDENTS", ">OPEN"], rows));
    }
    let rules =
        found.rules.iter().map(|rules| [rules.version.to_string(), rules.valid_from.to_string(), rules.hash.clone()]);
    text.push('\n');
    text.push_str(&table::columns(&[">RULES", "FROM", "SHA-256"], rules));
    text
}

fn name(stream: &Stream) -> String {
    let which = match stream {
        Stream { replay: true, .. } => " (replay)",
        Stream { newest_lineage: true, .. } => "",
        _ => " (older lineage)",
    };
    format!("{}/{}{which}", table::visible(&stream.topic), stream.partition)
}

fn outcome_row(name: String, counts: &Counts) -> Vec<String> {
    let Counts { posted, noted, duplicate, superseded, conflict, rejected, holes, lost } = *counts;
    let numbers = [posted, noted, duplicate, superseded, conflict, rejected, counts.messages(), holes, lost];
    std::iter::once(name).chain(numbers.map(|number| number.to_string())).collect()
}
